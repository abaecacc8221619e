//! Checks the documentation as far as a program can: links have targets, the commands and files that it names exist,
//! and the program at the start of the README runs.
//!
//! The test reads every Markdown file of the repository and compares it with the sources beside it. Documentation tests
//! of the crate compile and run the programs in the guide; this test only checks that none is left out.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Exactly the program at the start of the README.
mod first {
    include!("../first/program.rs");

    /// Runs the program where it may leave a store behind.
    pub fn run() -> duramen::Result<()> {
        main()
    }
}

/// Subcommands of cargo, and of its tool for fuzzing, that the documentation may use.
const CARGO: [&str; 10] = [
    "add", "build", "check", "clippy", "doc", "fmt", "fuzz", "install", "run", "test",
];

fn root() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package
        .parent()
        .expect("the package lies in the repository")
        .to_path_buf()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns all files below a directory with this ending, except built or hidden ones.
fn files(directory: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut waiting = vec![directory.to_path_buf()];
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
            if path.is_dir() && !name.starts_with('.') && !["target", "corpus", "artifacts"].contains(&name.as_str()) {
                waiting.push(path);
            } else if name.ends_with(ending) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// A parsed Markdown file.
struct Page {
    path: PathBuf,
    headings: Vec<String>,
    /// Text outside code, with line numbers.
    prose: Vec<(usize, String)>,
    /// Shell lines in fences, indented or after a prompt, and inline code.
    code: Vec<(usize, String)>,
    has_rust: bool,
}

impl Page {
    fn read(path: &Path) -> Page {
        let mut page = Page {
            path: path.to_path_buf(),
            headings: Vec::new(),
            prose: Vec::new(),
            code: Vec::new(),
            has_rust: false,
        };
        let mut fence: Option<String> = None;
        for (index, line) in read(path).lines().enumerate() {
            if let Some(language) = line.trim_start().strip_prefix("```") {
                fence = fence.is_none().then(|| language.to_string());
                page.has_rust |= language.starts_with("rust");
            } else if let Some(language) = &fence {
                if ["", "sh"].contains(&language.as_str()) || line.starts_with("$ ") {
                    page.code.push((index + 1, line.to_string()));
                }
            } else if line.starts_with("    ") {
                page.code.push((index + 1, line.to_string()));
            } else {
                page.take_prose(index + 1, line);
            }
        }
        page
    }

    fn take_prose(&mut self, number: usize, line: &str) {
        if line.starts_with('#') {
            self.headings.push(anchor(line.trim_start_matches('#')));
        }
        let mut text = String::new();
        for (part, piece) in line.split('`').enumerate() {
            if part % 2 == 1 {
                self.code.push((number, piece.to_string()));
            } else {
                text.push_str(piece);
            }
        }
        self.prose.push((number, text));
    }

    /// Returns the targets of the links in the text.
    fn links(&self) -> impl Iterator<Item = (usize, &str)> {
        self.prose.iter().flat_map(|(number, text)| {
            let targets = text.split("](").skip(1);
            targets.map(|rest| (*number, rest.split(')').next().expect("a split has a first part")))
        })
    }

    fn at(&self, line: usize) -> String {
        format!(
            "{}:{line}",
            self.path.strip_prefix(root()).unwrap_or(&self.path).display()
        )
    }
}

/// Returns the anchor of a heading.
fn anchor(heading: &str) -> String {
    let kept = |letter: &char| letter.is_alphanumeric() || [' ', '-', '_'].contains(letter);
    let letters = heading.trim().chars().filter(kept);
    letters
        .flat_map(char::to_lowercase)
        .map(|letter| if letter == ' ' { '-' } else { letter })
        .collect()
}

fn pages() -> Vec<Page> {
    files(&root(), ".md").iter().map(|path| Page::read(path)).collect()
}

fn assert_none(problems: Vec<String>) {
    assert!(problems.is_empty(), "\n{}", problems.join("\n"));
}

#[test]
fn every_relative_link_leads_to_a_file_and_a_heading() {
    let mut problems = Vec::new();
    for page in pages() {
        for (line, link) in page
            .links()
            .filter(|(_, link)| !link.contains("://") && !link.starts_with("mailto:"))
        {
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() {
                page.path.clone()
            } else {
                page.path.parent().expect("a file lies in a directory").join(file)
            };
            if !target.exists() {
                problems.push(format!("{}: there is no {file}", page.at(line)));
            } else if !heading.is_empty() && !Page::read(&target).headings.contains(&heading.to_string()) {
                problems.push(format!(
                    "{}: {} has no heading #{heading}",
                    page.at(line),
                    target.display()
                ));
            }
        }
    }
    assert_none(problems);
}

#[test]
fn every_path_into_the_repository_exists() {
    let mut problems = Vec::new();
    for page in pages() {
        for (line, code) in &page.code {
            let first = code.split('/').next().expect("a split has a first part");
            let is_pattern = code
                .split('/')
                .any(|part| !part.is_empty() && part.chars().all(is_of_a_variable));
            let is_path = code.contains('/') && !code.contains([' ', '*', '<', ':', '$']) && !is_pattern;
            let is_ours = ["bench", "cli", "docs", "duramen", "engine", "fuzz", "io"].contains(&first);
            if is_path && is_ours && !root().join(code).exists() {
                problems.push(format!("{}: there is no {code}", page.at(*line)));
            }
        }
    }
    assert_none(problems);
}

#[test]
fn every_command_names_what_exists() {
    let known = Known::read();
    let mut problems = Vec::new();
    for page in pages() {
        for (line, code) in &page.code {
            if let Err(problem) = known.check(code) {
                problems.push(format!("{}: {problem}: {}", page.at(*line), code.trim()));
            }
        }
    }
    assert_none(problems);
}

/// The names that commands may use.
struct Known {
    packages: BTreeSet<String>,
    aliases: BTreeSet<String>,
    duramen: BTreeSet<String>,
    lab: BTreeSet<String>,
    workloads: BTreeSet<String>,
}

impl Known {
    fn read() -> Known {
        let after = |text: &str, key: &str| {
            let lines = text
                .lines()
                .filter_map(|line| line.strip_prefix(key))
                .map(str::to_string);
            lines
                .map(|value| value.trim_matches([' ', '=', '"']).to_string())
                .collect::<Vec<_>>()
        };
        let manifests = files(&root(), "Cargo.toml");
        let config = read(&root().join(".cargo/config.toml"));
        let aliases = config
            .lines()
            .filter_map(|line| line.split_once('='))
            .map(|(name, _)| name.trim().to_string());
        Known {
            packages: manifests.iter().flat_map(|path| after(&read(path), "name")).collect(),
            aliases: aliases.collect(),
            duramen: subcommands(&root().join("cli/src")),
            lab: subcommands(&root().join("bench/src")),
            workloads: workload_names(&root().join("bench/src/workloads")),
        }
    }

    /// Checks one line of code, if it is a command of ours.
    fn check(&self, line: &str) -> Result<(), String> {
        let line = line.trim_start().trim_start_matches("$ ");
        let line = line.split(" #").next().expect("a split has a first part");
        let is_setting = |word: &&str| {
            word.split_once('=')
                .is_some_and(|(name, _)| name.chars().all(is_of_a_variable))
        };
        let words: Vec<&str> = line.split_whitespace().skip_while(is_setting).collect();
        match words.as_slice() {
            ["cargo", toolchain, first, rest @ ..] if toolchain.starts_with('+') => self.check_cargo(first, rest),
            ["cargo", first, rest @ ..] => self.check_cargo(first, rest),
            ["duramen", name, ..] => self.check_duramen(name),
            ["bash", script, ..] => exists(script),
            _ => Ok(()),
        }
    }

    fn check_cargo(&self, first: &str, rest: &[&str]) -> Result<(), String> {
        if self.aliases.contains(first) {
            return self.check_lab(rest);
        }
        if let ("fuzz", ["run", target, ..]) = (first, rest)
            && !target.chars().all(is_of_a_variable)
        {
            return one_of(&[format!("fuzz/fuzz_targets/{target}.rs")]);
        }
        if !CARGO.contains(&first) {
            return Err(format!("cargo has no {first:?}"));
        }
        let end = rest.iter().position(|word| *word == "--").unwrap_or(rest.len());
        let (own, passed_on) = rest.split_at(end);
        for pair in own.windows(2) {
            match pair[0] {
                "-p" | "--package" => has(&self.packages, pair[1], "package")?,
                "--manifest-path" => exists(pair[1])?,
                "--test" => one_of(&[
                    format!("duramen/tests/{}.rs", pair[1]),
                    format!("engine/tests/{}.rs", pair[1]),
                    format!("io/tests/{}.rs", pair[1]),
                    format!("cli/tests/{}.rs", pair[1]),
                    format!("engine/tests/{}/main.rs", pair[1]),
                ])?,
                "--example" => one_of(&[format!("duramen/examples/{}.rs", pair[1])])?,
                _ => {}
            }
        }
        let is_of_another = own
            .iter()
            .any(|word| ["-p", "--example", "--manifest-path"].contains(word));
        match passed_on.get(1) {
            Some(name) if first == "run" && !is_of_another => self.check_duramen(name),
            _ => Ok(()),
        }
    }

    fn check_duramen(&self, name: &str) -> Result<(), String> {
        let is_command = name.starts_with(|letter: char| letter.is_ascii_lowercase()) && name.chars().all(is_of_a_name);
        if is_command {
            has(&self.duramen, name, "command")
        } else {
            Ok(())
        }
    }

    fn check_lab(&self, words: &[&str]) -> Result<(), String> {
        let Some((name, arguments)) = words.split_first() else {
            return Ok(());
        };
        has(&self.lab, name, "command")?;
        let mut workloads = arguments
            .iter()
            .take_while(|word| word.chars().all(is_of_a_name) && !word.starts_with('-'));
        workloads.try_for_each(|name| has(&self.workloads, name, "workload"))
    }
}

fn is_of_a_name(letter: char) -> bool {
    letter.is_ascii_lowercase() || letter == '-'
}

fn is_of_a_variable(letter: char) -> bool {
    letter.is_ascii_uppercase() || letter.is_ascii_digit() || letter == '_'
}

fn has(known: &BTreeSet<String>, name: &str, what: &str) -> Result<(), String> {
    if known.contains(name) {
        Ok(())
    } else {
        Err(format!("there is no {what} {name:?}"))
    }
}

fn exists(path: &str) -> Result<(), String> {
    one_of(&[path.to_string()])
}

fn one_of(paths: &[String]) -> Result<(), String> {
    let found = paths.iter().any(|path| root().join(path).exists());
    if found {
        Ok(())
    } else {
        Err(format!("there is no {}", paths[0]))
    }
}

/// Returns the names of the lab's workloads: each is declared by `name: "..."` in a source file of the directory.
fn workload_names(directory: &Path) -> BTreeSet<String> {
    let declared = |path: PathBuf| {
        let text = read(&path);
        let names = text
            .split("    name: \"")
            .skip(1)
            .filter_map(|rest| rest.split('"').next());
        names.map(str::to_string).collect::<Vec<_>>()
    };
    files(directory, ".rs").into_iter().flat_map(declared).collect()
}

/// Returns the subcommands of a program: the variants of its enumerations that derive `Subcommand`.
fn subcommands(sources: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for path in files(sources, ".rs") {
        let text = read(&path);
        let enumerations = text.split("#[derive(").skip(1).filter(|rest| {
            rest.split(")]")
                .next()
                .is_some_and(|derived| derived.contains("Subcommand"))
        });
        for enumeration in enumerations {
            let body = enumeration.split("\n}").next().expect("a split has a first part");
            let lines = body.lines().filter_map(|line| line.strip_prefix("    "));
            let variants = lines.filter(|line| line.starts_with(|letter: char| letter.is_ascii_uppercase()));
            found.extend(variants.map(|line| kebab(line.split(['(', '{', ',', ' ']).next().unwrap_or_default())));
        }
    }
    found
}

/// Converts `SyncedPuts` to clap's form: `synced-puts`.
fn kebab(variant: &str) -> String {
    let mut name = String::new();
    for letter in variant.chars() {
        if letter.is_ascii_uppercase() && !name.is_empty() {
            name.push('-');
        }
        name.push(letter.to_ascii_lowercase());
    }
    name
}

#[test]
fn every_program_in_the_documentation_is_compiled() {
    let libraries = ["duramen/src/lib.rs", "backup/src/lib.rs"].map(|path| read(&root().join(path)));
    let library = libraries.concat();
    let is_compiled = |page: &Page| {
        let path = page.path.strip_prefix(root()).expect("pages are found below the root");
        library.contains(&format!("include_str!(\"../../{}\")", path.display()))
    };
    let left_out = pages().into_iter().filter(|page| page.has_rust && !is_compiled(page));
    assert_none(left_out.map(|page| page.path.display().to_string()).collect());
}

#[test]
fn every_decision_is_listed() {
    let list = Page::read(&root().join("docs/decisions/README.md"));
    let listed: BTreeSet<&str> = list.links().map(|(_, link)| link).collect();
    for path in files(&root().join("docs/decisions"), ".md") {
        let name = path
            .file_name()
            .expect("a file has a name")
            .to_string_lossy()
            .into_owned();
        assert!(
            name == "README.md" || listed.contains(name.as_str()),
            "{name} is not listed"
        );
    }
}

#[test]
fn the_program_that_opens_the_readme_runs() {
    let readme = read(&root().join("README.md"));
    let program = readme
        .split("```rust,no_run\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next());
    let example = read(&root().join("duramen/tests/first/program.rs"));
    let example: String = example
        .lines()
        .skip_while(|line| !line.starts_with("use"))
        .map(|line| format!("{line}\n"))
        .collect();
    assert_eq!(program, Some(example.as_str()));
    assert_eq!(example.lines().count(), 15);

    let directory = tempfile::tempdir().expect("a temporary directory");
    std::env::set_current_dir(&directory).expect("the directory was just made");
    first::run().expect("the program runs");
    first::run().expect("the program runs again on the store that it left");
    std::env::set_current_dir(root()).expect("the repository is there");
}

#[test]
fn handles_can_be_sent_and_shared_between_threads() {
    fn is_send_and_sync<T: Send + Sync>() {}
    is_send_and_sync::<duramen::Store>();
    is_send_and_sync::<duramen::Map>();
    is_send_and_sync::<duramen::Snapshot>();
    is_send_and_sync::<duramen::Transaction>();
    is_send_and_sync::<duramen::Batch>();
    is_send_and_sync::<duramen::Changes>();
    is_send_and_sync::<duramen::CommitFuture>();
    is_send_and_sync::<duramen::Cursor<'static>>();
    is_send_and_sync::<duramen::Value<'static>>();
    is_send_and_sync::<duramen::ValueReader<'static>>();
    is_send_and_sync::<duramen::Error>();
}
