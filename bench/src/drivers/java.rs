//! The drivers in Java: one Maven project in `bench/drivers/java`, built when one of them is first used, into a directory
//! beside the lab's binary. What cannot be built here has no speed here: it is shown as `n/a` with the reason.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context as _, Result, bail, ensure};

use super::foreign::Foreign;
use super::tools::{self, is_installed, newest};

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/drivers/java");
/// What Maven makes; its name is in the project file.
const ARCHIVE: &str = "lab-drivers.jar";
/// lmdbjava reads the address of a buffer by reflection, which its documentation asks to be allowed.
const OPENED: [&str; 4] = [
    "--add-opens",
    "java.base/java.nio=ALL-UNNAMED",
    "--add-opens",
    "java.base/sun.nio.ch=ALL-UNNAMED",
];

/// The driver of this name.
pub fn driver(name: &'static str) -> Foreign {
    Foreign::new(name, Box::new(move || command(name)))
}

fn command(name: &str) -> Result<Command> {
    let built = built()?;
    let mut command = Command::new("java");
    command
        .args(OPENED)
        // Where both look for their libraries before they unpack another copy at every start.
        .arg(format!("-Djava.library.path={}", built.display()))
        .arg(format!("-Dlmdbjava.native.lib={}", built.join("liblmdb.so").display()))
        // What they unpack all the same goes with the cell.
        .arg(format!("-Djava.io.tmpdir={}", std::env::temp_dir().display()))
        .arg("-jar")
        .arg(built.join(ARCHIVE))
        .arg(name);
    Ok(command)
}

/// The directory of the drivers, which are built if they are not or if their sources are other ones.
fn built() -> Result<PathBuf> {
    for program in ["java", "mvn"] {
        ensure!(is_installed(program), "{program} is not installed");
    }
    let wanted = format!("{:?}", newest(Path::new(SOURCES))?);
    tools::built("drivers-java", &wanted, build)
}

fn build(target: &Path) -> Result<()> {
    eprintln!("building the drivers in Java");
    let mut maven = Command::new("mvn");
    maven
        .args(["--quiet", "--batch-mode", "--file"])
        .arg(Path::new(SOURCES).join("pom.xml"))
        .arg(format!("-Dlab.target={}", target.display()))
        .arg("package");
    succeeded("mvn package", maven)?;
    let mut unpack = Command::new("java");
    unpack.arg("-jar").arg(target.join(ARCHIVE)).arg("unpack").arg(target);
    succeeded("unpacking the libraries of the drivers", unpack)
}

fn succeeded(what: &str, mut command: Command) -> Result<()> {
    let Output { status, stdout, stderr } = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("starting {what}"))?;
    if status.success() {
        return Ok(());
    }
    let talk = String::from_utf8_lossy(&stdout).into_owned() + &String::from_utf8_lossy(&stderr);
    let said = talk
        .lines()
        .find(|line| line.contains("ERROR") || line.contains("Exception"));
    bail!("{what} failed ({status}): {}", said.unwrap_or("it said nothing"))
}
