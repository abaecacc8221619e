//! All metrics: names, kinds and meanings. The table in `docs/guide/server.md` has the same lines.

/// What the values of a metric do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FamilyKind {
    /// They only grow, until the server ends.
    Counter,
    /// They go up and down.
    Gauge,
    /// Counts of times, by bucket.
    Histogram,
}

impl FamilyKind {
    /// The word that Prometheus has for it.
    pub fn name(self) -> &'static str {
        match self {
            FamilyKind::Counter => "counter",
            FamilyKind::Gauge => "gauge",
            FamilyKind::Histogram => "histogram",
        }
    }
}

/// A metric, with its labels a family of series.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// Its name.
    pub name: &'static str,
    /// What its values do.
    pub kind: FamilyKind,
    /// The names of its labels.
    pub labels: &'static [&'static str],
    /// What it means, in one sentence.
    pub help: &'static str,
}

macro_rules! families {
    ($($constant:ident = $kind:ident $name:literal $labels:tt $help:literal;)*) => {
        $(pub(super) const $constant: Family = Family {
            name: $name,
            kind: FamilyKind::$kind,
            labels: &$labels,
            help: $help,
        };)*
        /// All metrics of a server.
        pub const FAMILIES: &[Family] = &[$($constant),*];
    };
}

families! {
    CALLS = Counter "duramen_calls_total" ["service", "method", "code"]
        "Calls that have ended, by the status code of gRPC";
    CALL_TIME = Histogram "duramen_call_duration_seconds" ["service", "method"]
        "Time from a request to its response headers; for a stream, to its beginning";
    QUEUED = Gauge "duramen_queued_bytes" []
        "Bytes of writes that wait for a commit";
    QUEUE_LIMIT = Gauge "duramen_queue_limit_bytes" []
        "The setting queue_bytes";
    OVERLOADED = Counter "duramen_overloaded_calls_total" []
        "Writes refused with OVERLOADED because the queue was full";
    COMMANDS = Counter "duramen_commands_total" []
        "Writes applied";
    COMMITS = Counter "duramen_commits_total" []
        "Commits that applied them";
    COMMIT_TIME = Histogram "duramen_commit_duration_seconds" []
        "Time to apply the writes of one commit, without its sync";
    SYNC_WAIT = Histogram "duramen_sync_wait_seconds" []
        "Time from a commit until the device had it, for commits with SYNCED writes";
    CONNECTIONS = Gauge "duramen_connections" []
        "Open connections";
    CONNECTION_LIMIT = Gauge "duramen_connection_limit" []
        "The setting max_connections";
    CONNECTIONS_REFUSED = Counter "duramen_connections_refused_total" []
        "Connections closed at once because max_connections were open";
    SUBSCRIPTIONS = Gauge "duramen_subscriptions" []
        "Open subscriptions";
    HEALTHY = Gauge "duramen_store_healthy" []
        "1: the store takes commits. 0: it has stopped or is damaged, and the metrics of the store are missing";
    NEWEST_COMMIT = Gauge "duramen_newest_commit" []
        "Number of the newest commit";
    SYNCED_COMMIT = Gauge "duramen_synced_commit" []
        "Number of the newest commit that survives a power cut";
    UNFOLDED = Gauge "duramen_unfolded_operations" []
        "Fold debt: operations in the log that are not in the data file";
    UNFOLDED_BYTES = Gauge "duramen_unfolded_bytes" []
        "Fold debt in bytes";
    LOG_BYTES = Gauge "duramen_log_bytes" []
        "Bytes of the log files";
    DATA_BYTES = Gauge "duramen_data_bytes" []
        "Bytes of the data file";
    FREE_BYTES = Gauge "duramen_free_bytes" []
        "Bytes of the data file that can be used at once";
    RETIRED_BYTES = Gauge "duramen_retired_bytes" []
        "Bytes of the data file that were replaced and wait for readers or for the device";
    INDEX_BYTES = Gauge "duramen_index_bytes" []
        "Memory of the indexes of the log";
    READERS = Gauge "duramen_readers" []
        "Open snapshots, transactions and streams, of all processes";
    OLDEST_READER = Gauge "duramen_oldest_reader_seconds" []
        "Age of the oldest reader; 0 when there is none";
    PROCESSES = Gauge "duramen_processes" []
        "Processes that have the store open";
    FOLDS = Counter "duramen_folds_total" []
        "Folds since this process opened the store";
    SYNCS = Counter "duramen_syncs_total" []
        "Syncs of the log since this process opened the store";
    BACKGROUND_ERRORS = Counter "duramen_background_errors_total" []
        "Errors of work in the background";
    MAP_PAIRS = Gauge "duramen_map_pairs" ["map"]
        "Pairs of a map";
    TOPIC_FIRST = Gauge "duramen_topic_first_offset" ["topic"]
        "Offset of the first message that a topic keeps";
    TOPIC_NEXT = Gauge "duramen_topic_next_offset" ["topic"]
        "Offset of the next message of a topic";
    TOPIC_BYTES = Gauge "duramen_topic_bytes" ["topic"]
        "Bytes of the messages that a topic keeps";
    GROUP_LAG = Gauge "duramen_group_lag" ["topic", "group"]
        "Messages that a topic keeps and that were never delivered to a group";
    GROUP_PENDING = Gauge "duramen_group_pending" ["topic", "group"]
        "Messages that members of a group hold, or that wait for redelivery";
    GROUP_SKIPPED = Counter "duramen_group_skipped_total" ["topic", "group"]
        "Messages that retention deleted before a group had processed them";
    RESIDENT = Gauge "duramen_process_resident_memory_bytes" []
        "Resident memory of the server, mapped files included";
    OPEN_FILES = Gauge "duramen_process_open_files" []
        "Open file descriptors of the server";
    UPTIME = Gauge "duramen_uptime_seconds" []
        "Time since the server started";
    BUILD = Gauge "duramen_build_info" ["version"]
        "Always 1; the label has the version";
}
