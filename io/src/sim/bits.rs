//! A set of block numbers: the pages of a simulated file that were ever touched, or the blocks that it occupies.

use std::ops::Range;

/// A growing set of small numbers that knows its size.
#[derive(Clone, Debug, Default)]
pub(super) struct Bits {
    words: Vec<u64>,
    count: u64,
}

impl Bits {
    /// Number of members.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    pub(super) fn contains(&self, number: u64) -> bool {
        self.words
            .get((number / 64) as usize)
            .is_some_and(|word| word >> (number % 64) & 1 == 1)
    }

    pub(super) fn insert(&mut self, numbers: Range<u64>) {
        if numbers.is_empty() {
            return;
        }
        let words = (numbers.end as usize).div_ceil(64);
        if self.words.len() < words {
            self.words.resize(words, 0);
        }
        for (index, mask) in masks(numbers) {
            let word = &mut self.words[index];
            self.count += u64::from((mask & !*word).count_ones());
            *word |= mask;
        }
    }

    /// Removes `start` and everything after it.
    pub(super) fn remove_from(&mut self, start: u64) {
        let end = self.words.len() as u64 * 64;
        for (index, mask) in masks(start.min(end)..end) {
            let word = &mut self.words[index];
            self.count -= u64::from((mask & *word).count_ones());
            *word &= !mask;
        }
    }

    /// Number of `numbers` that are not in the set.
    pub(super) fn missing(&self, numbers: Range<u64>) -> u64 {
        let word = |index: usize| self.words.get(index).copied().unwrap_or(0);
        masks(numbers)
            .map(|(index, mask)| u64::from((mask & !word(index)).count_ones()))
            .sum()
    }

    /// Keeps only members that are also in `other`.
    pub(super) fn intersect(&mut self, other: &Bits) {
        for (index, word) in self.words.iter_mut().enumerate() {
            *word &= other.words.get(index).copied().unwrap_or(0);
        }
        self.count = self.words.iter().map(|word| u64::from(word.count_ones())).sum();
    }

    /// The members within `numbers`, as consecutive runs, ascending.
    pub(super) fn runs(&self, numbers: Range<u64>) -> Vec<Range<u64>> {
        let mut runs: Vec<Range<u64>> = Vec::new();
        let end = numbers.end.min(self.words.len() as u64 * 64);
        for (index, mask) in masks(numbers.start.min(end)..end) {
            let mut word = self.words[index] & mask;
            while word != 0 {
                let first = index as u64 * 64 + u64::from(word.trailing_zeros());
                let length = u64::from((word >> word.trailing_zeros()).trailing_ones());
                match runs.last_mut() {
                    Some(run) if run.end == first => run.end += length,
                    _ => runs.push(first..first + length),
                }
                let seen = first + length - index as u64 * 64;
                word = if seen >= 64 { 0 } else { word >> seen << seen };
            }
        }
        runs
    }
}

/// The words that `numbers` fall into, each with the bits of those numbers.
fn masks(numbers: Range<u64>) -> impl Iterator<Item = (usize, u64)> {
    let words = if numbers.is_empty() {
        0..0
    } else {
        numbers.start / 64..(numbers.end - 1) / 64 + 1
    };
    words.map(move |word| {
        let low = numbers.start.saturating_sub(word * 64);
        let high = (numbers.end - word * 64).min(64);
        (word as usize, (u64::MAX >> (64 - (high - low))) << low)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn bits_agree_with_a_plain_set() {
        let mut random = fastrand::Rng::with_seed(3);
        for _ in 0..200 {
            let (mut bits, mut model) = (Bits::default(), BTreeSet::new());
            for _ in 0..random.usize(..8) {
                let start = random.u64(..300);
                let end = start + random.u64(..140);
                bits.insert(start..end);
                model.extend(start..end);
                if random.u8(..4) == 0 {
                    let from = random.u64(..400);
                    bits.remove_from(from);
                    model.retain(|number| *number < from);
                }
            }
            let start = random.u64(..300);
            let asked = start..start + random.u64(..200);
            let in_runs: Vec<u64> = bits.runs(asked.clone()).into_iter().flatten().collect();
            assert_eq!(in_runs, model.range(asked.clone()).copied().collect::<Vec<_>>());
            assert_eq!(
                bits.missing(asked.clone()),
                asked.clone().filter(|number| !model.contains(number)).count() as u64
            );
            assert_eq!(bits.count(), model.len() as u64);
            assert!(
                asked
                    .clone()
                    .all(|number| bits.contains(number) == model.contains(&number))
            );
            for pair in bits.runs(0..600).windows(2) {
                assert!(pair[0].end < pair[1].start, "runs must be as long as possible");
            }
            let mut other = Bits::default();
            other.insert(asked.clone());
            bits.intersect(&other);
            assert_eq!(bits.runs(0..600).into_iter().flatten().collect::<Vec<_>>(), in_runs);
        }
    }
}
