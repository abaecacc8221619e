//! The drivers in Java: one Maven project in `bench/drivers/java`. The first use builds it into a directory beside the
//! lab's binary. A driver that cannot be built here is shown as `n/a` with the reason.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context as _, Result, bail, ensure};

use super::foreign::Foreign;
use super::tools::{self, is_installed, newest};

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/drivers/java");
/// The archive that Maven makes, as named in the project file.
const ARCHIVE: &str = "lab-drivers.jar";
/// Options for lmdbjava, which reads the address of a buffer by reflection. Its documentation requires this permission.
const OPENED: [&str; 4] = [
    "--add-opens",
    "java.base/java.nio=ALL-UNNAMED",
    "--add-opens",
    "java.base/sun.nio.ch=ALL-UNNAMED",
];

/// Returns the driver of this name.
pub fn driver(name: &'static str) -> Foreign {
    Foreign::new(name, Box::new(move || command(name)))
}

fn command(name: &str) -> Result<Command> {
    let built = built()?;
    let mut command = Command::new("java");
    command
        .args(OPENED)
        // Both look for their libraries here before they unpack another copy at every start.
        .arg(format!("-Djava.library.path={}", built.display()))
        .arg(format!("-Dlmdbjava.native.lib={}", built.join("liblmdb.so").display()))
        // Files that they unpack nevertheless are removed with the cell.
        .arg(format!("-Djava.io.tmpdir={}", std::env::temp_dir().display()))
        .arg("-jar")
        .arg(built.join(ARCHIVE))
        .arg(name);
    Ok(command)
}

/// Returns the directory of the drivers. Builds them if they are missing or their sources changed.
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
