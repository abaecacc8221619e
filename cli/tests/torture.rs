//! `duramen torture`, run briefly; users run it for an hour.

mod common;

use common::Scratch;

/// Duration in seconds; the environment can set it.
fn seconds() -> String {
    std::env::var("DURAMEN_TORTURE_SECONDS").unwrap_or_else(|_| "20".into())
}

#[test]
fn processes_that_are_killed_and_stopped_at_random_lose_nothing() {
    let scratch = Scratch::new();
    let ended = scratch.run(&["torture", "--seconds", &seconds(), "--dir", "store", "--json"]);
    println!("{}", ended.text());
    assert_eq!(ended.code, 0, "{}\n{}", ended.text(), ended.stderr);
    let sum = ended.json().pop().expect("one object");
    assert_eq!(sum["lost_nothing"], true);
    let count = |name: &str| sum[name].as_u64().expect("a count");
    assert!(count("commits") > 100 && count("looks") > 10, "{sum}");
    assert!(count("checkpoints") > 0, "{sum}");
    assert!(count("kills") > 20 && count("stops") > 5, "{sum}");
    let share = count("kills_in_flight") * 100 / count("writer_kills");
    assert!(share >= 30, "only {share} % of the kills came in a commit: {sum}");
}

#[test]
fn directory_that_holds_something_is_not_tortured() {
    let scratch = Scratch::new();
    scratch.done(&["put", "store", "key", "value", "--map", "map"]);
    let ended = scratch.run(&["torture", "--seconds", "1", "--dir", "store"]);
    assert_eq!(ended.code, 2);
    assert!(ended.stderr.contains("not empty"), "{}", ended.stderr);
}
