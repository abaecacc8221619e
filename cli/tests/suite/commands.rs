//! The commands on real stores: their output, their exit codes, and what they leave behind.

use std::fs;
use std::time::Duration;

use crate::common::{Scratch, seed};
use duramen::{Options, Store};
use serde_json::Value;

fn shop() -> Scratch {
    let scratch = Scratch::new();
    for (key, value) in [("apples", "12"), ("pears", "7"), ("plums", "30")] {
        scratch.done(&["put", "shop", key, value, "--map", "stock"]);
    }
    scratch
}

#[test]
fn a_value_that_was_put_is_got() {
    let scratch = shop();
    assert_eq!(scratch.done(&["get", "shop", "pears"]).text(), "7\n");
    assert_eq!(scratch.done(&["get", "shop", "pears", "--raw"]).text(), "7");
    assert_eq!(scratch.done(&["get", "shop", "7065617273", "--hex"]).text(), "37\n");
}

#[test]
fn a_process_that_may_have_few_addresses_has_a_store_too() {
    let scratch = Scratch::new();
    // Enough for several generations of the log.
    let source = Store::open(scratch.path("source")).unwrap();
    let map = source.map("stock").unwrap();
    let mut batch = duramen::Batch::new();
    (0..40_000u32).for_each(|number| batch.put(&map, number.to_be_bytes(), [7; 100]).unwrap());
    source.write(batch).unwrap();
    drop(map);
    source.close().unwrap();
    scratch.shell("duramen dump source > pairs");
    for gibibytes in [64, 16, 6] {
        let limit = format!("ulimit -v {}", gibibytes << 20);
        let store = format!("store-{gibibytes}");
        let ended = scratch.shell(&format!(
            "{limit} && duramen load {store} < pairs >&2 && duramen put {store} pears {gibibytes} && duramen get {store} pears"
        ));
        assert_eq!(
            (ended.code, ended.text()),
            (0, format!("{gibibytes}\n").as_str()),
            "{limit}: {}",
            ended.stderr
        );
    }
}

#[test]
fn a_deleted_key_stays_deleted() {
    let scratch = shop();
    assert_eq!(scratch.done(&["delete", "shop", "pears"]).text(), "");
    assert_eq!(scratch.run(&["get", "shop", "pears"]).code, 1);
    assert_eq!(scratch.run(&["delete", "shop", "pears"]).code, 1);
    assert_eq!(scratch.done(&["scan", "shop"]).text(), "apples\t12\nplums\t30\n");
}

#[test]
fn a_range_is_deleted_at_once_and_nothing_beside_it() {
    let scratch = shop();
    let ended = scratch.done(&["delete", "shop", "--from", "b", "--to", "plums"]);
    assert!(ended.stderr.contains("deleted 1 pair "), "{}", ended.stderr);
    assert_eq!(scratch.done(&["scan", "shop", "--keys-only"]).text(), "apples\nplums\n");
    assert_eq!(scratch.run(&["delete", "shop", "--prefix", "x"]).code, 1);
    scratch.done(&["delete", "shop", "--prefix", ""]);
    assert_eq!(scratch.done(&["scan", "shop"]).text(), "");
    assert_eq!(scratch.run(&["delete", "shop"]).code, 2);
    assert_eq!(scratch.run(&["delete", "shop", "a", "--prefix", "a"]).code, 2);
}

#[test]
fn scans_keep_to_their_range_their_limit_and_their_direction() {
    let scratch = shop();
    let keys = |arguments: &[&str]| {
        let ended = scratch.done(&[&["scan", "shop", "--keys-only"], arguments].concat());
        ended.text().lines().map(str::to_string).collect::<Vec<_>>()
    };
    assert_eq!(keys(&[]), ["apples", "pears", "plums"]);
    assert_eq!(keys(&["--prefix", "p"]), ["pears", "plums"]);
    assert_eq!(keys(&["--from", "pears"]), ["pears", "plums"]);
    assert_eq!(keys(&["--to", "pears"]), ["apples"]);
    assert_eq!(keys(&["--from", "z", "--to", "a"]), [""; 0]);
    assert_eq!(keys(&["--reverse"]), ["plums", "pears", "apples"]);
    assert_eq!(keys(&["--reverse", "--prefix", "p", "--limit", "1"]), ["plums"]);
    assert_eq!(keys(&["--limit", "0"]), [""; 0]);
}

#[test]
fn binary_keys_and_values_come_back_as_scan_shows_them() {
    let scratch = Scratch::new();
    let mut random = fastrand::Rng::with_seed(seed());
    let store = Store::open(scratch.path("s")).unwrap();
    let bytes = |random: &mut fastrand::Rng, length: usize| (0..length).map(|_| random.u8(..)).collect::<Vec<_>>();
    for _ in 0..40 {
        let (key_length, value_length) = (random.usize(..12), random.usize(..40));
        let (key, value) = (bytes(&mut random, key_length), bytes(&mut random, value_length));
        store.map("m").unwrap().put(&key, &value).unwrap();
    }
    store.close().unwrap();
    let shown = scratch.done(&["scan", "s"]);
    let hexadecimal = scratch.done(&["scan", "s", "--hex"]);
    for (shown, hexadecimal) in shown.text().lines().zip(hexadecimal.text().lines()) {
        let (key, value) = shown.split_once('\t').unwrap();
        assert_eq!(scratch.done(&["get", "s", "--", key]).text(), format!("{value}\n"));
        scratch.done(&[
            "put",
            "copy",
            "--map",
            "m",
            "--",
            key,
            if value == "-" { "\\x2d" } else { value },
        ]);
        let (key, value) = hexadecimal.split_once('\t').unwrap();
        assert_eq!(
            scratch.done(&["get", "copy", "--hex", "--", key]).text(),
            format!("{value}\n")
        );
    }
    assert_eq!(scratch.done(&["scan", "copy", "--hex"]).text(), hexadecimal.text());
}

#[test]
fn values_come_from_files_and_pipes_as_they_are() {
    let scratch = shop();
    let value: Vec<u8> = (0..300_000_u32).map(|index| (index * 7 % 256) as u8).collect();
    fs::write(scratch.path("file"), &value).unwrap();
    scratch.done(&["put", "shop", "a", "--map", "files", "--value-file", "file"]);
    for from_stdin in [&["-"][..], &["--value-file", "-"]] {
        let arguments = [&["put", "shop", "b", "--map", "files"], from_stdin].concat();
        assert_eq!(scratch.run_with_input(&arguments, &value).code, 0);
        for key in ["a", "b"] {
            assert!(scratch.done(&["get", "shop", key, "--map", "files", "--raw"]).stdout == value);
        }
    }
    assert_eq!(
        scratch
            .run(&["put", "shop", "a", "--value-file", "missing", "--map", "files"])
            .code,
        2
    );
}

#[test]
fn negative_numbers_are_values_not_options() {
    let scratch = shop();
    scratch.done(&["put", "shop", "-7", "-12"]);
    assert_eq!(scratch.done(&["get", "shop", "-7"]).text(), "-12\n");
}

#[test]
fn the_only_map_is_the_default_and_several_must_be_named() {
    let scratch = shop();
    scratch.done(&["get", "shop", "pears"]);
    scratch.done(&["maps", "create", "shop", "orders"]);
    let ended = scratch.run(&["get", "shop", "pears"]);
    assert_eq!(ended.code, 2);
    assert!(
        ended.stderr.contains("--map") && ended.stderr.contains("orders, stock"),
        "{}",
        ended.stderr
    );
    let unknown = scratch.run(&["get", "shop", "pears", "--map", "stok"]);
    assert_eq!(unknown.code, 2);
    assert!(unknown.stderr.contains("orders, stock"), "{}", unknown.stderr);
}

#[test]
fn maps_are_made_renamed_and_dropped() {
    let scratch = shop();
    scratch.done(&["maps", "create", "shop", "a"]);
    assert_eq!(scratch.run(&["maps", "create", "shop", "a"]).code, 2);
    scratch.done(&["maps", "rename", "shop", "a", "b"]);
    assert_eq!(scratch.done(&["maps", "shop", "--count"]).text(), "b\t0\nstock\t3\n");
    assert_eq!(scratch.run(&["maps", "drop", "shop", "stock"]).code, 2);
    assert_eq!(scratch.done(&["maps", "shop"]).text(), "b\nstock\n");
    scratch.done(&["maps", "drop", "shop", "stock", "--force"]);
    scratch.done(&["maps", "drop", "shop", "b"]);
    assert_eq!(scratch.done(&["maps", "shop"]).text(), "");
    assert_eq!(scratch.run(&["maps", "drop", "shop", "b"]).code, 2);
}

#[test]
fn a_copy_holds_the_same_and_both_are_sound() {
    let scratch = shop();
    scratch.done(&["copy", "shop", "backup"]);
    let scan = |store| scratch.done(&["scan", store]).stdout;
    assert_eq!(scan("shop"), scan("backup"));
    scratch.done(&["compact", "shop"]);
    assert_eq!(scan("shop"), scan("backup"));
    for store in ["shop", "backup"] {
        assert!(scratch.done(&["check", store]).text().starts_with("sound: "));
    }
    assert_eq!(scratch.run(&["copy", "shop", "backup"]).code, 2);
}

#[test]
fn commands_that_read_make_no_store() {
    let scratch = Scratch::new();
    for arguments in [
        &["get", "none", "k"][..],
        &["scan", "none"],
        &["check", "none"],
        &["delete", "none", "k"],
    ] {
        let ended = scratch.run(arguments);
        assert_eq!(ended.code, 2, "{}", ended.stderr);
        assert!(ended.stderr.contains("there is no store at none"), "{}", ended.stderr);
        assert!(!scratch.path("none").exists());
    }
    fs::create_dir(scratch.path("other")).unwrap();
    fs::write(scratch.path("other/file"), "x").unwrap();
    assert_eq!(scratch.run(&["put", "other", "k", "v", "--map", "m"]).code, 2);
}

#[test]
fn commands_read_and_write_a_store_that_a_program_has_open() {
    let scratch = shop();
    let store = Store::open(scratch.path("shop")).unwrap();
    let map = store.map("stock").unwrap();
    map.put(b"plums", b"3").unwrap();
    assert_eq!(scratch.done(&["get", "shop", "plums"]).text(), "3\n");
    scratch.done(&["put", "shop", "plums", "4"]);
    assert_eq!(map.get(b"plums").unwrap().unwrap(), b"4");
    map.put(b"plums", b"5").unwrap();
    assert_eq!(scratch.done(&["get", "shop", "plums"]).text(), "5\n");
    store.close().unwrap();
    assert_eq!(scratch.done(&["get", "shop", "plums"]).text(), "5\n");
}

#[test]
fn a_store_that_a_program_has_to_itself_is_refused_with_the_name_of_its_holder() {
    let scratch = shop();
    let held = Options::new().exclusive(true).open(scratch.path("shop")).unwrap();
    for arguments in [&["get", "shop", "pears"][..], &["put", "shop", "k", "v"]] {
        let ended = scratch.run(arguments);
        assert_eq!(ended.code, 3, "{}", ended.stderr);
        assert!(
            ended
                .stderr
                .contains(&format!("in use by process {}", std::process::id())),
            "{}",
            ended.stderr
        );
        assert!(ended.stderr.contains("hint: "), "{}", ended.stderr);
    }
    let releasing = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        held.close().unwrap();
    });
    scratch.done(&["get", "shop", "pears", "--wait", "20"]);
    releasing.join().unwrap();
}

#[test]
fn readers_share_a_store_and_keep_writers_out() {
    let scratch = shop();
    let _reader = Options::new().read_only(true).open(scratch.path("shop")).unwrap();
    scratch.done(&["get", "shop", "pears"]);
    let ended = scratch.run(&["put", "shop", "k", "v"]);
    assert_eq!(ended.code, 3);
    assert!(
        ended.stderr.contains("being read by another process"),
        "{}",
        ended.stderr
    );
}

#[test]
fn damage_is_found_by_check_and_not_served_by_get() {
    let scratch = Scratch::new();
    let marker = "a-value-that-is-easy-to-find-in-the-file";
    scratch.done(&["put", "s", "k", marker, "--map", "m"]);
    let path = scratch.path("s/data");
    let mut bytes = fs::read(&path).unwrap();
    let place = bytes
        .windows(marker.len())
        .rposition(|window| window == marker.as_bytes())
        .unwrap();
    bytes[place] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let ended = scratch.run(&["check", "s"]);
    assert_eq!(ended.code, 1, "{}", ended.stderr);
    assert!(ended.text().contains("is damaged: page "), "{}", ended.text());
    let get = scratch.run(&["get", "s", "k", "--map", "m"]);
    assert_eq!(get.code, 5, "{}", get.stderr);
    assert!(get.stdout.is_empty());
    // All copies of the meta pages.
    bytes[..64 * 4096].fill(0);
    fs::write(&path, &bytes).unwrap();
    assert_eq!(scratch.run(&["check", "s"]).code, 5);
}

#[test]
fn a_full_disk_under_the_output_is_said() {
    let scratch = shop();
    let ended = scratch.shell("duramen scan shop > /dev/full");
    assert_eq!(ended.code, 4, "{}", ended.stderr);
}

#[test]
fn a_reader_that_goes_away_ends_the_command_quietly() {
    let scratch = Scratch::new();
    let line = |number| format!("key {number}\t{}\n", "x".repeat(50));
    let pairs: String = (0..20_000).map(line).collect();
    let dump = format!("#duramen-dump 1\n#map\tm\n#pairs\tm\n{pairs}#end\n");
    assert_eq!(scratch.run_with_input(&["load", "s"], dump.as_bytes()).code, 0);
    for command in ["scan s", "scan s --json", "dump s"] {
        let ended = scratch.shell(&format!("duramen {command} | head -n 1 > /dev/null"));
        assert_eq!((ended.code, ended.stderr.as_str()), (0, ""), "{command}");
    }
}

#[test]
fn every_command_speaks_json() {
    let scratch = shop();
    let one = |arguments: &[&str]| {
        let values = scratch.done(&[arguments, &["--json"]].concat()).json();
        assert_eq!(values.len(), 1, "{arguments:?}");
        values.into_iter().next().unwrap()
    };
    assert_eq!(one(&["put", "shop", "figs", "1\\n"])["bytes"], 2);
    assert_eq!(one(&["get", "shop", "figs"])["value"], "1\\n");
    assert_eq!(one(&["delete", "shop", "figs"])["deleted"], 1);
    assert_eq!(one(&["maps", "shop"])["map"], "stock");
    assert_eq!(one(&["maps", "shop", "--count"])["pairs"], 3);
    assert_eq!(one(&["maps", "create", "shop", "x"])["created"], "x");
    assert_eq!(one(&["maps", "drop", "shop", "x"])["dropped"], "x");
    assert_eq!(one(&["stat", "shop"])["maps"][0]["pairs"], 3);
    assert_eq!(one(&["check", "shop"])["sound"], true);
    assert_eq!(one(&["copy", "shop", "backup"])["to"], "backup");
    assert!(one(&["compact", "shop"])["bytes_after"].is_u64());
    let scanned = scratch.done(&["scan", "shop", "--json"]).json();
    let keys: Vec<_> = scanned.iter().map(|pair| pair["key"].as_str().unwrap()).collect();
    assert_eq!(keys, ["apples", "pears", "plums"]);
    let missing = scratch.run(&["get", "shop", "figs", "--json"]);
    assert_eq!((missing.code, &missing.json()[0]["found"]), (1, &false.into()));
    let failed = scratch.run(&["get", "none", "figs", "--json"]);
    let failure: serde_json::Value = serde_json::from_str(&failed.stderr).unwrap();
    assert_eq!((&failure["exit"], &failure["kind"]), (&2.into(), &"wrong_call".into()));
}

#[test]
fn wrong_usage_ends_with_two_and_help_with_zero() {
    let scratch = shop();
    for arguments in [
        &[][..],
        &["gt"],
        &["get"],
        &["get", "shop", "k", "--colour"],
        &["get", "shop", "\\q"],
    ] {
        let ended = scratch.run(arguments);
        assert_eq!(ended.code, 2, "{arguments:?}");
        assert!(ended.stdout.is_empty() && !ended.stderr.is_empty());
    }
    assert!(scratch.done(&["--help"]).text().contains("Exit codes:"));
    assert!(scratch.done(&["--version"]).text().starts_with("duramen "));
}

#[test]
fn stat_counts_what_a_killed_writer_left_in_the_log() {
    let scratch = shop();
    // A store that is not closed leaves its log behind, like a killed process. The copy has no lock.
    let store = Store::open(scratch.path("shop")).unwrap();
    store.map("stock").unwrap().put(b"figs", b"1").unwrap();
    let ended = scratch.shell("cp -r shop crashed");
    assert_eq!(ended.code, 0);
    drop(store);
    let statistics = scratch.done(&["stat", "crashed", "--json"]).json();
    assert_eq!(statistics[0]["maps"][0]["pairs"], 4);
    assert_eq!(scratch.done(&["get", "crashed", "figs"]).text(), "1\n");
}

#[test]
fn checkpoints_are_kept_listed_and_dropped() {
    let scratch = shop();
    scratch.done(&["checkpoint", "create", "shop", "monday", "--metadata", "offset 7"]);
    scratch.done(&["put", "shop", "apples", "3", "--map", "stock"]);
    let made = scratch.done(&["checkpoint", "create", "shop", "tuesday", "--json"]);
    assert_eq!(made.json()[0]["number"], 2);
    let listed = scratch.done(&["checkpoint", "list", "shop", "--json"]).json();
    let names: Vec<_> = listed.iter().map(|line| line["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["monday", "tuesday"]);
    assert_eq!(listed[0]["metadata"], "offset 7");
    assert!(listed[0]["bytes_alone"].as_u64().unwrap() > 0);
    let text = scratch.done(&["checkpoint", "list", "shop"]);
    assert!(text.text().starts_with("1\tmonday\t"), "{}", text.text());
    {
        let store = Store::open(scratch.path("shop")).unwrap();
        let stock = store.map("stock").unwrap();
        let monday = store.checkpoints().open("monday").unwrap();
        assert_eq!(monday.get(&stock, "apples").unwrap().as_deref(), Some(&b"12"[..]));
    }
    scratch.done(&["check", "shop"]);
    let shown = scratch
        .done(&["checkpoint", "show", "shop", "tuesday", "--json"])
        .json();
    let mut expected = listed[1].clone();
    assert!(shown[0]["bytes_shared"].as_u64().unwrap() > 0);
    expected["bytes_shared"] = shown[0]["bytes_shared"].clone();
    assert_eq!(shown, [expected]);
    assert_eq!(scratch.run(&["checkpoint", "show", "shop", "friday"]).code, 1);
    scratch.done(&["put", "shop", "figs", "1", "--map", "stock"]);
    scratch.done(&["delete", "shop", "plums", "--map", "stock"]);
    scratch.done(&["checkpoint", "create", "shop", "friday"]);
    let difference = scratch.done(&["checkpoint", "diff", "shop", "monday", "friday"]);
    let lines = [
        "-\tstock\tapples\t12",
        "+\tstock\tapples\t3",
        "+\tstock\tfigs\t1",
        "-\tstock\tplums\t30",
    ];
    assert_eq!(difference.text().lines().collect::<Vec<_>>(), lines);
    let difference = scratch
        .done(&["checkpoint", "diff", "shop", "monday", "friday", "--json"])
        .json();
    assert_eq!(
        (&difference[0]["old"], &difference[0]["new"]),
        (&"12".into(), &"3".into())
    );
    assert!(difference[1]["old"].is_null() && difference[2]["new"].is_null());
    let keys = scratch.done(&["checkpoint", "diff", "shop", "tuesday", "friday", "--keys-only"]);
    assert_eq!(keys.text(), "+\tstock\tfigs\n-\tstock\tplums\n");
    assert_eq!(scratch.run(&["checkpoint", "diff", "shop", "monday", "never"]).code, 2);
    let restored = scratch.shell("duramen dump shop --checkpoint monday | duramen load restored");
    assert_eq!(restored.code, 0, "{}", restored.stderr);
    assert_eq!(
        scratch.done(&["scan", "restored"]).text(),
        "apples\t12\npears\t7\nplums\t30\n"
    );
    scratch.done(&["checkpoint", "restore", "shop", "monday"]);
    let put_back = scratch.done(&["scan", "shop", "--map", "stock"]);
    assert_eq!(put_back.text(), "apples\t12\npears\t7\nplums\t30\n");
    let put_back = scratch
        .done(&["checkpoint", "restore", "shop", "friday", "--json"])
        .json();
    assert_eq!(put_back[0]["name"], "friday");
    assert!(put_back[0]["commit"].as_u64().unwrap() > 3);
    assert_eq!(scratch.run(&["checkpoint", "restore", "shop", "never"]).code, 1);
    scratch.done(&["check", "shop"]);
    scratch.done(&["checkpoint", "drop", "shop", "friday"]);
    let again = scratch.run(&["checkpoint", "create", "shop", "monday"]);
    assert_eq!(again.code, 2);
    assert!(again.stderr.contains("drop that one first"), "{}", again.stderr);
    let dropped = scratch.done(&["checkpoint", "drop", "shop", "--keep-last", "1", "--json"]);
    assert_eq!(dropped.json()[0]["dropped"], 1);
    assert_eq!(scratch.run(&["checkpoint", "drop", "shop", "monday"]).code, 1);
    scratch.done(&["checkpoint", "drop", "shop", "tuesday"]);
    assert_eq!(scratch.done(&["checkpoint", "list", "shop"]).text(), "");
    for name in ["of one 1", "of one 2", "of two 1"] {
        scratch.done(&["checkpoint", "create", "shop", name]);
    }
    let dropped = scratch.done(&["checkpoint", "drop", "shop", "--prefix", "of one ", "--json"]);
    assert_eq!(dropped.json()[0]["dropped"], 2);
    let dropped = scratch.done(&["checkpoint", "drop", "shop", "--prefix", "of one ", "--json"]);
    assert_eq!(dropped.json()[0]["dropped"], 0);
    scratch.done(&["checkpoint", "drop", "shop", "of two 1"]);
}

#[test]
fn backups_are_exported_verified_imported_and_pruned() {
    let scratch = shop();
    let first = scratch.done(&["export", "shop", "backup", "--json"]).json();
    assert_eq!((&first[0]["number"], &first[0]["after"]), (&1.into(), &Value::Null));
    scratch.done(&["put", "shop", "apples", "3", "--map", "stock"]);
    let second = scratch.done(&["export", "shop", "backup", "--metadata", "a sale"]);
    assert!(second.stderr.contains("after 1"), "{}", second.stderr);
    let listed = scratch.done(&["exports", "backup", "--json"]).json();
    assert_eq!(listed.len(), 2);
    assert_eq!(
        (&listed[1]["after"], &listed[1]["metadata"]),
        (&1.into(), &"a sale".into())
    );
    assert!(scratch.done(&["exports", "backup"]).text().starts_with("1\tcommit "));
    scratch.done(&["verify", "backup"]);
    scratch.done(&["verify", "backup", "--number", "1"]);
    scratch.done(&["import", "backup", "copy"]);
    assert_eq!(scratch.done(&["get", "copy", "apples", "--map", "stock"]).text(), "3\n");
    scratch.done(&["import", "backup", "copy-1", "--number", "1"]);
    assert_eq!(
        scratch.done(&["get", "copy-1", "apples", "--map", "stock"]).text(),
        "12\n"
    );
    scratch.done(&["check", "copy"]);
    let again = scratch.run(&["import", "backup", "copy"]);
    assert_eq!(again.code, 2);
    assert!(again.stderr.contains("is not empty"), "{}", again.stderr);
    for missing in [
        &["verify", "backup", "--number", "9"][..],
        &["import", "backup", "copy-9", "--number", "9"],
        &["import", "backup", "copy-9", "--until", "5"],
        &["verify", "nothing"],
    ] {
        assert_eq!(scratch.run(missing).code, 1, "{missing:?}");
    }
    assert!(
        !scratch.path("nothing").exists(),
        "a place that is only read is not made"
    );
    let inside = scratch.run(&["export", "shop", "shop/backup"]);
    assert_eq!(inside.code, 2);
    assert!(
        inside.stderr.contains("is in the store") && !scratch.path("shop/backup").exists(),
        "{}",
        inside.stderr
    );
    assert_eq!(scratch.run(&["prune", "backup"]).code, 2);
    let pruned = scratch.done(&["prune", "backup", "--keep-last", "1", "--json"]).json();
    assert_eq!(
        (pruned[0]["kept"].as_u64(), &pruned[0]["removed_exports"]),
        (Some(2), &Value::Array(Vec::new()))
    );
    scratch.done(&["backup", "shop", "backup", "--keep-last", "1", "--full"]);
    assert_eq!(scratch.done(&["exports", "backup"]).text().lines().count(), 1);
    // Rot in a pack is found, with the code of damage.
    let packs = std::fs::read_dir(scratch.path("backup").join("packs")).unwrap();
    for pack in packs.map(|pack| pack.unwrap().path()) {
        let mut bytes = std::fs::read(&pack).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&pack, bytes).unwrap();
    }
    assert_eq!(scratch.run(&["verify", "backup"]).code, 5);
    assert_eq!(scratch.run(&["import", "backup", "copy-2"]).code, 5);
    assert!(!scratch.path("copy-2").exists());
}

/// What was committed while the place could not be reached is exported as well, though the store is not changed any more.
#[test]
fn a_backup_that_follows_exports_what_came_while_it_failed() {
    let scratch = shop();
    scratch.done(&["export", "shop", "backup"]);
    let packs = scratch.path("backup").join("packs");
    std::fs::rename(&packs, scratch.path("away")).unwrap();
    std::fs::write(&packs, "in the way").unwrap();
    scratch.done(&["put", "shop", "apples", "1", "--map", "stock"]);
    // Its checkpoint is made, and its pack cannot be sent.
    assert_eq!(scratch.run(&["backup", "shop", "backup"]).code, 3);
    scratch.done(&["put", "shop", "apples", "2", "--map", "stock"]);
    std::fs::remove_file(&packs).unwrap();
    std::fs::rename(scratch.path("away"), &packs).unwrap();
    let mut command = scratch.command(env!("CARGO_BIN_EXE_duramen"));
    let mut follow = command
        .args(["backup", "shop", "backup", "--follow", "--every", "1s"])
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    std::thread::sleep(std::time::Duration::from_secs(4));
    follow.kill().unwrap();
    follow.wait().unwrap();
    // The interrupted one, and one with the rest: and no more, for nothing changes.
    assert_eq!(scratch.done(&["exports", "backup"]).text().lines().count(), 3);
    scratch.done(&["import", "backup", "copy"]);
    assert_eq!(scratch.done(&["get", "copy", "apples", "--map", "stock"]).text(), "2\n");
}
