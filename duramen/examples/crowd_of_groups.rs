//! A store full of waiting work: 10,000 topics, 1,000 groups, a million failed messages that wait for their next
//! attempt, and a million delayed messages. Beside them the program publishes, delays, receives, fails and acknowledges
//! at a steady rate. Each minute it prints the cost of these calls and the memory of the process. New messages expire
//! after two minutes, so the number of messages in the store stays constant. The printed numbers must therefore stay
//! constant from the third minute to the last.
//!
//! ```sh
//! cargo run --release -p duramen --example crowd_of_groups -- DIRECTORY 3600
//! ```

use std::time::{Duration, Instant};

use duramen::topic::{Group, GroupOptions, Member, Message, Start, Topic, TopicOptions, Topics};
use duramen::{Durability, Options, Result};

const TOPICS: usize = 10_000;
const GROUPS: usize = 1_000;
const WAITING: usize = 1_000;
const DELAYED: usize = 1_000_000;
/// Rounds per second; each round makes one call of every kind.
const RATE: u32 = 1_000;
const HOUR: Duration = Duration::from_secs(3600);
/// How long the messages of a round are kept.
const KEPT: Duration = Duration::from_secs(120);

/// The measured calls, each with the times of the current minute.
const CALLS: [&str; 5] = ["publish", "delay", "receive", "acknowledge", "retry"];

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let (Some(directory), Some(seconds)) = (arguments.next(), arguments.next()) else {
        eprintln!("say where, and for how many seconds: crowd_of_groups DIRECTORY SECONDS");
        std::process::exit(2);
    };
    let seconds: u64 = seconds.parse().expect("a number of seconds");
    let store = Options::new().durability(Durability::Written).open(&directory)?;
    let topics = Topics::open(&store)?;
    let mut random = fastrand::Rng::with_seed(29);
    let began = Instant::now();
    let all = (0..TOPICS).map(|number| make_topic(&topics, number));
    let all = all.collect::<Result<Vec<Topic>>>()?;
    let groups = all[..GROUPS].iter().map(|topic| wait_full(topic, &mut random));
    let mut members = groups.collect::<Result<Vec<Member>>>()?;
    for number in 0..DELAYED {
        // Some hours ahead, so that they wait throughout.
        let ahead = 2 * HOUR + Duration::from_millis(random.u64(..86_400_000));
        all[number % TOPICS].publish_after(ahead, b"much later")?;
    }
    eprintln!("made in {:.1?}", began.elapsed());
    println!(
        "minute,{},anonymous_mb,data_mb",
        CALLS.map(|call| format!("{call}_p50_us,{call}_p99_us")).join(",")
    );
    let (began, mut rounds) = (Instant::now(), 0u32);
    for minute in 1..=seconds.div_ceil(60) {
        let mut times: [Vec<u32>; CALLS.len()] = Default::default();
        let end = Duration::from_secs(minute * 60).min(Duration::from_secs(seconds));
        while began.elapsed() < end {
            round(&all, &mut members, &mut times, &mut random)?;
            rounds += 1;
            let ahead = (Duration::from_secs(1) / RATE * rounds).saturating_sub(began.elapsed());
            std::thread::sleep(ahead);
        }
        let figures: Vec<String> = times.iter_mut().map(|times| figures(times)).collect();
        let data = store.stat()?.data_bytes as f64 / 1e6;
        let memory = anonymous_bytes() as f64 / 1e6;
        println!("{minute},{},{memory:.1},{data:.0}", figures.join(","));
    }
    store.close()
}

fn make_topic(topics: &Topics, number: usize) -> Result<Topic> {
    topics.ensure(&format!("topic.{number}"), TopicOptions::new().message_expiry(true))
}

/// Returns a member of a group in which a thousand messages failed and wait for hours.
fn wait_full(topic: &Topic, random: &mut fastrand::Rng) -> Result<Member> {
    topic.publish_all(vec![b"work"; WAITING])?;
    let options = GroupOptions::new().in_flight(100_000).discard_dead_letters();
    let group: Group = topic.ensure_group("workers", Start::Beginning, options.tries_without_end())?;
    let mut member = group.member("worker");
    let mut left = WAITING;
    while left > 0 {
        let Some(deliveries) = member.receive(left, Duration::ZERO)? else {
            break;
        };
        for delivery in deliveries {
            left -= 1;
            delivery.retry_after(2 * HOUR + Duration::from_millis(random.u64(..86_400_000)), "not today")?;
        }
    }
    Ok(member)
}

fn round(
    all: &[Topic],
    members: &mut [Member],
    times: &mut [Vec<u32>; CALLS.len()],
    random: &mut fastrand::Rng,
) -> Result<()> {
    let place = random.usize(..GROUPS);
    let mut timed = |call: usize, began: Instant| times[call].push(began.elapsed().as_nanos() as u32);
    let began = Instant::now();
    all[place].publish(Message::new(b"work").expires_after(KEPT))?;
    timed(0, began);
    let began = Instant::now();
    let delay = Duration::from_millis(random.u64(1..30_000));
    all[random.usize(..TOPICS)].publish_after(delay, Message::new(b"soon").expires_after(KEPT))?;
    timed(1, began);
    let began = Instant::now();
    let received = members[place].receive(1, Duration::ZERO)?;
    timed(2, began);
    for delivery in received.into_iter().flatten() {
        let fails = random.u8(..4) == 0;
        let began = Instant::now();
        match fails {
            true => delivery.retry_after(Duration::from_millis(random.u64(1..30_000)), "not yet")?,
            false => delivery.acknowledge()?,
        }
        timed(if fails { 4 } else { 3 }, began);
    }
    Ok(())
}

/// Formats the median and the 99th percentile in microseconds.
fn figures(times: &mut [u32]) -> String {
    times.sort_unstable();
    let at = |share: usize| {
        times
            .get(times.len() * share / 100)
            .map_or(0.0, |&nanos| f64::from(nanos) / 1000.0)
    };
    format!("{:.1},{:.1}", at(50), at(99))
}

/// Returns the memory that belongs to the process and to no file.
fn anonymous_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("RssAnon"));
    let kilobytes = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    kilobytes.unwrap_or(0) * 1024
}
