//! What folding the operations of the log takes.

use std::ops::{AddAssign, SubAssign};

use super::OperationKind;
use super::record::decode_root;
use crate::limits::{INLINE_VALUE_BYTES_MAX, PAGE_BYTES};

/// Operations, bytes, and pages of values too long for a leaf.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FoldCosts {
    pub(crate) operations: u64,
    pub(crate) bytes: u64,
    pub(crate) value_pages: u64,
}

impl FoldCosts {
    pub(crate) fn of([operations, bytes, value_pages]: [u64; 3]) -> FoldCosts {
        FoldCosts {
            operations,
            bytes,
            value_pages,
        }
    }

    pub(crate) fn numbers(self) -> [u64; 3] {
        [self.operations, self.bytes, self.value_pages]
    }

    /// The lesser of each.
    pub(crate) fn min(self, other: FoldCosts) -> FoldCosts {
        let (ours, theirs) = (self.numbers(), other.numbers());
        FoldCosts::of(std::array::from_fn(|index| ours[index].min(theirs[index])))
    }
}

impl SubAssign for FoldCosts {
    fn sub_assign(&mut self, other: FoldCosts) {
        self.operations -= other.operations;
        self.bytes -= other.bytes;
        self.value_pages -= other.value_pages;
    }
}

impl AddAssign for FoldCosts {
    fn add_assign(&mut self, other: FoldCosts) {
        self.operations += other.operations;
        self.bytes += other.bytes;
        self.value_pages += other.value_pages;
    }
}

/// What folding an operation takes beyond one operation and its bytes: a run counts with all its pairs, and a value
/// that is too long for a leaf takes whole pages.
pub(crate) fn fold_costs(kind: OperationKind, value: &[u8]) -> FoldCosts {
    match kind {
        OperationKind::Run => FoldCosts {
            operations: decode_root(value).pairs,
            ..FoldCosts::default()
        },
        OperationKind::Put if value.len() > INLINE_VALUE_BYTES_MAX => FoldCosts {
            operations: 0,
            bytes: (value.len().next_multiple_of(PAGE_BYTES) - value.len()) as u64,
            value_pages: value.len().div_ceil(PAGE_BYTES) as u64,
        },
        _ => FoldCosts::default(),
    }
}
