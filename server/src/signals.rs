//! The end of the process, as the operating system asks for it, and word to systemd.

use std::env;
use std::os::unix::net::UnixDatagram;

use tokio::signal::unix::{SignalKind, signal};

/// Waits for SIGTERM or SIGINT. A second one ends the process at once.
///
/// # Errors
/// When the process cannot listen to signals.
pub fn wait_for_end() -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        Ok::<_, std::io::Error>(())
    })?;
    std::thread::spawn(move || {
        runtime.block_on(async {
            let (Ok(mut terminate), Ok(mut interrupt)) =
                (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
            else {
                return;
            };
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            std::process::exit(130);
        });
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
    #[cfg(target_os = "linux")]
    if let Some(name) = bytes.strip_prefix(b"@") {
        use std::os::linux::net::SocketAddrExt;
        if let Ok(address) = std::os::unix::net::SocketAddr::from_abstract_name(name) {
            let _ = socket.send_to_addr(state.as_bytes(), &address);
        }
        return;
    }
    let _ = bytes;
    let _ = socket.send_to(state.as_bytes(), path);
}
