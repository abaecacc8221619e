//! Admission: whether a topic takes another message, or refuses it because it is full.
//!
//! Only topics with [`TopicOptions::discard_new`] or [`Retention::ProtectGroups`] refuse messages. A process remembers
//! whether a topic has such an option. It reads the options again after any process created, configured or deleted a
//! topic. So publishing to other topics costs two loads. For a topic with such an option, each publish reads the
//! options and the bounds of the topic, which other processes may have changed.
//!
//! Invariant, for messages that are published individually or in a transaction: `kept <= limit` after each commit. Such
//! a commit conflicts with every append to the topic since the check (see `Transaction::depends_on`), and runs again. A
//! batch and an asynchronous publish only read before their commit: those that pass the check concurrently are not
//! counted against each other.

use std::sync::atomic::Ordering;

use duramen_engine::{Error, Item, Result, Snapshot, Stamp, Transaction, TransactionOptions};

use crate::error::TopicError;
use crate::handle::Topic;
use crate::known_options::{IS_KNOWN, KEEPS_LATEST, REFUSES, TAKES_EXPIRY, flags_of};
use crate::limits::LATEST_KEY_BYTES_MAX;
use crate::message::{Message, Stored};
use crate::read::{Bounds, Reading};
use crate::record::{Retention, TopicOptions};
use crate::retention;
use crate::tables::{after_id, offset_key};

/// Whether the options of a topic may differ from what this process remembers, or the topic may refuse messages. Only
/// this function decides when options are read again.
#[inline]
fn options_may_have_changed(topic: &Topic) -> bool {
    let known = &topic.shared().known;
    if known.flags.load(Ordering::Relaxed) & (IS_KNOWN | REFUSES) != IS_KNOWN {
        return true;
    }
    known.rings.load(Ordering::Relaxed) != topic.home().registry_rings()
}

/// The amount that a topic keeps, or is asked to accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Amount {
    messages: u64,
    bytes: u64,
}

impl Amount {
    fn of(items: &[Item<'_>]) -> Amount {
        let bytes = |item: &Item<'_>| (item.head.len() + item.body.map_or(0, <[u8]>::len)) as u64;
        Amount {
            messages: items.len() as u64,
            bytes: items.iter().map(bytes).sum(),
        }
    }

    /// The amount that a topic keeps from an offset on, and maybe less: missing messages count too.
    fn kept(reading: &Reading<'_>, bounds: &Bounds, first: u64) -> Result<Amount> {
        let next = bounds.state.next;
        let first = reading.first_with(first..next, |_| true)?;
        let bytes = match reading.existing_head(first)? {
            Some(head) => bounds.state.bytes.saturating_sub(Stored::decode(&head)?.position),
            None => 0,
        };
        Ok(Amount {
            messages: next - first,
            bytes,
        })
    }
}

/// An option whose limit a topic has reached.
struct Full {
    option: &'static str,
    what: &'static str,
    kept: u64,
    max: u64,
}

impl Full {
    /// The first option that does not allow `more`.
    fn find(options: &TopicOptions, kept: Amount, more: Amount) -> Option<Full> {
        let protected = match options.retention {
            Retention::ProtectGroups { max_bytes } => Some(max_bytes),
            Retention::Limits => None,
        };
        let discard = |limit: Option<u64>| limit.filter(|_| options.discard_new);
        let (messages, bytes) = ((kept.messages, more.messages), (kept.bytes, more.bytes));
        let limits = [
            ("keep_messages", "messages", discard(options.keep_messages), messages),
            ("keep_bytes", "bytes", discard(options.keep_bytes), bytes),
            ("retention", "bytes", protected, bytes),
        ];
        limits.into_iter().find_map(|(option, what, max, (kept, more))| {
            let max = max.filter(|max| kept.saturating_add(more) > *max)?;
            Some(Full {
                option,
                what,
                kept,
                max,
            })
        })
    }

    fn into_error(self, topic: &Topic, options: &TopicOptions) -> TopicError {
        let waits_for_groups =
            options.drop_acknowledged || matches!(options.retention, Retention::ProtectGroups { .. });
        let groups = topic.groups().unwrap_or_default();
        let slowest = groups.into_iter().min_by_key(|group| group.acknowledged);
        let held_by = slowest.filter(|_| waits_for_groups).map(|group| group.name);
        TopicError::TopicFull {
            topic: topic.name().into(),
            option: self.option,
            what: self.what,
            kept: self.kept,
            max: self.max,
            cure: cure(options, held_by.as_deref()),
            held_by,
        }
    }
}

/// How to make room.
fn cure(options: &TopicOptions, held_by: Option<&str>) -> String {
    match (held_by, options.drop_acknowledged) {
        (Some(group), _) => {
            format!("group {group:?} has to acknowledge messages first; publish again later, or delete that group")
        }
        (None, true) => "no group acknowledges messages; create one, or raise the limit".into(),
        (None, false) => "raise the limit, or let acknowledged messages go with drop_acknowledged".into(),
    }
}

impl Topic {
    /// The options, and the snapshot that they were read in, if the topic may refuse messages.
    #[inline]
    fn admission(&self) -> Result<Option<(Snapshot, TopicOptions)>> {
        match options_may_have_changed(self) {
            false => Ok(None),
            true => self.read_options(),
        }
    }

    /// Refuses a message with a part for which the topic lacks the option.
    pub(crate) fn check_parts(&self, message: &Message<'_>) -> Result<()> {
        let has_long_key = message.key_bytes() > LATEST_KEY_BYTES_MAX;
        match message.expires() || has_long_key {
            false => Ok(()),
            true => self.check_options_for(message, has_long_key),
        }
    }

    fn check_options_for(&self, message: &Message<'_>, has_long_key: bool) -> Result<()> {
        let mut flags = self.shared().known.flags.load(Ordering::Relaxed);
        let may_be_missing = message.expires() && flags & TAKES_EXPIRY == 0;
        if may_be_missing || options_may_have_changed(self) {
            flags = flags_of(&self.read_record()?.1);
        }
        if message.expires() && flags & TAKES_EXPIRY == 0 {
            return Err(TopicError::OptionMissing {
                topic: self.name().into(),
                what: "an expiry",
                option: "message_expiry",
            }
            .into());
        }
        if has_long_key && flags & KEEPS_LATEST != 0 {
            return Err(TopicError::MessageTooLarge {
                what: "bytes of key in a topic with latest_per_key",
                found: message.key_bytes() as u64,
                max: LATEST_KEY_BYTES_MAX as u64,
                cure: "take a hash of the key",
            }
            .into());
        }
        Ok(())
    }

    #[cold]
    fn read_options(&self) -> Result<Option<(Snapshot, TopicOptions)>> {
        let (snapshot, options) = self.read_record()?;
        Ok(options.refuses().then_some((snapshot, options)))
    }

    fn read_record(&self) -> Result<(Snapshot, TopicOptions)> {
        let rings = self.home().registry_rings();
        let snapshot = self.snapshot()?;
        let record = self.home().same_record(&snapshot, self.name(), self.shared().id)?;
        self.shared().known.note(&record.options, rings);
        Ok((snapshot, record.options))
    }

    /// Refuses messages that a full topic has no room for. Reads only.
    pub(crate) fn admit(&self, items: &[Item<'_>]) -> Result<()> {
        match self.admission()? {
            None => Ok(()),
            Some((snapshot, options)) => self.admit_at(&snapshot, &options, Amount::of(items)).map(drop),
        }
    }

    /// Refuses messages that a full topic has no room for when the transaction commits.
    pub(crate) fn admit_in(&self, tx: &mut Transaction, items: &[Item<'_>]) -> Result<()> {
        let Some((snapshot, options)) = self.admission()? else {
            return Ok(());
        };
        let next = self.admit_at(&snapshot, &options, Amount::of(items))?;
        let shared = self.shared();
        let (low, high) = (offset_key(shared.id, next), after_id(shared.id));
        tx.depends_on(shared.sequence.heads(), &low[..]..&high[..])
    }

    /// Checks the limits of a topic. Returns the offset before which messages were counted.
    fn admit_at(&self, snapshot: &Snapshot, options: &TopicOptions, more: Amount) -> Result<u64> {
        let reading = Reading::new(self, snapshot);
        let bounds = reading.bounds()?;
        let kept = Amount::kept(&reading, &bounds, bounds.first)?;
        if Full::find(options, kept, more).is_some() {
            // What retention can delete does not count.
            let first = retention::first_kept(&reading, &bounds, options)?;
            let kept = Amount {
                messages: reading.kept_since(first, bounds.state.next)?,
                ..Amount::kept(&reading, &bounds, first)?
            };
            if let Some(full) = Full::find(options, kept, more) {
                return Err(full.into_error(self, options).into());
            }
        }
        Ok(bounds.state.next)
    }

    /// Appends messages in a separate commit.
    pub(crate) fn append_admitted(&self, items: &[Item<'_>]) -> Result<Stamp> {
        match self.admission()? {
            None => self.shared().sequence.append(items, self.durability()),
            Some((snapshot, options)) => self.append_in_turn(&snapshot, &options, items),
        }
    }

    /// Appends messages to a topic that may refuse them. If the topic is full, it first deletes what retention can
    /// delete, so that the next publishers need not search for it.
    #[cold]
    fn append_in_turn(&self, snapshot: &Snapshot, options: &TopicOptions, items: &[Item<'_>]) -> Result<Stamp> {
        let reading = Reading::new(self, snapshot);
        let bounds = reading.bounds()?;
        let kept = Amount::kept(&reading, &bounds, bounds.first)?;
        if Full::find(options, kept, Amount::of(items)).is_some()
            && retention::first_kept(&reading, &bounds, options)? > bounds.first
        {
            self.trim()?;
        }
        let mut first = None;
        let durability = TransactionOptions::new().durability(self.durability());
        self.home().store.transact_with(durability, |tx| {
            first = None;
            self.admit_in(tx, items)?;
            for item in items {
                let ticket = tx.append_to(&self.shared().sequence, *item)?;
                first.get_or_insert(ticket);
            }
            Ok::<_, Error>(())
        })?;
        let stamp = first.and_then(|ticket| ticket.stamp());
        Ok(stamp.expect("the transaction has committed an item"))
    }
}
