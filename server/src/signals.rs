//! The end of the process, as the operating system asks for it, and word to systemd.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::{env, io, process, thread};

use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Listens to SIGTERM and SIGINT, from the moment it is made: a program makes it before it says that it is ready.
pub struct Signals {
    runtime: Runtime,
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Begins to listen.
    ///
    /// # Errors
    /// When the process cannot listen to signals.
    pub fn listen() -> io::Result<Signals> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (terminate, interrupt) = {
            let _entered = runtime.enter();
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?)
        };
        Ok(Signals {
            runtime,
            terminate,
            interrupt,
        })
    }

    /// Waits for a signal, or for `other`. The next signal ends the process at once.
    pub fn wait_for_end_or(mut self, other: impl Future<Output = ()>) {
        self.runtime.block_on(async {
            tokio::select! {
                () = signalled(&mut self.terminate, &mut self.interrupt) => {}
                () = other => {}
            }
        });
        thread::spawn(move || {
            self.runtime
                .block_on(signalled(&mut self.terminate, &mut self.interrupt));
            process::exit(130);
        });
    }
}

async fn signalled(terminate: &mut Signal, interrupt: &mut Signal) {
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

/// Tells systemd how the service does (`READY=1`, `STOPPING=1`). Elsewhere it does nothing.
pub fn notify(state: &str) {
    let Some(path) = env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    let Ok(socket) = UnixDatagram::unbound() else { return };
    let bytes = path.as_encoded_bytes();
    // A name that begins with @ is in the abstract space of Linux.
    let address = match bytes.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&path),
    };
    // A manager that does not listen is no reason to stop.
    if let Ok(address) = address {
        let _ = socket.send_to_addr(state.as_bytes(), &address);
    }
}
