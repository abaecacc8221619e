//! Members of one group in several processes. Limits apply to all of them together, and each learns at once what the
//! others do. The messages of a killed process go to another.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use duramen_engine::{Durability, Options, Store};
use duramen_topic::{
    Deliveries, GroupOptions, Message, Pattern, SlowPolicy, Start, SubscribeOptions, Topic, TopicError, TopicOptions,
    TopicWrites, Topics,
};

/// What a child process does, and where.
const ORDERS: &str = "DURAMEN_TEST_ORDERS";
const DIRECTORY: &str = "DURAMEN_TEST_DIRECTORY";
const HOUR: Duration = Duration::from_secs(3600);
/// Long enough for a slow machine, and far shorter than any lease of these tests.
const SOON: Duration = Duration::from_secs(60);

fn open(directory: &Path) -> (Store, Topic) {
    let options = Options::new().durability(Durability::Written);
    let store = options.open(directory).expect("the store opens");
    let topics = Topics::open(&store).expect("topics open");
    let topic = match topics.get("orders").expect("a look") {
        Some(topic) => topic,
        None => topics.create("orders", TopicOptions::new()).expect("a topic"),
    };
    (store, topic)
}

/// Reads orders, line by line, and reports the result of each. This is not a test: the tests start and kill it.
#[test]
#[ignore = "started, and killed, by the others"]
fn child() {
    let (Ok(orders), Ok(directory)) = (std::env::var(ORDERS), std::env::var(DIRECTORY)) else {
        return;
    };
    let (store, topic) = open(Path::new(&directory));
    if orders == "account" {
        return account(&store, &topic);
    }
    if orders == "hold back" {
        return hold_back(&topic);
    }
    if orders == "everywhere" {
        return everywhere(&topic.topics());
    }
    let group = topic.existing_group("group").expect("the group");
    let mut member = Some(group.member("child"));
    let mut held: Vec<Deliveries> = Vec::new();
    let mut guards = Vec::new();
    for line in std::io::stdin().lines() {
        let line = line.expect("a line");
        match line.as_str() {
            "receive" => {
                let member = member.as_mut().expect("a member");
                held.extend(member.receive(1, Duration::ZERO).expect("a look"));
            }
            "retry soon" => held.drain(..).flatten().for_each(|held| {
                held.retry_after(Duration::from_millis(100), "no")
                    .expect("it is settled");
            }),
            "acknowledge" => held
                .drain(..)
                .for_each(|held| held.acknowledge().expect("it is settled")),
            "keep alive" => guards.extend(held.iter().map(|held| held.keep_alive().expect("a guard"))),
            "redrive" => drop(group.redrive(10).expect("dead letters")),
            "leave" => {
                held.clear();
                member = None;
            }
            _ => panic!("{line}"),
        }
        println!("holds {}", held.iter().map(Deliveries::len).sum::<usize>());
    }
}

/// Holds publishers back, and reads the available messages for each line.
fn hold_back(topic: &Topic) {
    let policy = SlowPolicy::HoldBack {
        max: 1,
        timeout: Duration::from_millis(50),
    };
    let options = SubscribeOptions::new().slow(policy);
    let mut subscription = topic.subscribe_with(Start::Beginning, options).expect("a subscription");
    for line in std::io::stdin().lines() {
        line.expect("a line");
        while subscription.next_batch(Duration::ZERO).expect("a look").is_some() {}
        println!("holds 0");
    }
}

/// For each line, takes a message of any topic of a pattern that has one, or creates a topic with a message.
fn everywhere(topics: &Topics) {
    let group = topics.existing_group("everywhere").expect("the group");
    let mut member = group.member("child");
    let mut held = Vec::new();
    for line in std::io::stdin().lines() {
        match line.expect("a line").as_str() {
            "receive" => held.extend(member.receive(1, Duration::ZERO).expect("a look")),
            name => {
                let topic = topics.create(name, TopicOptions::new()).expect("a topic");
                topic.publish(b"message").expect("a message");
            }
        }
        println!("holds {}", held.len());
    }
}

/// Writes the steps of every account in the order of arrival, and marks them done, until it is killed.
fn account(store: &Store, topic: &Topic) {
    let steps = store.map("steps").expect("a map");
    let group = topic.existing_group("group").expect("the group");
    let mut member = group.member("accountant");
    let mut rng = fastrand::Rng::new();
    loop {
        let Some(deliveries) = member
            .receive(rng.usize(1..8), Duration::from_millis(20))
            .expect("a look")
        else {
            continue;
        };
        for delivery in deliveries {
            if rng.u8(..10) == 0 {
                let failed = delivery.retry_after(Duration::from_millis(rng.u64(..5)), "at random");
                unless_lost(failed);
                continue;
            }
            unless_lost(store.transact(|tx| {
                let message = delivery.message();
                let key = message.key().expect("a key");
                let mut done = tx.get(&steps, key)?.map_or(Vec::new(), |done| done.to_vec());
                done.extend_from_slice(message.payload());
                tx.put(&steps, key, &done)?;
                tx.acknowledge(&delivery)
            }));
        }
    }
}

fn unless_lost(done: duramen_engine::Result<()>) {
    if let Err(error) = done {
        let is_lost = matches!(
            TopicError::of(&error),
            Some(TopicError::LeaseLost { .. } | TopicError::AlreadySettled { .. })
        );
        assert!(is_lost, "{error}");
    }
}

/// A child process, until it is killed or dropped.
struct Process {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<std::process::ChildStdout>,
}

impl Process {
    fn start(what: &str, directory: &Path) -> Process {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "child", "--ignored", "--nocapture"])
            .env(ORDERS, what)
            .env(DIRECTORY, directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the child starts");
        Process {
            orders: child.stdin.take().expect("its input"),
            answers: BufReader::new(child.stdout.take().expect("its output")),
            child,
        }
    }

    /// Sends an order. Returns how many messages the child holds then.
    fn order(&mut self, order: &str) -> usize {
        writeln!(self.orders, "{order}").expect("the child listens");
        let mut line = String::new();
        loop {
            line.clear();
            let read = self.answers.read_line(&mut line).expect("an answer");
            assert!(read > 0, "the child ended by itself");
            // The test harness writes its own lines before.
            if let Some((_, held)) = line.split_once("holds ") {
                return held.trim().parse().expect("a number");
            }
        }
    }

    fn signal(&self, signal: &str) {
        let sent = Command::new("kill")
            .args([signal, &self.child.id().to_string()])
            .status();
        assert!(sent.expect("kill runs").success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A store with `messages` messages, a group with these options, and child processes.
fn with_children(
    messages: usize,
    options: GroupOptions,
    children: usize,
) -> (tempfile::TempDir, Store, Topic, Vec<Process>) {
    let directory = tempfile::tempdir().expect("a directory");
    let (store, topic) = open(directory.path());
    topic.create_group("group", Start::Beginning, options).expect("a group");
    topic.publish_all(vec![b"message"; messages]).expect("messages");
    let children = (0..children)
        .map(|_| Process::start("orders", directory.path()))
        .collect();
    (directory, store, topic, children)
}

fn received(topic: &Topic, timeout: Duration) -> Option<(u64, u32)> {
    let group = topic.existing_group("group").expect("the group");
    let got = group.member("parent").receive(1, timeout).expect("a look")?;
    let delivery = got.into_iter().next().expect("one message");
    let found = (delivery.offset(), delivery.tries());
    delivery.acknowledge().expect("it is settled");
    Some(found)
}

#[test]
fn as_many_messages_are_in_flight_as_may_be_in_all_processes_together() {
    let (_directory, _store, topic, mut children) = with_children(20, GroupOptions::new().in_flight(2), 5);
    let group = topic.existing_group("group").unwrap();
    // Each of them has seen the group without leases.
    for _ in 0..3 {
        let held: usize = children.iter_mut().map(|child| child.order("receive")).sum();
        assert_eq!(held, 2);
        assert_eq!(group.pending().unwrap().len(), 2);
        assert_eq!(group.describe().unwrap().pending, 2);
        let held: usize = children.iter_mut().map(|child| child.order("acknowledge")).sum();
        assert_eq!((held, group.describe().unwrap().pending), (0, 0));
    }
}

#[test]
fn messages_of_a_killed_process_go_to_another_at_once_and_count_a_try() {
    let options = GroupOptions::new().lease(HOUR).back_off(&[HOUR]);
    let (_directory, _store, topic, mut children) = with_children(1, options, 1);
    assert_eq!(received(&topic, Duration::ZERO), Some((0, 1)));
    topic.publish(b"next").unwrap();
    assert_eq!(children[0].order("receive"), 1);
    assert_eq!(received(&topic, Duration::from_millis(300)), None);
    children.clear();
    assert_eq!(received(&topic, SOON), Some((1, 2)));
}

#[test]
fn a_member_over_a_pattern_gets_at_once_what_a_killed_process_had_and_topics_that_another_creates() {
    let directory = tempfile::tempdir().unwrap();
    let (_store, topic) = open(directory.path());
    let pattern = Pattern::new("jobs.*").unwrap();
    let options = GroupOptions::new().lease(HOUR).back_off(&[HOUR]);
    let group = topic
        .topics()
        .create_group(&pattern, "everywhere", Start::Beginning, options)
        .unwrap();
    let mut member = group.member("parent");
    assert!(member.receive(1, Duration::ZERO).unwrap().is_none());
    let mut child = Process::start("everywhere", directory.path());
    let mut got = |child: &mut Process, name: &str| {
        child.order(name);
        let got = member.receive(1, SOON).unwrap().expect("a message");
        assert_eq!(got.messages().topic(), name);
        got
    };
    got(&mut child, "jobs.one").release().unwrap();
    // While the parent does not check, the child has one message of each of these topics.
    assert_eq!(child.order("receive"), 1);
    assert_eq!(child.order("jobs.two"), 1);
    assert_eq!(child.order("receive"), 2);
    let kept = got(&mut child, "jobs.three");
    kept.acknowledge().unwrap();
    drop(child);
    let mut topics = Vec::new();
    for _ in 0..2 {
        let again = member.receive(1, SOON).unwrap().expect("what the child had");
        topics.push(again.messages().topic().to_string());
        let delivery = again.into_iter().next().unwrap();
        assert_eq!(delivery.offset(), 0);
        delivery.acknowledge().unwrap();
    }
    topics.sort();
    assert_eq!(topics, ["jobs.one", "jobs.two"]);
    assert!(member.receive(1, Duration::ZERO).unwrap().is_none());
}

#[test]
fn messages_of_a_suspended_process_stay_with_it_until_the_lease_ends() {
    let options = GroupOptions::new().lease(Duration::from_secs(2)).back_off(&[]);
    let (_directory, _store, topic, mut children) = with_children(1, options, 1);
    assert_eq!(children[0].order("receive"), 1);
    children[0].signal("-STOP");
    assert_eq!(received(&topic, SOON), Some((0, 2)));
    children[0].signal("-CONT");
}

#[test]
fn a_publisher_is_told_which_process_holds_it_back_and_that_it_is_suspended() {
    let directory = tempfile::tempdir().unwrap();
    let (_store, topic) = open(directory.path());
    let mut child = Process::start("hold back", directory.path());
    child.order("read");
    topic.publish(b"first").unwrap();
    child.order("read");
    topic.publish(b"second").unwrap();
    child.signal("-STOP");
    let held = || {
        let error = topic.publish(b"one too many").expect_err("it is held back");
        TopicError::of(&error).expect("an error of topics").clone()
    };
    let began = Instant::now();
    // The signal arrives a little later.
    while !held().to_string().contains("its process is suspended") {
        assert!(began.elapsed() < SOON, "{}", held());
    }
    let id = child.child.id();
    assert!(matches!(held(), TopicError::PublisherHeldBack { lag: 1, process, .. } if process == id));
    let [holder] = &topic.holders().unwrap()[..] else {
        panic!("one holds back")
    };
    assert!(holder.holds_now() && holder.stuck().unwrap().contains("suspended"));
    // A dead process holds nothing back.
    drop(child);
    topic.publish(b"third").unwrap();
    assert_eq!(topic.holders().unwrap(), []);
}

#[test]
fn a_message_that_fails_in_one_process_is_delivered_in_another_when_its_time_has_come() {
    let options = GroupOptions::new().lease(HOUR);
    let (_directory, _store, topic, mut children) = with_children(2, options, 1);
    assert_eq!(received(&topic, Duration::ZERO), Some((0, 1)));
    assert_eq!(children[0].order("receive"), 1);
    // The parent waits already when the child reports that the message failed.
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| received(&topic, SOON));
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(children[0].order("retry soon"), 0);
        assert_eq!(waiting.join().unwrap(), Some((1, 2)));
    });
}

#[test]
fn a_member_that_leaves_gives_its_messages_back_at_once_and_counts_no_try() {
    let options = GroupOptions::new().lease(HOUR);
    let (_directory, _store, topic, mut children) = with_children(1, options, 1);
    assert_eq!(children[0].order("receive"), 1);
    assert_eq!(children[0].order("leave"), 0);
    assert_eq!(received(&topic, SOON), Some((0, 1)));
}

#[test]
fn dead_letters_that_one_process_brings_back_are_delivered_in_another() {
    let (_directory, _store, topic, mut children) = with_children(1, GroupOptions::new().lease(HOUR), 1);
    let group = topic.existing_group("group").unwrap();
    let mut member = group.member("parent");
    let got = member.receive(1, Duration::ZERO).unwrap().unwrap();
    got.into_iter().for_each(|delivery| delivery.give_up("no").unwrap());
    children[0].order("redrive");
    assert_eq!(received(&topic, SOON), Some((0, 1)));
    assert_eq!(group.describe().unwrap().pending, 0);
}

#[test]
fn a_guard_keeps_a_lease_as_long_as_its_process_lives() {
    let options = GroupOptions::new().lease(Duration::from_millis(300)).back_off(&[]);
    let (_directory, _store, topic, mut children) = with_children(1, options, 1);
    assert_eq!(children[0].order("receive"), 1);
    assert_eq!(children[0].order("keep alive"), 1);
    assert_eq!(received(&topic, Duration::from_secs(3)), None);
    children.clear();
    assert_eq!(received(&topic, SOON), Some((0, 2)));
}

/// Steps of many accounts, each with its own order, are done by processes that are killed repeatedly. Every step is
/// done once, and the steps of one account in the order in which they were published.
#[test]
fn messages_of_one_key_are_processed_in_order_and_once_by_processes_that_are_killed() {
    const ACCOUNTS: u32 = 12;
    const STEPS: u32 = 60;
    let directory = tempfile::tempdir().unwrap();
    let (store, topic) = open(directory.path());
    let options = GroupOptions::new().order_by_key(true).lease(Duration::from_millis(200));
    let options = options.back_off(&[Duration::from_millis(5)]).tries_without_end();
    let group = topic.create_group("group", Start::Beginning, options).unwrap();
    let mut rng = fastrand::Rng::new();
    let start = || Process::start("account", directory.path());
    let mut processes: Vec<Process> = (0..3).map(|_| start()).collect();
    let mut next: HashMap<u32, u32> = (0..ACCOUNTS).map(|account| (account, 0)).collect();
    while !next.is_empty() {
        let accounts: Vec<u32> = next.keys().copied().collect();
        let account = accounts[rng.usize(..accounts.len())];
        let step = next.get_mut(&account).unwrap();
        let payload = format!("{step} ");
        topic
            .publish(Message::new(&payload).key(&account.to_be_bytes()))
            .unwrap();
        *step += 1;
        if *step == STEPS {
            next.remove(&account);
        }
        if rng.u8(..40) == 0 {
            let place = rng.usize(..processes.len());
            processes[place] = start();
        }
    }
    let began = Instant::now();
    while group.describe().unwrap().acknowledged < u64::from(ACCOUNTS * STEPS) {
        assert!(began.elapsed() < SOON, "{:?} {:?}", group.describe(), group.pending());
        let place = rng.usize(..processes.len());
        processes[place] = start();
        std::thread::sleep(Duration::from_millis(rng.u64(100..400)));
    }
    drop(processes);
    let expected: String = (0..STEPS).map(|step| format!("{step} ")).collect();
    let steps = store.map("steps").unwrap();
    for account in 0..ACCOUNTS {
        let done = steps.get(account.to_be_bytes()).unwrap().unwrap();
        assert_eq!(String::from_utf8_lossy(&done), expected, "account {account}");
    }
    assert_eq!(group.describe().unwrap().pending, 0);
    assert!(group.pending().unwrap().is_empty());
}
