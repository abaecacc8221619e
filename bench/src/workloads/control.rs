//! A control thread that only sleeps and wakes beside the measured work. Its delay shows what the machine does to every
//! waiting thread, whatever the store does. If a store keeps all processors busy, the delay includes that too.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::measure::{Latencies, now_nanos};

/// Interval at which the control thread reads the clock.
const CONTROL: Duration = Duration::from_millis(1);

/// Runs `work` while a control thread sleeps and wakes. Returns the delays of that thread.
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
