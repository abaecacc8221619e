//! Topics in damaged stores: what `salvage` saves continues where it was, and the report names what differs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, SystemTime};

use duramen::topic::{
    Group, GroupOptions, Message, Outcome, Pattern, Pending, Start, Topic, TopicError, TopicOptions, Topics,
    TopicsOptions,
};
use duramen::{Durability, Maintenance, Options, Store};

use crate::common::{Ended, Scratch};
use crate::copy_files;
use crate::image::{Image, PAGE};
use crate::log::{find, flip};

const MESSAGES: u64 = 400;
/// The first message of `orders` that retention kept.
const FIRST: u64 = 40;
/// Number of topics beside `orders`.
const OTHERS: u64 = 60;
const HOUR: Duration = Duration::from_secs(3600);

fn open(path: &Path) -> (Store, Topics) {
    let options = Options::new()
        .durability(Durability::Written)
        .maintenance(Maintenance::Manual);
    let store = options.open(path).unwrap();
    let topics = Topics::open_with(&store, TopicsOptions::new().background(false)).unwrap();
    (store, topics)
}

fn payload(offset: u64) -> Vec<u8> {
    match offset {
        100 => vec![1; 100_000],
        101 => vec![2; 1_500_000],
        _ => format!("order {offset} ").repeat(30).into_bytes(),
    }
}

fn publish_orders(orders: &Topic) {
    for offset in 0..MESSAGES {
        let (key, payload) = (format!("key {offset}"), payload(offset));
        let message = Message::new(&payload).key(&key).header("number", &key);
        let published = match offset % 4 {
            0 => orders.publisher("till").unwrap().publish(offset, message).unwrap(),
            _ => Outcome::Published(orders.publish(message).unwrap()),
        };
        assert!(matches!(published, Outcome::Published(at) if at.offset == offset));
    }
}

/// Brings messages into every state. Messages 60 and 62 are acknowledged individually. Message 61 failed and is due at
/// once, 63 in an hour. Messages 70 to 79 are leased for an hour, except 76, which is acknowledged. Everything else
/// before 80 is acknowledged.
fn consume(group: &Group) {
    let mut member = group.member("worker of stock");
    member
        .receive(20, Duration::ZERO)
        .unwrap()
        .unwrap()
        .acknowledge()
        .unwrap();
    let some = member.receive(10, Duration::ZERO).unwrap().unwrap();
    for delivery in some {
        match delivery.offset() {
            61 => delivery.retry_after(Duration::ZERO, "out of plums").unwrap(),
            63 => delivery.retry_after(HOUR, "out of pears").unwrap(),
            _ => delivery.acknowledge().unwrap(),
        }
    }
    // Messages that are due are delivered first.
    let again = member.receive(1, Duration::ZERO).unwrap().unwrap();
    again.into_iter().for_each(|again| {
        assert_eq!((again.offset(), again.tries()), (61, 2));
        again.retry_after(Duration::ZERO, "out of plums again").unwrap();
    });
    // New messages and failed messages are delivered in turn.
    let leased = member.receive(10, Duration::ZERO).unwrap().unwrap();
    assert_eq!(leased.messages().offsets(), 70..80);
    let again = member.receive(1, Duration::ZERO).unwrap().unwrap();
    assert_eq!(again.messages().offsets(), 61..62);
    again
        .into_iter()
        .for_each(|again| again.retry_after(HOUR, "still none").unwrap());
    for delivery in leased {
        match delivery.offset() {
            76 => delivery.acknowledge().unwrap(),
            _ => std::mem::forget(delivery),
        }
    }
}

/// Makes a closed store whose topics, groups, durable subscription and publishers occupy more than one page each.
fn make_store(path: &Path) {
    let (store, topics) = open(path);
    store.map("stock").unwrap().put(b"apples", b"12").unwrap();
    topics.create_on_use(true).unwrap();
    topics
        .create("gone", TopicOptions::new())
        .unwrap()
        .publish(b"x")
        .unwrap();
    topics.delete("gone").unwrap();
    let orders = topics.create("orders", TopicOptions::new()).unwrap();
    publish_orders(&orders);
    orders
        .configure(TopicOptions::new().keep_messages(MESSAGES - FIRST))
        .unwrap();
    assert_eq!(orders.trim().unwrap(), FIRST);
    let options = GroupOptions::new()
        .lease(HOUR)
        .tries(5)
        .in_flight(900)
        .dead_letters("dead");
    consume(&orders.ensure_group("stock", Start::Beginning, options).unwrap());
    let idle = orders
        .ensure_group("paused", Start::Offset(300), GroupOptions::new())
        .unwrap();
    idle.pause().unwrap();
    let sums = orders.durable("sums", Start::Beginning).unwrap();
    sums.acknowledge_through(119).unwrap();
    for number in 0..OTHERS {
        let name = format!("other.{number}.{}", "n".repeat(90));
        let other = topics.create(&name, TopicOptions::new().keep_for(HOUR * 24)).unwrap();
        other
            .publish_all((0..number).map(|_| "something").collect::<Vec<_>>())
            .unwrap();
        let many = orders
            .publisher(&format!("publisher {number} {}", "p".repeat(90)))
            .unwrap();
        many.publish(7 + number, b"by one of many").unwrap();
        let group = other
            .ensure_group(&name, Start::Beginning, GroupOptions::new())
            .unwrap();
        if let Some(deliveries) = group.member("worker of another").receive(9, Duration::ZERO).unwrap() {
            deliveries
                .into_iter()
                .take(3)
                .for_each(|delivery| delivery.acknowledge().unwrap());
        }
    }
    let first = Pattern::new("other.0.*").unwrap();
    let first = topics.durable(&first, "first", Start::Beginning).unwrap();
    drop((orders, idle, sums, first, topics));
    store.close().unwrap();
}

/// Key, headers, payload, publisher and time of a message.
type Seen = (
    Option<Vec<u8>>,
    Vec<(String, Vec<u8>)>,
    Vec<u8>,
    Option<(String, u64)>,
    SystemTime,
);

#[derive(Debug, PartialEq)]
struct GroupView {
    /// `None` for a durable subscription.
    options: Option<GroupOptions>,
    is_paused: bool,
    next: u64,
    pending: Vec<Pending>,
}

impl GroupView {
    /// Returns the kept messages that the group will still deliver.
    fn delivers(&self, kept: &BTreeMap<u64, Seen>) -> BTreeSet<u64> {
        let pending: BTreeSet<u64> = self.pending.iter().map(|pending| pending.offset).collect();
        let is_open = |offset: &&u64| **offset >= self.next || pending.contains(offset);
        kept.keys().filter(is_open).copied().collect()
    }
}

#[derive(Debug, PartialEq)]
struct TopicView {
    options: TopicOptions,
    created: SystemTime,
    next: u64,
    messages: BTreeMap<u64, Seen>,
    groups: BTreeMap<String, GroupView>,
    publishers: BTreeMap<String, Option<u64>>,
}

/// Returns all messages, across gaps.
fn messages(topic: &Topic) -> BTreeMap<u64, Seen> {
    let mut found = BTreeMap::new();
    let mut from = topic.describe().unwrap().first;
    loop {
        let read = match topic.read(Start::Offset(from), 1000) {
            Ok(read) => read,
            Err(error) => match TopicError::of(&error) {
                Some(TopicError::Trimmed { first, .. }) => {
                    from = *first;
                    continue;
                }
                _ => panic!("{error}"),
            },
        };
        if read.is_empty() {
            return found;
        }
        from = read.offsets().end;
        for message in read.iter() {
            let headers = message
                .headers()
                .map(|(name, value)| (name.to_string(), value.to_vec()));
            let seen = (
                message.key().map(<[u8]>::to_vec),
                headers.collect(),
                message.payload().to_vec(),
                message.publisher().map(|(name, sequence)| (name.to_string(), sequence)),
                message.time(),
            );
            found.insert(message.offset(), seen);
        }
    }
}

fn view(topic: &Topic) -> TopicView {
    let description = topic.describe().unwrap();
    let groups = topic.groups().unwrap().into_iter().map(|group| {
        let pending = match group.options {
            Some(_) => topic.existing_group(&group.name).unwrap().pending().unwrap(),
            None => Vec::new(),
        };
        let view = GroupView {
            options: group.options,
            is_paused: group.is_paused,
            next: group.next,
            pending,
        };
        (group.name, view)
    });
    let many = (0..OTHERS).map(|number| format!("publisher {number} {}", "p".repeat(90)));
    let publishers = many.chain(["till".to_string()]).map(|name| {
        let newest = topic.publisher(&name).unwrap().newest().unwrap();
        (name, newest)
    });
    TopicView {
        options: description.options,
        created: description.created,
        next: description.next,
        groups: groups.collect(),
        publishers: publishers.collect(),
        messages: messages(topic),
    }
}

fn views(path: &Path) -> BTreeMap<String, TopicView> {
    let (store, topics) = open(path);
    let names = topics.list().unwrap().into_iter();
    let views = names
        .map(|name| (name.clone(), view(&topics.topic(&name).unwrap())))
        .collect();
    drop(topics);
    store.close().unwrap();
    views
}

fn rules(path: &Path) -> Vec<String> {
    let (store, topics) = open(path);
    let durables = topics.durables().unwrap();
    let names = durables.iter().map(|durable| durable.name().to_string()).collect();
    drop((durables, topics));
    store.close().unwrap();
    names
}

fn lost(ended: &Ended) -> Vec<String> {
    let report = &ended.json()[0];
    let lost = report["lost"].as_array().unwrap().iter();
    let lost: Vec<String> = lost.map(|line| line.as_str().unwrap().to_string()).collect();
    assert_eq!(ended.code, if lost.is_empty() { 0 } else { 5 }, "{}", ended.stderr);
    lost
}

#[test]
fn delayed_messages_ids_and_options_are_saved() {
    let scratch = Scratch::new();
    let options = TopicOptions::new()
        .deduplicate_for(HOUR)
        .message_expiry(true)
        .latest_per_key(true);
    {
        let (store, topics) = open(&scratch.path("store"));
        let topic = topics.create("prices", options.clone()).unwrap();
        for payload in ["1", "2", "3"] {
            topic.publish(Message::new(payload).key(b"apples")).unwrap();
            topic.publish(payload).unwrap();
        }
        topic.publish_by_id(Message::new(b"once").id(b"id")).unwrap();
        topic
            .publish_after(Duration::ZERO, Message::new(&payload(100)))
            .unwrap();
        assert_eq!(topic.trim().unwrap(), 2);
        store.close().unwrap();
    }
    let ended = scratch.run(&["salvage", "store", "rest", "--json"]);
    assert_eq!(lost(&ended), [""; 0], "messages that were replaced are not lost");
    let (_store, topics) = open(&scratch.path("rest"));
    let topic = topics.topic("prices").unwrap();
    assert_eq!(topic.describe().unwrap().options, options);
    let again = topic.publish_by_id(Message::new(b"once").id(b"id")).unwrap();
    assert_eq!(again, Outcome::Duplicate(Some(6)));
    assert_eq!(topics.publish_due().unwrap(), 1);
    topic.publish(Message::new(b"4").key(b"apples")).unwrap();
    assert_eq!(topic.trim().unwrap(), 1, "the index is built again");
    let read = topic.read(Start::Beginning, 100).unwrap();
    let offsets: Vec<u64> = read.iter().map(|message| message.offset()).collect();
    assert_eq!(offsets, [1, 3, 5, 6, 7, 8]);
    assert!(read.get(4).unwrap().payload() == payload(100));
}

#[test]
fn topics_of_a_sound_store_are_saved_whole_and_go_on() {
    let scratch = Scratch::new();
    make_store(&scratch.path("store"));
    let ended = scratch.run(&["salvage", "store", "rest", "--json"]);
    assert_eq!(lost(&ended), [""; 0]);
    let report = &ended.json()[0];
    // Each topic with a group has a dead-letter topic, except `stock`, which shares a named one.
    assert_eq!(
        (&report["pairs"], &report["topics"]),
        (&1.into(), &(2 * OTHERS + 3).into())
    );
    assert_eq!(report["groups"], OTHERS + 4);
    let whole = views(&scratch.path("store"));
    let messages: usize = whole.values().map(|topic| topic.messages.len()).sum();
    assert_eq!(report["messages"], messages);
    assert!(whole == views(&scratch.path("rest")));

    let (_store, topics) = open(&scratch.path("rest"));
    assert!(topics.creates_on_use().unwrap());
    let orders = topics.get("orders").unwrap().unwrap();
    let till = orders.publisher("till").unwrap();
    let again = till.publish(MESSAGES - 4, b"again").unwrap();
    assert_eq!(again, Outcome::Duplicate(Some(MESSAGES - 4)));
    let next = MESSAGES + OTHERS;
    assert_eq!(orders.publish(b"next").unwrap().offset, next);
    let group = orders.existing_group("stock").unwrap();
    let mut member = group.member("another");
    let mut delivered = Vec::new();
    while let Some(deliveries) = member.receive(50, Duration::ZERO).unwrap() {
        delivered.extend(deliveries.messages().iter().map(|message| message.offset()));
        deliveries.acknowledge().unwrap();
    }
    // The process that leased the messages has ended, so they are delivered again at once.
    delivered.sort_unstable();
    let leased = (70..80).filter(|offset| *offset != 76);
    assert_eq!(delivered, leased.chain(80..=next).collect::<Vec<_>>());
    let pending: Vec<(u64, u32)> = group
        .pending()
        .unwrap()
        .iter()
        .map(|one| (one.offset, one.tries))
        .collect();
    assert_eq!(pending, [(61, 3), (63, 1)]);
    assert_eq!(
        orders.durable("sums", Start::Beginning).unwrap().position().unwrap(),
        120
    );
    let first = &topics.durables().unwrap()[0];
    assert_eq!((first.name(), first.pattern().as_str()), ("first", "other.0.*"));
    topics.create("other.0.more", TopicOptions::new()).unwrap();
    assert_eq!(first.positions().unwrap().len(), 2);
    // Newly created topics and groups get numbers of their own, so they start empty.
    for number in 0..5 {
        let fresh = topics.create(&format!("fresh.{number}"), TopicOptions::new()).unwrap();
        assert_eq!(fresh.publish(b"first").unwrap().offset, 0);
        assert_eq!(fresh.read(Start::Beginning, 9).unwrap().offsets(), 0..1);
        let group = fresh.ensure_group("fresh", Start::Tail, GroupOptions::new()).unwrap();
        assert!(group.pending().unwrap().is_empty());
    }
    assert_eq!(orders.publish(b"next").unwrap().offset, next + 1);
    assert_eq!(group.pending().unwrap().len(), pending.len());
    drop((member, group, till, orders, topics));
}

/// Whether a line reports this message of this topic.
fn tells_of(line: &str, topic: &str, offset: u64) -> bool {
    let Some(rest) = line.strip_prefix(&format!("topic {topic:?}: message")) else {
        return false;
    };
    let numbers: Vec<u64> = rest
        .split(|letter: char| !letter.is_ascii_digit())
        .filter_map(|text| text.parse().ok())
        .collect();
    match rest {
        _ if rest.starts_with("s before ") => offset < numbers[0],
        _ if rest.starts_with("s after the last") => true,
        _ if rest.starts_with("s ") => (numbers[0]..=numbers[1]).contains(&offset),
        _ => offset == numbers[0],
    }
}

/// Asserts what must hold for the salvaged topics, whatever was lost.
fn assert_is_left(name: &str, whole: &TopicView, rest: &TopicView, lost: &[String]) {
    let said = |what: &str| {
        lost.iter()
            .any(|line| line.contains(&format!("topic {name:?}")) && line.contains(what))
    };
    let is_record_lost = said("what it keeps");
    assert!(is_record_lost || (rest.options == whole.options && rest.created == whole.created));
    assert!(
        rest.next >= whole.next || said("how far it had come"),
        "{} {}",
        rest.next,
        whole.next
    );
    for (offset, seen) in &whole.messages {
        match rest.messages.get(offset) {
            Some(found) => assert!(found == seen, "message {offset} of {name:?} is another one"),
            None => assert!(
                lost.iter().any(|line| tells_of(line, name, *offset)),
                "message {offset} of {name:?} is missing without a word: {lost:#?}"
            ),
        }
    }
    assert!(rest.messages.keys().all(|offset| whole.messages.contains_key(offset)));
    for (group, before) in &whole.groups {
        let Some(after) = rest.groups.get(group) else {
            assert!(
                said("groups of topic") || said(&format!("group {group:?}")),
                "{group:?}: {lost:#?}"
            );
            continue;
        };
        let is_said = lost
            .iter()
            .any(|line| line.contains(&format!("{group:?} of topic {name:?}: ")));
        let (must, does) = (before.delivers(&rest.messages), after.delivers(&rest.messages));
        assert!(
            must.is_subset(&does),
            "{group:?} delivers too little: {must:?} {does:?}"
        );
        assert!(
            is_said || before == after,
            "{group:?} is not as it was: {before:?} {after:?} {lost:#?}"
        );
        assert!(before.options == after.options && before.is_paused == after.is_paused);
    }
    let is_told = |publisher: &String| {
        rest.messages
            .values()
            .any(|seen| seen.3.as_ref().is_some_and(|by| by.0 == *publisher))
    };
    for (publisher, sequence) in &whole.publishers {
        let is_same = rest.publishers[publisher] == *sequence;
        assert!(
            is_same || said("publishers") && !is_told(publisher),
            "{publisher:?}: {lost:#?}"
        );
    }
}

#[test]
fn whichever_page_rots_topics_go_on_and_what_is_not_as_it_was_is_named() {
    let scratch = Scratch::new();
    make_store(&scratch.path("store"));
    let whole = views(&scratch.path("store"));
    let image = Image::read(&scratch.path("store"));
    let (mut records, mut groups_set_back, mut gaps) = (0, 0, 0);
    // All leaves, and some of the branches and long values.
    let pages = (64..(image.data.len() / PAGE) as u32).filter(|page| image.is_used(*page));
    let pages = pages
        .filter(|page| image.is_leaf(*page) || page % 19 == 0)
        .chain([image.root()]);
    for page in pages {
        copy_files(&scratch.path("store"), &scratch.path("damaged"));
        let mut image = Image::read(&scratch.path("damaged"));
        image.flip(page as usize * PAGE + 1000);
        image.write(&scratch.path("damaged"));
        let ended = scratch.run(&["salvage", "damaged", "rest", "--json"]);
        let lost = lost(&ended);
        let rest = views(&scratch.path("rest"));
        let tells = |line: &String| line.contains("groups over patterns") || line.starts_with("topics, if");
        let is_told = lost.iter().any(tells);
        assert!(
            is_told || rules(&scratch.path("rest")) == ["first"],
            "page {page}: {lost:#?}"
        );
        if !rest.is_empty() && !is_told {
            // A salvaged topic keeps the durable subscription, whatever was lost.
            let first = whole.keys().find(|name| name.starts_with("other.0.")).unwrap();
            let durables = rest.get(first).map(|topic| topic.groups.contains_key("first"));
            assert!(durables != Some(false), "page {page}: {lost:#?}");
        }
        if lost.is_empty() {
            assert!(rest == whole, "page {page}: something is missing without a word");
        }
        // Any other corruption leaves enough to tell which maps belong to topics.
        assert!(!rest.is_empty() || page == image.root(), "page {page}: {lost:#?}");
        for (name, before) in &whole {
            match rest.get(name) {
                Some(after) => assert_is_left(name, before, after, &lost),
                // The registry has the names of topics whose records are lost. It lacks the numbers of empty topics.
                None => {
                    let is_told = |line: &String| line.starts_with("which topics") && line.contains(name.as_str());
                    let is_nameless = |line: &String| line.starts_with("the name of topic number");
                    let is_root = page == image.root();
                    let is_named = lost.iter().any(is_told) || lost.iter().any(is_nameless);
                    assert!(is_root || is_named, "{name:?} is missing without a word: {lost:#?}");
                }
            }
        }
        records += usize::from(lost.iter().any(|line| line.contains("what it keeps, so")));
        groups_set_back += usize::from(lost.iter().any(|line| line.contains("delivers them again")));
        gaps += usize::from(lost.iter().any(|line| line.starts_with("topic \"orders\": messages")));
        std::fs::remove_dir_all(scratch.path("rest")).unwrap();
        std::fs::remove_dir_all(scratch.path("damaged")).unwrap();
    }
    assert!(records > 1 && groups_set_back > 1 && gaps > 10);
}

#[test]
fn topics_whose_names_are_nowhere_left_are_saved_under_their_numbers() {
    let scratch = Scratch::new();
    make_store(&scratch.path("store"));
    let whole = views(&scratch.path("store"));
    copy_files(&scratch.path("store"), &scratch.path("damaged"));
    let mut image = Image::read(&scratch.path("damaged"));
    // Pages with records of topics, the registry, and groups with the same names; and some pages with messages.
    let has = |page: &[u8], what: &[u8]| page.windows(what.len()).any(|bytes| bytes == what);
    let pages = (64..(image.data.len() / PAGE) as u32).filter(|page| image.is_used(*page) && image.is_leaf(*page));
    let pages: Vec<u32> = pages
        .filter(|page| {
            let page = &image.data[*page as usize * PAGE..][..PAGE];
            has(page, &[b'n'; 90]) || has(page, b"order 200 ")
        })
        .collect();
    pages.iter().for_each(|page| image.flip(*page as usize * PAGE + 1000));
    image.write(&scratch.path("damaged"));
    let ended = scratch.run(&["salvage", "damaged", "rest", "--json"]);
    let lost = lost(&ended);
    let rest = views(&scratch.path("rest"));
    let orders = whole["orders"].messages.keys().next_back().unwrap();
    let found = rest
        .iter()
        .find(|(_, topic)| topic.messages.keys().next_back() == Some(orders));
    let (name, found) = found.expect("the topic with most messages");
    assert!(name.ends_with("-whose-name-is-lost"), "{name}");
    assert!(
        lost.iter()
            .any(|line| line.starts_with("the name of topic number") && line.contains(name))
    );
    let saved = found
        .messages
        .iter()
        .filter(|(offset, seen)| whole["orders"].messages[*offset] == **seen);
    assert_eq!(saved.count(), found.messages.len());
    assert!(found.messages.len() as u64 > MESSAGES - FIRST);
    let gap = |lost: &[String]| lost.iter().find(|line| tells_of(line, name, 200)).cloned();
    assert!(gap(&lost).is_some(), "{lost:#?}");
    // The next salvage finds them under these names, and the gap remains a gap.
    let again = scratch.run(&["salvage", "rest", "again", "--json"]);
    assert!(rest == views(&scratch.path("again")), "{}", again.text());
    assert_eq!(gap(&self::lost(&again)), gap(&lost));
}

/// Makes a store whose process was killed, with a topic and a group that exist only in the log.
fn make_killed_store(path: &Path) {
    let store = Options::new().maintenance(Maintenance::Manual).open(path).unwrap();
    let topics = Topics::open_with(&store, TopicsOptions::new().background(false)).unwrap();
    let orders = topics.create("orders", TopicOptions::new()).unwrap();
    let synced = orders.with_durability(Durability::Synced);
    let group = orders
        .ensure_group("stock", Start::Beginning, GroupOptions::new().lease(HOUR))
        .unwrap();
    for number in 0..10u64 {
        synced.publish(&format!("message {number} in the log")).unwrap();
        let leased = group.member("worker").receive(1, Duration::ZERO).unwrap().unwrap();
        match number % 2 {
            0 => leased.acknowledge().unwrap(),
            _ => std::mem::forget(leased),
        }
    }
    std::mem::forget((store, topics, orders, synced, group));
}

#[test]
fn topics_that_are_in_the_log_are_saved_up_to_where_it_rots() {
    let scratch = Scratch::new();
    make_killed_store(&scratch.path("running"));
    copy_files(&scratch.path("running"), &scratch.path("store"));
    let ended = scratch.run(&["salvage", "store", "whole", "--json"]);
    assert_eq!(lost(&ended), [""; 0]);
    let whole = views(&scratch.path("whole"));
    let orders = &whole["orders"];
    let pending: Vec<u64> = orders.groups["stock"].pending.iter().map(|one| one.offset).collect();
    assert_eq!((orders.messages.len(), orders.next), (10, 10));
    assert_eq!((pending, orders.groups["stock"].next), (vec![1, 3, 5, 7, 9], 10));

    let (name, place) = find(&scratch.path("store"), b"message 6 in the log");
    flip(&scratch.path("store"), &name, place);
    let ended = scratch.run(&["salvage", "store", "rest", "--json"]);
    let lost = lost(&ended);
    assert!(
        lost.len() == 1 && lost[0].contains("the log ends at commit"),
        "{lost:?}"
    );
    let rest = views(&scratch.path("rest"));
    let rest = &rest["orders"];
    assert!(rest.messages.iter().eq(orders.messages.range(..6)) && rest.next == 6);
    let pending: Vec<u64> = rest.groups["stock"].pending.iter().map(|one| one.offset).collect();
    assert_eq!((pending, rest.groups["stock"].next), (vec![1, 3, 5], 6));
}
