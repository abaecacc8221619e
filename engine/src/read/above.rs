//! What lies above a base, each part in key order: the indexes and runs of log generations, and the layers of a transaction.
//! `scan` walks through it with the base below, `newest` without.
//!
//! Each entry has a rank: its commit, or, in a layer, one from [`LAYER_RANK`] on. At each key the highest rank counts,
//! unless a range delete of a still higher rank covers the key; of two entries of the same rank the later input counts.

use crate::btree::{Cursor, PageSource, Root};
use crate::error::Result;
use crate::index::IndexCursor;
use crate::log::LogView;
use crate::read::around::LAYER_RANK;
use crate::read::generation_view::{GenerationView, Run};
use crate::read::write_set::{Layer, LayerCursor};

/// Inputs, oldest first.
pub(crate) struct Above<'a, S: PageSource> {
    pub(crate) inputs: Vec<Input<'a, S>>,
    /// The roots of the runs of generations.
    pub(crate) runs: Vec<Root>,
}

pub(crate) enum Input<'a, S: PageSource> {
    Index(Box<IndexCursor<'a, LogView<'a>>>, GenerationView<'a>),
    Run(u64, Cursor<S>),
    Layer(u64, LayerCursor<'a>),
}

impl<'a, S: PageSource> Above<'a, S> {
    pub(crate) fn nothing() -> Above<'a, S> {
        Above {
            inputs: Vec::new(),
            runs: Vec::new(),
        }
    }

    /// Adds what a generation holds up to a commit. Single operations of a commit come after its run.
    pub(crate) fn add_generation(&mut self, source: S, generation: &GenerationView<'a>, limit: u64) -> Result<()> {
        self.add_chosen(source, generation, limit, |_| true)
    }

    /// As [`Above::add_generation`], without what restores brought: a fold takes the tree of the newest one for its base.
    pub(crate) fn add_folded(&mut self, source: S, generation: &GenerationView<'a>) -> Result<()> {
        self.add_chosen(source, generation, u64::MAX, |run| run.checkpoint.is_none())
    }

    fn add_chosen(
        &mut self,
        source: S,
        generation: &GenerationView<'a>,
        limit: u64,
        is_chosen: impl Fn(&Run) -> bool,
    ) -> Result<()> {
        for run in generation.runs(0, limit) {
            let run = run?;
            if is_chosen(&run) {
                self.runs.push(run.root);
                self.inputs.push(Input::Run(run.commit, Cursor::new(source, run.root)));
            }
        }
        if generation.index.has_keys() {
            let cursor = IndexCursor::new(generation.index, generation.log);
            self.inputs.push(Input::Index(Box::new(cursor), *generation));
        }
        Ok(())
    }

    /// Adds the layers of a transaction, oldest first.
    pub(crate) fn add_layers(&mut self, source: S, layers: &'a [Layer]) {
        for (rank, layer) in (LAYER_RANK..).zip(layers) {
            self.inputs.push(match layer.run() {
                Some(root) => Input::Run(rank, Cursor::new(source, root)),
                None => Input::Layer(rank, LayerCursor::new(layer)),
            });
        }
    }
}

impl<S: PageSource> Input<'_, S> {
    /// The key that it stands on.
    pub(crate) fn key(&self) -> Option<&[u8]> {
        match self {
            Input::Index(cursor, _) => cursor.is_valid().then(|| cursor.key()),
            Input::Run(_, cursor) => cursor.is_valid().then(|| cursor.key()),
            Input::Layer(_, cursor) => cursor.key(),
        }
    }

    pub(crate) fn seek(&mut self, key: &[u8]) -> Result<()> {
        match self {
            Input::Index(cursor, _) => cursor.seek(key)?,
            Input::Run(_, cursor) => cursor.seek(key)?,
            Input::Layer(_, cursor) => cursor.seek(key),
        }
        Ok(())
    }

    pub(crate) fn seek_before(&mut self, key: &[u8]) -> Result<()> {
        match self {
            Input::Index(cursor, _) => cursor.seek_before(key),
            Input::Run(_, cursor) => cursor.seek_before(key)?,
            Input::Layer(_, cursor) => cursor.seek_before(key),
        }
        Ok(())
    }

    /// Goes on from an entry below `high` to the first that is not below it, or whose rank may be this one or a higher one.
    pub(crate) fn skip_forward(&mut self, high: &[u8], rank: u64) -> Result<()> {
        match self {
            Input::Index(cursor, _) => cursor.skip_forward(high, rank),
            Input::Run(own, _) | Input::Layer(own, _) if *own >= rank => Ok(()),
            Input::Run(..) | Input::Layer(..) => self.seek(high),
        }
    }

    /// Goes back from an entry not below `low` to the last one below it, or whose rank may be this one or a higher one.
    pub(crate) fn skip_backward(&mut self, low: &[u8], rank: u64) -> Result<()> {
        match self {
            Input::Index(cursor, _) => cursor.skip_backward(low, rank),
            Input::Run(own, _) | Input::Layer(own, _) if *own >= rank => Ok(()),
            Input::Run(..) | Input::Layer(..) => self.seek_before(low),
        }
    }

    pub(crate) fn next(&mut self) -> Result<()> {
        match self {
            Input::Index(cursor, _) => cursor.next()?,
            Input::Run(_, cursor) => cursor.next()?,
            Input::Layer(_, cursor) => cursor.next(),
        }
        Ok(())
    }

    pub(crate) fn prev(&mut self) -> Result<()> {
        match self {
            Input::Index(cursor, _) => cursor.prev()?,
            Input::Run(_, cursor) => cursor.prev()?,
            Input::Layer(_, cursor) => cursor.prev(),
        }
        Ok(())
    }
    /// How many keys of its leaf come after its key and are below `bound`; or, backward, come before it and are
    /// above `bound`. (A layer has no leaves.)
    pub(crate) fn steps_in_leaf(&self, is_forward: bool, bound: &[u8]) -> usize {
        match self {
            Input::Index(cursor, _) => cursor.steps_in_leaf(is_forward, bound),
            Input::Run(_, cursor) => cursor.steps_in_leaf(is_forward, bound),
            Input::Layer(..) => 0,
        }
    }

    /// Takes one of these steps.
    #[inline]
    pub(crate) fn step_in_leaf(&mut self, is_forward: bool) {
        match self {
            Input::Index(cursor, _) => cursor.step_in_leaf(is_forward),
            Input::Run(_, cursor) => cursor.step_in_leaf(is_forward),
            Input::Layer(..) => unreachable!("a layer has no leaves"),
        }
    }
}
