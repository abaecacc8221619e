//! Processes that must not outlive their parent. When a cell is killed, its children die with it, so that none
//! continues to write into a directory that is about to be removed.

use std::cell::RefCell;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

/// Makes the kernel kill the process when the thread that starts it ends, for any reason. The starting thread must
/// therefore live as long as the process is needed.
pub fn end_with_this_thread(command: &mut Command) {
    // SAFETY: between fork and exec only one system call is made, which allocates nothing and takes no lock.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        });
    }
}

thread_local! {
    /// Servers that this thread started for its broker.
    static MEASURED: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
}

/// Counts the work of a server as that of this process, in phases that this thread measures.
pub fn measure(process: u32) {
    MEASURED.with_borrow_mut(|measured| measured.push(process));
}

/// Ends the measurement of a server.
pub fn forget(process: u32) {
    MEASURED.with_borrow_mut(|measured| measured.retain(|one| *one != process));
}

/// Returns the servers that count as part of this process.
pub fn measured() -> Vec<u32> {
    MEASURED.with_borrow(Clone::clone)
}
