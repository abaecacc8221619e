//! Redrive: bringing dead letters back to the group that gave them up, and to no other group.

use std::time::Duration;

use crate::common::{SECOND, one_topic, publish};
use duramen_io::SimDisk;
use duramen_topic::{Group, GroupOptions, Redriven, Start, Topic, TopicOptions};

const NOW: Duration = Duration::ZERO;

fn options() -> GroupOptions {
    GroupOptions::new().lease(10 * SECOND).tries(1).dead_letters("dead")
}

/// A group that has given up every message of the topic.
fn given_up(topic: &Topic, name: &str) -> Group {
    let group = topic.ensure_group(name, Start::Beginning, options()).unwrap();
    while let Some(deliveries) = group.member("member").receive(100, NOW).unwrap() {
        deliveries
            .into_iter()
            .for_each(|delivery| delivery.give_up("poison").unwrap());
    }
    group
}

fn received(group: &Group) -> Vec<u64> {
    let deliveries = group.member("member").receive(100, NOW).unwrap();
    let offsets = |messages: &duramen_topic::Messages| messages.iter().map(|message| message.offset()).collect();
    deliveries.map_or(Vec::new(), |deliveries| offsets(deliveries.messages()))
}

#[test]
fn what_a_member_has_in_its_hands_is_left_alone() {
    let disk = SimDisk::new(1);
    let (_, _, topic) = one_topic(&disk);
    publish(&topic, 3);
    let group = given_up(&topic, "group");
    // From the beginning once more: a member has all messages, in a run.
    group.reset(Start::Beginning).unwrap();
    let deliveries = group.member("member").receive(100, NOW).unwrap().unwrap();
    assert_eq!(deliveries.len(), 3);
    assert_eq!(group.redrive(100).unwrap(), Redriven { delivered: 3, gone: 0 });
    assert_eq!(received(&group), [0; 0]);
    let pending = group.pending().unwrap();
    assert!(pending.iter().all(|pending| pending.member.is_some()), "{pending:?}");
    deliveries
        .into_iter()
        .for_each(|delivery| delivery.acknowledge().unwrap());
    disk.advance(1000 * SECOND);
    assert_eq!(received(&group), [0; 0]);
}

#[test]
fn groups_whose_names_look_alike_with_those_of_their_topics_have_their_own_letters() {
    let disk = SimDisk::new(2);
    let (_, topics, _) = one_topic(&disk);
    let groups = [("a", "b.c"), ("a.b", "c")].map(|(topic, group)| {
        let topic = topics.create(topic, TopicOptions::new()).unwrap();
        publish(&topic, 2);
        given_up(&topic, group)
    });
    for group in &groups {
        assert_eq!(
            group.redrive(100).unwrap(),
            Redriven { delivered: 2, gone: 0 },
            "{group:?}"
        );
        assert_eq!(received(group), [0, 1], "{group:?}");
    }
}

#[test]
fn letters_of_a_topic_that_was_deleted_are_not_taken_for_those_of_its_successor() {
    let disk = SimDisk::new(3);
    let (_, topics, topic) = one_topic(&disk);
    publish(&topic, 3);
    given_up(&topic, "group");
    topics.delete("orders").unwrap();
    let topic = topics.create("orders", TopicOptions::new()).unwrap();
    publish(&topic, 3);
    let group = topic.ensure_group("group", Start::Beginning, options()).unwrap();
    let deliveries = group.member("member").receive(100, NOW).unwrap().unwrap();
    deliveries.acknowledge().unwrap();
    assert_eq!(group.redrive(100).unwrap(), Redriven::default());
    assert_eq!(received(&group), [0; 0]);
    // A group that was created again belongs to the same topic, and has what its predecessor gave up.
    given_up(&topic, "other");
    topic.delete_group("other").unwrap();
    let other = topic.ensure_group("other", Start::Tail, options()).unwrap();
    assert_eq!(other.redrive(100).unwrap(), Redriven { delivered: 3, gone: 0 });
    assert_eq!(received(&other), [0, 1, 2]);
}
