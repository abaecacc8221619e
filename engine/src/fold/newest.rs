//! The newest change of every key, in key order: what a fold merges into the base, and what a transaction writes as a
//! run.
//!
//! Inputs and ranks are those of `above`. Values that lose are named, because nothing refers to their pages any more.

use crate::btree::{ChangeStream, Extent, Location, PageSource, Root, Stored};
use crate::error::Result;
use crate::key::full_key::FullRange;
use crate::limits::INLINE_VALUE_BYTES_MAX;
use crate::log::FoldCosts;
use crate::read::above::{Above, Input};
use crate::read::around::Around;
use crate::read::deleted::Deleted;
use crate::read::generation_view::GenerationView;
use crate::read::write_set::{Layer, Written};

/// The newest change of every key in frozen generations, or in the layers of a transaction, in key order.
pub(crate) struct NewestChanges<'a, S: PageSource> {
    above: Above<'a, S>,
    /// Inputs that have a key, in descending order of their keys; of several with one key the later input first.
    queue: Vec<usize>,
    around: Option<Box<Around<'a>>>,
    cuts: Vec<FullRange>,
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
}

/// A change together with the page that holds its bytes.
enum Held<'a, S: PageSource> {
    Stored(Stored<'a>),
    InPage(S::Page, usize, usize),
}

impl<'a, S: PageSource> NewestChanges<'a, S> {
    /// Those of frozen generations, oldest first, in a range of keys: from the first on, to before the second. Where one of them
    /// holds a restore, they are changes of the tree that it put in the place of the base.
    pub(crate) fn of_generations(
        source: S,
        generations: &[GenerationView<'a>],
        (low, high): (&[u8], Option<&[u8]>),
    ) -> Result<NewestChanges<'a, S>> {
        let deleted = Deleted::all(generations, 0, u64::MAX)?;
        let mut changes = NewestChanges::over(&deleted, &[]);
        for generation in generations {
            changes.above.add_folded(source, generation)?;
        }
        changes.cuts = match newest_restore(generations)? {
            Some((restored, _)) => Deleted::all(generations, restored, u64::MAX)?.union(),
            None => deleted.union(),
        };
        changes.high = high.map(<[u8]>::to_vec);
        changes.start(low)
    }

    /// Those of the layers of a transaction, oldest first.
    pub(crate) fn of_layers(source: S, layers: &'a [Layer]) -> Result<NewestChanges<'a, S>> {
        let mut changes = NewestChanges::over(&Deleted::default(), layers);
        changes.above.add_layers(source, layers);
        changes.start(&[])
    }

    fn over(deleted: &Deleted, layers: &'a [Layer]) -> NewestChanges<'a, S> {
        NewestChanges {
            above: Above::nothing(),
            queue: Vec::new(),
            around: Around::new(deleted, layers),
            cuts: Vec::new(),
            high: None,
            key: Vec::new(),
            change: Held::Stored(Stored::Deleted),
            at_end: false,
            taken: 0,
            costs: FoldCosts::default(),
            superseded: Vec::new(),
            surviving: Vec::new(),
        }
    }

    fn start(mut self, low: &[u8]) -> Result<Self> {
        for input in &mut self.above.inputs {
            input.seek(low)?;
        }
        (0..self.above.inputs.len()).for_each(|input| self.enqueue(input));
        self.next_change()?;
        Ok(self)
    }

    /// Puts an input where its key belongs in the queue. Transactions may have many runs: looking at each for each key
    /// would cost more than all else.
    fn enqueue(&mut self, input: usize) {
        let inputs = &self.above.inputs;
        let Some(key) = inputs[input].key() else { return };
        let place = self
            .queue
            .partition_point(|&other| (inputs[other].key(), other) > (Some(key), input));
        self.queue.insert(place, input);
    }

    /// The roots of the runs that take part.
    pub(crate) fn take_runs(&mut self) -> Vec<Root> {
        std::mem::take(&mut self.above.runs)
    }

    /// What the range deletes of the generations come to, in order.
    pub(crate) fn take_cuts(&mut self) -> Vec<FullRange> {
        std::mem::take(&mut self.cuts)
    }

    /// Finds the next key whose newest change still counts.
    fn next_change(&mut self) -> Result<()> {
        loop {
            let nearest = self.queue.last().and_then(|&input| self.above.inputs[input].key());
            let inside = |key: &&[u8]| self.high.as_deref().is_none_or(|high| *key < high);
            let Some(nearest) = nearest.filter(inside) else {
                self.at_end = true;
                return Ok(());
            };
            self.key.clear();
            self.key.extend_from_slice(nearest);
            let deleted = self.around.as_mut().map_or(0, |around| around.rank_forward(&self.key));
            let mut newest: Option<(u64, Held<'a, S>)> = None;
            while let Some(&at) = self.queue.last()
                && let input = &mut self.above.inputs[at]
                && input.key() == Some(&self.key)
            {
                let taken = take(input, &mut newest, deleted, &mut self.superseded)?;
                self.taken += taken.operations;
                if matches!(input, Input::Index(..)) {
                    self.costs += taken;
                }
                self.queue.pop();
                self.enqueue(at);
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

/// The newest restore in generations: its commit, and the id of the checkpoint.
pub(crate) fn newest_restore(generations: &[GenerationView<'_>]) -> Result<Option<(u64, u64)>> {
    for generation in generations.iter().rev() {
        let restore = generation.restore()?;
        if restore.is_some() {
            return Ok(restore);
        }
    }
    Ok(None)
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

/// Enters everything an input has at its key into the contest, and moves on. Returns how many operations that were, and
/// their bytes.
fn take<'a, S: PageSource>(
    input: &mut Input<'a, S>,
    newest: &mut Option<(u64, Held<'a, S>)>,
    deleted: u64,
    superseded: &mut Vec<Extent>,
) -> Result<FoldCosts> {
    let mut taken = FoldCosts::default();
    match input {
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
            cursor.next()?;
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
