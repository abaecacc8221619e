//! A work queue in a map: threads and other processes take the first job, and put back jobs they could not do. For
//! leases, retries and dead letters see groups of a topic.
//!
//!     cargo run --release -p duramen --example work_queue

use std::thread;

use duramen::{Result, Store};

/// Runs jobs in the order in which they were appended; a failed job goes to the end.
pub fn main() -> Result<()> {
    let store = Store::temporary()?;
    let (jobs, done) = (store.map("jobs")?, store.map("done")?);
    for job in 0..200 {
        jobs.append("", format!("job {job}"))?;
    }
    thread::scope(|scope| {
        for worker in 0..4u8 {
            let (store, jobs, done) = (&store, &jobs, &done);
            scope.spawn(move || -> Result<()> {
                let mut fails_once = worker == 0;
                loop {
                    // Taking a job and recording its result is one commit. A worker that dies in between has taken
                    // nothing.
                    let is_over = store.transact(|tx| {
                        let Some((_, job)) = tx.pop_first(jobs)? else {
                            return Ok::<_, duramen::Error>(true);
                        };
                        if std::mem::take(&mut fails_once) {
                            tx.append(jobs, "", &job)?;
                        } else {
                            tx.put(done, &job, [worker])?;
                        }
                        Ok(false)
                    })?;
                    if is_over {
                        return Ok(());
                    }
                }
            });
        }
    });
    println!("{} jobs are done", done.count()?);
    assert_eq!((jobs.count()?, done.count()?), (0, 200));
    Ok(())
}
