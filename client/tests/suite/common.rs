//! A server in a directory of its own, and a proxy that loses answers.

use std::future::Future;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use duramen_client::Client;
use duramen_server::{Config, Running, start};

/// A server of this process on an address; port 0: the system chooses the port.
pub fn serve_on(directory: &Path, address: &str, settings: &[(&str, &str)]) -> Running {
    let mut flags = vec![
        ("data_dir", directory.join("store").display().to_string()),
        ("listen", address.to_string()),
        ("threads", "2".to_string()),
    ];
    flags.extend(settings.iter().map(|(name, value)| (*name, value.to_string())));
    start(&Config::collect(&flags, None).unwrap()).unwrap()
}

pub fn serve(directory: &Path) -> Running {
    serve_on(directory, "127.0.0.1:0", &[])
}

/// Runs a client.
pub fn run<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.unwrap().block_on(work)
}

pub fn address(server: &Running) -> String {
    format!("http://{}", server.listening().tcp.unwrap())
}

pub fn client(server: &Running) -> Client {
    Client::connect(&address(server)).unwrap()
}

/// Passes connections on to a server. While it loses answers, it passes requests on and drops what the server sends.
pub struct Proxy {
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    loses_answers: AtomicBool,
    /// Bytes of a request from which on answers get lost; empty: none.
    loses_from: Mutex<Vec<u8>>,
    sockets: Mutex<Vec<TcpStream>>,
}

impl Proxy {
    pub fn before(server: SocketAddr) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::<Shared>::default();
        let of_thread = shared.clone();
        thread::spawn(move || {
            for near in listener.incoming() {
                // A server that is down refuses, and the proxy ends the connection.
                let (Ok(near), Ok(far)) = (near, TcpStream::connect(server)) else {
                    continue;
                };
                let mut sockets = of_thread.sockets.lock().unwrap();
                sockets.extend([near.try_clone().unwrap(), far.try_clone().unwrap()]);
                drop(sockets);
                let (near_reader, far_reader) = (near.try_clone().unwrap(), far.try_clone().unwrap());
                let of_requests = of_thread.clone();
                thread::spawn(move || {
                    pass(near_reader, far, |request| {
                        let mut from = of_requests.loses_from.lock().unwrap();
                        if !from.is_empty() && request.windows(from.len()).any(|part| part == &from[..]) {
                            from.clear();
                            of_requests.loses_answers.store(true, Ordering::SeqCst);
                        }
                        true
                    });
                });
                let of_answers = of_thread.clone();
                thread::spawn(move || {
                    pass(far_reader, near, |_| !of_answers.loses_answers.load(Ordering::SeqCst));
                });
            }
        });
        Proxy { address, shared }
    }

    pub fn lose_answers(&self) {
        self.shared.loses_answers.store(true, Ordering::SeqCst);
    }

    /// Loses answers from the next request on that has these bytes.
    pub fn lose_answers_from(&self, request: &[u8]) {
        *self.shared.loses_from.lock().unwrap() = request.to_vec();
    }

    pub fn is_losing(&self) -> bool {
        self.shared.loses_answers.load(Ordering::SeqCst)
    }

    /// Ends all connections. Later ones lose nothing.
    pub fn cut(&self) {
        for socket in self.shared.sockets.lock().unwrap().drain(..) {
            let _ = socket.shutdown(Shutdown::Both);
        }
        self.shared.loses_answers.store(false, Ordering::SeqCst);
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, passes: impl Fn(&[u8]) -> bool) {
    let mut bytes = [0; 4_096];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        if passes(&bytes[..count]) && to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}
