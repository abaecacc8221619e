//! A store that is put back to a checkpoint: maps, topics and trees go back together, and no number comes a second time.

use std::time::Duration;

use duramen::topic::{Start, TopicOptions, Topics};
use duramen::tree::{TreeError, Trees, TreesOptions, WatchOptions};
use duramen::{Reason, Store};

/// The maps, topics and trees of a store.
struct Open {
    store: Store,
    topics: Topics,
    trees: Trees,
}

impl Open {
    fn at(directory: &std::path::Path) -> Open {
        let store = Store::open(directory).unwrap();
        let topics = Topics::open(&store).unwrap();
        let trees = Trees::open_with(&store, TreesOptions::new().background(false)).unwrap();
        Open { store, topics, trees }
    }

    fn restore(self, directory: &std::path::Path, name: &str) -> Open {
        duramen::restore(&self.store, name).unwrap();
        let refused = self.store.snapshot().unwrap_err();
        assert!(matches!(refused.reason(), Reason::Restored), "{refused}");
        assert!(self.topics.list().is_err() && self.trees.list().is_err());
        drop(self);
        Open::at(directory)
    }

    /// Offsets and payloads of the messages of a topic.
    fn messages(&self, topic: &str) -> Vec<(u64, String)> {
        let topic = self.topics.topic(topic).unwrap();
        let mut subscription = topic.subscribe(Start::Beginning).unwrap();
        let mut messages = Vec::new();
        while let Some(message) = subscription.next_message(Duration::ZERO).unwrap() {
            let text = String::from_utf8_lossy(message.payload()).into_owned();
            messages.push((message.offset(), text));
        }
        messages
    }
}

#[test]
fn maps_topics_and_trees_go_back_together_and_numbers_go_on() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let open = Open::at(directory);
    let log = open.store.map("log").unwrap();
    let orders = open.topics.ensure("orders", TopicOptions::default()).unwrap();
    let config = open.trees.ensure("config").unwrap();
    assert_eq!(log.append("a", "one").unwrap(), 0);
    orders.publish("one").unwrap();
    config.put("a", "one").unwrap();
    let first = config.view().unwrap().revision();
    open.store.checkpoints().create("one", "").unwrap();

    assert_eq!(log.append("a", "two").unwrap(), 1);
    assert_eq!(log.append("b", "two").unwrap(), 0);
    orders.publish("two").unwrap();
    orders.publish("three").unwrap();
    open.topics.ensure("later", TopicOptions::default()).unwrap();
    open.trees.ensure("later").unwrap();
    config.put("a", "two").unwrap();
    config.put("b", "three").unwrap();
    let newest = config.view().unwrap().revision();
    drop((log, orders, config));

    let open = open.restore(directory, "one");
    let log = open.store.map("log").unwrap();
    assert_eq!(log.count().unwrap(), 1);
    assert_eq!(log.append("a", "again").unwrap(), 2);
    assert_eq!(log.append("b", "again").unwrap(), 1);
    assert_eq!(open.topics.list().unwrap(), ["orders"]);
    assert_eq!(open.messages("orders"), [(0, "one".into())]);
    let orders = open.topics.topic("orders").unwrap();
    // A reader that had seen everything.
    let mut seen = orders.subscribe(Start::Offset(3)).unwrap();
    orders.publish("four").unwrap();
    assert_eq!(seen.next_message(Duration::ZERO).unwrap().unwrap().offset(), 3);
    assert_eq!(open.messages("orders"), [(0, "one".into()), (3, "four".into())]);

    assert_eq!(open.trees.list().unwrap(), ["config"]);
    let config = open.trees.get("config").unwrap().unwrap();
    let view = config.view().unwrap();
    assert_eq!(view.get("a").unwrap().unwrap().payload, b"one");
    assert!(view.get("b").unwrap().is_none());
    assert!(view.revision() > newest + 1);
    // Watches that had seen some of it, all of it, or only what is left.
    for from in [first, newest, newest + 1] {
        let compacted = config.watch(WatchOptions::all().from_revision(from)).unwrap_err();
        let is_compacted = matches!(TreeError::of(&compacted), Some(TreeError::Compacted { .. }));
        assert!(is_compacted, "from {from}: {compacted}");
    }
    let mut watch = config
        .watch(WatchOptions::all().from_revision(view.revision() + 1))
        .unwrap();
    config.put("c", "four").unwrap();
    let events = watch.next(Duration::ZERO).unwrap().unwrap();
    assert_eq!(events.len(), 1);
    // What is left of earlier revisions is removed.
    open.trees.work().unwrap();
    // Ids of what was made since the checkpoint are not given again.
    let later = open.topics.ensure("later", TopicOptions::default()).unwrap();
    assert_eq!(later.publish("first").unwrap().offset, 0);
    drop((later, seen, log, orders, view, watch, config));
    let report = open.store.check(&mut |_| ()).unwrap();
    assert_eq!(report.problems, [""; 0]);
}

/// How far a counter came that was deleted is not known.
#[test]
fn what_was_deleted_since_comes_back_far_above_its_numbers() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let open = Open::at(directory);
    let log = open.store.map("log").unwrap();
    let orders = open.topics.ensure("orders", TopicOptions::default()).unwrap();
    let config = open.trees.ensure("config").unwrap();
    log.append("a", "one").unwrap();
    orders.publish("one").unwrap();
    config.put("a", "one").unwrap();
    let revision = config.view().unwrap().revision();
    open.store.checkpoints().create("one", "").unwrap();
    log.append("a", "two").unwrap();
    drop((log, orders, config));
    open.store.maps().drop("log").unwrap();
    open.topics.delete("orders").unwrap();
    open.trees.delete("config").unwrap();

    let open = open.restore(directory, "one");
    const LEAP: u64 = 1 << 32;
    assert_eq!(open.store.map("log").unwrap().append("a", "three").unwrap(), 1 + LEAP);
    assert_eq!(open.messages("orders"), [(0, "one".into())]);
    let orders = open.topics.topic("orders").unwrap();
    assert_eq!(orders.publish("two").unwrap().offset, 1 + LEAP);
    let config = open.trees.get("config").unwrap().unwrap();
    assert!(config.view().unwrap().revision() > revision + LEAP);
    // And back once more.
    drop((orders, config));
    let open = open.restore(directory, "one");
    let orders = open.topics.topic("orders").unwrap();
    assert_eq!(orders.publish("three").unwrap().offset, 2 + LEAP);
    let config = open.trees.get("config").unwrap().unwrap();
    let revision = config.view().unwrap().revision();
    // What is deleted again leaps above what was assigned after the leap before.
    drop((orders, config));
    open.topics.delete("orders").unwrap();
    open.trees.delete("config").unwrap();
    let open = open.restore(directory, "one");
    let orders = open.topics.topic("orders").unwrap();
    assert!(orders.publish("four").unwrap().offset > 2 + LEAP);
    let config = open.trees.get("config").unwrap().unwrap();
    assert!(config.view().unwrap().revision() > revision);
}

#[test]
fn a_store_without_topics_and_trees_and_one_with_data_of_others_are_told_apart() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    store.map("map").unwrap().put("key", "first").unwrap();
    store.checkpoints().create("one", "").unwrap();
    store.map("map").unwrap().put("key", "second").unwrap();
    // Topics that came later are empty afterwards.
    Topics::open(&store).unwrap();
    store.reserved_map("server.tests").unwrap();
    let refused = duramen::restore(&store, "one").unwrap_err();
    assert!(matches!(refused.reason(), Reason::InvalidArgument(_)), "{refused}");
    assert_eq!(store.map("map").unwrap().get("key").unwrap().unwrap(), "second");
    duramen::restore_with(&store, "one", &["server.tests"], |_, _| Ok(())).unwrap();
    store.close().unwrap();
    let open = Open::at(directory.path());
    assert_eq!(open.store.map("map").unwrap().get("key").unwrap().unwrap(), "first");
    assert!(open.topics.list().unwrap().is_empty());
}

/// The offsets that were assigned since the checkpoint are missing. They are no messages that a limit counts.
#[test]
fn limits_of_topics_count_the_messages_that_came_back() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let open = Open::at(directory);
    let limited = open
        .topics
        .create("limited", TopicOptions::new().keep_messages(10))
        .unwrap();
    let refuses = TopicOptions::new().keep_messages(10).discard_new(true);
    let refusing = open.topics.create("refusing", refuses.clone()).unwrap();
    let deleted = open
        .topics
        .create("deleted", TopicOptions::new().keep_messages(10))
        .unwrap();
    for topic in [&limited, &refusing, &deleted] {
        topic.publish_all(["old"; 7]).unwrap();
    }
    open.store.checkpoints().create("one", "").unwrap();
    limited.publish_all(["new"; 20]).unwrap();
    refusing.configure(TopicOptions::new()).unwrap();
    refusing.publish_all(["new"; 20]).unwrap();
    limited.trim().unwrap();
    drop((limited, refusing, deleted));
    open.topics.delete("deleted").unwrap();

    let open = open.restore(directory, "one");
    for (name, next) in [("limited", 27), ("deleted", 7 + (1 << 32))] {
        let topic = open.topics.topic(name).unwrap();
        topic.trim().unwrap();
        assert_eq!(open.messages(name).len(), 7, "{name}");
        assert_eq!(topic.publish_all(["more"; 5]).unwrap().unwrap().offset, next);
        topic.trim().unwrap();
        let offsets: Vec<u64> = open.messages(name).into_iter().map(|(offset, _)| offset).collect();
        assert_eq!(offsets[..5], [2, 3, 4, 5, 6], "{name}");
        assert_eq!(offsets[5..], [next, next + 1, next + 2, next + 3, next + 4], "{name}");
    }
    let refusing = open.topics.topic("refusing").unwrap();
    refusing.publish_all(["more"; 3]).unwrap();
    assert!(refusing.publish("one too many").is_err());
    assert_eq!(open.messages("refusing").len(), 10);
}
