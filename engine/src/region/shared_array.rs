//! Arrays that grow, in the memory of the shared region: what the allocator of the data file keeps there, so that
//! another process finds it where it is.
//!
//! An array has a head, a fixed part of the region's `Control`, and a piece of the region's memory. When the piece is
//! full the elements are copied into a larger one, the head is turned over to that by a single store, and the old piece
//! is given back. A process that dies in between leaves an array with its old or its new piece, and at worst a spare
//! piece that is given back when the array grows next.
//!
//! Invariant: `length * size of an element <= bytes of the current piece`.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Range};
use std::sync::atomic::Ordering;

use crate::error::Result;
use crate::limits::PAGE_BYTES;
use crate::region::undo::Note;
use crate::region::{ArrayHead, Region};

/// Types whose values may be kept in the region.
///
/// # Safety
/// Plain numbers without padding: every bit pattern is a value, and a value is nothing but its bits.
pub(crate) unsafe trait Plain: Copy {}

// SAFETY: a number.
unsafe impl Plain for u64 {}
// SAFETY: numbers side by side.
unsafe impl<const N: usize> Plain for [u64; N] {}

/// An array of the region, as the holder of its lock sees it. What changes is noted in the region's
/// undo log, as long as it changes through [`SharedArray::put`], `resize`, `push` and `Words`.
pub(crate) struct SharedArray<'a, T: Plain> {
    region: &'a Region,
    head: &'a ArrayHead,
    /// Its number in notes.
    number: u64,
    elements: PhantomData<T>,
}

impl<'a, T: Plain> SharedArray<'a, T> {
    /// The array with this head, which lies in this region.
    ///
    /// # Safety
    /// No other thread of any process uses it meanwhile: every user takes the lock that guards it.
    pub(crate) unsafe fn new(region: &'a Region, head: &'a ArrayHead, number: u64) -> SharedArray<'a, T> {
        SharedArray {
            region,
            head,
            number,
            elements: PhantomData,
        }
    }

    fn current(&self) -> usize {
        (self.head.current.load(Ordering::Acquire) & 1) as usize
    }

    /// Bytes of the piece that holds the elements.
    fn bytes(&self) -> u64 {
        self.head.pieces[self.current()].place().1
    }

    fn elements(&self) -> *mut T {
        let (offset, bytes) = self.head.pieces[self.current()].place();
        if bytes == 0 {
            return std::ptr::NonNull::dangling().as_ptr();
        }
        assert!(
            self.count() * size_of::<T>() <= bytes as usize,
            "an array outgrew its memory"
        );
        self.region.memory(offset).cast()
    }

    fn count(&self) -> usize {
        self.head.length.load(Ordering::Relaxed) as usize
    }

    /// Whether one more element needs more memory.
    pub(crate) fn is_full(&self) -> bool {
        (self.count() + 1) * size_of::<T>() > self.bytes() as usize
    }

    /// Makes room for `count` elements in all, so that growing to that length cannot fail.
    ///
    /// # Errors
    /// [`Reason::Full`](crate::Reason::Full): the region's file, or its span of addresses, has no room.
    pub(crate) fn reserve(&mut self, count: usize) -> Result<()> {
        let needed = (count * size_of::<T>()) as u64;
        if needed > self.bytes() {
            self.move_to(needed + needed / 4)?;
        }
        Ok(())
    }

    /// Gives back most of what was reserved for more than `count` elements.
    pub(crate) fn shrink(&mut self, count: usize) -> Result<()> {
        let needed = (count.max(self.count()) * size_of::<T>()) as u64;
        if self.bytes() > 2 * needed.next_multiple_of(PAGE_BYTES as u64) {
            self.move_to(needed)?;
        }
        Ok(())
    }

    /// Moves the elements into another piece of memory.
    fn move_to(&mut self, bytes: u64) -> Result<()> {
        let (now, next) = (self.current(), 1 - self.current());
        let [old, new] = [&self.head.pieces[now], &self.head.pieces[next]];
        // Left by a process that died while the array moved.
        if new.place().1 > 0 {
            self.region.give_back(new)?;
        }
        let (offset, _) = self.region.take_for_array(new, bytes)?;
        let target = self.region.memory(offset).cast::<T>();
        // SAFETY: the new piece is at least as long as the elements, has no other owner and does not overlap the old.
        unsafe { std::ptr::copy_nonoverlapping(self.elements(), target, self.count()) };
        // Release: a process that finds the new piece finds the elements in it.
        self.head.current.store(next as u64, Ordering::Release);
        if old.place().1 > 0 {
            // What is not given back now is so when the array moves again.
            let _ = self.region.give_back(old);
        }
        Ok(())
    }

    /// Changes the length, within what was reserved; what is new is `value`.
    pub(crate) fn resize(&mut self, count: usize, value: T) {
        let before = self.count();
        assert!(
            count * size_of::<T>() <= self.bytes() as usize,
            "room is reserved before an array grows"
        );
        self.region.undo_log().note(Note::Length {
            array: self.number,
            length: before as u64,
        });
        self.head.length.store(count as u64, Ordering::Relaxed);
        if count > before {
            self[before..].fill(value);
        }
    }

    /// Adds elements, for which room was reserved.
    pub(crate) fn append(&mut self, values: &[T]) {
        let (before, count) = (self.count(), values.len());
        if let Some(&first) = values.first() {
            self.resize(before + count, first);
            self[before..].copy_from_slice(values);
        }
    }

    /// Replaces an element.
    pub(crate) fn put(&mut self, index: usize, value: T) {
        let words = size_of::<T>() / size_of::<u64>();
        self.note_words(index * words..(index + 1) * words);
        self[index] = value;
    }

    /// The elements as words: all that is plain consists of them.
    fn words(&mut self) -> &mut [u64] {
        let count = self.count() * size_of::<T>() / size_of::<u64>();
        // SAFETY: as in `deref_mut`; `T` has the alignment and a multiple of the size of a word, and no padding.
        unsafe { std::slice::from_raw_parts_mut(self.elements().cast(), count) }
    }

    /// Notes words that are about to change, those that are equal together.
    pub(crate) fn note_words(&mut self, range: Range<usize>) {
        let (log, array) = (self.region.undo_log(), self.number);
        let words = &self.words()[range.clone()];
        let mut first = range.start as u64;
        for run in words.chunk_by(|one, other| one == other) {
            let (count, value) = (run.len() as u64, run[0]);
            log.note(Note::Words {
                array,
                first,
                count,
                value,
            });
            first += count;
        }
    }

    /// Undoes a change of this array.
    pub(crate) fn undo(&mut self, note: Note) {
        match note {
            Note::Words {
                first, count, value, ..
            } => self.words()[first as usize..][..count as usize].fill(value),
            Note::Length { length, .. } => self.head.length.store(length, Ordering::Relaxed),
        }
    }
}

impl<T: Plain> Deref for SharedArray<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the elements lie in a piece of memory that is ours, were written before the length covered them, are
        // valid whatever their bits, and no thread changes them while the caller holds the lock.
        unsafe { std::slice::from_raw_parts(self.elements(), self.count()) }
    }
}

impl<T: Plain> DerefMut for SharedArray<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and `self` is borrowed for as long as the slice.
        unsafe { std::slice::from_raw_parts_mut(self.elements(), self.count()) }
    }
}

impl<T: Plain> std::fmt::Debug for SharedArray<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedArray")
            .field("length", &self.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_keep_their_elements_while_they_grow_and_shrink_beside_each_other() {
        let region = Region::private().unwrap();
        let space = &region.control().space;
        let mut rng = fastrand::Rng::with_seed(17);
        // SAFETY: no other thread knows this region.
        let mut words = unsafe { SharedArray::<u64>::new(&region, &space.used, 0) };
        // SAFETY: as for the other array.
        let mut triples = unsafe { SharedArray::<[u64; 3]>::new(&region, &space.retired, 1) };
        let (mut expected_words, mut expected_triples) = (Vec::new(), Vec::new());
        for step in 0..200 {
            region.undo_log().begin(step);
            let count = rng.usize(..50_000);
            words.reserve(count).unwrap();
            let value = rng.u64(..);
            words.resize(count, value);
            expected_words.resize(count, value);
            for _ in 0..rng.usize(..100) {
                let triple = [rng.u64(..); 3];
                triples.reserve(triples.len() + 1).unwrap();
                triples.append(&[triple]);
                expected_triples.push(triple);
            }
            if rng.u8(..4) == 0 {
                words.shrink(0).unwrap();
                let left = rng.usize(..=triples.len());
                triples.resize(left, [0; 3]);
                expected_triples.truncate(left);
                triples.shrink(0).unwrap();
            }
            assert!(*words == *expected_words && *triples == *expected_triples);
        }
    }

    #[test]
    fn whoever_comes_later_finds_an_array_where_it_is() {
        let region = Region::private().unwrap();
        let head = &region.control().space.loose;
        // SAFETY: no other thread knows this region, and one array is gone before the next one comes.
        let array = || unsafe { SharedArray::<u64>::new(&region, head, 0) };
        array().reserve(3).unwrap();
        (0..3).for_each(|number| array().append(&[number]));
        // A process died after taking the memory for the array's move.
        region
            .take_for_array(&head.pieces[1 - array().current()], 100_000)
            .unwrap();
        array().reserve(100_000).unwrap();
        assert_eq!(*array(), [0, 1, 2]);
        array().resize(100_000, 7);
        assert_eq!(array()[99_999], 7);
    }

    #[test]
    fn changes_of_a_step_are_undone_also_when_the_array_has_moved() {
        let region = Region::private().unwrap();
        let head = &region.control().space.used;
        // SAFETY: no other thread knows this region.
        let mut array = unsafe { SharedArray::<u64>::new(&region, head, 0) };
        let mut rng = fastrand::Rng::with_seed(3);
        array.reserve(1_000).unwrap();
        array.append(&(0..1_000).collect::<Vec<u64>>());
        for step in 1..100 {
            let before = array.to_vec();
            region.undo_log().begin(step);
            for _ in 0..rng.usize(..40) {
                match rng.u8(..4) {
                    0 => array.put(rng.usize(..array.len()), rng.u64(..)),
                    1 => {
                        let first = rng.usize(..array.len());
                        let range = first..rng.usize(first..=array.len());
                        array.note_words(range.clone());
                        array[range].fill(rng.u64(..3));
                    }
                    _ => {
                        let more: Vec<u64> = (0..rng.u64(..500)).collect();
                        array.reserve(array.len() + more.len()).unwrap();
                        array.append(&more);
                    }
                }
            }
            let Some(notes) = region.undo_log().notes(step) else {
                continue;
            };
            notes.for_each(|note| array.undo(note));
            assert!(*array == *before, "step {step}");
            assert_eq!(region.undo_log().notes(step + 1).unwrap().count(), 0, "of another step");
        }
    }
}
