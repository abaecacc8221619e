//! Sixth chapter: a process announces each sale in the transaction that makes the sale. Another process counts each
//! sale once. Both are killed in the middle of their work, many times.
//!
//! There is no outbox: a sale and its message are one commit. After any number of kills there are as many messages as
//! sales, and each message carries its sale. There is no table of processed messages either: the count and the
//! acknowledgement are one commit. In the end every sale is counted exactly once.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use duramen::topic::{GroupOptions, Start, TopicError, TopicOptions, TopicWrites, Topics};
use duramen::{Durability, Options, Store};
use serde_json::json;

use super::source;
use super::stage::Stage;
use super::victim::{Part, let_run_and_kill};
use crate::exit::{Exit, Failure, Outcome};
use crate::text::grouped;

const SOURCE: &str = include_str!("announcing.rs");

const KILLS: u32 = 10;

pub fn announce(stage: &mut Stage<'_>, store: Store, directory: &Path) -> Outcome<Store> {
    let about = "A change of state and the message that announces it are one commit: nothing that was killed in between \
                 can part them, and no outbox is needed. This is what a process runs \
                 until it is killed:";
    stage.chapter("Announce it", about)?;
    stage.listing(&source::function(SOURCE, "sell_until_killed"))?;
    shown! { stage;
        let sold = Topics::open(&store)?.create("plums.sold", TopicOptions::new())?;
        let options = GroupOptions::new().lease(Duration::from_millis(200)).back_off(&[]);
        sold.ensure_group("accounts", Start::Beginning, options)?;
    }
    drop(sold);
    store.close()?;
    let mut acknowledged = 0;
    shown! { stage, KILLS;
        for _ in 1..=KILLS {
            acknowledged += let_run_and_kill(Part::Sales, directory)?.len() as u64;
        }
    }
    let pieces = compare(stage, &Store::open(directory)?, acknowledged)?;
    stage.remark("")?;
    stage.remark("An accountant processes each message exactly once, because the count and the")?;
    stage.remark("acknowledgement are one commit too. It is killed as often:")?;
    stage.remark("")?;
    stage.listing(&source::function(SOURCE, "account"))?;
    shown! { stage, KILLS;
        for _ in 1..=KILLS {
            let_run_and_kill(Part::Accounts, directory)?;
        }
    }
    shown! { stage;
        let store = Store::open(directory)?;
        account(&store, || false)?; // what is left, until nothing is pending
    }
    report(stage, &store, pieces)?;
    Ok(store)
}

/// The work of the child that sells.
pub fn sell_until_killed(directory: &Path) -> Outcome {
    let store = Options::new().durability(Durability::Written).open(directory)?;
    let (sales, sold) = (store.map("sales")?, Topics::open(&store)?.topic("plums.sold")?);
    let mut pipe = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    for number in sales.count()?.. {
        let sale = sale(number);
        store.transact(|tx| {
            tx.put(&sales, number.to_be_bytes(), sale.as_bytes())?;
            tx.publish(&sold, &sale) // together with the put, or not at all
        })?;
        pipe.write_all(&number.to_le_bytes())?;
    }
    Ok(Exit::Done)
}

/// The work of the child that counts.
pub fn account_until_killed(directory: &Path) -> Outcome {
    let store = Options::new().durability(Durability::Written).open(directory)?;
    account(&store, || true)?;
    Ok(Exit::Done)
}

fn account(store: &Store, goes_on: impl Fn() -> bool) -> Outcome<()> {
    let (totals, sold) = (store.map("totals")?, Topics::open(store)?.topic("plums.sold")?);
    let accounts = sold.existing_group("accounts")?;
    let mut member = accounts.member("accountant");
    loop {
        let Some(deliveries) = member.receive(100, Duration::from_millis(50))? else {
            let left = accounts.describe()?;
            if left.pending + left.lag == 0 && !goes_on() {
                return Ok(());
            }
            continue;
        };
        let counted = store.transact(|tx| {
            for message in deliveries.messages().iter() {
                tx.add(&totals, b"plums", pieces(message.payload()))?;
            }
            tx.acknowledge_all(&deliveries) // together with the count, or not at all
        });
        unless_lost(counted)?;
    }
}

/// Ignores the error of an expired lease. Leases expire when the machine is busy with something else; the message is
/// then delivered again.
fn unless_lost(counted: Result<(), duramen::Error>) -> Result<(), duramen::Error> {
    match counted {
        Err(error) if matches!(TopicError::of(&error), Some(TopicError::LeaseLost { .. })) => Ok(()),
        counted => counted,
    }
}

fn sale(number: u64) -> String {
    format!("{} plums, sale {number}", number * 7919 % 97 + 1)
}

/// Returns the number of plums in a sale.
fn pieces(sale: &[u8]) -> i64 {
    let digits = sale.iter().take_while(|byte| byte.is_ascii_digit());
    digits.fold(0, |pieces, digit| pieces * 10 + i64::from(digit - b'0'))
}

/// Compares sales and messages one by one. Returns the number of plums sold.
fn compare(stage: &mut Stage<'_>, store: &Store, acknowledged: u64) -> Outcome<i64> {
    let (sales, sold) = (store.map("sales")?, Topics::open(store)?.topic("plums.sold")?);
    let (stored, published) = (sales.count()?, sold.describe()?.next);
    let (mut alike, mut plums) = (0, 0);
    while alike < published {
        let messages = sold.read(Start::Offset(alike), 1000)?;
        for message in messages.iter() {
            let of = sales.get(message.offset().to_be_bytes())?;
            if of.as_deref() != Some(message.payload()) {
                return Err(parted("a message is not that of its sale"));
            }
            alike += 1;
            plums += pieces(message.payload());
        }
    }
    stage.figure(
        "outbox",
        json!({"kills": KILLS, "acknowledged": acknowledged, "sales": stored, "messages": published}),
    );
    stage.result(format!(
        "killed {KILLS} times: {} sales acknowledged, {} stored, {} announced, all alike",
        grouped(acknowledged),
        grouped(stored),
        grouped(published)
    ))?;
    match stored == published && (acknowledged..=acknowledged + u64::from(KILLS)).contains(&stored) {
        true => Ok(plums),
        false => Err(parted("there are more sales than messages, or the other way round")),
    }
}

fn report(stage: &mut Stage<'_>, store: &Store, plums: i64) -> Outcome<()> {
    let total = store.map("totals")?.get(b"plums")?;
    let counted = total
        .and_then(|bytes| (*bytes).try_into().ok())
        .map_or(0, i64::from_be_bytes);
    stage.figure("consumer", json!({"kills": KILLS, "sold": plums, "counted": counted}));
    stage.result(format!(
        "killed {KILLS} times: {} plums sold, {} counted",
        grouped(plums as u64),
        grouped(counted as u64)
    ))?;
    match counted == plums {
        true => Ok(()),
        false => Err(parted("a message was counted twice, or not at all")),
    }
}

fn parted(what: &str) -> Failure {
    Failure::damaged(format!("{what}: this is a bug in Duramen"))
}
