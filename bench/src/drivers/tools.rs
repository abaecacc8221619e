//! Tools for building drivers of any language: whether a program is installed, where to build, and whether a build was
//! done or tried since the sources changed.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, bail};

/// Time for which a failed build is not tried again. Each command asks every driver, and a build that waits for an
/// unreachable network takes long.
const FAILURE_COUNTS: Duration = Duration::from_secs(600);

/// Whether the program is on the search path.
pub fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

/// Returns a directory of this name beside the lab's binary.
fn beside_the_lab(name: &str) -> Result<PathBuf> {
    let binary = std::env::current_exe().context("finding the lab's own place")?;
    let target = binary.parent().context("the lab is in a directory")?.join(name);
    fs::create_dir_all(&target).with_context(|| format!("making the directory {}", target.display()))?;
    Ok(target)
}

/// Returns a directory of this name beside the lab's binary that contains the build of `wanted`. Builds it if
/// necessary. `wanted` identifies the sources of the build.
pub fn built(name: &str, wanted: &str, build: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    let target = beside_the_lab(name)?;
    let lock = File::create(target.join("lock"))?;
    // The lock makes two labs started at once build only once.
    lock.lock()?;
    let (stamp, failure) = (target.join("built"), target.join("failed"));
    if fs::read_to_string(&stamp).is_ok_and(|built| built == wanted) {
        return Ok(target);
    }
    if let Some(reason) = failed_lately(&failure, wanted) {
        bail!(
            "{reason} (not tried again for ten minutes, or until {} is gone)",
            failure.display()
        );
    }
    // A failed build leaves something other than what is wanted.
    fs::write(&stamp, "")?;
    if let Err(error) = build(&target) {
        fs::write(&failure, format!("{wanted}\n{error:#}"))?;
        return Err(error);
    }
    fs::write(&stamp, wanted)?;
    Ok(target)
}

/// Returns why building `wanted` failed a short time ago.
fn failed_lately(failure: &Path, wanted: &str) -> Option<String> {
    let age = fs::metadata(failure).ok()?.modified().ok()?.elapsed().ok()?;
    let text = fs::read_to_string(failure).ok()?;
    let reason = text.strip_prefix(wanted)?.trim();
    (age < FAILURE_COUNTS).then(|| reason.to_string())
}

/// Returns the modification time of the newest file below a directory.
pub fn newest(directory: &Path) -> Result<SystemTime> {
    let mut newest = SystemTime::UNIX_EPOCH;
    let entries =
        fs::read_dir(directory).with_context(|| format!("looking for the drivers in {}", directory.display()))?;
    for entry in entries {
        let entry = entry?;
        newest = newest.max(match entry.file_type()?.is_dir() {
            true => self::newest(&entry.path())?,
            false => entry.metadata()?.modified()?,
        });
    }
    Ok(newest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn what_is_wanted_is_built_once_and_what_fails_is_not_tried_again_at_once() -> Result<()> {
        let scratch = Scratch::new(&std::env::temp_dir())?;
        // An absolute path replaces the directory beside the lab.
        let name = scratch.path().to_str().context("a path that is text")?;
        let built = |wanted: &str, is_refused: bool| {
            let mut is_tried = false;
            let outcome = built(name, wanted, |_| {
                is_tried = true;
                if is_refused { bail!("forbidden") } else { Ok(()) }
            });
            let reason = outcome.err().map(|error| error.to_string());
            (is_tried, reason.unwrap_or_default())
        };
        assert_eq!(built("one", false), (true, String::new()));
        assert_eq!(built("one", true), (false, String::new()));
        assert_eq!(built("two", true), (true, "forbidden".to_string()));
        let (is_tried, reason) = built("two", false);
        assert!(
            !is_tried && reason.starts_with("forbidden (not tried again"),
            "{reason}"
        );
        assert_eq!(built("three", false), (true, String::new()), "other sources may do");
        let failure = File::options().append(true).open(scratch.path().join("failed"))?;
        failure.set_modified(SystemTime::now() - FAILURE_COUNTS)?;
        assert_eq!(built("two", false), (true, String::new()), "that was long ago");
        Ok(())
    }
}
