//! What is deleted around the place where a walk stands.

use crate::key::full_key::FullRange;
use crate::read::deleted::{Deleted, Ranges};
use crate::read::write_set::Layer;

/// Rank of the oldest layer of a transaction: above every commit.
pub(crate) const LAYER_RANK: u64 = u64::MAX / 2;
/// Rank of a stretch in which a transaction knows that it sees nothing: above all of its layers.
pub(crate) const NOTHING_RANK: u64 = u64::MAX;

/// Range deletes of a view, above them those of a transaction's layers, and above these the stretches in which the transaction
/// found nothing. It remembers the stretch of keys around the last place
/// that was asked for in which one and the same of them counts, or none: most steps of a walk stay inside.
pub(crate) struct Around<'a> {
    deleted: Deleted,
    layers: &'a [Layer],
    nothing: Ranges,
    /// Whether there is a stretch yet.
    is_known: bool,
    low: Vec<u8>,
    /// Not used when `is_last`: there is no end.
    high: Vec<u8>,
    is_last: bool,
    /// Rank of the range delete that counts there; 0: none does.
    rank: u64,
}

impl<'a> Around<'a> {
    /// For a walk through a range; `None`: nothing is deleted there.
    #[inline]
    pub(crate) fn within(
        range: &FullRange,
        deleted: &Deleted,
        layers: &'a [Layer],
        nothing: Ranges,
    ) -> Option<Box<Around<'a>>> {
        let is_touched =
            deleted.touches(range) || layers.iter().any(|layer| layer.deletes_in(range)) || nothing.touches(range);
        is_touched.then(|| Around::of(deleted, layers, nothing))
    }

    /// `None`: nothing is deleted anywhere.
    #[inline]
    pub(crate) fn new(deleted: &Deleted, layers: &'a [Layer]) -> Option<Box<Around<'a>>> {
        let is_any = !deleted.is_nothing() || layers.iter().any(|layer| layer.deleted_count() > 0);
        is_any.then(|| Around::of(deleted, layers, Ranges::default()))
    }

    fn of(deleted: &Deleted, layers: &'a [Layer], nothing: Ranges) -> Box<Around<'a>> {
        Box::new(Around {
            deleted: deleted.clone(),
            layers,
            nothing,
            is_known: false,
            low: Vec::new(),
            high: Vec::new(),
            is_last: false,
            rank: 0,
        })
    }

    /// The rank of what deleted the place of `key`, at which a walk forward came; 0: nothing did.
    #[inline]
    pub(crate) fn rank_forward(&mut self, key: &[u8]) -> u64 {
        if !(self.is_known && (self.is_last || key < &self.high[..])) {
            self.look(key);
        }
        self.rank
    }

    /// The rank of what deleted the place of `key`, at which a walk backward came; 0: nothing did.
    pub(crate) fn rank_backward(&mut self, key: &[u8]) -> u64 {
        if !(self.is_known && self.low.as_slice() <= key) {
            self.look(key);
        }
        self.rank
    }

    /// Where the stretch of the last place begins and ends, if nothing is deleted there; `None` in place of the end: it has none.
    pub(crate) fn living_stretch(&self) -> Option<(&[u8], Option<&[u8]>)> {
        let is_living = self.is_known && self.rank == 0;
        is_living.then(|| (&self.low[..], (!self.is_last).then_some(&self.high[..])))
    }

    /// To be called when the walk turns round, or goes on elsewhere.
    pub(crate) fn forget(&mut self) {
        self.is_known = false;
    }

    /// Where the stretch of the last place begins and ends. Something is deleted there.
    pub(crate) fn stretch(&self) -> (&[u8], &[u8]) {
        (&self.low, &self.high)
    }

    #[inline(never)]
    fn look(&mut self, key: &[u8]) {
        let next = self.nothing.at_or_after(key);
        if let Some(found) = next.as_ref().filter(|found| found.contains(key)) {
            return self.keep(&found.low.clone(), Some(&found.high.clone()), NOTHING_RANK);
        }
        let before = self.nothing.before(key);
        let mut low: &[u8] = before.as_ref().map_or(&[], |before| &before.high);
        let mut high: Option<&[u8]> = next.as_ref().map(|next| &*next.low);
        let least = |high: Option<&'_ [u8]>, other: &'_ [u8]| high.is_none_or(|high| other < high);
        let mut rank = None;
        let layers = self.layers;
        for (number, layer) in layers.iter().enumerate().rev() {
            let (before, after) = match layer.deleted_around(key) {
                Ok(range) => {
                    rank = Some(LAYER_RANK + number as u64);
                    (Some(&range.low), Some(&range.high))
                }
                Err((before, after)) => (before.map(|range| &range.high), after.map(|range| &range.low)),
            };
            low = before.map_or(low, |before| low.max(before));
            high = after.filter(|after| least(high, after)).map(Vec::as_slice).or(high);
            if rank.is_some() {
                break;
            }
        }
        let found = match self.deleted.ranges() {
            Some(ranges) if rank.is_none() => ranges.at_or_after(key),
            _ => None,
        };
        let before = match &found {
            Some(found) if found.contains(key) => {
                rank = Some(if found.commit > self.deleted.base() {
                    found.commit
                } else {
                    0
                });
                low = low.max(&found.low);
                if least(high, &found.high) {
                    high = Some(&found.high);
                }
                None
            }
            _ if rank.is_some() => None,
            next => {
                if let Some(next) = next
                    && least(high, &next.low)
                {
                    high = Some(&next.low);
                }
                self.deleted.ranges().and_then(|ranges| ranges.before(key))
            }
        };
        if let Some(before) = &before {
            low = low.max(&before.high);
        }
        self.keep(low, high, rank.unwrap_or(0));
    }

    fn keep(&mut self, low: &[u8], high: Option<&[u8]>, rank: u64) {
        self.low.clear();
        self.low.extend_from_slice(low);
        self.high.clear();
        self.high.extend_from_slice(high.unwrap_or_default());
        self.is_last = high.is_none();
        self.rank = rank;
        self.is_known = true;
    }
}
