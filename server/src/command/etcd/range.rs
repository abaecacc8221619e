//! Reading ranges of keys as etcd does: limits, filters, orders and counts.

use std::cmp::Ordering;

use duramen::Result;
use duramen::tree::{Lease, Node, Nodes, PATH_BYTES_MAX, Page, Selection, TreeView, TreeWrites};
use duramen_proto::etcd::kv::KeyValue;
use duramen_proto::etcd::server::range_request::{SortOrder, SortTarget};
use duramen_proto::etcd::server::{RangeRequest, RangeResponse, ResponseHeader};
use prost::bytes::Bytes;

/// A range of keys, from the first up to and without the second; `None`: to the end.
pub(crate) type Bounds = (Vec<u8>, Option<Vec<u8>>);

/// Nodes of a page.
const PAGE_NODES: usize = 1_000;
/// The largest answer, in bytes of keys and values. A client that wants more reads in parts.
pub(crate) const RESPONSE_BYTES_MAX: usize = 1 << 30;

/// The keys of a request. Without an end it is one key, and the end of one byte 0 is that of all keys.
pub(crate) fn bounds(key: &[u8], end: &[u8]) -> Bounds {
    let key = comparable(key);
    let high = match comparable(end) {
        [] => Some([key, &[0]].concat()),
        [0] => None,
        end => Some(end.to_vec()),
    };
    (key.to_vec(), high)
}

/// The beginning of a key that is longer than any key of a tree: every key of a tree compares with it as with the whole.
pub(crate) fn comparable(key: &[u8]) -> &[u8] {
    let mut bytes = 0;
    for (at, byte) in key.iter().enumerate() {
        bytes += if *byte == 0 { 2 } else { 1 };
        if bytes > PATH_BYTES_MAX {
            return &key[..=at];
        }
    }
    key
}

/// A node as etcd's clients get it.
pub(crate) fn to_key_value(key: Bytes, node: Node) -> KeyValue {
    KeyValue {
        key,
        create_revision: signed(node.create_revision),
        mod_revision: signed(node.revision),
        version: signed(node.version),
        value: node.payload.into(),
        lease: node.lease as i64,
    }
}

/// A number of a tree as etcd has it. Revisions and versions do not come near the limit.
pub(crate) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A tree that can be read at its newest revision and at earlier ones.
pub(crate) trait Keys {
    /// The newest revision.
    fn newest(&self) -> u64;
    /// The first revision that can be read.
    fn first(&self) -> Result<u64>;
    /// A lease.
    fn lease(&self, id: u64) -> Result<Lease>;
    /// The node of a key.
    fn node(&self, at: Option<u64>, key: &[u8]) -> Result<Option<Node>>;
    /// Nodes of a range, at most so many, with the last key that was looked at, unless that were all.
    fn page(&self, at: Option<u64>, range: &Bounds, nodes: usize) -> Result<Page<Nodes>>;
    /// Number of nodes of the beginning of a range, with the last key that was looked at, unless that were all.
    fn count(&self, at: Option<u64>, range: &Bounds) -> Result<Page<u64>>;
}

impl Keys for TreeView {
    fn newest(&self) -> u64 {
        self.revision()
    }

    fn first(&self) -> Result<u64> {
        self.first_revision()
    }

    fn lease(&self, id: u64) -> Result<Lease> {
        TreeView::lease(self, id)
    }

    fn node(&self, at: Option<u64>, key: &[u8]) -> Result<Option<Node>> {
        match at {
            None => self.get(key),
            Some(revision) => self.at_revision(revision)?.get(key),
        }
    }

    fn page(&self, at: Option<u64>, range: &Bounds, nodes: usize) -> Result<Page<Nodes>> {
        let selection = Selection::range(&range.0, range.1.as_deref());
        match at {
            None => TreeView::page(self, &selection, None, nodes),
            Some(revision) => self.at_revision(revision)?.page(&selection, None, nodes),
        }
    }

    fn count(&self, at: Option<u64>, range: &Bounds) -> Result<Page<u64>> {
        match at {
            None => Ok(Page {
                content: self.count_range(&range.0, range.1.as_deref())?,
                next: None,
            }),
            Some(revision) => {
                let selection = Selection::range(&range.0, range.1.as_deref());
                self.at_revision(revision)?.count_page(&selection, None)
            }
        }
    }
}

impl Keys for TreeWrites<'_> {
    fn newest(&self) -> u64 {
        self.revision()
    }

    fn first(&self) -> Result<u64> {
        self.first_revision()
    }

    fn lease(&self, id: u64) -> Result<Lease> {
        TreeWrites::lease(self, id)
    }

    fn node(&self, at: Option<u64>, key: &[u8]) -> Result<Option<Node>> {
        if at.is_none() {
            return self.get(key);
        }
        let mut found = None;
        self.range(at, key, Some(&[key, &[0]].concat()), |_, node| {
            found = Some(node);
            Ok(false)
        })?;
        Ok(found)
    }

    fn page(&self, at: Option<u64>, range: &Bounds, nodes: usize) -> Result<Page<Nodes>> {
        let mut content = Vec::new();
        self.range(at, &range.0, range.1.as_deref(), |path, node| {
            content.push((path.to_vec(), node));
            Ok(content.len() < nodes)
        })?;
        let next = (content.len() >= nodes).then(|| content.last().map(|(path, _)| path.clone()));
        let next = next.flatten();
        Ok(Page { content, next })
    }

    fn count(&self, at: Option<u64>, range: &Bounds) -> Result<Page<u64>> {
        let content = self.count_range(at, &range.0, range.1.as_deref())?;
        Ok(Page { content, next: None })
    }
}

/// A range that is read in steps, so that a long one lets others have their turns.
pub(crate) struct RangeWalk {
    at: Option<u64>,
    /// What is left to look at.
    left: Bounds,
    is_single: bool,
    /// Pairs that are still wanted.
    wanted: usize,
    is_done: bool,
    found: Vec<KeyValue>,
    bytes: usize,
    count: u64,
}

impl RangeWalk {
    pub(crate) fn new(request: &RangeRequest) -> RangeWalk {
        let is_in_key_order = is_in_key_order(request);
        let wanted = match usize::try_from(request.limit) {
            _ if request.count_only => 0,
            // What is sorted or filtered needs all of them. One more than the limit tells that there are more.
            Ok(limit @ 1..) if is_in_key_order && !has_filters(request) => limit.saturating_add(1),
            _ => usize::MAX,
        };
        RangeWalk {
            at: u64::try_from(request.revision).ok().filter(|revision| *revision > 0),
            left: bounds(&request.key, &request.range_end),
            is_single: request.range_end.is_empty(),
            wanted,
            is_done: false,
            found: Vec::new(),
            bytes: 0,
            count: 0,
        }
    }

    /// Looks at some more. Returns whether that was all.
    pub(crate) fn step(&mut self, keys: &impl Keys) -> Result<bool> {
        if self.is_single {
            let key = Bytes::copy_from_slice(&self.left.0[..]);
            if let Some(node) = keys.node(self.at, &key)? {
                self.count = 1;
                if self.wanted > 0 {
                    self.take(key, node);
                }
            }
            self.is_done = true;
        } else if self.left.1.as_ref().is_some_and(|high| *high <= self.left.0) {
            // There is nothing in it, and the revision may be wrong all the same.
            keys.node(self.at, &self.left.0)?;
            self.is_done = true;
        } else if self.wanted > 0 {
            let page = keys.page(self.at, &self.left, self.wanted.min(PAGE_NODES))?;
            let nodes = page.content;
            self.count += nodes.len() as u64;
            self.wanted -= nodes.len().min(self.wanted);
            for (path, node) in nodes {
                self.take(path.into(), node);
            }
            self.go_on_after(page.next);
        } else {
            let page = keys.count(self.at, &self.left)?;
            self.count += page.content;
            self.go_on_after(page.next);
        }
        Ok(self.is_done)
    }

    fn take(&mut self, key: Bytes, node: Node) {
        self.bytes += key.len() + node.payload.len();
        self.found.push(to_key_value(key, node));
    }

    fn go_on_after(&mut self, last: Option<Vec<u8>>) {
        match last {
            Some(last) => self.left.0 = [&last[..], &[0]].concat(),
            None => self.is_done = true,
        }
    }

    /// Bytes of the pairs that it holds.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The pairs that were counted.
    pub(crate) fn count(&self) -> i64 {
        signed(self.count)
    }

    /// The pairs that were found since the last call, of a walk without filters and orders.
    pub(crate) fn take_found(&mut self) -> Vec<KeyValue> {
        self.bytes = 0;
        std::mem::take(&mut self.found)
    }

    /// The whole answer.
    pub(crate) fn response(self, request: &RangeRequest, newest: u64) -> RangeResponse {
        let mut kvs = self.found;
        if has_filters(request) {
            kvs.retain(|pair| {
                let is_within = |number, least, most| (least == 0 || number >= least) && (most == 0 || number <= most);
                is_within(pair.mod_revision, request.min_mod_revision, request.max_mod_revision)
                    && is_within(
                        pair.create_revision,
                        request.min_create_revision,
                        request.max_create_revision,
                    )
            });
        }
        if request.sort_target() != SortTarget::Key || request.sort_order() == SortOrder::Descend {
            sort(&mut kvs, request);
        }
        let limit = usize::try_from(request.limit).ok().filter(|limit| *limit > 0);
        let more = limit.is_some_and(|limit| kvs.len() > limit);
        if let Some(limit) = limit {
            kvs.truncate(limit);
        }
        if request.keys_only {
            kvs.iter_mut().for_each(|pair| pair.value = Bytes::new());
        }
        RangeResponse {
            header: Some(header_of(newest)),
            kvs,
            more,
            count: signed(self.count),
        }
    }
}

/// What is wrong with a request whose answer has too many bytes.
pub(crate) fn too_large_to_answer() -> String {
    format!("the answer has more than {RESPONSE_BYTES_MAX} bytes; read in parts, with a limit")
}

/// A header that says the revision alone. The service completes it.
pub(crate) fn header_of(revision: u64) -> ResponseHeader {
    ResponseHeader {
        revision: signed(revision),
        ..ResponseHeader::default()
    }
}

/// Whether the pairs are read in the order in which they are wanted. As in etcd, a request that names no order may be limited before
/// its pairs are sorted by another target than the key.
pub(crate) fn is_in_key_order(request: &RangeRequest) -> bool {
    match request.sort_order() {
        SortOrder::None => true,
        SortOrder::Ascend => request.sort_target() == SortTarget::Key,
        SortOrder::Descend => false,
    }
}

pub(crate) fn has_filters(request: &RangeRequest) -> bool {
    let filters = [
        request.min_mod_revision,
        request.max_mod_revision,
        request.min_create_revision,
        request.max_create_revision,
    ];
    filters.iter().any(|filter| *filter != 0)
}

fn sort(pairs: &mut [KeyValue], request: &RangeRequest) {
    let target = request.sort_target();
    let compare = |a: &KeyValue, b: &KeyValue| match target {
        SortTarget::Key => a.key.cmp(&b.key),
        SortTarget::Version => a.version.cmp(&b.version),
        SortTarget::Create => a.create_revision.cmp(&b.create_revision),
        SortTarget::Mod => a.mod_revision.cmp(&b.mod_revision),
        SortTarget::Value => a.value.cmp(&b.value),
    };
    match request.sort_order() {
        SortOrder::Descend => pairs.sort_by(|a, b| -> Ordering { compare(b, a) }),
        SortOrder::None | SortOrder::Ascend => pairs.sort_by(compare),
    }
}
