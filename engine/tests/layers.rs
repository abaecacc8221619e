//! The folders of `engine/src` are layers: each may import only from those that `lib.rs` declares before it. (Test
//! modules may import anything, and comments may name anything.)

use std::path::{Path, PathBuf};

/// The modules of a `lib.rs`, in the order in which it declares them.
fn layers(library: &str) -> Vec<&str> {
    let declared = library
        .lines()
        .filter_map(|line| line.split("mod ").nth(1)?.strip_suffix(';'));
    declared.collect()
}

/// Imports of a file from layers that are not below its own.
fn upward_imports(layers: &[&str], own: &str, text: &str) -> Vec<String> {
    let rank = |layer: &str| layers.iter().position(|known| *known == layer);
    let own = rank(own).expect("a declared module");
    let code = text
        .split("#[cfg(test)]\nmod tests {")
        .next()
        .expect("at least one part");
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    let named = lines.flat_map(|line| line.split("crate::").skip(1));
    let named = named.map(|path| {
        path.split(|end: char| !end.is_ascii_lowercase() && end != '_')
            .next()
            .expect("a part")
    });
    named
        .filter(|layer| rank(layer).is_some_and(|other| other > own))
        .map(str::to_string)
        .collect()
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

#[test]
fn no_folder_imports_from_a_later_one() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let library = std::fs::read_to_string(source.join("lib.rs")).expect("lib.rs");
    let layers = layers(&library);
    let mut looked_at = 0;
    for path in rust_files(&source) {
        let relative = path.strip_prefix(&source).expect("it lies in the directory");
        let own = relative
            .iter()
            .next()
            .expect("a part")
            .to_str()
            .expect("a name")
            .trim_end_matches(".rs");
        if own == "lib" || relative.iter().any(|part| part == "tests" || part == "tests.rs") {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("a file");
        let upward = upward_imports(&layers, own, &text);
        assert!(
            upward.is_empty(),
            "{} imports from {upward:?}, which are above it",
            relative.display()
        );
        looked_at += 1;
    }
    assert!(looked_at > 80, "{looked_at} files");
}

#[test]
fn an_import_that_points_upwards_is_found() {
    let layers = layers("mod error;\n#[doc(hidden)]\npub mod key;\n\nmod log;\n");
    assert_eq!(layers, ["error", "key", "log"]);
    let text = "//! As `crate::log` does.\nuse crate::error::Error;\nuse crate::log::record::Body;\nfn f() { crate::log::g() }\n\
                #[cfg(test)]\nmod tests {\n    use crate::log;\n}\n";
    assert_eq!(upward_imports(&layers, "key", text), ["log", "log"]);
    assert!(upward_imports(&layers, "log", text).is_empty());
}
