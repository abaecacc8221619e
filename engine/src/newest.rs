//! The newest change of every key, in key order: what a fold merges into the base, and what a transaction writes as a run.
//!
//! Inputs are the indexes and runs of frozen generations, or the layers of a transaction. Each entry has a rank (its
//! commit, or the depth of its layer); of the entries at one key the highest rank counts, unless a range delete of a
//! still higher rank covers it. Values that lose are named, because nothing refers to their pages any more.

use crate::base::{ChangeStream, Cursor, Extent, KeyRange, Location, PageSource, Root, Stored};
use crate::error::Result;
use crate::full_key::FullRange;
use crate::index::IndexCursor;
use crate::limits::INLINE_VALUE_BYTES_MAX;
use crate::log::LogView;
use crate::promises::FoldCosts;
use crate::view::{GenerationView, Note, union};
use crate::write_set::{Layer, LayerCursor, Written};

/// The newest change of every key in frozen generations, or in the layers of a transaction, in key order.
pub(crate) struct NewestChanges<'a, S: PageSource> {
    inputs: Vec<Input<'a, S>>,
    /// Range deletes with their ranks: what is older than one that covers it does not count.
    deletes: Vec<(u64, FullRange)>,
    /// What is at or above this does not belong to them.
    high: Option<Vec<u8>>,
    key: Vec<u8>,
    change: Held<'a, S>,
    at_end: bool,
    /// Operations that were taken from the inputs so far, those included that do not count.
    pub(crate) taken: u64,
    /// What those cost that are not from runs, and fit into leaves.
    pub(crate) costs: FoldCosts,
    /// Values that nothing refers to once this is folded.
    pub(crate) superseded: Vec<Extent>,
    /// Values that the base refers to from now on.
    pub(crate) surviving: Vec<Extent>,
    /// The roots of the runs that took part.
    pub(crate) runs: Vec<Root>,
}

enum Input<'a, S: PageSource> {
    Index(Box<IndexCursor<'a, LogView>>, GenerationView),
    Run(u64, Cursor<S>),
    Layer(u64, LayerCursor<'a>),
}

/// A change together with the page that holds its bytes.
enum Held<'a, S: PageSource> {
    Stored(Stored<'a>),
    InPage(S::Page, usize, usize),
}

impl<'a, S: PageSource> NewestChanges<'a, S> {
    /// Those of frozen generations, oldest first, in a range of keys: from the first on, to before the second.
    pub(crate) fn of_generations(
        source: S,
        generations: &[GenerationView],
        (low, high): (&[u8], Option<&[u8]>),
    ) -> Result<NewestChanges<'a, S>> {
        let mut changes = NewestChanges::empty();
        for generation in generations {
            // Runs first: of two entries of the same rank the later input counts, and single operations come last.
            for note in generation.notes(0, u64::MAX) {
                let (commit, note) = note?;
                match note {
                    Note::DeleteRange { low, high } => changes.deletes.push((
                        commit,
                        FullRange {
                            low: low.to_vec(),
                            high: high.to_vec(),
                        },
                    )),
                    Note::Run(root) => {
                        changes.runs.push(root);
                        changes.inputs.push(Input::Run(commit, Cursor::new(source, root)));
                    }
                }
            }
            if generation.index.has_keys() {
                changes.inputs.push(Input::Index(
                    Box::new(IndexCursor::new(generation.index, generation.log)),
                    *generation,
                ));
            }
        }
        changes.high = high.map(<[u8]>::to_vec);
        changes.start(low)
    }

    /// Those of the layers of a transaction, oldest first.
    pub(crate) fn of_layers(source: S, layers: &'a [Layer]) -> Result<NewestChanges<'a, S>> {
        let mut changes = NewestChanges::empty();
        for (rank, layer) in (1..).zip(layers) {
            changes
                .deletes
                .extend(layer.deleted_ranges().map(|range| (rank, range)));
            match layer.run() {
                Some(root) => changes.inputs.push(Input::Run(rank, Cursor::new(source, root))),
                None => changes.inputs.push(Input::Layer(rank, LayerCursor::new(layer))),
            }
        }
        changes.start(&[])
    }

    fn empty() -> NewestChanges<'a, S> {
        NewestChanges {
            inputs: Vec::new(),
            deletes: Vec::new(),
            high: None,
            key: Vec::new(),
            change: Held::Stored(Stored::Deleted),
            at_end: false,
            taken: 0,
            costs: FoldCosts::default(),
            superseded: Vec::new(),
            surviving: Vec::new(),
            runs: Vec::new(),
        }
    }

    fn start(mut self, low: &[u8]) -> Result<Self> {
        for input in &mut self.inputs {
            input.seek(low)?;
        }
        self.next_change()?;
        Ok(self)
    }

    pub(crate) fn cuts(&self) -> Vec<KeyRange> {
        let ranges = self.deletes.iter().map(|(_, range)| range.clone()).collect();
        union(ranges)
            .into_iter()
            .map(|FullRange { low, high }| KeyRange { low, high })
            .collect()
    }

    /// Finds the next key whose newest change still counts.
    fn next_change(&mut self) -> Result<()> {
        loop {
            let nearest = self.inputs.iter().filter_map(|input| input.key()).min();
            let inside = |key: &&[u8]| self.high.as_deref().is_none_or(|high| *key < high);
            let Some(nearest) = nearest.filter(inside) else {
                self.at_end = true;
                return Ok(());
            };
            self.key.clear();
            self.key.extend_from_slice(nearest);
            let deleted = self
                .deletes
                .iter()
                .filter(|(_, range)| range.contains(&self.key))
                .map(|(rank, _)| *rank)
                .max();
            let mut newest: Option<(u64, Held<'a, S>)> = None;
            for input in &mut self.inputs {
                if input.key() == Some(&self.key) {
                    let taken = input.take(&mut newest, deleted.unwrap_or(0), &mut self.superseded)?;
                    self.taken += taken.operations;
                    if matches!(input, Input::Index(..)) {
                        self.costs += taken;
                    }
                }
            }
            if let Some((_, held)) = newest {
                if let Held::Stored(Stored::Extent(extent)) = held {
                    self.surviving.push(extent);
                }
                self.change = held;
                return Ok(());
            }
        }
    }
}

/// Replaces the newest change so far if this one is newer; the value of the one that loses is superseded.
fn contend<'a, S: PageSource>(
    newest: &mut Option<(u64, Held<'a, S>)>,
    rank: u64,
    held: Held<'a, S>,
    deleted: u64,
    superseded: &mut Vec<Extent>,
) {
    let wins = rank >= deleted && newest.as_ref().is_none_or(|(best, _)| rank >= *best);
    let loser = if wins {
        newest.replace((rank, held)).map(|(_, held)| held)
    } else {
        Some(held)
    };
    if let Some(Held::Stored(Stored::Extent(extent))) = loser {
        superseded.push(extent);
    }
}

impl<'a, S: PageSource> Input<'a, S> {
    fn seek(&mut self, low: &[u8]) -> Result<()> {
        match self {
            Input::Index(cursor, _) => cursor.seek(low),
            Input::Run(_, cursor) => cursor.seek(low)?,
            Input::Layer(_, cursor) => cursor.seek(low),
        }
        Ok(())
    }

    fn key(&self) -> Option<&[u8]> {
        match self {
            Input::Index(cursor, _) => cursor.is_valid().then(|| cursor.key()),
            Input::Run(_, cursor) => cursor.is_valid().then(|| cursor.key()),
            Input::Layer(_, cursor) => cursor.key(),
        }
    }

    /// Enters everything this input has at its key into the contest, and moves on. Returns how many operations that were, and
    /// their bytes.
    fn take(
        &mut self,
        newest: &mut Option<(u64, Held<'a, S>)>,
        deleted: u64,
        superseded: &mut Vec<Extent>,
    ) -> Result<FoldCosts> {
        let mut taken = FoldCosts::default();
        match self {
            Input::Index(cursor, generation) => {
                // Newest first, and of several in one commit the last operation first: only that one counts.
                let mut commit_before = u64::MAX;
                let key_bytes = cursor.key().len();
                for version in cursor.versions() {
                    let stored = generation.stored(version.position)?;
                    taken.operations += 1;
                    taken.bytes += key_bytes as u64;
                    if let Stored::Inline(value) = stored
                        && value.len() <= INLINE_VALUE_BYTES_MAX
                    {
                        taken.bytes += value.len() as u64;
                    }
                    if version.commit < commit_before {
                        contend(newest, version.commit, Held::Stored(stored), deleted, superseded);
                    } else if let Stored::Extent(extent) = stored {
                        superseded.push(extent);
                    }
                    commit_before = version.commit;
                }
                cursor.next();
            }
            Input::Run(rank, cursor) => {
                let (page, location) = cursor.value();
                let held = match location {
                    Location::Inline(start, end) => Held::InPage(page.clone(), start as usize, end as usize),
                    Location::Extent(extent) => Held::Stored(Stored::Extent(extent)),
                    Location::Deleted => Held::Stored(Stored::Deleted),
                };
                contend(newest, *rank, held, deleted, superseded);
                taken.operations += 1;
                cursor.next()?;
            }
            Input::Layer(rank, cursor) => {
                let stored = match cursor.written() {
                    Written::Put(value) => Some(Stored::Inline(value)),
                    Written::PutExtent(extent) => Some(Stored::Extent(extent)),
                    Written::Delete => Some(Stored::Deleted),
                    Written::Add { .. } => None,
                };
                if let Some(stored) = stored {
                    contend(newest, *rank, Held::Stored(stored), deleted, superseded);
                }
                taken.operations += 1;
                cursor.next();
            }
        }
        Ok(taken)
    }
}

impl<S: PageSource> ChangeStream for NewestChanges<'_, S> {
    fn key(&self) -> Option<&[u8]> {
        (!self.at_end).then_some(&self.key)
    }

    fn change(&self) -> Stored<'_> {
        match &self.change {
            Held::Stored(stored) => *stored,
            Held::InPage(page, start, end) => Stored::Inline(&page[*start..*end]),
        }
    }

    fn advance(&mut self) -> Result<()> {
        self.next_change()
    }
}
