//! Receiving as a member of a group in tasks, without a blocked thread.

use std::time::Duration;

use crate::common::facts;
use duramen_topic::{Deliveries, GroupOptions, Start, TopicError, TopicOptions};

fn offsets(deliveries: &Deliveries) -> Vec<u64> {
    deliveries.messages().iter().map(|message| message.offset()).collect()
}

/// Wakes the thread that runs a future.
struct Unpark(std::thread::Thread);

impl std::task::Wake for Unpark {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future, and polls it only when it asks for that.
fn block_on<T>(future: impl std::future::Future<Output = T>) -> T {
    let waker = std::sync::Arc::new(Unpark(std::thread::current())).into();
    let mut context = std::task::Context::from_waker(&waker);
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            std::task::Poll::Ready(value) => return value,
            std::task::Poll::Pending => std::thread::park(),
        }
    }
}

#[test]
fn a_task_receives_what_is_published_what_failed_and_what_a_lease_gives_back() {
    let directory = tempfile::tempdir().unwrap();
    let store = duramen_engine::Store::open(directory.path()).unwrap();
    let topics = duramen_topic::Topics::open(&store).unwrap();
    let topic = topics.create("orders", TopicOptions::new()).unwrap();
    let options = GroupOptions::new()
        .lease(Duration::from_millis(100))
        .back_off(&[Duration::from_millis(20)]);
    let group = topic.ensure_group("group", Start::Beginning, options).unwrap();
    let mut member = group.member("task");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(30));
            topic.publish(b"message").unwrap();
        });
        let first = block_on(member.receive_async(5)).unwrap();
        first.clone().into_iter().for_each(|first| first.retry("no").unwrap());
    });
    // Nothing more is published: only times wake the task.
    let failed = block_on(member.receive_async(5)).unwrap();
    let tries = |deliveries: &Deliveries| deliveries.clone().into_iter().next().unwrap().tries();
    assert_eq!(tries(&failed), 2);
    let ended = block_on(member.receive_async(5)).unwrap();
    assert_eq!(tries(&ended), 3);
    ended.acknowledge().unwrap();
    topic.publish_all([b"1", b"2", b"3"]).unwrap();
    let mut stream = member.stream(1);
    for offset in 1..4 {
        let next = block_on(std::future::poll_fn(|context| {
            futures_core::Stream::poll_next(std::pin::Pin::new(&mut stream), context)
        }));
        let next = next.unwrap().unwrap();
        assert_eq!(offsets(&next), [offset]);
        next.acknowledge().unwrap();
    }
    topic.delete_group("group").unwrap();
    let mut next = || {
        block_on(std::future::poll_fn(|context| {
            futures_core::Stream::poll_next(std::pin::Pin::new(&mut stream), context)
        }))
    };
    assert!(matches!(facts(next().unwrap()), TopicError::GroupDeleted { .. }));
    assert!(next().is_none(), "it ends with the error");
}
