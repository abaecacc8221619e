//! The examples, run as tests.

#[path = "../examples/change_stream.rs"]
mod change_stream;

#[path = "../examples/cursors.rs"]
mod cursors;

#[path = "../examples/order_service.rs"]
mod order_service;

#[path = "../examples/publish_subscribe.rs"]
mod publish_subscribe;

#[path = "../examples/session_store.rs"]
mod session_store;

#[path = "../examples/work_queue.rs"]
mod work_queue;

#[test]
fn change_stream_runs() {
    change_stream::main().expect("the example");
}

#[test]
fn cursors_runs() {
    cursors::main().expect("the example");
}

#[test]
fn order_service_runs() {
    order_service::main().expect("the example");
}

#[test]
fn publish_subscribe_runs() {
    publish_subscribe::main().expect("the example");
}

#[test]
fn session_store_runs() {
    session_store::main().expect("the example");
}

#[test]
fn work_queue_runs() {
    work_queue::main().expect("the example");
}
