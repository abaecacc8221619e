//! Meta pages: four pages of the data file, far apart. They say where the newest durable base is.
//!
//! ```text
//! page  0   copy A of the meta page with an even sequence number
//! page 16   copy A of the meta page with an odd sequence number
//! page 32   copy B of the meta page with an even sequence number
//! page 48   copy B of the meta page with an odd sequence number
//!
//! meta page   0 magic u64 | 8 format u32 | 12 checksum u32 | 16 the rest, by format
//! ```
//!
//! The other pages below [`META_PAGES`] are reserved and never written, so each meta page is alone in every unit of up
//! to 64 KiB that a device or a file system writes back as a whole.
//!
//! Every future format keeps the line "meta page" and the place of page 0, and how the checksum is made: CRC-32C of
//! bytes 16..4096, begun with the number of the format less one. It covers the format too, so that a page of a newer
//! format can be told from a page that rotted. Format 1 had its four meta pages in pages 0 to 3.
//!
//! Meta page N replaces meta page N - 2 after everything that it refers to is durable: the writer writes copy A, syncs,
//! writes copy B, and syncs. **Invariant**: at any time at most one of the four pages has been written and not been
//! synced, so a power cut destroys at most one of them. A writer that begins with N has found N - 1 in both of its
//! copies, or has written them again.
//!
//! So these are the only states that a sound device can show, with N the newest intact sequence number:
//!
//! | copies of the parity of N | copies of the other parity | how it came |
//! |---|---|---|
//! | N, N | N - 1, N - 1 | at rest |
//! | N, N | torn, N - 1 | a power cut while copy A of N + 1 was written |
//! | N, N - 2 | N - 1, N - 1 | copy A of N is durable, copy B was not begun |
//! | N, torn | N - 1, N - 1 | a power cut while copy B of N was written |
//!
//! In each of them N - 1 is intact somewhere. Where it is not, both copies of the other parity are lost, and they may
//! have held N + 1: opening the store refuses that as damage ([`MetaPages::verify`]).

use duramen_io::File;

use crate::btree::Root;
use crate::checksum::checksum_with;
use crate::datafile::register::SavedRegister;
use crate::error::{Error, Reason, Result};
use crate::limits::{FORMAT, LONG_NUMBER_MAX, PAGE_BYTES, SHORT_NUMBER_MAX};
use crate::planted::{PlantedBug, is_planted, kill_point};

/// Name of the data file.
pub(crate) const DATA_FILE: &str = "data";
/// Copies of each meta page.
const META_COPIES: u32 = 2;
/// Pages from one meta page to the next: 64 KiB.
const META_DISTANCE: u32 = 16;
/// Meta pages: two copies each of the last two.
const META_SLOTS: u32 = 2 * META_COPIES;
/// Pages at the beginning of the data file that are not for the allocator: the meta pages, and what separates them.
pub(crate) const META_PAGES: u32 = META_SLOTS * META_DISTANCE;
/// Those of them that are never written.
pub(crate) const META_GAP_PAGES: u32 = META_PAGES - META_SLOTS;
/// Where format 1 had its meta pages.
const META_PAGES_OF_FORMAT_1: u32 = 4;

const META_MAGIC: u64 = u64::from_le_bytes(*b"DuramenD");
const META_BYTES: usize = 256;

/// The durable state of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Meta {
    pub(crate) store: u128,
    pub(crate) sequence: u64,
    pub(crate) hash_seed: u64,
    /// Newest commit contained in the base.
    pub(crate) base_commit: u64,
    /// Header checksum of that commit's record, to which the log connects.
    pub(crate) previous: u32,
    pub(crate) root: Root,
    /// The version that had this root when it was made: pages born later do not belong to it.
    pub(crate) version: u64,
    /// The saved bitmap of used pages: first page, pages, checksum.
    pub(crate) bitmap: SavedBitmap,
    /// Pages of the data file up to the last one in use; what is beyond may be cut off once both meta pages say so.
    pub(crate) data_pages: u32,
    pub(crate) next_map: u32,
    pub(crate) epoch: u32,
    pub(crate) next_generation: u32,
    /// Newest commit of which the base holds anything: when it is newer than `base_commit`, the commits between the two
    /// are in parts of the base, and in the log up to there.
    pub(crate) reaches: u64,
    /// Microseconds since the Unix epoch, not before the commit time of any commit in the base.
    pub(crate) time: u64,
    /// The register of checkpoints.
    pub(crate) register: SavedRegister,
}

/// Where the bitmap of used pages is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SavedBitmap {
    pub(crate) page: u32,
    pub(crate) pages: u32,
    pub(crate) checksum: u32,
}

impl Meta {
    fn encode(&self) -> Vec<u8> {
        let mut out = vec![0u8; PAGE_BYTES];
        out[0..8].copy_from_slice(&META_MAGIC.to_le_bytes());
        out[8..12].copy_from_slice(&FORMAT.to_le_bytes());
        out[16..32].copy_from_slice(&self.store.to_le_bytes());
        out[32..40].copy_from_slice(&self.sequence.to_le_bytes());
        out[40..48].copy_from_slice(&self.hash_seed.to_le_bytes());
        out[48..56].copy_from_slice(&self.base_commit.to_le_bytes());
        out[56..64].copy_from_slice(&self.root.pairs.to_le_bytes());
        out[64..72].copy_from_slice(&self.version.to_le_bytes());
        let words = [
            self.previous,
            self.root.page,
            self.root.height as u32,
            self.bitmap.page,
            self.bitmap.pages,
            self.bitmap.checksum,
            self.data_pages,
            self.next_map,
            self.epoch,
            self.next_generation,
            self.root.checksum,
        ];
        for (place, word) in out[72..].chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        // Bytes 116 to 120 are zero.
        out[120..128].copy_from_slice(&self.reaches.to_le_bytes());
        out[128..136].copy_from_slice(&self.time.to_le_bytes());
        let register = [self.register.page, self.register.pages, self.register.checksum];
        for (place, word) in out[136..].chunks_exact_mut(4).zip(register) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        let sum = page_checksum(FORMAT, &out);
        out[12..16].copy_from_slice(&sum.to_le_bytes());
        out
    }

    fn decode(page: &[u8]) -> Found {
        let word = |at: usize| u32::from_le_bytes(page[at..at + 4].try_into().expect("four bytes"));
        let long = |at: usize| u64::from_le_bytes(page[at..at + 8].try_into().expect("eight bytes"));
        if long(0) != META_MAGIC {
            return Found::Nothing;
        }
        let format = word(8);
        if format == 0 || word(12) != page_checksum(format, page) {
            return Found::Nothing;
        }
        if format != FORMAT {
            return Found::OtherFormat(format);
        }
        let meta = Meta {
            store: u128::from_le_bytes(page[16..32].try_into().expect("sixteen bytes")),
            sequence: long(32),
            hash_seed: long(40),
            base_commit: long(48),
            previous: word(72),
            root: Root {
                page: word(76),
                height: word(80) as u8,
                pairs: long(56),
                checksum: word(112),
            },
            version: long(64),
            bitmap: SavedBitmap {
                page: word(84),
                pages: word(88),
                checksum: word(92),
            },
            data_pages: word(96),
            next_map: word(100),
            epoch: word(104),
            next_generation: word(108),
            reaches: long(120),
            time: long(128),
            register: SavedRegister {
                page: word(136),
                pages: word(140),
                checksum: word(144),
            },
        };
        if meta.is_possible() {
            Found::Meta(meta)
        } else {
            Found::Nothing
        }
    }

    /// Whether one can count on from the numbers.
    fn is_possible(&self) -> bool {
        let long = [self.sequence, self.base_commit, self.version, self.reaches];
        let short = [self.next_map, self.epoch, self.next_generation];
        long.iter().all(|&number| number < LONG_NUMBER_MAX) && short.iter().all(|&number| number < SHORT_NUMBER_MAX)
    }

    /// Pages of its copies A and B.
    pub(crate) fn pages(&self) -> [u64; META_COPIES as usize] {
        let slot = |copy: u64| slot_of(self.sequence, copy) * u64::from(META_DISTANCE);
        [slot(0), slot(1)]
    }

    /// Writes both copies one after the other, and calls `sync`, which makes the data file durable, after each. The
    /// caller has synced what the meta page refers to.
    ///
    /// A file system that copies on write may have no room for a copy, although the file has the page. Without room for
    /// the first one nothing has changed. Without room for the second one the first stands alone, until the next meta
    /// page.
    pub(crate) fn write(&self, data: &dyn File, sync: &dyn Fn() -> Result<()>) -> Result<()> {
        let [first, second] = self.pages();
        self.write_copy(data, first, sync)?;
        match self.write_copy(data, second, sync) {
            // Not a sync that failed: that is an input/output error, also on a full disk.
            Err(error) if matches!(error.reason(), Reason::Full { .. }) => Ok(()),
            written => written,
        }
    }

    fn write_copy(&self, data: &dyn File, page: u64, sync: &dyn Fn() -> Result<()>) -> Result<()> {
        data.write_at(&self.encode(), page * PAGE_BYTES as u64)
            .map_err(|error| match error.kind() {
                std::io::ErrorKind::StorageFull => {
                    let (needed, what) = (PAGE_BYTES as u64, "a meta page");
                    Reason::Full { needed, what }.into()
                }
                _ => Error::io("writing a meta page", error),
            })?;
        kill_point();
        sync()
    }
}

/// Which of the four meta pages a copy of a sequence number is.
fn slot_of(sequence: u64, copy: u64) -> u64 {
    copy * 2 + sequence % 2
}

/// What the four meta pages hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MetaPages {
    pub(crate) newest: Meta,
    /// The intact ones, in the order of their places.
    intact: [Option<Meta>; META_SLOTS as usize],
}

impl MetaPages {
    /// Reads all four. `None`: none is intact. Another process may be writing one of them meanwhile.
    ///
    /// # Errors
    /// Errors of reading; [`Reason::NewerFormat`] and [`Reason::OlderFormat`].
    pub(crate) fn read(data: &dyn File) -> Result<Option<MetaPages>> {
        let length = data.len().map_err(|error| Error::io("reading the meta pages", error))?;
        let read = |page: u32| {
            let offset = u64::from(page) * PAGE_BYTES as u64;
            if offset + PAGE_BYTES as u64 > length {
                return Ok::<_, Error>(Found::Nothing);
            }
            let mut bytes = vec![0u8; PAGE_BYTES];
            data.read_at(&mut bytes, offset)
                .map_err(|error| Error::io("reading the meta pages", error))?;
            Ok(Meta::decode(&bytes))
        };
        let mut intact = [None; META_SLOTS as usize];
        let mut other = None;
        for (slot, place) in (0..).zip(&mut intact) {
            match read(slot * META_DISTANCE)? {
                Found::Meta(meta) if meta.sequence % 2 == u64::from(slot) % 2 => *place = Some(meta),
                Found::OtherFormat(format) => other = other.max(Some(format)),
                Found::Meta(_) | Found::Nothing => {}
            }
        }
        let newest = intact.iter().flatten().max_by_key(|meta| meta.sequence).copied();
        if newest.is_none() {
            for page in 1..META_PAGES_OF_FORMAT_1 {
                if let Found::OtherFormat(format) = read(page)? {
                    other = other.max(Some(format));
                }
            }
        }
        match (other, newest) {
            (Some(found), _) if found > FORMAT => Err(Reason::NewerFormat {
                found,
                supported: FORMAT,
            }
            .into()),
            (Some(found), None) => Err(Reason::OlderFormat {
                found,
                supported: FORMAT,
            }
            .into()),
            (_, newest) => Ok(newest.map(|newest| MetaPages { newest, intact })),
        }
    }

    /// Refuses what a sound device cannot show; see the top of this file.
    ///
    /// # Errors
    /// [`Reason::Damaged`]: both copies of the meta page before the newest intact one are lost.
    pub(crate) fn verify(&self) -> Result<()> {
        if self.previous().is_some() || is_planted(PlantedBug::OtherMetaPairNotLookedAt) {
            return Ok(());
        }
        let newest = self.newest.sequence;
        let [a, b] = [0, 1].map(|copy| slot_of(newest + 1, copy) * u64::from(META_DISTANCE));
        Err(Error::damaged(format!(
            "neither copy of the meta page beside number {newest}, at pages {a} and {b} of the data file, is what it must \
             be: a newer state than number {newest} may have existed, and `duramen salvage` reads that of number {newest}"
        )))
    }

    /// The meta page before the newest one.
    fn previous(&self) -> Option<&Meta> {
        let is_previous = |meta: &&Meta| meta.sequence + 1 == self.newest.sequence;
        self.intact.iter().flatten().find(is_previous)
    }

    /// Whether all four are as they are at rest.
    pub(crate) fn is_whole(&self) -> bool {
        self.broken().next().is_none()
    }

    /// The pages that are not as they are at rest.
    pub(crate) fn broken(&self) -> impl Iterator<Item = u64> {
        let wanted = |slot: u64| match self.newest.sequence % 2 == slot % 2 {
            true => Some(&self.newest),
            false => self.previous(),
        };
        (0..u64::from(META_SLOTS))
            .filter(move |&slot| {
                let found = self.intact[slot as usize].as_ref();
                found.is_none() || found != wanted(slot)
            })
            .map(|slot| slot * u64::from(META_DISTANCE))
    }

    /// Writes what is not as it is at rest, and both copies of the newest meta page, with a `sync` before the first and
    /// after each, so that at most one page is in danger at any time. Pages that hold nothing come first: while they
    /// are written, the other copy is not in danger.
    pub(crate) fn write_again(&self, data: &dyn File, sync: &dyn Fn() -> Result<()>) -> Result<()> {
        // A process may have died between writing a copy and syncing it.
        sync()?;
        let newest = self.newest.pages();
        for page in self.broken() {
            let holds_nothing = self.intact[(page / u64::from(META_DISTANCE)) as usize].is_none();
            match self.previous() {
                _ if newest.contains(&page) && holds_nothing => self.newest.write_copy(data, page, sync)?,
                Some(previous) if !newest.contains(&page) => previous.write_copy(data, page, sync)?,
                _ => {}
            }
        }
        self.newest.write(data, sync)
    }
}

/// The checksum of a meta page of any format.
fn page_checksum(format: u32, page: &[u8]) -> u32 {
    checksum_with(format - 1, &page[16..])
}

enum Found {
    Meta(Meta),
    OtherFormat(u32),
    Nothing,
}

const _: () = assert!(128 + 8 <= META_BYTES && META_BYTES <= PAGE_BYTES);

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::Arc;

    use duramen_io::{OpenMode, SimDisk};

    use super::*;

    fn meta(sequence: u64) -> Meta {
        Meta {
            store: 1,
            sequence,
            hash_seed: 2,
            base_commit: sequence,
            previous: 0,
            root: Root::default(),
            version: sequence + 1,
            bitmap: SavedBitmap::default(),
            data_pages: META_PAGES,
            next_map: 2,
            epoch: 1,
            next_generation: 1,
            reaches: 0,
            time: 1_700_000_000_000_000 + sequence,
            register: SavedRegister::default(),
        }
    }

    const NO_SYNC: &dyn Fn() -> Result<()> = &|| Ok(());

    /// A data file with these meta pages at its four places; `None`: rubbish.
    fn file(sequences: [Option<u64>; 4]) -> (SimDisk, Arc<dyn File>) {
        let disk = SimDisk::new(1);
        let file = disk.platform().storage.open("data", OpenMode::Create).expect("a file");
        file.set_len(u64::from(META_PAGES) * PAGE_BYTES as u64).expect("room");
        for (slot, sequence) in sequences.into_iter().enumerate() {
            let page = sequence.map_or(vec![0xA5; PAGE_BYTES], |sequence| meta(sequence).encode());
            let at = slot as u64 * u64::from(META_DISTANCE) * PAGE_BYTES as u64;
            file.write_at(&page, at).expect("a write");
        }
        (disk, file)
    }

    fn read(file: &dyn File) -> Option<MetaPages> {
        MetaPages::read(file).expect("no errors of the disk")
    }

    #[test]
    fn meta_page_is_read_as_it_was_written() {
        let (_disk, file) = file([None; 4]);
        meta(7).write(&*file, NO_SYNC).expect("a write");
        let found = read(&*file).expect("an intact page");
        assert_eq!(found.newest, meta(7));
        assert_eq!(meta(7).pages(), [16, 48]);
        assert_eq!(meta(8).pages(), [0, 32]);
    }

    #[test]
    fn what_a_sound_device_can_show_is_believed_and_put_in_order() {
        // Even A, odd A, even B, odd B: the rows of the table above, for even and odd numbers.
        for (sequences, newest, is_whole) in [
            ([Some(4), Some(5), Some(4), Some(5)], 5, true),
            ([None, Some(5), Some(4), Some(5)], 5, false),
            ([Some(6), Some(5), Some(4), Some(5)], 6, false),
            ([Some(6), Some(5), None, Some(5)], 6, false),
            ([Some(6), Some(5), Some(6), Some(5)], 6, true),
            ([Some(6), None, Some(6), Some(5)], 6, false),
            ([Some(6), Some(7), Some(6), Some(5)], 7, false),
            ([Some(6), Some(7), Some(6), None], 7, false),
        ] {
            let (_disk, file) = file(sequences);
            let found = read(&*file).expect("an intact page");
            assert_eq!(found.newest.sequence, newest, "{sequences:?}");
            assert_eq!(found.is_whole(), is_whole, "{sequences:?}");
            found.verify().expect("a sound device");
            found.write_again(&*file, NO_SYNC).expect("a write");
            let found = read(&*file).expect("an intact page");
            assert_eq!(
                (found.newest.sequence, found.is_whole()),
                (newest, true),
                "{sequences:?}"
            );
        }
    }

    #[test]
    fn two_copies_that_are_both_lost_or_older_than_they_can_be_are_damage() {
        for sequences in [
            [None, Some(5), None, Some(5)],
            [Some(6), None, Some(6), None],
            [Some(2), Some(5), Some(2), Some(5)],
            [Some(2), Some(5), None, Some(5)],
            [None, Some(5), None, None],
        ] {
            let (_disk, file) = file(sequences);
            let found = read(&*file).expect("an intact page");
            let error = found.verify().expect_err("damage");
            assert!(error.to_string().contains("a newer state"), "{sequences:?}: {error}");
        }
    }

    #[test]
    fn damage_of_up_to_64_kib_wherever_it_begins_leaves_the_newest_meta_page() {
        const UNIT: usize = 512;
        const MOST: usize = 64 << 10;
        let (disk, file) = file([Some(6), Some(5), Some(6), Some(5)]);
        let sound = disk.read_raw("data");
        for start in (0..sound.len()).step_by(UNIT) {
            let end = (start + MOST).min(sound.len());
            for at in (start..end).step_by(UNIT) {
                disk.write_raw("data", at as u64, &[0xA5; UNIT]);
                // Further bytes between two meta pages change nothing.
                if (at / PAGE_BYTES).is_multiple_of(META_DISTANCE as usize) {
                    let found = read(&*file).expect("an intact page");
                    assert_eq!(found.newest.sequence, 6, "bytes {start}..{}", at + UNIT);
                    found.verify().expect("only one page of each pair is damaged");
                }
            }
            disk.write_raw("data", start as u64, &sound[start..end]);
        }
    }

    #[test]
    fn one_page_at_a_time_is_written_and_not_synced() {
        for sequences in [
            [Some(4), Some(5), Some(4), Some(5)],
            [Some(6), Some(5), Some(4), Some(5)],
            [Some(6), None, Some(6), Some(5)],
        ] {
            let (disk, file) = file(sequences);
            let before = Cell::new(disk.read_raw("data"));
            let changed_since_sync = || {
                let now = disk.read_raw("data");
                let then = before.replace(now.clone());
                let pages = then.chunks(PAGE_BYTES).zip(now.chunks(PAGE_BYTES));
                pages.filter(|(then, now)| then != now).count()
            };
            let sync = || {
                assert!(changed_since_sync() <= 1, "{sequences:?}");
                Ok(())
            };
            let found = read(&*file).expect("an intact page");
            found.write_again(&*file, &sync).expect("a write");
            meta(found.newest.sequence + 1).write(&*file, &sync).expect("a write");
            assert_eq!(changed_since_sync(), 0, "the last write is synced");
        }
    }
}
