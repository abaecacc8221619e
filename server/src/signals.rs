//! The end of the process, as the operating system asks for it, and word to systemd.

use std::env;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use tokio::signal::unix::{SignalKind, signal};

/// Waits for SIGTERM or SIGINT. A second one ends the process at once.
///
/// # Errors
/// When the process cannot listen to signals.
pub fn wait_for_end() -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (mut terminate, mut interrupt) = {
        let _entered = runtime.enter();
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?)
    };
    let mut asked = async move || {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    runtime.block_on(asked());
    std::thread::spawn(move || {
        runtime.block_on(asked());
        std::process::exit(130);
    });
    Ok(())
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
