//! What the allocator's lock guards, as it was before the present step: the next holder of a dead process's lock puts
//! it back, and the step has never begun.
//!
//! Words of the arrays are noted here right before they change. The numbers beside the arrays are kept twice, and which
//! of the two counts follows from the number of steps that are done: so one store ends a step, all or nothing.
//!
//! Invariant: when this log is of the present step, undoing its notes from the last to the first gives the arrays as
//! they were when the step began.

use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};

/// Words that can be noted in one step. A run of equal words takes one note.
const NOTES_MAX: usize = 1360;

/// The log, in the shared region. All zeros: nothing is noted.
#[repr(C)]
pub(crate) struct UndoLog {
    /// The step that the notes are of.
    step: AtomicU64,
    count: AtomicU64,
    notes: [[AtomicU64; 3]; NOTES_MAX],
}

/// What was noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Note {
    /// So many words of an array from the first one on, all of which had this value.
    Words {
        array: u64,
        first: u64,
        count: u64,
        value: u64,
    },
    /// The elements of an array.
    Length { array: u64, length: u64 },
}

/// Count of a step that changes more than can be noted. None is known; if there were one, and a process died in it, the
/// store would have to be reopened.
const TOO_MANY: u64 = u64::MAX;

const LENGTH_BIT: u64 = 1 << 62;
const ARRAY_SHIFT: u32 = 48;

impl Note {
    /// The array that it is about.
    pub(crate) fn array(self) -> u64 {
        match self {
            Note::Words { array, .. } | Note::Length { array, .. } => array,
        }
    }
}

impl UndoLog {
    /// Begins a step.
    pub(crate) fn begin(&self, step: u64) {
        // In this order: the notes of the step before must never count for this one.
        self.count.store(0, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        self.step.store(step, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
    }

    /// Notes something that is about to change.
    pub(crate) fn note(&self, note: Note) {
        let count = self.count.load(Ordering::Relaxed) as usize;
        if count >= NOTES_MAX {
            self.count.store(TOO_MANY, Ordering::Relaxed);
            compiler_fence(Ordering::SeqCst);
            return;
        }
        let words = match note {
            Note::Words {
                array,
                first,
                count,
                value,
            } => [array << ARRAY_SHIFT | count, first, value],
            Note::Length { array, length } => [LENGTH_BIT | array << ARRAY_SHIFT, 0, length],
        };
        for (place, word) in self.notes[count].iter().zip(words) {
            place.store(word, Ordering::Relaxed);
        }
        // A process that dies has made all its stores up to some instruction and none after it; that they are made in
        // this order is all that it takes.
        compiler_fence(Ordering::SeqCst);
        self.count.store(count as u64 + 1, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
    }

    /// Whether a step that changes this much more should end first.
    pub(crate) fn is_nearly_full(&self) -> bool {
        self.count.load(Ordering::Relaxed) > NOTES_MAX as u64 / 2
    }

    /// The notes of a step, from the last to the first. `None`: it changed more than could be noted.
    pub(crate) fn notes(&self, step: u64) -> Option<impl Iterator<Item = Note>> {
        let is_of_step = self.step.load(Ordering::Relaxed) == step;
        let count = if is_of_step {
            self.count.load(Ordering::Relaxed)
        } else {
            0
        };
        (count != TOO_MANY).then(|| (0..count as usize).rev().map(|index| self.read(index)))
    }

    fn read(&self, index: usize) -> Note {
        let [what, first, value] = self.notes[index].each_ref().map(|word| word.load(Ordering::Relaxed));
        let array = (what & !LENGTH_BIT) >> ARRAY_SHIFT;
        if what & LENGTH_BIT != 0 {
            return Note::Length { array, length: value };
        }
        let count = what & ((1 << ARRAY_SHIFT) - 1);
        Note::Words {
            array,
            first,
            count,
            value,
        }
    }
}
