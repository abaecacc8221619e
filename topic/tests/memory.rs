//! Memory of very many subscribers: counted by the allocator, so it is the same on every machine.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::{one_topic, publish};
use duramen_io::SimDisk;
use duramen_topic::{Dispatcher, DispatcherOptions, Start, Topic, TopicOptions};

struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes unchanged to the system's allocator; only a count is kept beside it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller guarantees the contract of `alloc`; it is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller guarantees the contract of `dealloc`; it is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_hundred_thousand_subscribers_take_less_than_two_hundred_bytes_each() {
    const SUBSCRIBERS: usize = 100_000;
    let (_store, topics, _) = one_topic(&SimDisk::new(1));
    let all: Vec<Topic> = (0..100)
        .map(|number| topics.create(&format!("topic.{number}"), TopicOptions::new()).unwrap())
        .collect();
    let dispatcher = Dispatcher::start(&topics, DispatcherOptions::new()).unwrap();
    let delivered = Arc::new(AtomicUsize::new(0));
    let before = HELD.load(Ordering::Relaxed);
    for number in 0..SUBSCRIBERS {
        let delivered = delivered.clone();
        let callback = move |messages: Result<&duramen_topic::Messages, &duramen_engine::Error>| {
            delivered.fetch_add(messages.unwrap().len(), Ordering::Relaxed);
        };
        dispatcher
            .subscribe(&all[number % all.len()], Start::Tail, callback)
            .unwrap();
    }
    let each = (HELD.load(Ordering::Relaxed) - before) / SUBSCRIBERS;
    assert!(each < 200, "{each} bytes");
    all.iter().for_each(|topic| publish(topic, 3));
    let began = Instant::now();
    while delivered.load(Ordering::Relaxed) < 3 * SUBSCRIBERS {
        assert!(began.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(1));
    }
    let after = (HELD.load(Ordering::Relaxed) - before) / SUBSCRIBERS;
    assert!(after < 250, "{after} bytes");
}
