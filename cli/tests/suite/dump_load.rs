//! Dumps: a load restores what a dump wrote, and notices an incomplete dump.

use std::fs;

use crate::common::{Scratch, seed};
use duramen::Store;

/// Makes a store with binary keys, long values, an empty map and unusual names.
fn varied(scratch: &Scratch, name: &str) {
    let mut random = fastrand::Rng::with_seed(seed());
    let store = Store::open(scratch.path(name)).unwrap();
    for map in ["plain", "#odd name\u{e9}", "long"] {
        let map = store.map(map).unwrap();
        store
            .transact(|tx| {
                for _ in 0..700 {
                    let key: Vec<u8> = (0..random.usize(..20)).map(|_| random.u8(..)).collect();
                    let value: Vec<u8> = (0..random.usize(..200)).map(|_| random.u8(..)).collect();
                    tx.put(&map, &key, &value)?;
                }
                Ok::<_, duramen::Error>(())
            })
            .unwrap();
    }
    let long = store.map("long").unwrap();
    long.put(b"", vec![0xA5; 3 << 20]).unwrap();
    long.put([b'#'; 1024], b"").unwrap();
    store.map("empty").unwrap();
    store.close().unwrap();
}

#[test]
fn a_dump_that_is_loaded_dumps_the_same() {
    let scratch = Scratch::new();
    varied(&scratch, "a");
    let ended = scratch.shell("duramen dump a | duramen load b && duramen dump a > a.dump && duramen dump b > b.dump");
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(fs::read(scratch.path("a.dump")).unwrap() == fs::read(scratch.path("b.dump")).unwrap());
    assert_eq!(
        scratch.done(&["maps", "a", "--count"]).stdout,
        scratch.done(&["maps", "b", "--count"]).stdout
    );
    scratch.done(&["check", "b"]);
}

#[test]
fn what_is_not_damaged_can_be_dumped_and_what_is_lost_is_listed() {
    let scratch = Scratch::new();
    let store = Store::open(scratch.path("a")).unwrap();
    let value = |number: u32| format!("value {number} ").repeat(20);
    for name in ["one", "two"] {
        let map = store.map(name).unwrap();
        let put = |number: u32| map.put(format!("{number:04}").as_bytes(), value(number).as_bytes());
        store.sync().and_then(|()| (0..300).try_for_each(put)).unwrap();
    }
    store.close().unwrap();
    let sound = scratch.done(&["dump", "a", "--skip-damaged"]);
    assert!(
        sound.stderr.contains("dumped 2 maps with 600 pairs"),
        "{}",
        sound.stderr
    );
    let data = scratch.path("a").join("data");
    let mut bytes = fs::read(&data).unwrap();
    let wanted = value(150).into_bytes();
    let place = bytes.windows(wanted.len()).position(|window| window == wanted).unwrap();
    bytes[place] ^= 1;
    fs::write(&data, bytes).unwrap();
    assert_eq!(scratch.shell("duramen dump a > whole.dump").code, 5);
    let ended = scratch.shell("duramen dump a --skip-damaged > rest.dump");
    assert_eq!(ended.code, 5);
    let page = format!("lost: page {} ", place / 4096);
    assert!(ended.stderr.contains(&page), "{}", ended.stderr);
    scratch.done(&["load", "b", "rest.dump"]);
    let rest = Store::open(scratch.path("b")).unwrap();
    let count = |name: &str| rest.map(name).unwrap().count().unwrap();
    assert!((260..300).contains(&count("one").min(count("two"))));
    assert_eq!(count("one").max(count("two")), 300);
    drop(rest);
    let ended = scratch.run(&["dump", "a", "--skip-damaged", "--json"]);
    assert!(ended.stderr.contains("\"lost\":[\"page "), "{}", ended.stderr);
}

#[test]
fn what_is_saved_of_a_store_with_topics_can_be_loaded_and_topics_are_named() {
    let scratch = Scratch::new();
    scratch.done(&["put", "a", "key", "value", "--map", "map"]);
    scratch.done(&["topics", "create", "a", "orders"]);
    scratch.done(&["publish", "a", "orders", "12 apples"]);
    for arguments in ["", "--skip-damaged"] {
        let ended = scratch.shell(&format!(
            "duramen dump a {arguments} > a.dump && duramen load b{arguments} a.dump"
        ));
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        assert!(ended.stderr.contains("topics are not in a dump"), "{}", ended.stderr);
        assert_eq!(scratch.done(&["maps", &format!("b{arguments}")]).text(), "map\n");
    }
}

#[test]
fn maps_can_be_chosen_on_both_sides() {
    let scratch = Scratch::new();
    varied(&scratch, "a");
    let ended = scratch.shell("duramen dump a --map plain --map empty > some.dump && duramen load b some.dump");
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert_eq!(scratch.done(&["maps", "b"]).text(), "empty\nplain\n");
    scratch.done(&["load", "c", "some.dump", "-m", "plain"]);
    assert_eq!(scratch.done(&["maps", "c"]).text(), "plain\n");
    let scan = |store| scratch.done(&["scan", store, "--map", "plain"]).stdout;
    assert!(scan("a") == scan("c"));
    let ended = scratch.run(&["load", "d", "some.dump", "--map", "long"]);
    assert_eq!(ended.code, 2);
    assert!(ended.stderr.contains("empty, plain"), "{}", ended.stderr);
    assert!(!scratch.path("d").exists());
}

#[test]
fn pairs_are_not_mixed_unless_asked_for() {
    let scratch = Scratch::new();
    scratch.done(&["put", "a", "k", "new", "--map", "m"]);
    scratch.done(&["put", "a", "k", "new", "--map", "l"]);
    assert_eq!(scratch.shell("duramen dump a > a.dump").code, 0);
    scratch.done(&["put", "b", "k", "old", "--map", "m"]);
    scratch.done(&["put", "b", "j", "kept", "--map", "m"]);
    let refused = scratch.run(&["load", "b", "a.dump"]);
    assert_eq!(refused.code, 2);
    assert!(refused.stderr.contains("--merge"), "{}", refused.stderr);
    assert_eq!(scratch.done(&["maps", "b"]).text(), "m\n");
    assert_eq!(scratch.done(&["scan", "b"]).text(), "j\tkept\nk\told\n");
    scratch.done(&["load", "b", "a.dump", "--merge"]);
    assert_eq!(scratch.done(&["scan", "b", "--map", "m"]).text(), "j\tkept\nk\tnew\n");
}

#[test]
fn a_dump_that_was_cut_off_or_changed_is_refused_as_damaged() {
    let scratch = Scratch::new();
    varied(&scratch, "a");
    let dump = scratch.done(&["dump", "a"]).stdout;
    let cut = scratch.run_with_input(&["load", "cut"], &dump[..dump.len() / 2]);
    assert_eq!(cut.code, 5, "{}", cut.stderr);
    assert!(
        cut.stderr.contains("cut off") && cut.stderr.contains("are in the store now"),
        "{}",
        cut.stderr
    );
    let without_end = dump.iter().rposition(|&byte| byte == b'#').unwrap();
    assert_eq!(
        scratch.run_with_input(&["load", "endless"], &dump[..without_end]).code,
        5
    );
    let mut changed = dump.clone();
    let place = dump.len() - 200;
    changed[place] = if changed[place] == b'a' { b'b' } else { b'a' };
    assert_eq!(scratch.run_with_input(&["load", "changed"], &changed).code, 5);
    assert_eq!(scratch.run_with_input(&["load", "nothing"], b"").code, 2);
    assert_eq!(scratch.run_with_input(&["load", "nothing"], b"a,b\n1,2\n").code, 2);
    assert!(!scratch.path("nothing").exists());
}

#[test]
fn load_says_in_json_what_it_did() {
    let scratch = Scratch::new();
    scratch.done(&["put", "a", "k", "v", "--map", "m"]);
    let dump = scratch.done(&["dump", "a", "--json"]);
    let summary: serde_json::Value = serde_json::from_str(&dump.stderr).unwrap();
    assert_eq!((&summary["maps"], &summary["pairs"]), (&1.into(), &1.into()));
    let loaded = scratch.run_with_input(&["load", "b", "--json"], &dump.stdout).json();
    assert_eq!((&loaded[0]["maps"], &loaded[0]["pairs"]), (&1.into(), &1.into()));
}
