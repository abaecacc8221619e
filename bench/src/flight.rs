//! The loop of requests that are in flight together, for one connection. [`crate::crew`] has the loop of calls that
//! return before the next one begins.

use anyhow::Result;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::runtime::Builder;
use tokio::task::unconstrained;

use crate::answer::Answer;
use crate::crew::{Shift, Worked, crew, together};
use crate::measure::{Done, Timeline, now_nanos, thread_cpu_nanos};

/// The requests of one connection.
#[derive(Clone, Copy, Debug)]
pub struct Flight {
    /// Number of requests.
    pub planned: u64,
    /// Number of requests in flight at a time, each in a slot of its own.
    pub in_flight: usize,
    /// Number of operations in a request.
    pub each: u64,
}

impl Flight {
    /// Begins requests until all are done or the shift is over, and awaits all answers. `begin` gets the slot, whose
    /// last request is then answered. A latency is the time from `begin` to the answer.
    pub async fn work<'a>(self, shift: Shift, mut begin: impl FnMut(usize) -> Answer<'a>) -> Result<Worked> {
        let (start, cpu_before) = (now_nanos(), thread_cpu_nanos());
        let mut worked = Worked {
            timeline: Timeline::starting(start),
            ..Worked::default()
        };
        let mut begun = 0;
        let mut next = |slot| {
            if begun == self.planned || shift.is_over() {
                return None;
            }
            begun += 1;
            let (since, answer) = (now_nanos(), begin(slot));
            Some(async move { answer.await.map(|()| (slot, since)) })
        };
        let mut answers: FuturesUnordered<_> = (0..self.in_flight).map_while(&mut next).collect();
        while let Some(answer) = answers.next().await {
            let (slot, since) = answer?;
            let now = now_nanos();
            worked.latencies.record(now - since);
            worked.timeline.count(now, self.each);
            worked.operations += self.each;
            answers.extend(next(slot));
        }
        if begun < self.planned && shift.is_at_limit() {
            worked.stopped_at_of = Some(self.planned * self.each);
        }
        worked.nanos = now_nanos() - start;
        worked.cpu_nanos = thread_cpu_nanos() - cpu_before;
        Ok(worked)
    }
}

/// Works on connections, each in a thread with a runtime of its own.
pub fn on_connections(connections: usize, work: impl AsyncFn(usize) -> Result<Worked> + Sync) -> Result<Done> {
    let worked = crew(connections, |number| {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        // Tokio's budget would interrupt some requests before they are sent, and later ones would overtake them.
        runtime.block_on(unconstrained(work(number)))
    })?;
    // Opening a connection is not part of the work.
    let wall_nanos = worked.iter().map(|worked| worked.nanos).max();
    Ok(Done {
        wall_nanos,
        ..together(worked)
    })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::task::Poll;

    use super::*;
    use crate::crew::Pace;

    /// Runs a flight whose answers take two polls. Returns its work and the most requests in flight.
    fn fly(flight: Flight, limit: u64) -> Result<(Worked, usize)> {
        let pace = Pace {
            limit,
            seconds: None,
            rate: None,
        };
        let (now, most) = (Cell::new(0), Cell::new(0));
        let worked = flight.work(pace.whole_shift(1), |_| {
            now.set(now.get() + 1);
            most.set(most.get().max(now.get()));
            let (now, mut polls) = (&now, 0);
            Box::pin(std::future::poll_fn(move |context| {
                polls += 1;
                if polls == 1 {
                    context.waker().wake_by_ref();
                    return Poll::Pending;
                }
                now.set(now.get() - 1);
                Poll::Ready(Ok(()))
            }))
        });
        let worked = tokio::runtime::Builder::new_current_thread()
            .build()?
            .block_on(worked)?;
        assert_eq!(now.get(), 0, "a request has no answer");
        Ok((worked, most.get()))
    }

    const FLIGHT: Flight = Flight {
        planned: 100,
        in_flight: 8,
        each: 5,
    };

    #[test]
    fn flight_does_all_requests_and_never_more_at_a_time_than_it_may() -> Result<()> {
        let (worked, most) = fly(FLIGHT, u64::MAX)?;
        assert_eq!((worked.operations, worked.latencies.count(), most), (500, 100, 8));
        assert_eq!(worked.stopped_at_of, None);
        Ok(())
    }

    #[test]
    fn limit_of_the_cell_shows_how_many_operations_were_left() -> Result<()> {
        let (worked, _) = fly(FLIGHT, 0)?;
        assert_eq!((worked.operations, worked.stopped_at_of), (0, Some(500)));
        Ok(())
    }
}
