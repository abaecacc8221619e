//! The modules of the engine, the topics and the trees are layers: each may import only from those that the `lib.rs` of its crate
//! declares before it. The files and folders of one folder import from each other in one direction, in the lab too. (Test modules may
//! import anything, and comments may name anything.)

use std::collections::{BTreeMap, BTreeSet};
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

/// What each entry of a folder imports from other entries of it: files by their name, folders as a whole.
type Imports = BTreeMap<String, BTreeSet<String>>;

/// The name that a path begins with, or the names that the paths in braces begin with.
fn first_names(path: &str) -> Vec<String> {
    let (mut names, mut depth, mut is_first) = (vec![String::new()], 0, true);
    for letter in path.chars() {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 1 => {
                names.push(String::new());
                is_first = true;
            }
            _ if letter.is_whitespace() => {}
            _ if !letter.is_alphanumeric() && letter != '_' => is_first = false,
            _ if is_first => names.last_mut().expect("there is one").push(letter),
            _ => {}
        }
        if depth == 0 && (!is_first || letter == '}') {
            break;
        }
    }
    names
}

/// The entries of its folder that a text imports, by paths that begin with one of the prefixes.
fn siblings(text: &str, prefixes: &[String]) -> BTreeSet<String> {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    let code = lines.collect::<Vec<_>>().join("\n");
    let mut found = BTreeSet::new();
    for prefix in prefixes {
        for (place, _) in code.match_indices(prefix.as_str()) {
            // `super::super::x` is of another folder.
            let is_inside = code[..place].ends_with(|before: char| before.is_alphanumeric() || "_:".contains(before));
            if !is_inside {
                found.extend(first_names(&code[place + prefix.len()..]));
            }
        }
    }
    found
}

/// The imports among the entries of a folder, without the file that describes the folder itself.
fn imports_among(folder: &Path, source: &Path) -> Imports {
    let relative = folder.strip_prefix(source).expect("it lies in the directory");
    let own = relative.iter().filter_map(|part| part.to_str());
    let path = std::iter::once("crate").chain(own).collect::<Vec<_>>().join("::") + "::";
    let mut imports = Imports::new();
    for entry in std::fs::read_dir(folder).expect("a directory") {
        let entry = entry.expect("an entry").path();
        let name = entry
            .file_stem()
            .and_then(|name| name.to_str())
            .expect("a name")
            .to_owned();
        if ["mod", "lib", "main", "tests"].contains(&&*name) {
            continue;
        }
        let imported = imports.entry(name).or_default();
        let is_folder = entry.is_dir();
        let (files, prefixes) = match is_folder {
            true => (rust_files(&entry), vec![path.clone()]),
            false => (vec![entry], vec![path.clone(), "super::".into()]),
        };
        for file in files {
            let is_test = file.iter().any(|part| part == "tests" || part == "tests.rs");
            if !is_test && file.extension().is_some_and(|extension| extension == "rs") {
                imported.extend(siblings(&std::fs::read_to_string(&file).expect("a file"), &prefixes));
            }
        }
    }
    let known: BTreeSet<String> = imports.keys().cloned().collect();
    for (name, imported) in &mut imports {
        imported.retain(|other| other != name && known.contains(other));
    }
    imports
}

/// The entries that are in a circle, or import from one.
fn in_circles(mut imports: Imports) -> Imports {
    while let Some(name) = imports
        .iter()
        .find(|(_, imported)| imported.is_empty())
        .map(|(name, _)| name.clone())
    {
        imports.remove(&name);
        for imported in imports.values_mut() {
            imported.remove(&name);
        }
    }
    imports
}

fn folders(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).expect("a directory");
    let inner = entries
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.is_dir());
    let mut found = vec![directory.to_owned()];
    inner.for_each(|path| found.extend(folders(&path)));
    found
}

#[test]
fn files_of_a_folder_import_in_one_direction() {
    // Maps make transactions and transactions take maps: the types of a program's first page name each other.
    let excepted = ["engine/src/api"];
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a workspace");
    for name in [
        "io", "engine", "topic", "tree", "duramen", "backup", "proto", "client", "server", "cli", "bench",
    ] {
        let source = workspace.join(name).join("src");
        for folder in folders(&source) {
            let shown = folder
                .strip_prefix(workspace)
                .expect("it lies in the workspace")
                .display()
                .to_string();
            let circles = in_circles(imports_among(&folder, &source));
            assert!(
                circles.is_empty() || excepted.contains(&&*shown),
                "a circle in {shown}: {circles:?}"
            );
        }
    }
}

/// The bodies of the blocks `impl Core { .. }` of a text.
fn blocks_of_core(text: &str) -> impl Iterator<Item = &str> {
    let begun = text.split("\nimpl Core {\n").skip(1);
    begun.map(|rest| rest.split("\n}\n").next().unwrap_or(rest))
}

/// The names that are called as methods of `receiver`, which may be on the line before.
fn calls<'a>(text: &'a str, receiver: &str) -> Vec<&'a str> {
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let mut found = Vec::new();
    for (place, _) in text.match_indices(receiver) {
        let before = &text[..place];
        let after = text[place + receiver.len()..].trim_start();
        let Some(name) = after.strip_prefix('.').filter(|_| !before.ends_with(is_name)) else {
            continue;
        };
        let name = name.trim_start();
        let end = name.find(|letter| !is_name(letter)).unwrap_or(name.len());
        if name[end..].starts_with('(') {
            found.push(&name[..end]);
        }
    }
    found
}

/// Text without comments and without the tests at its end.
fn code_of(text: &str) -> String {
    let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

/// Methods of `Core` that are called in a layer below that of their file, as "caller -> layer: method".
fn upward_calls_of_core(layers: &[&str], files: &[(String, String)]) -> BTreeSet<String> {
    let rank = |layer: &str| layers.iter().position(|known| *known == layer);
    let mut methods: BTreeMap<&str, &str> = BTreeMap::new();
    for (layer, code) in files {
        for line in blocks_of_core(code).flat_map(str::lines) {
            let is_outer = line.starts_with("    ") && !line.starts_with("     ");
            if let Some((_, rest)) = line.split_once("fn ").filter(|_| is_outer) {
                let end = rest.find(['(', '<']).unwrap_or(rest.len());
                methods.insert(&rest[..end], layer);
            }
        }
    }
    let mut upward = BTreeSet::new();
    for (layer, code) in files {
        let own = blocks_of_core(code).flat_map(|block| calls(block, "self"));
        let others = ["core", "core()"].into_iter().flat_map(|core| calls(code, core));
        for name in own.chain(others) {
            let Some(of) = methods.get(name) else { continue };
            if rank(of) > rank(layer) {
                upward.insert(format!("{layer} -> {of}: {name}"));
            }
        }
    }
    upward
}

#[test]
fn methods_of_core_are_called_from_their_layer_and_from_those_above() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../engine/src");
    let library = std::fs::read_to_string(source.join("lib.rs")).expect("lib.rs");
    let layers = layers(&library);
    let mut files = Vec::new();
    for path in rust_files(&source) {
        let relative = path.strip_prefix(&source).expect("it lies in the directory");
        let first = relative.iter().next().and_then(|part| part.to_str()).expect("a name");
        let own = first.trim_end_matches(".rs");
        if own != "lib" && !relative.iter().any(|part| part == "tests" || part == "tests.rs") {
            files.push((
                own.to_owned(),
                code_of(&std::fs::read_to_string(&path).expect("a file")),
            ));
        }
    }
    assert!(files.len() > 80, "{} files", files.len());
    // Taking a lock finishes what a dead holder began, and finding room folds.
    let known = [
        "commit -> recovery: bury_the_dead",
        "core -> fold: after_folding",
        "core -> fold: finish_install",
        "core -> fold: is_durable",
        "core -> sync: sync_data_file",
        "fold -> recovery: bury_the_dead",
    ];
    assert_eq!(upward_calls_of_core(&layers, &files), known.map(String::from).into());
}

#[test]
fn a_method_of_core_that_is_called_upwards_is_found() {
    let low = "\nimpl Core {\n    fn low(&self) {\n        self.high();\n        self\n            .middle::<u8>();\n    }\n}\n";
    let high = "\nimpl Core {\n    pub(crate) fn high(&self) {\n        self.low();\n    }\n}\nfn f(core: &Core) { score.low(); core.low() }\n";
    let files = [("sync", low), ("fold", high)].map(|(layer, code)| (layer.to_owned(), code.to_owned()));
    let found = upward_calls_of_core(&["sync", "fold"], &files);
    assert_eq!(found, ["sync -> fold: high".to_owned()].into());
}

#[test]
fn circle_between_files_is_found() {
    let prefixes = ["crate::read::".to_owned(), "super::".to_owned()];
    let text = "//! super::comment\nuse super::{leaf::{Leaf, Pair}, page::self, Link};\nuse super::super::other::X;\n\
                use crate::read::view::View;\nfn f() { super::find::find() }\n#[cfg(test)]\nmod tests {\n    use super::late;\n}\n";
    let found = siblings(text, &prefixes);
    let expected = ["Link", "find", "leaf", "page", "super", "view"];
    assert_eq!(found.into_iter().collect::<Vec<_>>(), expected);
    let imports = |pairs: &[(&str, &str)]| {
        let mut imports = Imports::new();
        for (from, to) in pairs {
            imports.entry((*from).into()).or_default().insert((*to).into());
            imports.entry((*to).into()).or_default();
        }
        imports
    };
    assert!(in_circles(imports(&[("a", "b"), ("b", "c"), ("a", "c")])).is_empty());
    let circles = in_circles(imports(&[("a", "b"), ("b", "c"), ("c", "b")]));
    assert_eq!(circles.into_keys().collect::<Vec<_>>(), ["a", "b", "c"]);
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
