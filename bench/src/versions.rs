//! Versions of the libraries that the lab is built with.

/// Returns the version of a built-in crate. It comes from the lock file, so it cannot be out of date.
pub fn locked_version(name: &str) -> String {
    let wanted = format!("name = \"{name}\"");
    let mut lines = include_str!("../Cargo.lock")
        .lines()
        .skip_while(|line| *line != wanted)
        .skip(1);
    let version = lines
        .next()
        .and_then(|line| line.strip_prefix("version = \"")?.strip_suffix('"'));
    format!("{name} {}", version.unwrap_or("of unknown version"))
}
