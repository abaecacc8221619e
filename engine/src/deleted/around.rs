//! What is deleted around the place where a walk stands.

use super::Deleted;
use crate::write_set::Layer;

/// Rank of the oldest layer of a transaction: above every commit.
pub(crate) const LAYER_RANK: u64 = u64::MAX / 2;

/// Range deletes of a view, and above them those of a transaction's layers. It remembers the stretch of keys around the last place
/// that was asked for in which one and the same of them counts, or none: most steps of a walk stay inside.
pub(crate) struct Around<'a> {
    deleted: Deleted,
    layers: &'a [Layer],
    /// The stretch; `None`: none yet.
    low: Option<Vec<u8>>,
    /// Not used when `is_last`: there is no end.
    high: Vec<u8>,
    is_last: bool,
    /// Rank of the range delete that counts there; 0: none does.
    rank: u64,
}

impl<'a> Around<'a> {
    /// `None`: nothing is deleted anywhere.
    #[inline]
    pub(crate) fn new(deleted: &Deleted, layers: &'a [Layer]) -> Option<Box<Around<'a>>> {
        if deleted.is_nothing() && layers.iter().all(|layer| layer.deleted_count() == 0) {
            return None;
        }
        Some(Box::new(Around {
            deleted: deleted.clone(),
            layers,
            low: None,
            high: Vec::new(),
            is_last: false,
            rank: 0,
        }))
    }

    /// The rank of what deleted the place of `key`; 0: nothing did.
    #[inline]
    pub(crate) fn rank_at(&mut self, key: &[u8]) -> u64 {
        let is_inside = self.low.as_deref().is_some_and(|low| low <= key) && (self.is_last || key < &self.high[..]);
        if !is_inside {
            self.look(key);
        }
        self.rank
    }

    /// Where the stretch of the last place begins and ends. Something is deleted there.
    pub(crate) fn stretch(&self) -> (&[u8], &[u8]) {
        (self.low.as_deref().unwrap_or_default(), &self.high)
    }

    #[inline(never)]
    fn look(&mut self, key: &[u8]) {
        let (mut low, mut high): (&[u8], Option<&[u8]>) = (&[], None);
        let least = |high: Option<&'_ [u8]>, other: &'_ [u8]| high.is_none_or(|high| other < high);
        let mut rank = None;
        for (number, layer) in self.layers.iter().enumerate().rev() {
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
                rank = Some(if found.commit > self.deleted.base {
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
        let kept = self.low.get_or_insert_default();
        kept.clear();
        kept.extend_from_slice(low);
        self.high.clear();
        self.high.extend_from_slice(high.unwrap_or_default());
        self.is_last = high.is_none();
        self.rank = rank.unwrap_or(0);
    }
}
