//! Figures that other systems published for the workloads reproduced here. They come from other machines, and some have
//! faults that the documentation names. They are shown beside ours at full scale only.

/// A published figure for a phase.
pub struct Figure {
    /// Name of the task; covers all its forms when it ends in a slash.
    pub workload: &'static str,
    /// Name of the phase.
    pub phase: &'static str,
    /// Publisher and machine of the figure.
    pub source: &'static str,
    /// The published figure.
    pub figure: &'static str,
}

const ELMDB: &str = "elmdb, a laptop that is not named";
const MMCMAP: &str = "mmcmap, M2 Pro, 16 GB";
const GEAFLOW: &str = "GeaFlow LMDB, a laptop, JVM";
const RATATOSKR: &str = "Ratatoskr, MacBook Air M4, in memory";
const KHEPRI: &str = "Khepri, three nodes on a 12-core laptop, synced; most inserts overwrote";
const KHEPRI_ONE: &str = "Khepri, one node, 4 cores, synced, in one process; most inserts overwrote";
const REDB: &str = "redb 4, Ryzen 9950X3D, Samsung 9100 PRO: redb / LMDB / RocksDB / fjall / SQLite";

const fn figure(workload: &'static str, phase: &'static str, source: &'static str, figure: &'static str) -> Figure {
    Figure {
        workload,
        phase,
        source,
        figure,
    }
}

const ALL: &[Figure] = &[
    figure("publish/1k", "publishes, 50 subscribers", RATATOSKR, "30,769 msg/s"),
    figure(
        "latency",
        "publish call",
        RATATOSKR,
        "0.002 ms mean, 0.007 ms p99, of 1,000 calls one after the other",
    ),
    figure(
        "requests",
        "publish, 1 in flight",
        RATATOSKR,
        "over gRPC 9.5k msg/s, 0.105 ms mean, 0.124 ms p99; in one process 311k msg/s",
    ),
    figure("crowd/", "publishes", RATATOSKR, "3,293 msg/s"),
    figure("fanout/100k-100-10", "publishes", RATATOSKR, "196,850 msg/s"),
    figure("fanout/100k-100-10-in-turn", "publishes", RATATOSKR, "196,850 msg/s"),
    figure("fanout/1M-100-10", "publishes", RATATOSKR, "198,531 msg/s"),
    figure("fanout/1M-100-10-in-turn", "publishes", RATATOSKR, "198,531 msg/s"),
    figure("fanout/1M-1k-1k", "publishes", RATATOSKR, "184,843 msg/s"),
    figure("fanout/1M-1k-1k-in-turn", "publishes", RATATOSKR, "184,843 msg/s"),
    figure("fanout/1M-1k-10k", "publishes", RATATOSKR, "75,850 msg/s"),
    figure("fanout/1M-1k-10k-in-turn", "publishes", RATATOSKR, "75,850 msg/s"),
    figure("fanout/1M-1k-100k", "publishes", RATATOSKR, "10,908 msg/s"),
    figure(
        "fanout/1M-1k-100k",
        "deliveries",
        RATATOSKR,
        "1,090,000 /s; 20 KB per subscriber",
    ),
    figure("fanout/1M-1k-100k-in-turn", "publishes", RATATOSKR, "10,908 msg/s"),
    figure(
        "fanout/1M-1k-100k-in-turn",
        "deliveries",
        RATATOSKR,
        "1,090,000 /s; 20 KB per subscriber",
    ),
    figure("tree-ramp/", "inserts, 1 worker", KHEPRI, "567 /s"),
    figure("tree-ramp/", "inserts, 1 worker", KHEPRI_ONE, "2,600 /s"),
    figure("tree-ramp/", "inserts, 50 workers", KHEPRI, "21,871 /s"),
    figure("tree-ramp/", "inserts, 100 workers", KHEPRI, "25,317 /s"),
    figure("tree-ramp/", "inserts, 200 workers", KHEPRI, "25,851 /s"),
    figure("tree-ramp/", "inserts, 200 workers", KHEPRI_ONE, "60,900 /s"),
    figure("mega/", "writes", ELMDB, "52,123 /s"),
    figure(
        "mega/",
        "point reads",
        ELMDB,
        "17,706 /s counting hits only; 65,200 /s counting as we do",
    ),
    figure(
        "mega/",
        "listed rows",
        ELMDB,
        "46,069 /s, listers stopped at 100,000 rows",
    ),
    figure("map/100k", "write", MMCMAP, "36,800 /s"),
    figure("map/1M", "write", MMCMAP, "25,200 /s"),
    figure("map/2M", "write", MMCMAP, "24,400 /s"),
    figure("map/4M", "write", MMCMAP, "24,700 /s"),
    figure("map/16M", "write", MMCMAP, "26,600 /s"),
    figure("map/100k", "read", MMCMAP, "278,000 /s"),
    figure("map/1M", "read", MMCMAP, "250,000 /s"),
    figure("map/2M", "read", MMCMAP, "234,000 /s"),
    figure("map/4M", "read", MMCMAP, "238,000 /s"),
    figure("map/16M", "read", MMCMAP, "133,000 /s"),
    figure(
        "map/",
        "delete",
        MMCMAP,
        "45,700 to 36,600 /s over the sizes; the deletes did not delete",
    ),
    figure("map-mixed/", "mixed read", MMCMAP, "67,500 to 58,300 /s over the sizes"),
    figure(
        "map-mixed/",
        "mixed write",
        MMCMAP,
        "20,300 to 17,100 /s over the sizes",
    ),
    figure("state/10k", "seq-write", GEAFLOW, "658,812 /s"),
    figure("state/10k", "rand-write", GEAFLOW, "95,963 /s"),
    figure("state/10k", "seq-read", GEAFLOW, "762,697 /s"),
    figure("state/10k", "rand-read", GEAFLOW, "505,569 /s"),
    figure(
        "state/10k",
        "mixed",
        GEAFLOW,
        "344,480 /s, no flush named; here each put is a commit",
    ),
    figure("state/10k", "batch", GEAFLOW, "55,122 /s"),
    figure("state/10k", "large write", GEAFLOW, "407,054 /s"),
    figure("state/10k", "large read", GEAFLOW, "80,734 /s"),
    figure("state/10k", "create checkpoint", GEAFLOW, "235.05 ms, a full copy"),
    figure("state/10k", "recover from checkpoint", GEAFLOW, "55.91 ms"),
    figure(
        "state-stability",
        "1,000 x (100 puts + flush)",
        GEAFLOW,
        "509 ms in all",
    ),
    figure(
        "redb-table",
        "bulk load",
        REDB,
        "17,063 / 9,232 / 13,969 / 18,619 / 15,341 ms",
    ),
    figure(
        "redb-table",
        "single writes",
        REDB,
        "920 / 1,598 / 2,432 / 3,488 / 7,040 ms, synced",
    ),
    figure(
        "redb-table",
        "batch writes",
        REDB,
        "1,595 / 942 / 451 / 353 / 2,625 ms, synced",
    ),
    figure(
        "redb-table",
        "random reads",
        REDB,
        "934 to 1,138 / 631 to 637 / 2,884 to 2,911 / 2,177 to 2,357 / 4,281 ms",
    ),
    figure(
        "redb-table",
        "random range reads",
        REDB,
        "1,173 / 565 / 2,742 / 2,690 / 8,449 ms",
    ),
    figure(
        "redb-table",
        "random reads, 32 threads",
        REDB,
        "410 / 125 / 1,100 / 576 / 26,536 ms",
    ),
    figure(
        "redb-table",
        "removals",
        REDB,
        "23,297 / 10,435 / 6,900 / 6,004 / 10,323 ms",
    ),
    figure(
        "redb-table",
        "compact",
        REDB,
        "size before 4.00 / 2.61 / 0.89 / 0.98 / 1.09 GiB, after 1.69 / 1.26 / 0.45 / 0.98 / 0.56 GiB",
    ),
];

/// Returns the published figures for a phase.
pub fn figures(workload: &str, phase: &str) -> impl Iterator<Item = &'static Figure> {
    let is_meant = move |figure: &&Figure| {
        let is_form = figure.workload.ends_with('/') && workload.starts_with(figure.workload);
        (is_form || figure.workload == workload) && figure.phase == phase
    };
    ALL.iter().filter(is_meant)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workloads::named;

    #[test]
    fn every_figure_belongs_to_a_workload_that_there_is() {
        for figure in ALL {
            let name = figure.workload.trim_end_matches('/');
            assert!(named(name).is_ok(), "{name}");
        }
    }

    #[test]
    fn figures_of_all_forms_and_of_one_are_found() {
        assert_eq!(figures("map/16M", "delete").count(), 1);
        assert_eq!(
            figures("map/16M", "write").map(|one| one.figure).collect::<Vec<_>>(),
            ["26,600 /s"]
        );
        assert_eq!(figures("state/1M", "seq-write").count(), 0);
    }
}
