//! A control group with a memory limit, for cells whose workload tests scarce memory. The kernel also counts the page
//! cache of the cell's reads and writes, and the files that it maps.

use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

/// A group for one cell. It is removed on drop, when its processes have ended.
#[derive(Debug)]
pub struct MemoryGroup {
    directory: PathBuf,
}

/// The limit files of the two versions of control groups: memory, and memory with swap.
const VERSIONS: [(&str, &str, Swap); 2] = [
    ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", Swap::Together),
    ("memory.max", "memory.swap.max", Swap::Alone),
];

/// What the swap limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Swap {
    Together,
    Alone,
}

impl MemoryGroup {
    /// Creates a group whose processes share `bytes` bytes of memory and get no swap.
    pub fn new(bytes: u64) -> Result<MemoryGroup> {
        let own = fs::read_to_string("/proc/self/cgroup").context("reading the control groups of this process")?;
        MemoryGroup::below(&parents(&own, Path::new("/sys/fs/cgroup")), bytes)
    }

    /// Creates the group in the first of these directories that allows it.
    fn below(parents: &[PathBuf], bytes: u64) -> Result<MemoryGroup> {
        let mut reason = "this process is in none that limits memory".to_string();
        for parent in parents {
            let directory = parent.join(format!("lab-cell-{}", std::process::id()));
            // Removes the group of a killed lab with this PID. A group in use cannot be removed.
            let _ = fs::remove_dir(&directory);
            if let Err(error) = fs::create_dir(&directory) {
                reason = format!("making {}: {error}", directory.display());
                continue;
            }
            let group = MemoryGroup { directory };
            match group.limit(bytes).and_then(|()| group.try_out()) {
                Ok(()) => return Ok(group),
                Err(error) => reason = format!("{error:#}"),
            }
        }
        bail!("needs a control group of its own, to limit its memory: {reason}")
    }

    fn limit(&self, bytes: u64) -> Result<()> {
        let version = VERSIONS.iter().find(|(limit, ..)| self.directory.join(limit).exists());
        let Some((limit, swap_limit, swap)) = version else {
            bail!("{} has no limit of memory", self.directory.display());
        };
        let write = |name: &str, bytes: u64| {
            let file = self.directory.join(name);
            fs::write(&file, bytes.to_string()).with_context(|| format!("writing {}", file.display()))
        };
        write(limit, bytes)?;
        if self.directory.join(swap_limit).exists() {
            write(swap_limit, if *swap == Swap::Together { bytes } else { 0 })?;
        }
        Ok(())
    }

    /// Checks that processes can enter the group, which needs another permission than creating it.
    fn try_out(&self) -> Result<()> {
        let mut command = Command::new("true");
        self.take(&mut command)?;
        let status = command.status().context("entering a control group");
        status.map(drop)
    }

    /// Puts the process that this command will start into the group from its beginning.
    pub fn take(&self, command: &mut Command) -> Result<()> {
        let processes = CString::new(self.directory.join("cgroup.procs").as_os_str().as_bytes())?;
        let enter = move || {
            // SAFETY: the path is a string with its end; the call takes nothing else.
            let file = unsafe { libc::open(processes.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC) };
            if file < 0 {
                return Err(std::io::Error::last_os_error());
            }
            // SAFETY: one byte of a constant is written. "0" is the process that writes it.
            let written = unsafe { libc::write(file, b"0".as_ptr().cast(), 1) };
            let error = std::io::Error::last_os_error();
            // SAFETY: the descriptor is ours.
            unsafe { libc::close(file) };
            if written == 1 { Ok(()) } else { Err(error) }
        };
        // SAFETY: between fork and exec it only makes system calls, on memory that was made before.
        unsafe { command.pre_exec(enter) };
        Ok(())
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // A group that remains is empty and does no harm.
        let _ = fs::remove_dir(&self.directory);
    }
}

/// Returns directories that may allow a group, the likeliest first: below the own group, or beside it. The second place
/// exists because version 2 gives no memory to groups below a group that itself has processes.
fn parents(groups: &str, root: &Path) -> Vec<PathBuf> {
    let mut parents = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let mounted = match controllers {
            "" => root.to_path_buf(),
            controllers if controllers.split(',').any(|one| one == "memory") => root.join("memory"),
            _ => continue,
        };
        let own = mounted.join(path.trim_start_matches('/'));
        let beside = own
            .parent()
            .filter(|parent| parent.starts_with(&mounted))
            .map(Path::to_path_buf);
        parents.push(own);
        parents.extend(beside);
    }
    // Where both versions exist, the first one controls memory.
    parents.sort_by_key(|parent| !parent.starts_with(root.join("memory")));
    parents
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn groups_are_made_below_the_own_one_or_beside_it() {
        let root = Path::new("/r");
        let both = parents("4:memory:/a/b\n3:cpu:/c\n0::/d\n", root);
        let expected = ["/r/memory/a/b", "/r/memory/a", "/r/d", "/r"].map(PathBuf::from);
        assert_eq!(both, expected);
        assert_eq!(parents("0::/\n", root), [PathBuf::from("/r/")]);
        assert!(parents("3:cpu:/c\nnonsense\n", root).is_empty());
    }

    #[test]
    fn where_no_group_can_be_made_the_reason_is_said() -> Result<()> {
        let scratch = Scratch::new(&std::env::temp_dir())?;
        let error = MemoryGroup::below(&[], 1 << 30)
            .expect_err("there is no place")
            .to_string();
        assert!(error.contains("in none that limits memory"), "{error}");
        // A plain directory is not a control group, and the attempt leaves nothing in it.
        let error = MemoryGroup::below(&[scratch.path().to_path_buf()], 1 << 30).expect_err("no group");
        assert!(error.to_string().contains("has no limit of memory"), "{error}");
        assert_eq!(fs::read_dir(scratch.path())?.count(), 0);
        Ok(())
    }

    #[test]
    fn process_in_a_group_has_no_more_memory_than_that() -> Result<()> {
        let Ok(group) = MemoryGroup::new(32 << 20) else {
            eprintln!("n/a: no control group can be made here");
            return Ok(());
        };
        let run = |bytes: usize| -> Result<bool> {
            let mut command = Command::new("head");
            command.args(["--bytes", &bytes.to_string(), "/dev/zero"]);
            let mut tail = Command::new("tail");
            // `tail` keeps the last line, which is the whole input.
            tail.arg("--lines=1").stdout(Stdio::null());
            group.take(&mut tail)?;
            let mut head = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
            tail.stdin(head.stdout.take().context("a pipe")?);
            let status = tail.status()?;
            // The command object holds the read end of the pipe, and `head` would block on it.
            drop(tail);
            head.wait()?;
            Ok(status.success())
        };
        assert!(run(1 << 20)?, "that little fits");
        assert!(!run(128 << 20)?, "that much does not");
        Ok(())
    }
}
