//! The errors of trees. All errors are the store's [`Error`], so a closure that writes to maps, topics and trees has one
//! error type. The facts of a tree error are in a [`TreeError`] inside.

use duramen_engine::{Error, Kind, Reason};

/// The facts of a tree error; see [`TreeError::of`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TreeError {
    /// The store never had a tree, and cannot get one because it was opened to read only.
    #[error("the store has no trees, and was opened read-only; open it for writing to make one")]
    NoTrees,
    /// No tree has this name.
    #[error("there is no tree named {name:?}; create it with `Trees::ensure`")]
    UnknownTree {
        /// The requested name.
        name: String,
    },
    /// A name that no tree can have.
    #[error("{name:?} cannot name a tree: {cause}")]
    InvalidName {
        /// The name.
        name: String,
        /// What is wrong.
        cause: &'static str,
    },
    /// A path that no node can have.
    #[error("{path:?} cannot be the path of a node: {cause}")]
    InvalidPath {
        /// The path, as text.
        path: String,
        /// What is wrong.
        cause: &'static str,
    },
    /// An invalid pattern.
    #[error(
        "{pattern:?} is not a pattern: {cause} at byte {at}; `*` stands for one name, `**` for any number of names, \
         `a*` for names that begin with a, `{{a|b}}` for names that match a regular expression"
    )]
    InvalidPattern {
        /// The pattern.
        pattern: String,
        /// Byte position of the mistake.
        at: usize,
        /// Description of the mistake.
        cause: String,
    },
    /// A condition that cannot be evaluated.
    #[error("the condition cannot be used: {cause}")]
    InvalidCondition {
        /// What is wrong, and what to do.
        cause: String,
    },
    /// A node exists that the call would create.
    #[error("the node {path:?} exists already, with version {version}; use `put` to replace it")]
    Exists {
        /// The path, as text.
        path: String,
        /// The version of the node.
        version: u64,
    },
    /// No node has this path.
    #[error("there is no node {path:?}; create it, or use `put`")]
    Missing {
        /// The path, as text.
        path: String,
    },
    /// The node is not as the call expects it. Nothing was changed.
    #[error("the node {path:?} is not as expected: {found}; read it again and repeat the call with what it is now")]
    Mismatch {
        /// The path, as text.
        path: String,
        /// What the node is.
        found: String,
    },
    /// No lease has this id, or it has ended.
    #[error("there is no lease {id}: it has expired, was revoked, or was never granted; grant another one")]
    LeaseGone {
        /// The id.
        id: u64,
    },
    /// A lease has this id already.
    #[error("there is a lease {id} already; take another id, or let the tree choose one")]
    LeaseExists {
        /// The id.
        id: u64,
    },
    /// A lease that cannot be granted.
    #[error("the lease cannot be granted: {cause}")]
    InvalidLease {
        /// What is wrong.
        cause: &'static str,
    },
    /// The revision was compacted: what changed up to it is forgotten.
    #[error(
        "revision {revision} of the tree {tree:?} is compacted, and so are all before {first}; read the nodes as they are \
         now, and watch from the revision that this read tells"
    )]
    Compacted {
        /// The tree.
        tree: String,
        /// The requested revision.
        revision: u64,
        /// The first revision that can still be read.
        first: u64,
    },
    /// The tree has not come to this revision.
    #[error("the tree {tree:?} has revision {newest} now, and {revision} is in the future; ask for {newest} at most")]
    FutureRevision {
        /// The tree.
        tree: String,
        /// The requested revision.
        revision: u64,
        /// The newest revision.
        newest: u64,
    },
    /// The quota of a path is used up.
    #[error(
        "the quota of {path:?} is reached: {}; delete nodes there, or set a larger quota",
        limits(*nodes, *bytes)
    )]
    QuotaReached {
        /// The path with the quota, as text.
        path: String,
        /// Most nodes; [`u64::MAX`]: any number.
        nodes: u64,
        /// Most bytes; [`u64::MAX`]: any number.
        bytes: u64,
    },
    /// A rule that the tree does not have.
    #[error("the tree has no {kind} {name:?}")]
    UnknownRule {
        /// What the rule is.
        kind: &'static str,
        /// The requested name.
        name: String,
    },
    /// The topic of a trigger does not exist.
    #[error(
        "the trigger {trigger:?} publishes to the topic {topic:?}, and there is none of this name; create the topic, or remove \
         the trigger"
    )]
    TriggerTopic {
        /// The trigger.
        trigger: String,
        /// The topic.
        topic: String,
    },
    /// A node that cannot be kept, because a condition of it does not hold.
    #[error(
        "{path:?} cannot be kept while a condition holds for {watched:?}: it does not hold now; make it hold first"
    )]
    NotKept {
        /// The path of the node, as text.
        path: String,
        /// The path of the condition, as text.
        watched: String,
    },
    /// The payload is too large.
    #[error("the payload of {path:?} has {bytes} bytes, and {max} is the most; store it in a map and refer to it")]
    PayloadTooLarge {
        /// The path, as text.
        path: String,
        /// Bytes of the payload.
        bytes: usize,
        /// The maximum.
        max: usize,
    },
}

/// The limits of a quota; the greatest number is no limit.
fn limits(nodes: u64, bytes: u64) -> String {
    let nodes = (nodes < u64::MAX).then(|| match nodes {
        1 => "1 node".to_string(),
        nodes => format!("{nodes} nodes"),
    });
    let bytes = (bytes < u64::MAX).then(|| format!("{bytes} bytes of paths and payloads"));
    let limits: Vec<_> = nodes.into_iter().chain(bytes).collect();
    limits.join(", and ")
}

impl TreeError {
    /// The facts of an error, if it is a tree error.
    pub fn of(error: &Error) -> Option<&TreeError> {
        match error.reason() {
            Reason::Above { cause, .. } => cause.downcast_ref(),
            _ => None,
        }
    }

    /// Whether a single call that is refused with this error has written nothing.
    pub fn is_of_an_untouched_tree(&self) -> bool {
        !matches!(self, TreeError::TriggerTopic { .. })
    }

    fn kind(&self) -> Kind {
        match self {
            TreeError::LeaseGone { .. } => Kind::Lost,
            TreeError::QuotaReached { .. } => Kind::MakeSpace,
            _ => Kind::FixTheCall,
        }
    }
}

impl From<TreeError> for Error {
    fn from(error: TreeError) -> Error {
        Reason::Above {
            kind: error.kind(),
            cause: Box::new(error),
        }
        .into()
    }
}
