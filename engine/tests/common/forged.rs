//! Bytes that look like a log of Duramen: what a user may store as a value, and what blocks of deleted files may hold.

use std::sync::OnceLock;

use duramen_io::SimDisk;

/// The log file of another store, of a generation higher than those of short work.
pub fn log_of_another_store() -> &'static [u8] {
    static LOG: OnceLock<Vec<u8>> = OnceLock::new();
    LOG.get_or_init(|| {
        let disk = SimDisk::new(98);
        let store = super::small_options().open_on(disk.platform()).expect("a store");
        let map = store.map("theirs").expect("a map");
        let put = |number: u32| map.put(number.to_be_bytes(), b"a value of theirs").expect("a put");
        for number in 0..20 {
            put(number);
            store.sync().expect("a sync");
            store.maintain().expect("a fold");
        }
        for number in 0..20 {
            put(number);
            store.sync().expect("a sync");
        }
        let logs = disk.files().into_iter().filter(|name| name.starts_with("wal-"));
        let generation = |log: &Vec<u8>| u32::from_le_bytes(log[32..36].try_into().expect("four bytes"));
        let mut log = logs
            .map(|name| disk.read_raw(&name))
            .filter(|log| log.len() > 36)
            .max_by_key(generation)
            .expect("a log file");
        log.truncate(16 << 10);
        log
    })
}

/// Headers for many generations and epochs that say that everything was synced, by a user who knows the format and not
/// the store.
pub fn headers_of_any_generation() -> &'static [u8] {
    static HEADERS: OnceLock<Vec<u8>> = OnceLock::new();
    HEADERS.get_or_init(|| {
        // The magic number of format 1, and what a store with an id of zeros would write.
        let headers = [(0x4452_4331, 0, 48), (0x4452_4331, 0, 56)];
        let mut value = Vec::new();
        for (magic, seed, length) in headers {
            for (generation, epoch) in
                (1..=20u32).flat_map(|generation| (1..=4u32).map(move |epoch| (generation, epoch)))
            {
                value.extend_from_slice(&header(magic, seed, length, generation, epoch));
            }
        }
        value
    })
}

fn header(magic: u32, seed: u32, length: usize, generation: u32, epoch: u32) -> Vec<u8> {
    let mut header = vec![0; length];
    header[0..4].copy_from_slice(&magic.to_le_bytes());
    header[8..16].copy_from_slice(&(1u64 << 40).to_le_bytes());
    header[16..24].copy_from_slice(&(1u64 << 40).to_le_bytes());
    header[36..40].copy_from_slice(&generation.to_le_bytes());
    header[40..44].copy_from_slice(&epoch.to_le_bytes());
    let sum = crc32c::crc32c_append(seed, &header[8..]);
    header[4..8].copy_from_slice(&sum.to_le_bytes());
    header
}
