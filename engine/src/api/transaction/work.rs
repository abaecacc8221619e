//! Memory of transactions that are over, for the next one of the same thread: most are small, and asking for memory
//! would be a good part of what they cost.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};

use super::{Held, Work};
use crate::read::write_set::Layer;

/// Bytes of appended values, and elements of lists, for which memory is kept: a thread may live long, and never again
/// have a transaction as large as its largest.
const VALUE_BYTES_KEPT: usize = 16 << 10;
const ELEMENTS_KEPT: usize = 64;

thread_local! {
    static KEPT: Cell<Option<Box<Work>>> = const { Cell::new(None) };
}

/// The work of a transaction, in memory that the thread's next transaction reuses.
#[derive(Debug)]
pub(super) struct Reused(Option<Box<Work>>);

impl Reused {
    /// Nothing to do yet.
    pub(super) fn begin() -> Reused {
        // A thread that is ending keeps none.
        let kept = KEPT.try_with(Cell::take).ok().flatten();
        let mut work = kept.unwrap_or_default();
        if work.layers.is_empty() {
            work.layers.push(Layer::new());
        }
        Reused(Some(work))
    }
}

impl Deref for Reused {
    type Target = Work;

    #[inline]
    fn deref(&self) -> &Work {
        self.0.as_ref().expect("it is taken when it is dropped")
    }
}

impl DerefMut for Reused {
    #[inline]
    fn deref_mut(&mut self) -> &mut Work {
        self.0.as_mut().expect("it is taken when it is dropped")
    }
}

impl Drop for Reused {
    fn drop(&mut self) {
        if let Some(mut work) = self.0.take()
            && work.clear()
        {
            let _ = KEPT.try_with(|kept| kept.set(Some(work)));
        }
    }
}

impl Work {
    /// Forgets everything. Returns whether its memory is worth keeping.
    fn clear(&mut self) -> bool {
        let Work {
            layers,
            nothing,
            ahead,
            below,
            savepoints,
            appends,
            append_values,
            append_bytes,
            numbers,
            extents,
            maps,
            opened,
            new_maps,
            dropped,
            renamed,
            needed,
            needed_keys,
            rung,
            number,
        } = self;
        // Without memory, mostly.
        (*savepoints, *extents, *opened, *new_maps) = Default::default();
        (*dropped, *renamed, *needed, *needed_keys) = Default::default();
        *rung = Vec::new();
        (*nothing, *ahead) = Default::default();
        (*below, *append_bytes, *numbers, *number) = (Held::default(), 0, false, None);
        layers.truncate(1);
        layers.iter_mut().for_each(Layer::clear);
        appends.clear();
        append_values.clear();
        maps.clear();
        let ranges = layers.first().map_or(0, Layer::ranges_kept);
        let lengths = [layers.capacity(), appends.capacity(), maps.capacity(), ranges];
        append_values.capacity() <= VALUE_BYTES_KEPT && lengths.iter().all(|&length| length <= ELEMENTS_KEPT)
    }
}

#[cfg(test)]
mod tests {
    use duramen_io::SimDisk;

    use super::*;
    use crate::{Durability, Maintenance, Options, Sequence, Store};

    fn store() -> Store {
        let options = Options::new()
            .maintenance(Maintenance::Manual)
            .durability(Durability::Written);
        options.open_on(SimDisk::new(1).platform()).expect("a store")
    }

    #[test]
    fn what_a_transaction_leaves_to_the_next_one_is_empty() {
        let store = store();
        let map = store.map("map").expect("a map");
        store.map("other").expect("a map");
        store.map("third").expect("a map");
        let mut tx = store.begin(Default::default()).expect("a transaction");
        tx.put(&map, b"key", [1; 100]).expect("a put");
        tx.put(&map, b"long", vec![1; 100_000]).expect("a put");
        tx.add(&map, b"sum", 7).expect("an addition");
        tx.append(&map, b"prefix", b"value").expect("an append");
        tx.delete_range(&map, b"a".as_slice()..b"b".as_slice())
            .expect("a range");
        tx.depends_on_key(&map, b"needed").expect("a key");
        tx.depends_on(&map, ..).expect("a range");
        let sequence = Sequence::new(&map, &map, b"sequence", "a sequence").expect("a sequence");
        tx.ring(&sequence);
        tx.map("new").expect("a new map");
        tx.drop_map("other").expect("a map");
        tx.rename_map("third", "fourth").expect("a map");
        tx.savepoint().expect("a savepoint");
        tx.put(&map, b"later", b"value").expect("a put");
        let work = &mut *tx.work;
        let counts = [
            work.layers.len(),
            work.savepoints.len(),
            work.appends.len(),
            work.append_values.len(),
            work.extents.len(),
            work.maps.len(),
            work.opened.len(),
            work.new_maps.len(),
            work.dropped.len(),
            work.renamed.len(),
            work.needed.len(),
            work.needed_keys.len(),
            work.rung.len(),
        ];
        assert!(counts.iter().all(|&count| count > 0), "{counts:?}");
        assert!(work.clear());
        let fresh = Work {
            layers: vec![Layer::new()],
            ..Work::default()
        };
        assert_eq!(format!("{work:?}"), format!("{fresh:?}"));
    }

    #[test]
    fn memory_of_a_large_transaction_is_not_kept() {
        let store = store();
        let map = store.map("map").expect("a map");
        let mut tx = store.begin(Default::default()).expect("a transaction");
        tx.append(&map, b"prefix", [1; 2 * VALUE_BYTES_KEPT])
            .expect("an append");
        assert!(!tx.work.clear());
        let mut tx = store.begin(Default::default()).expect("a transaction");
        for _ in 0..=ELEMENTS_KEPT {
            tx.append(&map, b"prefix", b"").expect("an append");
        }
        assert!(!tx.work.clear());
        let mut tx = store.begin(Default::default()).expect("a transaction");
        for number in 0..=ELEMENTS_KEPT as u8 {
            let (low, high) = ([number, 0], [number, 1]);
            tx.delete_range(&map, &low[..]..&high[..]).expect("a range");
        }
        assert!(!tx.work.clear());
    }
}
