//! Connections of all kinds behind one type.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use std::{fmt, io};

use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

/// Counts a connection as long as it lives.
pub(crate) type Permit = tokio::sync::OwnedSemaphorePermit;

/// A connection that was accepted.
pub(crate) struct Connection {
    stream: Stream,
    peer: Peer,
    _permit: Permit,
}

/// Where a connection comes from. It is known to each call of the connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Peer {
    Tcp(SocketAddr),
    Unix,
    #[default]
    Unknown,
}

impl fmt::Display for Peer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Tcp(address) => address.fmt(formatter),
            Peer::Unix => formatter.write_str("unix"),
            Peer::Unknown => formatter.write_str("unknown"),
        }
    }
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
    async fn register(self) -> io::Result<Connection> {
        let of_tcp = |stream: &std::net::TcpStream| stream.peer_addr().map_or(Peer::Unknown, Peer::Tcp);
        let (stream, peer, permit) = match self {
            Accepted::Tcp(stream, permit) => {
                let peer = of_tcp(&stream);
                (Stream::Tcp(TcpStream::from_std(stream)?), peer, permit)
            }
            Accepted::Tls(stream, config, permit) => {
                let peer = of_tcp(&stream);
                let handshake = TlsAcceptor::from(config).accept(TcpStream::from_std(stream)?);
                let stream = tokio::time::timeout(HANDSHAKE, handshake).await??;
                (Stream::Tls(Box::new(stream)), peer, permit)
            }
            Accepted::Unix(stream, permit) => (Stream::Unix(UnixStream::from_std(stream)?), Peer::Unix, permit),
        };
        Ok(Connection {
            stream,
            peer,
            _permit: permit,
        })
    }
}

/// Registers connections as they come. Each has a task of its own, so a slow handshake holds up no other connection. A
/// connection whose handshake fails is closed.
pub(crate) async fn register_all(mut accepted: mpsc::Receiver<Accepted>, ready: mpsc::Sender<io::Result<Connection>>) {
    while let Some(accepted) = accepted.recv().await {
        let ready = ready.clone();
        tokio::spawn(async move {
            if let Ok(connection) = accepted.register().await {
                let _ = ready.send(Ok(connection)).await;
            }
        });
    }
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer
    }
}

impl AsyncRead for Connection {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_read(context, buffer),
            Stream::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
            Stream::Unix(stream) => Pin::new(stream).poll_read(context, buffer),
        }
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
