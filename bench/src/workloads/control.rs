//! A control thread, which only sleeps and wakes beside what is measured: how late it wakes is what the machine did to every
//! thread that waited, whatever the store does. Where a store keeps all processors busy, that is in it too.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::measure::{Latencies, now_nanos};

/// Between two looks of the control thread at the clock.
const CONTROL: Duration = Duration::from_millis(1);

/// Does something while a control thread sleeps and wakes, and says how late that thread woke each time.
pub fn beside_control<T>(work: impl FnOnce() -> T) -> (T, Latencies) {
    let goes_on = AtomicBool::new(true);
    std::thread::scope(|scope| {
        let control = scope.spawn(|| {
            let mut late = Latencies::default();
            while goes_on.load(Ordering::Relaxed) {
                let due = now_nanos() + CONTROL.as_nanos() as u64;
                std::thread::sleep(CONTROL);
                late.record(now_nanos().saturating_sub(due));
            }
            late
        });
        let done = work();
        goes_on.store(false, Ordering::Relaxed);
        (done, control.join().unwrap_or_default())
    })
}
