//! The sockets that a server listens on: its own, or those that systemd made for it.

use std::fs;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use listenfd::ListenFd;

use crate::config::Config;
use crate::serve_error::ServeError;

/// The sockets of a server. They do not block.
#[derive(Default)]
pub(crate) struct Sockets {
    pub(crate) tcp: Vec<TcpListener>,
    pub(crate) unix: Vec<UnixListener>,
    /// For clients of etcd.
    pub(crate) etcd: Vec<TcpListener>,
    /// The unix socket that this process has made, and removes.
    pub(crate) made: Option<PathBuf>,
}

impl Sockets {
    /// Takes the sockets that systemd handed over (`LISTEN_FDS`), or else makes those of the settings.
    pub(crate) fn open(config: &Config) -> Result<Sockets, ServeError> {
        let etcd = config.etcd.listen.iter().map(|address| of_tcp(*address, &OF_ETCD));
        let etcd = etcd.collect::<Result<Vec<_>, _>>()?;
        let handed = Sockets::handed_over(&mut ListenFd::from_env())?;
        if !handed.tcp.is_empty() || !handed.unix.is_empty() {
            handed.check(config)?;
            return Ok(Sockets { etcd, ..handed });
        }
        let mut sockets = Sockets {
            etcd,
            ..Sockets::default()
        };
        if let Some(address) = config.listen {
            sockets.tcp.push(of_tcp(address, &OF_TCP)?);
        }
        if let Some(path) = &config.unix_socket {
            sockets.unix.push(of_path(path)?);
            sockets.made = Some(path.clone());
        }
        Ok(sockets)
    }

    fn handed_over(handed: &mut ListenFd) -> Result<Sockets, ServeError> {
        let mut sockets = Sockets::default();
        for place in 0..handed.len() {
            if let Ok(Some(listener)) = handed.take_tcp_listener(place) {
                listener
                    .set_nonblocking(true)
                    .map_err(|error| not_usable(place, error))?;
                sockets.tcp.push(listener);
                continue;
            }
            let listener = handed
                .take_unix_listener(place)
                .map_err(|error| not_usable(place, error))?;
            if let Some(listener) = listener {
                listener
                    .set_nonblocking(true)
                    .map_err(|error| not_usable(place, error))?;
                sockets.unix.push(listener);
            }
        }
        Ok(sockets)
    }

    /// What holds for the setting `listen` holds for sockets of systemd.
    fn check(&self, config: &Config) -> Result<(), ServeError> {
        for listener in &self.tcp {
            let address = listener.local_addr().map_err(|error| not_usable(0, error))?;
            if !address.ip().is_loopback() && config.tls.is_none() && !config.allow_remote_plaintext {
                return Err(ServeError::Listen {
                    place: address.to_string(),
                    error: ErrorKind::PermissionDenied.into(),
                    cure: "other machines reach it and nothing is encrypted: name 127.0.0.1 in the unit of the socket, set \
                           tls_cert and tls_key, or set allow_remote_plaintext to true where the network itself is protected",
                });
            }
        }
        Ok(())
    }
}

fn not_usable(place: usize, error: io::Error) -> ServeError {
    ServeError::Listen {
        place: format!("socket {place} that systemd handed over"),
        error,
        cure: "name stream sockets of TCP or of the file system in the unit of the socket",
    }
}

/// What to do about a port that another program has, and about an address that is not one of this machine.
type Cures = [&'static str; 2];

const OF_TCP: Cures = [
    "another program has this port; name another one with --listen",
    "name an address of this machine with --listen",
];
const OF_ETCD: Cures = [
    "another program has this port, perhaps etcd itself; name another one for its clients",
    "name an address of this machine for the clients of etcd",
];

fn of_tcp(address: SocketAddr, cures: &Cures) -> Result<TcpListener, ServeError> {
    let failed = |error: io::Error| ServeError::Listen {
        place: address.to_string(),
        cure: match error.kind() {
            ErrorKind::AddrInUse => cures[0],
            ErrorKind::PermissionDenied => "take a port above 1023",
            _ => cures[1],
        },
        error,
    };
    let listener = TcpListener::bind(address).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    Ok(listener)
}

fn of_path(path: &Path) -> Result<UnixListener, ServeError> {
    let failed = |error| ServeError::Listen {
        place: path.display().to_string(),
        error,
        cure: "name a path in a directory of this user with --unix-socket",
    };
    // A server that was killed leaves its socket. A server that runs answers.
    if path.exists() {
        match UnixStream::connect(path) {
            Ok(_) => {
                return Err(ServeError::Listen {
                    place: path.display().to_string(),
                    error: ErrorKind::AddrInUse.into(),
                    cure: "another server listens there; name another path with --unix-socket",
                });
            }
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => fs::remove_file(path).map_err(failed)?,
            Err(error) => return Err(failed(error)),
        }
    }
    let listener = UnixListener::bind(path).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o700)).map_err(failed)?;
    Ok(listener)
}
