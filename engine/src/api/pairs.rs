//! Iterators over the pairs of a range, from both ends.

use std::fmt;
use std::iter::FusedIterator;

use crate::api::snapshot::Cursor;
use crate::error::Result;
use crate::read::value::Value;

/// The pairs of a range in the order of their keys, from both ends: see [`Cursor::iter`]. After an error there is nothing
/// more.
pub struct Pairs<'a> {
    /// All pairs before it are taken.
    front: Cursor<'a>,
    /// All pairs after it are taken. `None`: no pair was taken from the end.
    back: Option<Cursor<'a>>,
    is_over: bool,
}

impl fmt::Debug for Pairs<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pairs")
            .field("front", &self.front)
            .field("is_over", &self.is_over)
            .finish_non_exhaustive()
    }
}

impl<'a> Pairs<'a> {
    pub(crate) fn new(front: Cursor<'a>) -> Pairs<'a> {
        Pairs {
            front,
            back: None,
            is_over: false,
        }
    }

    /// The next pair, with a key that is borrowed until the next step.
    ///
    /// # Errors
    /// As [`Cursor::next`]; after one there is nothing more.
    #[inline]
    pub fn next_pair(&mut self) -> Result<Option<(&[u8], Value<'a>)>> {
        if self.is_over {
            return Ok(None);
        }
        // What ends it says so below; an error or a panic leaves it ended.
        self.is_over = true;
        let Some(value) = self.front.step()? else {
            return Ok(None);
        };
        if self
            .back
            .as_ref()
            .is_some_and(|back| back.is_before_pair_of(&self.front))
        {
            return Ok(None);
        }
        self.is_over = false;
        Ok(Some((self.front.key(), value)))
    }

    /// The next pair from the end, with a key that is borrowed until the next step.
    ///
    /// # Errors
    /// As [`Cursor::prev`]; after one there is nothing more.
    pub fn next_pair_back(&mut self) -> Result<Option<(&[u8], Value<'a>)>> {
        if self.is_over {
            return Ok(None);
        }
        self.is_over = true;
        let front = &self.front;
        let back = self.back.get_or_insert_with(|| {
            let mut back = front.fresh();
            back.seek_end();
            back
        });
        let Some(value) = back.step_back()? else {
            return Ok(None);
        };
        if !self.front.is_before_pair_of(back) {
            return Ok(None);
        }
        self.is_over = false;
        Ok(Some((back.key(), value)))
    }

    /// The cursor at the front: where it moves, the iterator goes on from.
    pub fn front(&mut self) -> &mut Cursor<'a> {
        &mut self.front
    }
}

impl<'a> Iterator for Pairs<'a> {
    type Item = Result<(Vec<u8>, Value<'a>)>;

    fn next(&mut self) -> Option<Self::Item> {
        let pair = self.next_pair().transpose()?;
        Some(pair.map(|(key, value)| (key.to_vec(), value)))
    }
}

impl DoubleEndedIterator for Pairs<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        let pair = self.next_pair_back().transpose()?;
        Some(pair.map(|(key, value)| (key.to_vec(), value)))
    }
}

impl FusedIterator for Pairs<'_> {}
