//! Libraries that do not agree about the memory that they would share: the one that comes second is refused, clearly, and
//! harms nothing. What the region says of its maker is changed here as another version would have written it.

use crate::common::small_options;
use duramen_engine::{Kind, Options, Reason, Store};
use duramen_io::{OpenMode, SimDisk};

/// What is written at the beginning of the region by who makes it: its layout, and the version of the library.
const LAYOUT: u64 = u64::from_be_bytes(*b"durashr\x11");
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Several processes open the store.
fn options() -> Options {
    small_options()
}

fn open(disk: &SimDisk) -> duramen_engine::Result<Store> {
    options().open_on(disk.platform())
}

/// Where the region has these bytes, once.
fn place_of(disk: &SimDisk, wanted: &[u8]) -> u64 {
    let head = &disk.read_raw("shared")[..4096];
    let mut places = head
        .windows(wanted.len())
        .enumerate()
        .filter(|(_, window)| *window == wanted);
    let (place, _) = places.next().expect("the region says it");
    assert!(places.next().is_none(), "it is said twice");
    place as u64
}

#[test]
fn region_of_another_version_is_refused_by_name_and_left_alone() {
    let disk = SimDisk::new(1);
    let first = open(&disk).unwrap();
    let map = first.map("map").unwrap();
    map.put(b"key", b"value").unwrap();
    let (layout, version) = (
        place_of(&disk, &LAYOUT.to_le_bytes()),
        place_of(&disk, VERSION.as_bytes()),
    );
    let newer_layout = (LAYOUT + 1).to_le_bytes();
    let cases: [(u64, &[u8], &[u8], &str); 2] = [
        (layout, &newer_layout, &LAYOUT.to_le_bytes(), VERSION),
        (version, b"9.9.9", VERSION.as_bytes(), "9.9.9"),
    ];
    for (place, other, own, said) in cases {
        disk.write_raw("shared", place, other);
        let error = open(&disk).unwrap_err();
        assert!(
            matches!(error.reason(), Reason::OtherVersion { found, ours, .. } if found == said && ours == VERSION),
            "{error}"
        );
        assert_eq!(error.kind(), Kind::FixTheCall);
        assert!(
            error.to_string().contains("use the same version in all processes"),
            "{error}"
        );
        // Who is there goes on, and who was refused has left nothing behind.
        map.put(b"key", said.as_bytes()).unwrap();
        assert_eq!(first.stat().unwrap().processes.len(), 1);
        disk.write_raw("shared", place, own);
        let second = open(&disk).unwrap();
        assert_eq!(
            second.map("map").unwrap().get(b"key").unwrap().unwrap(),
            said.as_bytes()
        );
        second.close().unwrap();
    }
    // What a region says means nothing once nobody is there.
    disk.write_raw("shared", layout, &newer_layout);
    let disk = disk.kill();
    let store = open(&disk).unwrap();
    assert_eq!(store.map("map").unwrap().count().unwrap(), 1);
    assert_eq!(store.check(&mut |_| ()).unwrap().problems, [""; 0]);
}

#[test]
fn region_that_is_not_finished_or_cut_off_is_not_attached_to() {
    let disk = SimDisk::new(2);
    let first = open(&disk).unwrap();
    first.map("map").unwrap().put(b"key", b"value").unwrap();
    let layout = place_of(&disk, &LAYOUT.to_le_bytes());
    disk.write_raw("shared", layout, &[0; 8]);
    let error = open(&disk).unwrap_err();
    assert!(matches!(error.reason(), Reason::InUse { .. }), "{error}");
    disk.write_raw("shared", layout, &LAYOUT.to_le_bytes());
    open(&disk).unwrap().close().unwrap();
    // What is in use of it ends where it ends, or earlier.
    let whole = disk.read_raw("shared").len() as u64;
    for cut in [4 << 10, 100 << 10, 600 << 10, 5 << 20, (6 << 20) + 4096] {
        assert!(cut < whole, "{cut} of {whole}");
        let cut_off = disk.kill();
        let region = cut_off.platform().storage.open("shared", OpenMode::Write).unwrap();
        // As on a machine where nobody has died: a copy of the disk on which others are there still.
        let locks = cut_off.platform().storage.byte_locks("lock").unwrap();
        assert!(locks.take(64).unwrap());
        region.set_len(cut).unwrap();
        let error = open(&cut_off).unwrap_err();
        assert!(matches!(error.reason(), Reason::InUse { .. }), "{cut}: {error}");
        locks.release(64).unwrap();
        // Nobody is there any more.
        let store = open(&cut_off).unwrap();
        assert_eq!(store.map("map").unwrap().get(b"key").unwrap().unwrap(), b"value");
    }
}
