//! Connections of all kinds behind one type.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

use crate::security::{Address, Identity, Peer, name_of};
use crate::spinning::Spinner;

/// Counts a connection as long as it lives.
pub(crate) type Permit = tokio::sync::OwnedSemaphorePermit;

/// A connection that was accepted.
pub(crate) struct Connection {
    stream: Stream,
    peer: Peer,
    spinner: Arc<Spinner>,
    _permit: Permit,
}

enum Stream {
    Tcp(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
    Unix(UnixStream),
}

/// The longest handshake. A client that takes longer gives its place to others.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// An accepted connection on its way to the thread that serves it.
pub(crate) enum Accepted {
    Tcp(std::net::TcpStream, Permit),
    Tls(std::net::TcpStream, Arc<ServerConfig>, Permit),
    Unix(std::os::unix::net::UnixStream, Permit),
}

impl Accepted {
    /// Gives the connection to the runtime of the calling thread, and takes part in its handshake.
    async fn register(self, spinner: Arc<Spinner>) -> io::Result<Connection> {
        let of_tcp = |stream: &std::net::TcpStream| stream.peer_addr().map_or(Address::Unknown, Address::Tcp);
        let (stream, peer, permit) = match self {
            Accepted::Tcp(stream, permit) => {
                let peer = Peer::new(of_tcp(&stream), Identity::Unknown);
                (Stream::Tcp(TcpStream::from_std(stream)?), peer, permit)
            }
            Accepted::Tls(stream, config, permit) => {
                let peer = of_tcp(&stream);
                let handshake = TlsAcceptor::from(config).accept(TcpStream::from_std(stream)?);
                let stream = tokio::time::timeout(HANDSHAKE, handshake).await??;
                let peer = Peer::new(peer, identity_of(&stream));
                (Stream::Tls(Box::new(stream)), peer, permit)
            }
            Accepted::Unix(stream, permit) => {
                let stream = UnixStream::from_std(stream)?;
                let uid = stream.peer_cred()?.uid();
                let peer = Peer::new(Address::Unix, Identity::Process { uid });
                (Stream::Unix(stream), peer, permit)
            }
        };
        Ok(Connection {
            stream,
            peer,
            spinner,
            _permit: permit,
        })
    }
}

/// Who is at the other end of an encrypted connection. TLS has verified its certificate, when it has one.
fn identity_of(stream: &TlsStream<TcpStream>) -> Identity {
    let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
    match certificate.and_then(|certificate| name_of(certificate)) {
        Some(name) => Identity::Certificate(name.into()),
        None => Identity::Unknown,
    }
}

/// Registers connections as they come. Each has a task of its own, so a slow handshake holds up no other connection. A
/// connection whose handshake fails is closed.
pub(crate) async fn register_all(
    mut accepted: mpsc::Receiver<Accepted>,
    ready: mpsc::Sender<io::Result<Connection>>,
    spinner: Arc<Spinner>,
) {
    while let Some(accepted) = accepted.recv().await {
        let (ready, spinner) = (ready.clone(), spinner.clone());
        tokio::spawn(async move {
            if let Ok(connection) = accepted.register(spinner).await {
                let _ = ready.send(Ok(connection)).await;
            }
        });
    }
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let (this, before) = (self.get_mut(), buffer.filled().len());
        let polled = match &mut this.stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_read(context, buffer),
            Stream::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
            Stream::Unix(stream) => Pin::new(stream).poll_read(context, buffer),
        };
        if buffer.filled().len() > before {
            this.spinner.received();
        }
        polled
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_write(context, bytes),
            Stream::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
            Stream::Unix(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_flush(context),
            Stream::Tls(stream) => Pin::new(stream).poll_flush(context),
            Stream::Unix(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
            Stream::Tls(stream) => Pin::new(stream).poll_shutdown(context),
            Stream::Unix(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            Stream::Tls(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            Stream::Unix(stream) => Pin::new(stream).poll_write_vectored(context, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }
}
