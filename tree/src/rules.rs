//! Rules of a tree: what each change does beside itself, in its transaction.
//!
//! ```text
//! trigger       a change whose path has a pattern publishes a message
//! projection    nodes whose paths have a pattern are pairs of a map
//! quota         a path and everything below it has at most so many nodes and bytes
//! ```
//! Rules are rows of the map `rules`. The state of the tree has a hash of them, so a process reads them again only when they were
//! changed.

use duramen_engine::Result;
use duramen_topic::bytes::{Reader, put_bytes, put_number};
use duramen_topic::{Topic, Topics};

use crate::error::TreeError;
use crate::node::ChangeKind;
use crate::path::is_within;
use crate::pattern::Pattern;
use crate::read::Rows;
use crate::tables::{RULE_TAGS, Tables, rule_prefix};

/// A change whose path has a pattern publishes a message to a topic.
#[derive(Clone, Debug)]
pub struct Trigger {
    /// The paths.
    pub pattern: Pattern,
    /// The kind of changes; `None`: all.
    pub kind: Option<ChangeKind>,
    /// The name of the topic.
    pub topic: String,
}

/// Nodes whose paths have a pattern are pairs of a map: the path is the key, and the payload is the value.
#[derive(Clone, Debug)]
pub struct Projection {
    /// The paths.
    pub pattern: Pattern,
    /// The name of the map.
    pub map: String,
}

/// How much there may be at a path and below it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quota {
    /// Most nodes; [`u64::MAX`]: any number.
    pub nodes: u64,
    /// Most bytes of all paths and payloads; [`u64::MAX`]: any number.
    pub bytes: u64,
}

/// A quota, and what counts for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaUse {
    /// The path.
    pub path: Vec<u8>,
    /// The limits.
    pub quota: Quota,
    /// Nodes at present.
    pub nodes: u64,
    /// Bytes of their paths and payloads.
    pub bytes: u64,
}

fn stored_pattern(reader: &mut Reader<'_>) -> Result<Pattern> {
    let text = reader.text()?;
    text.parse().map_err(|_| reader.damaged("has an invalid pattern"))
}

impl Trigger {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let kind = match self.kind {
            None => 0,
            Some(ChangeKind::Put) => 1,
            Some(ChangeKind::Delete) => 2,
        };
        let mut row = vec![kind];
        put_bytes(&mut row, self.pattern.to_string().as_bytes());
        put_bytes(&mut row, self.topic.as_bytes());
        row
    }

    pub(crate) fn decode(row: &[u8]) -> Result<Trigger> {
        let mut reader = Reader::new(row, "a trigger of a tree");
        let trigger = Trigger {
            kind: match reader.byte()? {
                0 => None,
                1 => Some(ChangeKind::Put),
                2 => Some(ChangeKind::Delete),
                _ => return Err(reader.damaged("is for changes of an unknown kind")),
            },
            pattern: stored_pattern(&mut reader)?,
            topic: reader.text()?.to_string(),
        };
        reader.end()?;
        Ok(trigger)
    }
}

impl Projection {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut row = Vec::new();
        put_bytes(&mut row, self.pattern.to_string().as_bytes());
        put_bytes(&mut row, self.map.as_bytes());
        row
    }

    pub(crate) fn decode(row: &[u8]) -> Result<Projection> {
        let mut reader = Reader::new(row, "a projection of a tree");
        let projection = Projection {
            pattern: stored_pattern(&mut reader)?,
            map: reader.text()?.to_string(),
        };
        reader.end()?;
        Ok(projection)
    }
}

impl QuotaUse {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut row = Vec::new();
        for number in [self.quota.nodes, self.quota.bytes, self.nodes, self.bytes] {
            put_number(&mut row, number);
        }
        row
    }

    pub(crate) fn decode(path: &[u8], row: &[u8]) -> Result<QuotaUse> {
        let mut reader = Reader::new(row, "a quota of a tree");
        let used = QuotaUse {
            path: path.to_vec(),
            quota: Quota {
                nodes: reader.number()?,
                bytes: reader.number()?,
            },
            nodes: reader.number()?,
            bytes: reader.number()?,
        };
        reader.end()?;
        Ok(used)
    }

    /// Counts a change of nodes and bytes. A change that takes more is refused where there is no room for it. A change that
    /// takes less never is.
    pub(crate) fn count(&mut self, nodes: i64, bytes: i64) -> Result<()> {
        self.nodes = self.nodes.saturating_add_signed(nodes);
        self.bytes = self.bytes.saturating_add_signed(bytes);
        let is_over = nodes > 0 && self.nodes > self.quota.nodes || bytes > 0 && self.bytes > self.quota.bytes;
        if !is_over {
            return Ok(());
        }
        Err(TreeError::QuotaReached {
            path: crate::path::shown(&self.path),
            nodes: self.quota.nodes,
            bytes: self.quota.bytes,
        }
        .into())
    }
}

/// All rules of a tree.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    pub(crate) triggers: Vec<(String, Trigger)>,
    pub(crate) projections: Vec<(String, Projection)>,
    /// Paths with quotas.
    quotas: Vec<Vec<u8>>,
    /// The topics of the triggers.
    pub(crate) topics: Option<Topics>,
}

impl Rules {
    pub(crate) fn read<R: Rows>(rows: &R, tables: &Tables, id: u32) -> Result<Rules> {
        let mut rules = Rules::default();
        for tag in RULE_TAGS {
            let prefix = rule_prefix(id, tag);
            let mut found = rows.rows(&tables.rules, &prefix[..]..)?;
            while let Some((key, row)) = found.next()?
                && let Some(name) = key.strip_prefix(&prefix[..])
            {
                let text = || String::from_utf8_lossy(name).into_owned();
                match tag {
                    crate::tables::TRIGGER => rules.triggers.push((text(), Trigger::decode(&row)?)),
                    crate::tables::PROJECTION => rules.projections.push((text(), Projection::decode(&row)?)),
                    _ => rules.quotas.push(name.to_vec()),
                }
            }
        }
        Ok(rules)
    }

    /// The topic of a trigger.
    pub(crate) fn topic(&self, name: &str, trigger: &Trigger) -> Result<Topic> {
        let topic = match &self.topics {
            Some(topics) => topics.get(&trigger.topic)?,
            None => None,
        };
        let missing = || TreeError::TriggerTopic {
            trigger: name.to_string(),
            topic: trigger.topic.clone(),
        };
        Ok(topic.ok_or_else(missing)?)
    }

    /// Whether a change has to do nothing beside itself.
    pub(crate) fn is_empty(&self) -> bool {
        self.triggers.is_empty() && self.projections.is_empty() && self.quotas.is_empty()
    }

    /// Paths with quotas that count a path.
    pub(crate) fn quotas_of<'r>(&'r self, path: &'r [u8]) -> impl Iterator<Item = &'r [u8]> {
        let quotas = self.quotas.iter().map(|quota| &quota[..]);
        quotas.filter(|quota| is_within(path, quota))
    }
}
