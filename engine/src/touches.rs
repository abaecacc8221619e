//! Changes that change nothing: a merge of them writes some leaves, and the branches above them, to other places.

use crate::base::{ChangeStream, Cursor, PageSource, Root, Stored};
use crate::error::Result;
use crate::limits::BRANCH_PAGES;

/// After so many leaves is looked whether there is something to fold: then that is more urgent, and what was moved so far is
/// moved.
pub(crate) const LEAVES_BETWEEN_LOOKS: u64 = 64;

/// Which leaves are touched.
pub(crate) struct Touched<'k> {
    /// Those that hold this key or greater ones.
    pub(crate) from: &'k [u8],
    /// Those that lie behind this page, or under a branch that does.
    pub(crate) behind: u32,
    /// Of so many that are looked at.
    pub(crate) leaves_max: u64,
}

/// One pair of each such leaf, as it is.
pub(crate) struct Touches<'w, S: PageSource> {
    cursor: Cursor<S>,
    behind: u32,
    leaves_max: u64,
    /// Whether to go on.
    is_wanted: &'w dyn Fn() -> bool,
    leaves: u64,
    has_ended: bool,
    /// The branches above the leaf at hand, and those above the last leaf that was touched.
    branches: Vec<u32>,
    touched: Vec<u32>,
}

impl<'w, S: PageSource> Touches<'w, S> {
    pub(crate) fn new(
        source: S,
        root: Root,
        of: &Touched<'_>,
        is_wanted: &'w dyn Fn() -> bool,
    ) -> Result<Touches<'w, S>> {
        let mut touches = Touches {
            cursor: Cursor::new(source, root),
            behind: of.behind,
            leaves_max: of.leaves_max,
            is_wanted,
            leaves: 0,
            has_ended: false,
            branches: Vec::new(),
            touched: Vec::new(),
        };
        touches.cursor.seek(of.from)?;
        touches.find()?;
        Ok(touches)
    }

    /// The first key of the leaf that comes after all that were looked at, if there is one.
    pub(crate) fn rest(&self) -> Option<Vec<u8>> {
        self.cursor.is_valid().then(|| self.cursor.key().to_vec())
    }

    /// Goes on to the next leaf that must be touched, from the one at hand on.
    fn find(&mut self) -> Result<()> {
        while self.cursor.is_valid() {
            self.leaves += 1;
            let is_time_to_look = self.leaves.is_multiple_of(LEAVES_BETWEEN_LOOKS);
            if self.leaves > self.leaves_max || is_time_to_look && !(self.is_wanted)() {
                self.has_ended = true;
                return Ok(());
            }
            self.branches.clear();
            self.branches.extend(self.cursor.branches());
            let is_behind = |page: u32, pages: u32| page + pages > self.behind;
            let must_move = self
                .branches
                .iter()
                .any(|&branch| is_behind(branch, BRANCH_PAGES) && !self.touched.contains(&branch));
            if must_move || is_behind(self.cursor.leaf(), 1) {
                std::mem::swap(&mut self.branches, &mut self.touched);
                return Ok(());
            }
            self.cursor.skip_leaf()?;
        }
        Ok(())
    }
}

impl<S: PageSource> ChangeStream for Touches<'_, S> {
    fn key(&self) -> Option<&[u8]> {
        (self.cursor.is_valid() && !self.has_ended).then(|| self.cursor.key())
    }

    fn change(&self) -> Stored<'_> {
        let (page, location) = self.cursor.value();
        location.stored(page)
    }

    fn advance(&mut self) -> Result<()> {
        self.cursor.skip_leaf()?;
        self.find()
    }
}
