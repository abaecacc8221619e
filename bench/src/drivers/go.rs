//! The drivers in Go: one module in `bench/drivers/mmcmap`. The first use builds it into a directory beside the lab's
//! binary. A driver that cannot be built here is shown as `n/a` with the reason.
//!
//! The build uses a copy of the module file in that directory. The go command writes the full version of the library
//! into the copy, and the sums beside it, and writes nothing among the sources. With `LAB_MMCMAP_SOURCE` the copy
//! refers to the library in that directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};

use super::foreign::Foreign;
use super::tools::{self, is_installed, newest};

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/drivers/mmcmap");
const LIBRARY: &str = "github.com/sirgallo/mmcmap";
/// A directory with the sources of the library, used instead of the published version.
const LIBRARY_SOURCE: &str = "LAB_MMCMAP_SOURCE";
/// The program that is built, which is also its name.
const PROGRAM: &str = "mmcmap";

/// The driver for mmcmap.
pub fn mmcmap() -> Foreign {
    Foreign::new(PROGRAM, Box::new(|| built().map(Command::new)))
}

/// Returns the program. Builds it if it is missing, or if its sources or those of the library changed.
fn built() -> Result<PathBuf> {
    ensure!(is_installed("go"), "go is not installed");
    let local = std::env::var_os(LIBRARY_SOURCE).map(PathBuf::from);
    let module = module(local.as_deref())?;
    let mut changed = newest(Path::new(SOURCES))?;
    if let Some(library) = &local {
        changed = changed.max(newest(library)?);
    }
    let wanted = format!("{module}\n{changed:?}\n");
    let target = tools::built("drivers-go", &wanted, |target| build(target, &module))?;
    Ok(target.join(PROGRAM))
}

/// Returns the module file to build from: that of the sources, changed to a local library if there is one.
fn module(local: Option<&Path>) -> Result<String> {
    let published =
        fs::read_to_string(Path::new(SOURCES).join("go.mod")).context("reading the module of the driver")?;
    let Some(local) = local else { return Ok(published) };
    let local = fs::canonicalize(local).with_context(|| format!("{LIBRARY_SOURCE} is {}", local.display()))?;
    let local = local
        .to_str()
        .context("the module file names only directories that are text")?;
    let requires = format!("require {LIBRARY} ");
    // Replaces the requirement, so that the go command does not ask a registry for the version.
    let rest: Vec<&str> = published.lines().filter(|line| !line.starts_with(&requires)).collect();
    Ok(format!(
        "{}\n{requires}v0.0.0\n\nreplace {LIBRARY} => {local:?}\n",
        rest.join("\n")
    ))
}

fn build(target: &Path, module: &str) -> Result<()> {
    eprintln!("building the driver in Go");
    let file = target.join("go.mod");
    fs::write(&file, module)?;
    let output = Command::new("go")
        .args(["build", "-mod=mod", "-buildvcs=false", "-modfile"])
        .arg(&file)
        .arg("-o")
        .arg(target.join(PROGRAM))
        .arg(".")
        .current_dir(SOURCES)
        .stdin(Stdio::null())
        .output()
        .context("starting go build")?;
    if output.status.success() {
        return Ok(());
    }
    let talk = String::from_utf8_lossy(&output.stderr);
    let said = said(&talk);
    bail!("go build failed ({}): {said}", output.status)
}

/// Returns the first line of a failed build that states a reason.
fn said(talk: &str) -> &str {
    let mut lines = talk.lines().map(str::trim).filter(|line| !line.is_empty());
    // A line that ends in a colon gives the place, and the next line the reason.
    let is_reason =
        |line: &&str| !line.starts_with('#') && !line.starts_with("go: downloading") && !line.ends_with(':');
    lines.find(is_reason).unwrap_or("it said nothing")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn library_in_a_directory_takes_the_place_of_the_published_one() -> Result<()> {
        let published = module(None)?;
        assert!(published.contains(&format!("require {LIBRARY} ")), "{published}");
        assert!(!published.contains("replace"), "{published}");
        let local = module(Some(Path::new("/tmp")))?;
        assert!(local.contains(&format!("replace {LIBRARY} => \"/tmp\"")), "{local}");
        assert_eq!(local.matches("require").count(), 1, "{local}");
        assert!(module(Some(Path::new("/there is none"))).is_err());
        Ok(())
    }

    #[test]
    fn reason_of_a_failed_build_is_the_first_line_that_is_one() {
        assert_eq!(
            said("go: downloading a v1\n# lab\n./main.go:1:1: no\n"),
            "./main.go:1:1: no"
        );
        assert_eq!(
            said("go: errors in go.mod:\n\tgo.mod:3: forbidden\n"),
            "go.mod:3: forbidden"
        );
        assert_eq!(said("\n"), "it said nothing");
    }
}
