//! Leaves that are asked for before they are read, where that is wanted.

use super::*;

impl Memory {
    /// Leaves that were read, and those of them that had been asked for, since this was called last.
    fn read_and_asked(&self) -> (usize, usize) {
        (self.leaves_read.replace(0), self.asked_and_read.replace(0))
    }
}

fn many_leaves() -> Subject {
    let mut subject = Subject::default();
    subject.put((0..60_000u32).map(|number| (number.to_be_bytes().to_vec(), vec![7; 90])));
    subject.memory.read_and_asked();
    subject
}

#[test]
fn scans_ask_for_leaves_before_they_come_to_them_where_that_is_wanted() {
    let subject = many_leaves();
    subject.assert_scans();
    let (leaves, asked) = subject.memory.read_and_asked();
    assert!(leaves > 2 * 1_000 && asked == 0, "{asked} of {leaves}");
    subject.memory.wants_read_ahead.set(true);
    subject.assert_scans();
    let (leaves, asked) = subject.memory.read_and_asked();
    // In each branch the cursor comes to the first leaf or two without having known them.
    assert!(asked * 100 > leaves * 95, "{asked} of {leaves}");
    assert!(
        subject.memory.asked.borrow().is_empty(),
        "nothing was asked for in vain"
    );
}

#[test]
fn who_looks_for_one_key_asks_for_nothing() {
    let subject = many_leaves();
    subject.memory.wants_read_ahead.set(true);
    let mut cursor = Cursor::new(&subject.memory, subject.root);
    for number in (0..60_000u32).step_by(777) {
        cursor.seek(&number.to_be_bytes()).expect("a sound tree");
        assert!(cursor.is_valid());
        assert!(subject.memory.asked.borrow().is_empty(), "{number}");
    }
}

#[test]
fn walks_ask_for_every_leaf() {
    let subject = many_leaves();
    subject.memory.wants_read_ahead.set(true);
    walk(&subject.memory, subject.root, &mut |_| Ok(())).expect("a sound tree");
    let (leaves, asked) = subject.memory.read_and_asked();
    assert!(leaves > 1_000 && asked == leaves, "{asked} of {leaves}");
}
