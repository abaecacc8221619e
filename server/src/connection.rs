//! Connections of both kinds behind one type.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tonic::transport::server::Connected;

/// Counts a connection as long as it lives.
pub(crate) type Permit = tokio::sync::OwnedSemaphorePermit;

/// A connection that was accepted.
pub(crate) struct Connection {
    stream: Stream,
    _permit: Permit,
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// An accepted connection on its way to the thread that serves it.
pub(crate) enum Accepted {
    Tcp(std::net::TcpStream, Permit),
    Unix(std::os::unix::net::UnixStream, Permit),
}

impl Accepted {
    /// Gives the connection to the runtime of the calling thread.
    pub(crate) fn register(self) -> io::Result<Connection> {
        let (stream, permit) = match self {
            Accepted::Tcp(stream, permit) => (Stream::Tcp(TcpStream::from_std(stream)?), permit),
            Accepted::Unix(stream, permit) => (Stream::Unix(UnixStream::from_std(stream)?), permit),
        };
        Ok(Connection {
            stream,
            _permit: permit,
        })
    }
}

impl Connected for Connection {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Connection {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_read(context, buffer),
            Stream::Unix(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_write(context, bytes),
            Stream::Unix(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_flush(context),
            Stream::Unix(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
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
            Stream::Unix(stream) => Pin::new(stream).poll_write_vectored(context, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }
}
