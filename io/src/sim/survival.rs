//! The unsynced changes that survive a power cut: the choice among the legal outcomes.
//!
//! A device may write cached sectors in any order, so every combination is legal. Drawing each sector at random almost
//! never gives the combinations that break programs: everything except one record, or the newest write alone. So these
//! are separate policies. Either the whole disk draws one policy, or each file draws its own.

use std::ops::RangeInclusive;

use fastrand::Rng;

/// A policy. A sequence is the number of the call that made a change, counted over the whole disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Survival {
    /// Nothing unsynced survives.
    Nothing,
    /// Everything unsynced survives.
    Everything,
    /// Only the newest of all writes survives.
    OnlyNewest { sequence: u64 },
    /// All changes up to a call survive, and a first part of the next write.
    Prefix { sequence: u64, torn: u64 },
    /// Each sector is independent: it stays old in `(8 - keep) / 8` of the cases, otherwise one of its versions is
    /// drawn.
    Each { keep: u8 },
}

/// Draws policies for one power cut.
#[derive(Debug)]
pub(super) struct Chooser {
    pub(super) random: Rng,
    sequences: RangeInclusive<u64>,
    /// The policy of all files; none: each file draws its own.
    common: Option<Survival>,
}

impl Chooser {
    /// A chooser for a disk whose unsynced changes have the given sequences.
    pub(super) fn new(seed: u64, sequences: RangeInclusive<u64>) -> Chooser {
        let mut chooser = Chooser {
            random: Rng::with_seed(seed),
            sequences,
            common: None,
        };
        if chooser.random.u8(..6) > 0 {
            chooser.common = Some(chooser.draw());
        }
        chooser
    }

    /// The policy for the next file, or for the directory.
    pub(super) fn next(&mut self) -> Survival {
        self.common.unwrap_or_else(|| self.draw())
    }

    /// Draws how many of a file's units were being written at the power cut, and are torn.
    pub(super) fn torn_units(&mut self) -> usize {
        match self.random.u8(..4) {
            0 | 1 => 0,
            2 => 1,
            _ => self.random.usize(1..=8),
        }
    }

    fn draw(&mut self) -> Survival {
        let newest = *self.sequences.end();
        match self.random.u8(..10) {
            0 | 1 => Survival::Nothing,
            2 | 3 => Survival::Everything,
            4 => Survival::OnlyNewest { sequence: newest },
            5..8 => {
                let before_first = self.sequences.start().saturating_sub(1);
                let sequence = self.random.u64(before_first..=newest.max(before_first));
                Survival::Prefix {
                    sequence,
                    torn: self.random.u64(..),
                }
            }
            _ => Survival::Each {
                keep: self.random.u8(1..8),
            },
        }
    }
}

/// Number of surviving changes, given their ascending sequences, where changes can only survive in order.
pub(super) fn kept_in_order(survival: Survival, sequences: &[u64], random: &mut Rng) -> usize {
    match survival {
        Survival::Nothing => 0,
        Survival::Everything => sequences.len(),
        Survival::OnlyNewest { .. } if random.bool() => sequences.len(),
        Survival::Prefix { sequence, .. } => {
            let next = sequence + u64::from(random.bool());
            sequences.iter().filter(|known| **known <= next).count()
        }
        Survival::OnlyNewest { .. } | Survival::Each { .. } => random.usize(..=sequences.len()),
    }
}
