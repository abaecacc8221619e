//! The fuzz targets of `fuzz/`, each for a moment: first with the inputs kept in `fuzz/corpus`, then with random inputs
//! and mutated samples.
//!
//! `DURAMEN_SEED=n` runs the inputs of an earlier run again; `DURAMEN_FUZZ_SECONDS=n` takes that long for each target.

#[path = "../../fuzz/src/lib.rs"]
mod targets;

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fastrand::Rng;

/// Inputs that each target gets even on a slow machine.
const INPUTS_MIN: u64 = 30;
const INPUTS_MAX: u64 = 2000;
const TIME: Duration = Duration::from_millis(1200);

/// Runs the kept inputs of one target, then others until its time is up. Input `n` of the others follows from the seed
/// and `n` alone.
fn run(name: &str) {
    let &(_, target) = targets::TARGETS
        .iter()
        .find(|(known, _)| *known == name)
        .expect("a target of this name");
    run_kept(name, target);
    let given = std::env::var("DURAMEN_SEED")
        .ok()
        .map(|seed| seed.parse().expect("DURAMEN_SEED is a number"));
    let seed = given.unwrap_or_else(|| fastrand::u64(..));
    println!("DURAMEN_SEED={seed}");
    let seconds = std::env::var("DURAMEN_FUZZ_SECONDS")
        .ok()
        .map(|n| n.parse().expect("a number of seconds"));
    let (time, inputs_max) = seconds.map_or((TIME, INPUTS_MAX), |n| (Duration::from_secs(n), u64::MAX));
    let samples = targets::samples(name);
    let start = Instant::now();
    let mut number = 0;
    while number < INPUTS_MIN || (number < inputs_max && start.elapsed() < time) {
        let input = input(
            name,
            &samples,
            &mut Rng::with_seed(seed ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15)),
        );
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| target(&input))) {
            let path = std::env::temp_dir().join(format!("duramen-fuzz-{name}-{seed}-{number}"));
            let _ = fs::write(&path, &input);
            println!(
                "input {number} of DURAMEN_SEED={seed} for {name} is kept in {}",
                path.display()
            );
            resume_unwind(panic);
        }
        number += 1;
    }
    println!("{name}: {number} inputs");
}

/// Runs every kept input of a target, and prints the path of a failing input.
fn run_kept(name: &str, target: fn(&[u8])) {
    let paths = kept(name);
    for path in &paths {
        let input = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| target(&input))) {
            println!("{name} fails with the kept input {}", path.display());
            resume_unwind(panic);
        }
    }
    println!("{name}: {} kept inputs", paths.len());
}

/// Returns the kept inputs of a target. Whatever else a fuzzer left in the directory is not among them.
fn kept(name: &str) -> Vec<PathBuf> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(name);
    let files = fs::read_dir(&corpus).unwrap_or_else(|error| panic!("no kept inputs in {}: {error}", corpus.display()));
    let paths = files.map(|file| file.expect("an entry of the directory").path());
    let is_kept = |path: &PathBuf| {
        path.file_name()
            .is_some_and(|name| name.as_encoded_bytes().starts_with(b"kept-"))
    };
    let mut kept: Vec<_> = paths.filter(is_kept).collect();
    assert!(!kept.is_empty(), "no kept inputs in {}", corpus.display());
    kept.sort();
    kept
}

fn input(name: &str, samples: &[Vec<u8>], rng: &mut Rng) -> Vec<u8> {
    match name {
        "log_in_store" | "head" => changes(name, rng),
        _ if samples.is_empty() || rng.u8(..) < 20 => random_bytes(rng),
        _ => mutated(rng.choice(samples).expect("there are samples"), rng),
    }
}

fn random_bytes(rng: &mut Rng) -> Vec<u8> {
    let length = 1 << rng.u32(0..13);
    (0..rng.usize(0..=length)).map(|_| rng.u8(..)).collect()
}

fn mutated(sample: &[u8], rng: &mut Rng) -> Vec<u8> {
    let mut bytes = sample.to_vec();
    // Offsets and lengths stand at the front of pages, files and records.
    let near = [64, 256, 4096 + 64, 4096 + 256, bytes.len()];
    for _ in 0..rng.usize(0..8) {
        let end = *rng.choice(&near).expect("not empty");
        let at = rng.usize(0..end.clamp(1, bytes.len()));
        match rng.u32(0..6) {
            0 => bytes[at] ^= 1 << rng.u32(0..8),
            1 => bytes[at] = rng.u8(..),
            2 => bytes[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF]).expect("not empty"),
            3 => {
                let from = rng.usize(0..bytes.len());
                let length = rng.usize(0..=64.min(bytes.len() - from.max(at)));
                bytes.copy_within(from..from + length, at);
            }
            4 => bytes[at..]
                .iter_mut()
                .take(8)
                .for_each(|byte| *byte = rng.choice([0, 0xFF]).expect("not empty")),
            _ if rng.u8(..) < 10 => bytes.truncate(at.max(1)),
            _ => {}
        }
    }
    bytes
}

/// Changes of files: mostly small ones where numbers are, see `fuzz/src/files.rs`.
fn changes(name: &str, rng: &mut Rng) -> Vec<u8> {
    let mut input = vec![rng.u8(..)];
    for _ in 0..rng.usize(0..6) {
        let at = match (name, rng.u32(0..4)) {
            ("head", 0..3) => rng.usize(0..4) * 4096 + rng.usize(0..112),
            ("head", _) => rng.usize(0..16_384),
            (_, 0) => rng.usize(0..64),
            (_, 1) => 4096 + rng.usize(0..2000),
            _ => 4096 + rng.usize(0..70_000),
        };
        input.extend_from_slice(&(at as u32).to_be_bytes()[1..]);
        let length = rng.choice([1, 1, 2, 4, 4, 8, 64]).expect("not empty");
        let fill = rng
            .choice([None, None, Some(0u8), Some(1), Some(0xFF)])
            .expect("not empty");
        input.push(length);
        input.extend((0..length).map(|_| fill.unwrap_or_else(|| rng.u8(..))));
    }
    input
}

#[test]
fn operations_agree_with_a_map_through_crashes() {
    run("operations");
}

#[test]
fn pages_of_any_bytes_are_refused_or_readable() {
    run("page");
}

#[test]
fn log_files_of_any_bytes_scan_without_panic() {
    run("log");
}

#[test]
fn store_with_changed_log_is_refused_or_holds_an_earlier_state() {
    run("log_in_store");
}

#[test]
fn store_with_changed_meta_pages_is_refused_or_whole() {
    run("head");
}

#[test]
fn keys_of_any_bytes_decode_to_what_they_encode() {
    run("encoding");
}
