//! The modules of the engine, the topics and the trees are layers: each may import only from those that the `lib.rs` of its crate
//! declares before it. (Test modules may import anything, and comments may name anything.)

use std::path::{Path, PathBuf};

/// The modules of a `lib.rs`, in the order in which it declares them.
fn layers(library: &str) -> Vec<&str> {
    let declared = library
        .lines()
        .filter_map(|line| line.split("mod ").nth(1)?.strip_suffix(';'));
    declared.collect()
}

/// The modules of this crate that the code of a file names. A name that does not begin in lower case is exported by
/// `lib.rs` itself, above all modules; it is returned as it is.
fn imports(text: &str) -> Vec<&str> {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    let paths = lines.flat_map(|line| line.split("crate::").skip(1));
    let names = paths.map(|path| {
        let end = path.find(|end: char| !end.is_ascii_alphanumeric() && end != '_');
        &path[..end.unwrap_or(path.len())]
    });
    names.collect()
}

/// Imports of a file of module `own` that are not from a layer below, nor from the module itself.
fn upward_imports<'a>(layers: &[&str], own: &str, text: &'a str) -> Vec<&'a str> {
    let rank = |layer: &str| layers.iter().position(|known| *known == layer);
    let own = rank(own).expect("a declared module");
    let is_upward = |layer: &&str| rank(layer).is_none_or(|other| other > own);
    imports(text).into_iter().filter(is_upward).collect()
}

fn rust_files(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).expect("a directory");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let files = paths.flat_map(|path| match path.is_dir() {
        true => rust_files(&path),
        false => vec![path],
    });
    files
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .collect()
}

/// Checks a crate of the workspace, which has at least so many files.
fn check(name: &str, files_min: usize) {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a workspace");
    let source = workspace.join(name).join("src");
    let library = std::fs::read_to_string(source.join("lib.rs")).expect("lib.rs");
    let layers = layers(&library);
    let mut checked = 0;
    for path in rust_files(&source) {
        let relative = path.strip_prefix(&source).expect("it lies in the directory");
        let first = relative.iter().next().and_then(|part| part.to_str()).expect("a name");
        let own = first.trim_end_matches(".rs");
        if own == "lib" || relative.iter().any(|part| part == "tests" || part == "tests.rs") {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("a file");
        let upward = upward_imports(&layers, own, &text);
        let name = relative.display();
        assert!(upward.is_empty(), "{name} imports from {upward:?}, which are above it");
        checked += 1;
    }
    assert!(checked >= files_min, "{checked} files");
}

#[test]
fn no_module_of_the_engine_imports_from_a_later_one() {
    check("engine", 80);
}

#[test]
fn no_module_of_the_topics_imports_from_a_later_one() {
    check("topic", 70);
}

#[test]
fn no_module_of_the_trees_imports_from_a_later_one() {
    check("tree", 15);
}

#[test]
fn an_import_that_points_upwards_is_found() {
    let layers = layers("mod error;\npub(crate) mod handle;\n\nmod group;\n");
    assert_eq!(layers, ["error", "handle", "group"]);
    let text = "//! As `crate::group` does.\nuse crate::error::Error;\nuse crate::group::Group;\nfn f() { crate::group::g() }\n\
                #[cfg(test)]\nmod tests {\n    use crate::group;\n}\n";
    assert_eq!(upward_imports(&layers, "handle", text), ["group", "group"]);
    assert!(upward_imports(&layers, "group", text).is_empty());
    assert_eq!(upward_imports(&layers, "group", "use crate::Group;\n"), ["Group"]);
    assert_eq!(upward_imports(&layers, "group", "use crate::{Group, Topic};\n"), [""]);
}
