//! Keys that are other bytes than those that the tree was built with, as after a page that the kernel could not write back.

use super::*;

/// Overwrites pieces of the log, but for the lengths of keys, which the log that the store has checks.
fn damage(log: &mut Log, random: &mut fastrand::Rng) {
    let mut position = 0;
    let mut left = 0;
    let mut filler = None;
    while position < log.0.len() {
        let length = u16::from_le_bytes([log.0[position], log.0[position + 1]]) as usize;
        if left == 0 {
            left = random.usize(1..100);
            filler = [None, Some(0), Some(0xFF), Some(random.u8(..))][random.usize(..4)];
        }
        left -= 1;
        if let Some(filler) = filler {
            log.0[position + 2..][..length].fill(filler);
        }
        position += 2 + length;
    }
}

#[test]
#[cfg_attr(miri, ignore = "walks in circles up to the limit of its steps")]
fn walks_over_keys_that_changed_end() {
    let mut random = random();
    let mut refused = [0; 2];
    for round in 0..200 {
        let mut tester = Tester::new(1 << 20);
        let shape = SHAPES[round % SHAPES.len()];
        for key in arriving_keys(&mut random, shape, ARRIVALS[round % ARRIVALS.len()], 700) {
            tester.insert(&key);
            tester.commit += 1;
        }
        damage(&mut tester.log, &mut random);
        let mut cursor = IndexCursor::new(tester.index, &tester.log);
        let steps_max = tester.model.len() * LEAF_ENTRIES;
        let ends = |step: &mut dyn FnMut() -> Result<bool>| {
            let outcome = (0..steps_max).map(|_| step()).find(|step| !matches!(step, Ok(true)));
            outcome.unwrap_or_else(|| panic!("a walk over {shape:?} keys goes on after {steps_max} steps"))
        };
        let mut outcome = cursor.first();
        if outcome.is_ok() {
            outcome = ends(&mut || cursor.next().map(|()| cursor.is_valid())).map(drop);
        }
        refused[0] += usize::from(outcome.is_err());
        assert!(!cursor.is_valid());
        cursor.last();
        refused[1] += usize::from(ends(&mut || cursor.prev().map(|()| cursor.is_valid())).is_err());
        assert!(!cursor.is_valid());
    }
    assert!(
        refused.iter().all(|&walks| walks > 0),
        "nothing was noticed: {refused:?}"
    );
}
