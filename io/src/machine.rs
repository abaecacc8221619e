//! What the engine needs from the processor and the kernel apart from files: prefetching, comparing 64 bytes at once,
//! information about other processes, the memory limit, and whether a directory is on a network.
//!
//! The vector instructions used are part of the base architecture (SSE2 on x86-64, NEON on aarch64), so nothing is
//! detected at run time.

use std::io;
use std::path::{Path, PathBuf};

use rustix::process::Pid;

/// Asks the processor to load the cache line at `address`. Any address is allowed. There is no observable effect.
#[inline(always)]
pub fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults and changes nothing that a program can see, whatever the address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
}

/// Bit `i` of the result tells whether `bytes[i]` equals `byte`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
#[expect(clippy::multiple_unsafe_ops_per_block, reason = "SSE2 is all that the calls need")]
pub fn match_bytes(bytes: &[u8; 64], byte: u8) -> u64 {
    use std::arch::x86_64::{__m128i, _mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8, _mm_set1_epi8};
    let mut mask = 0;
    // SAFETY: SSE2 is part of x86-64; the four loads read 16 bytes each of the 64 and need no alignment.
    unsafe {
        let wanted = _mm_set1_epi8(byte as i8);
        let vectors = bytes.as_ptr().cast::<__m128i>();
        for index in 0..4 {
            let equal = _mm_cmpeq_epi8(_mm_loadu_si128(vectors.add(index)), wanted);
            mask |= u64::from(_mm_movemask_epi8(equal) as u32) << (16 * index);
        }
    }
    mask
}

/// Bit `i` of the result tells whether `bytes[i]` equals `byte`.
///
/// NEON has no instruction that collects one bit of each byte. So each equal byte keeps the bit of its place within
/// eight, and three rounds of adding neighbours leave one byte per eight.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
#[expect(clippy::multiple_unsafe_ops_per_block, reason = "NEON is all that the calls need")]
pub fn match_bytes(bytes: &[u8; 64], byte: u8) -> u64 {
    use std::arch::aarch64::{
        vandq_u8, vceqq_u8, vdupq_n_u8, vgetq_lane_u64, vld1q_u8, vpaddq_u8, vreinterpretq_u64_u8,
    };
    const PLACES: [u8; 16] = [1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128];
    // SAFETY: NEON is part of aarch64; the loads read 16 bytes each of the 64 and of the table.
    unsafe {
        let wanted = vdupq_n_u8(byte);
        let places = vld1q_u8(PLACES.as_ptr());
        let part = |index: usize| vandq_u8(vceqq_u8(vld1q_u8(bytes.as_ptr().add(16 * index)), wanted), places);
        let halves = (vpaddq_u8(part(0), part(1)), vpaddq_u8(part(2), part(3)));
        let quarters = vpaddq_u8(halves.0, halves.1);
        vgetq_lane_u64::<0>(vreinterpretq_u64_u8(vpaddq_u8(quarters, quarters)))
    }
}

/// The PID of this process.
pub fn process_id() -> u32 {
    std::process::id()
}

/// The command name of a process, if it exists and this process may see it.
pub fn process_name(process: u32) -> Option<String> {
    let name = std::fs::read(format!("/proc/{process}/comm")).ok()?;
    Some(String::from_utf8_lossy(&name).trim_end().to_owned())
}

/// Kills this process at once, as `kill -9` does: no destructor runs.
pub fn kill_this_process() -> ! {
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    std::process::abort()
}

/// Suspends this process until another process resumes it, as `kill -STOP` does.
pub fn stop_this_process() {
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::STOP);
    // Another thread may receive the signal; this thread runs on until the signal reaches it.
    std::thread::sleep(std::time::Duration::from_millis(100));
}

/// Whether a process still runs. A process that has ended but was not yet collected by its parent does not run. PIDs
/// are reused and differ between containers: use this for messages; only a kernel lock proves that a process is alive.
pub fn process_is_alive(process: u32) -> bool {
    match std::fs::read_to_string(format!("/proc/{process}/stat")) {
        Ok(stat) => !matches!(state_in(&stat), Some('Z' | 'X')),
        // Without a readable /proc, test with a signal, although the kernel counts uncollected processes as alive.
        Err(_) => answers_signals(process),
    }
}

/// What blocks the progress of a process, as far as other processes can see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hindrance {
    /// The whole process is suspended, by `kill -STOP` or a debugger.
    Stopped,
    /// A thread of the process sleeps in the kernel until a device answers.
    Device,
}

/// What blocks the progress of another process. `None`: nothing, or nothing visible. PIDs are reused and differ between
/// containers, so an answer may be about another process.
pub fn hindrance_of(process: u32) -> Option<Hindrance> {
    if process == process_id() {
        return None;
    }
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).ok()?;
    let state = |thread: std::io::Result<std::fs::DirEntry>| {
        let stat = std::fs::read_to_string(thread.ok()?.path().join("stat")).ok()?;
        state_in(&stat)
    };
    hindrance_in(threads.filter_map(state))
}

/// Combines the states of a process's threads.
fn hindrance_in(threads: impl Iterator<Item = char>) -> Option<Hindrance> {
    // The first thread may have ended before the others.
    let states: Vec<char> = threads.filter(|state| !matches!(state, 'Z' | 'X')).collect();
    if states.contains(&'D') {
        return Some(Hindrance::Device);
    }
    let are_stopped = !states.is_empty() && states.iter().all(|state| matches!(state, 'T' | 't'));
    are_stopped.then_some(Hindrance::Stopped)
}

/// The state letter in `/proc/<pid>/stat`. It follows the name in parentheses, which may contain parentheses too.
fn state_in(stat: &str) -> Option<char> {
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

fn answers_signals(process: u32) -> bool {
    let Some(process) = i32::try_from(process).ok().and_then(Pid::from_raw) else {
        return false;
    };
    matches!(
        rustix::process::test_kill_process(process),
        Ok(()) | Err(rustix::io::Errno::PERM)
    )
}

/// Bytes of memory that this process may use: the machine's, or less if its control group is limited.
pub fn memory_limit_bytes() -> u64 {
    let system = rustix::system::sysinfo();
    // The width of the fields differs between C libraries.
    #[allow(clippy::unnecessary_cast)]
    let physical = (system.totalram as u64).saturating_mul(u64::from(system.mem_unit));
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    group_limit(&groups, Path::new("/sys/fs/cgroup")).map_or(physical, |limit| limit.min(physical))
}

/// The smallest memory limit of the control groups in `groups` (the text of `/proc/self/cgroup`) and their parents. In
/// a container the path in that text may be the host's and not exist below `root`. The parents then still include the
/// root that the container sees.
fn group_limit(groups: &str, root: &Path) -> Option<u64> {
    let mut limits = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        if controllers.is_empty() {
            limits.extend(limits_upward(root, path, "memory.max"));
            limits.extend(limits_upward(&root.join("unified"), path, "memory.max"));
        } else if controllers.split(',').any(|controller| controller == "memory") {
            limits.extend(limits_upward(&root.join("memory"), path, "memory.limit_in_bytes"));
        }
    }
    limits.into_iter().min()
}

/// The numbers in `file` in the directory of group `path` and in its parents up to `root`.
fn limits_upward(root: &Path, path: &str, file: &str) -> Vec<u64> {
    let mut directory: PathBuf = root.join(path.trim_start_matches('/'));
    let mut limits = Vec::new();
    while directory.starts_with(root) {
        let text = std::fs::read_to_string(directory.join(file)).unwrap_or_default();
        limits.extend(text.trim().parse::<u64>());
        if !directory.pop() {
            break;
        }
    }
    limits
}

/// Magic numbers of file systems whose mappings, locks or syncs are not those of a local disk, with their names.
const NETWORK_FILESYSTEMS: [(u32, &str); 17] = [
    (0x6969, "NFS"),
    (0x517b, "SMB"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB2"),
    (0x6573_5546, "FUSE"),
    (0x0102_1997, "9p"),
    (0x00c3_6400, "Ceph"),
    (0x5346_414f, "AFS"),
    (0x6b41_4653, "kAFS"),
    (0x7375_7245, "Coda"),
    (0x564c, "NCP"),
    (0x0116_1970, "GFS2"),
    (0x7461_636f, "OCFS2"),
    (0x0bd0_0bd0, "Lustre"),
    (0x4750_4653, "GPFS"),
    (0x1983_0326, "BeeGFS"),
    (0x786f_4256, "VirtualBox shared folder"),
];

/// The kind of network (or user-space) file system that `path` is on. `None`: it looks local.
pub fn is_network_filesystem(path: &Path) -> io::Result<Option<String>> {
    let kind = rustix::io::retry_on_intr(|| rustix::fs::statfs(path))?.f_type;
    // The field is signed and wider on some targets; the magic numbers have 32 bits.
    Ok(network_name(kind as u32).map(str::to_owned))
}

fn network_name(magic: u32) -> Option<&'static str> {
    NETWORK_FILESYSTEMS
        .iter()
        .find(|(known, _)| *known == magic)
        .map(|(_, name)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn match_bytes_plainly(bytes: &[u8; 64], byte: u8) -> u64 {
        let equal = |index: &usize| bytes[*index] == byte;
        (0..64).filter(equal).fold(0, |mask, index| mask | 1 << index)
    }

    #[test]
    fn match_bytes_finds_what_a_plain_loop_finds() {
        let mut random = fastrand::Rng::with_seed(7);
        for round in 0..10_000 {
            let highest = if round % 2 == 0 { 255 } else { 3 };
            let bytes: [u8; 64] = std::array::from_fn(|_| random.u8(..=highest));
            for byte in [0, 1, 127, 128, 255, random.u8(..), bytes[random.usize(..64)]] {
                assert_eq!(
                    match_bytes(&bytes, byte),
                    match_bytes_plainly(&bytes, byte),
                    "{byte} in {bytes:?}"
                );
            }
        }
    }

    #[test]
    fn match_bytes_sets_the_bit_of_each_place() {
        for place in 0..64 {
            let mut bytes = [0; 64];
            bytes[place] = 0xa5;
            assert_eq!(match_bytes(&bytes, 0xa5), 1 << place);
        }
    }

    #[test]
    fn prefetch_takes_any_address() {
        for address in [0, 1, usize::MAX, 0xdead_beef] {
            prefetch(std::ptr::without_provenance(address));
        }
    }

    #[test]
    fn this_process_is_alive_and_has_a_name() {
        assert!(process_is_alive(process_id()));
        assert!(!process_name(process_id()).unwrap().is_empty());
        assert!(answers_signals(process_id()));
        assert!(!process_is_alive(0x7fff_ffff));
        assert!(!answers_signals(0x7fff_ffff) && !answers_signals(0) && !answers_signals(u32::MAX));
        assert_eq!(process_name(0x7fff_ffff), None);
    }

    #[test]
    fn ended_process_is_not_alive_before_it_is_collected() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        for _ in 0..1_000 {
            if !process_is_alive(child.id()) {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        assert!(!process_is_alive(child.id()));
        child.wait().unwrap();
    }

    #[test]
    fn process_is_stopped_when_all_of_its_threads_are_and_none_waits_for_a_device() {
        for (states, hindrance) in [
            ("T", Some(Hindrance::Stopped)),
            ("ZTt", Some(Hindrance::Stopped)),
            ("TD", Some(Hindrance::Device)),
            ("SRD", Some(Hindrance::Device)),
            ("TS", None),
            ("R", None),
            ("Z", None),
            ("", None),
        ] {
            assert_eq!(hindrance_in(states.chars()), hindrance, "{states:?}");
        }
    }

    #[test]
    fn stopped_process_is_told_from_one_that_sleeps() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let becomes = |hindrance| {
            (0..1_000).any(|_| {
                std::thread::sleep(std::time::Duration::from_millis(10));
                hindrance_of(child.id()) == hindrance
            })
        };
        assert!(becomes(None));
        let id = Pid::from_raw(child.id() as i32).unwrap();
        rustix::process::kill_process(id, rustix::process::Signal::STOP).unwrap();
        assert!(becomes(Some(Hindrance::Stopped)));
        rustix::process::kill_process(id, rustix::process::Signal::CONT).unwrap();
        assert!(becomes(None));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(hindrance_of(child.id()), None);
        assert_eq!(hindrance_of(process_id()), None);
    }

    #[test]
    fn state_is_found_behind_a_name_with_parentheses() {
        assert_eq!(state_in("17 (a) b) Z 1 17"), Some('Z'));
        assert_eq!(state_in("17"), None);
    }

    #[test]
    fn memory_limit_is_the_smallest_of_all_groups_and_parents() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("memory.max", "max\n");
        write("a/memory.max", "5000\n");
        write("a/b/memory.max", "max\n");
        write("memory/c/memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(group_limit("0::/a/b\n", root.path()), Some(5000));
        assert_eq!(group_limit("0::/a/b/elsewhere\n", root.path()), Some(5000));
        assert_eq!(group_limit("0::/\n", root.path()), None);
        assert_eq!(
            group_limit("3:cpu,memory:/c\n2:cpu:/a\n", root.path()),
            Some(9_223_372_036_854_771_712)
        );
        write("memory/memory.limit_in_bytes", "4000\n");
        assert_eq!(group_limit("3:memory:/c\n0::/a\n", root.path()), Some(4000));
        assert!(memory_limit_bytes() > 16 << 20);
    }

    #[test]
    fn local_directories_are_not_taken_for_network_ones() {
        assert_eq!(network_name(0x6969), Some("NFS"));
        assert_eq!(network_name(0xef53), None);
        assert_eq!(is_network_filesystem(Path::new("/proc")).unwrap(), None);
        assert!(is_network_filesystem(Path::new("/nowhere/at/all")).is_err());
    }
}
