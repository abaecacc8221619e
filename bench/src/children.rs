//! Processes that must not outlive the one that started them: a cell that is killed takes them with it, so that nothing goes
//! on writing into a directory that is about to be removed.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

/// Has the kernel kill the process with the thread that starts it, however that ends. So it is to be started by a thread
/// that lives as long as the process is needed.
pub fn end_with_this_thread(command: &mut Command) {
    // SAFETY: between fork and exec only one system call is made, which allocates nothing and takes no lock.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        });
    }
}
