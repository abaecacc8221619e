//! The tour runs, proves what it says, keeps its store when asked, and shows code as code.

use std::time::{Duration, Instant};

use crate::common::Scratch;

const WIDTH_MAX: usize = 100;

#[test]
fn the_tour_runs_in_time_and_keeps_a_sound_store() {
    let scratch = Scratch::new();
    let started = Instant::now();
    let ended = scratch.done(&["tour", "--keep", "kept"]);
    assert!(started.elapsed() < Duration::from_secs(15));
    let text = ended.text();
    assert!(!text.contains('\x1b'), "colours only on a terminal");
    for line in text.lines() {
        assert!(line.chars().count() <= WIDTH_MAX, "{line}");
    }
    for expected in [
        "stock.put(b\"apples\", b\"12\")?;",
        "killed 25 times: ",
        "tx.publish(&sold, &sale) // together with the put, or not at all",
        " announced, all alike",
        "killed 4 times: 1,000 orders acknowledged, 1,000 received, 1,000 stored",
        "0 problems",
        "duramen scan kept",
    ] {
        assert!(text.contains(expected), "{expected}");
    }
    let suggestions = text.lines().filter(|line| line.trim_start().starts_with("duramen "));
    let suggestions: Vec<&str> = suggestions
        .map(|line| line.split("   ").find(|part| !part.is_empty()).unwrap())
        .collect();
    assert!(suggestions.len() > 3);
    for suggestion in suggestions {
        let ended = scratch.shell(suggestion);
        assert_eq!(ended.code, 0, "{suggestion}: {}", ended.stderr);
    }
    assert_eq!(scratch.run(&["tour", "--keep", "kept"]).code, 2);
}

#[test]
fn the_tour_gives_its_results_as_json() {
    let scratch = Scratch::new();
    let values = scratch.done(&["tour", "--json"]).json();
    let [tour] = values.as_slice() else {
        panic!("one object")
    };
    assert!(tour["steps"].as_array().unwrap().len() > 15);
    assert_eq!(tour["kills"]["acknowledged"], tour["kills"]["found"]);
    assert!(tour["kills"]["acknowledged"].as_u64().unwrap() > 0);
    assert_eq!(tour["outbox"]["sales"], tour["outbox"]["messages"]);
    assert!(tour["outbox"]["acknowledged"].as_u64().unwrap() > 0);
    assert_eq!(tour["consumer"]["sold"], tour["consumer"]["counted"]);
    assert!(tour["consumer"]["counted"].as_u64().unwrap() > 0);
    assert!(tour["server"]["kills"].as_u64().unwrap() > 0);
    assert_eq!(tour["server"]["acknowledged"], tour["server"]["received"]);
    assert_eq!(tour["server"]["acknowledged"], tour["server"]["stored"]);
    assert_eq!(tour["check"]["problems"].as_array().unwrap().len(), 0);
    let directory = tour["directory"].as_str().unwrap();
    assert!(
        !std::path::Path::new(directory).exists(),
        "a store that is not kept is deleted"
    );
}
