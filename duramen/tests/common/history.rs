//! A checker for histories of transactions that read and append to lists, after Elle (Kingsbury and Alvaro, VLDB 2020).
//!
//! A list that only grows shows the order of its elements. The final lists therefore give the order of the versions of
//! every key, and every read shows which version it saw. This determines the dependencies between transactions: `ww`
//! (wrote the next version), `wr` (read what the other wrote), `rw` (read what the other then overwrote), and `so`
//! (came after it in the same thread).
//!
//! A history is serialisable if these have no cycle. For snapshot isolation each dependency constrains the moments at
//! which transactions start (take their snapshot) and commit. The history is valid if an order of those moments exists:
//!
//! ```text
//! every t          start(t)  before commit(t)
//! wr, so: a -> b   commit(a) before start(b)
//! rw:     a -> b   start(a)  before commit(b)
//! ww:     a -> b   commit(a) before start(b), because of two writers who overlap one is refused;
//!                  commit(a) before commit(b) where the writes commute
//! ```
//!
//! This rejects G0, G1, lost updates, read skew and long forks, and accepts write skew.

use std::collections::{BTreeMap, BTreeSet};

/// The work of one committed transaction. `id` is the value it appended.
#[derive(Clone, Debug, Default)]
pub struct Done {
    pub id: u64,
    pub thread: usize,
    pub reads: Vec<(u32, Vec<u64>)>,
    pub appends: BTreeSet<u32>,
}

/// The final lists, by key.
pub type Lists = BTreeMap<u32, Vec<u64>>;

/// Order constraints between transactions, or between their starts and commits.
type Graph = BTreeMap<u64, BTreeSet<u64>>;

#[derive(Debug, Default)]
struct Dependencies {
    /// `wr`, `so`, and `ww` of writes that exclude each other.
    before: Graph,
    /// `ww` of writes that commute.
    commuting: Graph,
    /// `rw`.
    anti: Graph,
}

/// Fails unless the history satisfies snapshot isolation. `commutes` says for which lists appends never conflict.
#[track_caller]
pub fn assert_snapshot_isolated(history: &[Done], lists: &Lists, commutes: fn(u32) -> bool) {
    assert_eq!(snapshot_isolation_violation(history, lists, commutes), None);
}

/// Fails unless the history is serialisable.
#[track_caller]
pub fn assert_serializable(history: &[Done], lists: &Lists) {
    assert_eq!(serializability_violation(history, lists), None);
}

fn start(id: u64) -> u64 {
    2 * id
}

fn commit(id: u64) -> u64 {
    2 * id + 1
}

/// Returns a violation of snapshot isolation, if there is one.
pub fn snapshot_isolation_violation(history: &[Done], lists: &Lists, commutes: fn(u32) -> bool) -> Option<String> {
    let dependencies = match Dependencies::of(history, lists, commutes) {
        Ok(dependencies) => dependencies,
        Err(violation) => return Some(violation),
    };
    let mut order = Graph::new();
    history
        .iter()
        .for_each(|done| add(&mut order, start(done.id), commit(done.id)));
    each(&dependencies.before, |from, to| {
        add(&mut order, commit(from), start(to))
    });
    each(&dependencies.commuting, |from, to| {
        add(&mut order, commit(from), commit(to))
    });
    each(&dependencies.anti, |from, to| add(&mut order, start(from), commit(to)));
    explain(cycle(&order)?.into_iter().map(|event| event / 2), history)
}

/// Returns a violation of serialisability, if there is one.
pub fn serializability_violation(history: &[Done], lists: &Lists) -> Option<String> {
    let dependencies = match Dependencies::of(history, lists, |_| false) {
        Ok(dependencies) => dependencies,
        Err(violation) => return Some(violation),
    };
    let mut order = dependencies.before;
    each(&dependencies.anti, |from, to| add(&mut order, from, to));
    explain(cycle(&order)?, history)
}

fn add(graph: &mut Graph, from: u64, to: u64) {
    graph.entry(from).or_default().insert(to);
}

fn each(graph: &Graph, mut visit: impl FnMut(u64, u64)) {
    for (from, targets) in graph {
        targets.iter().for_each(|to| visit(*from, *to));
    }
}

impl Dependencies {
    /// Returns the dependencies, or a contradiction that no isolation level allows.
    fn of(history: &[Done], lists: &Lists, commutes: fn(u32) -> bool) -> Result<Dependencies, String> {
        let mut dependencies = Dependencies::default();
        check_appends(history, lists)?;
        for (key, list) in lists {
            let graph = if commutes(*key) {
                &mut dependencies.commuting
            } else {
                &mut dependencies.before
            };
            list.windows(2).for_each(|pair| add(graph, pair[0], pair[1]));
        }
        let mut last_of_thread = BTreeMap::new();
        for done in history {
            if let Some(earlier) = last_of_thread.insert(done.thread, done.id) {
                add(&mut dependencies.before, earlier, done.id);
            }
            for (key, seen) in &done.reads {
                dependencies.add_read(done, *key, seen, lists.get(key).map_or(&[], Vec::as_slice))?;
            }
        }
        Ok(dependencies)
    }

    fn add_read(&mut self, done: &Done, key: u32, seen: &[u64], list: &[u64]) -> Result<(), String> {
        if !list.starts_with(seen) {
            return Err(format!(
                "{done:?} read a version of {key} that never was; the list is {list:?}"
            ));
        }
        if let Some(writer) = seen.last().filter(|writer| **writer != done.id) {
            add(&mut self.before, *writer, done.id);
        }
        if let Some(next) = list.get(seen.len()).filter(|next| **next != done.id) {
            add(&mut self.anti, done.id, *next);
        }
        Ok(())
    }
}

/// Checks that every append of a committed transaction is in its list, once, and that the lists have nothing else.
fn check_appends(history: &[Done], lists: &Lists) -> Result<(), String> {
    let mut expected: BTreeMap<u32, BTreeSet<u64>> = BTreeMap::new();
    for done in history {
        done.appends.iter().for_each(|key| {
            expected.entry(*key).or_default().insert(done.id);
        });
    }
    for (key, list) in lists {
        let found: BTreeSet<u64> = list.iter().copied().collect();
        let wanted = expected.remove(key).unwrap_or_default();
        if found.len() != list.len() || found != wanted {
            let lost: Vec<&u64> = wanted.difference(&found).collect();
            let invented: Vec<&u64> = found.difference(&wanted).collect();
            return Err(format!(
                "list {key}: lost {lost:?}, invented {invented:?}, {} elements",
                list.len()
            ));
        }
    }
    if expected.is_empty() {
        Ok(())
    } else {
        Err(format!("lost lists: {expected:?}"))
    }
}

/// Returns a cycle, if there is one. Repeatedly removes the nodes without a remaining predecessor; a cycle is in the
/// rest.
fn cycle(graph: &Graph) -> Option<Vec<u64>> {
    let mut incoming: BTreeMap<u64, usize> = graph.keys().map(|id| (*id, 0)).collect();
    for target in graph.values().flatten() {
        *incoming.entry(*target).or_default() += 1;
    }
    let mut free: Vec<u64> = incoming
        .iter()
        .filter(|(_, count)| **count == 0)
        .map(|(id, _)| *id)
        .collect();
    while let Some(id) = free.pop() {
        incoming.remove(&id);
        for target in graph.get(&id).into_iter().flatten() {
            let count = incoming.get_mut(target).expect("a target is counted");
            *count -= 1;
            if *count == 0 {
                free.push(*target);
            }
        }
    }
    walk_back(graph, &incoming)
}

/// Finds a cycle by walking from node to predecessor: every remaining node has a remaining predecessor.
fn walk_back(graph: &Graph, left: &BTreeMap<u64, usize>) -> Option<Vec<u64>> {
    let mut path = vec![*left.keys().next()?];
    loop {
        let here = *path.last().expect("the path has a start");
        let before = left
            .keys()
            .find(|id| graph.get(id).is_some_and(|targets| targets.contains(&here)));
        let before = *before.expect("what is left has a predecessor that is left");
        if let Some(start) = path.iter().position(|id| *id == before) {
            let mut cycle = path.split_off(start);
            cycle.reverse();
            return Some(cycle);
        }
        path.push(before);
    }
}

fn explain(cycle: impl IntoIterator<Item = u64>, history: &[Done]) -> Option<String> {
    let mut ids: Vec<u64> = cycle.into_iter().collect();
    ids.dedup();
    let find = |id: &u64| history.iter().find(|done| done.id == *id);
    let members: Vec<String> = ids.iter().filter_map(find).map(|done| format!("{done:?}")).collect();
    Some(format!("cycle {ids:?}:\n{}", members.join("\n")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A transaction as (id, reads, appends), each in its own thread.
    type Brief<'a> = (u64, &'a [(u32, &'a [u64])], &'a [u32]);

    fn history(of: &[Brief<'_>]) -> Vec<Done> {
        let done = |(id, reads, appends): &Brief<'_>| Done {
            id: *id,
            thread: *id as usize,
            reads: reads.iter().map(|(key, seen)| (*key, seen.to_vec())).collect(),
            appends: appends.iter().copied().collect(),
        };
        of.iter().map(done).collect()
    }

    fn lists(of: &[(u32, &[u64])]) -> Lists {
        of.iter().map(|(key, list)| (*key, list.to_vec())).collect()
    }

    fn not_snapshot(history: &[Done], lists: &Lists) -> Option<String> {
        snapshot_isolation_violation(history, lists, |_| false)
    }

    #[test]
    fn checker_finds_a_lost_append() {
        let history = history(&[(1, &[], &[7]), (2, &[], &[7])]);
        assert!(
            not_snapshot(&history, &lists(&[(7, &[2])]))
                .unwrap()
                .contains("lost [1]")
        );
    }

    #[test]
    fn checker_finds_a_dirty_read() {
        let history = history(&[(1, &[(7, &[9])], &[])]);
        assert!(not_snapshot(&history, &lists(&[])).unwrap().contains("never was"));
    }

    #[test]
    fn checker_finds_writes_in_opposite_orders() {
        let history = history(&[(1, &[], &[7, 8]), (2, &[], &[7, 8])]);
        assert!(not_snapshot(&history, &lists(&[(7, &[1, 2]), (8, &[2, 1])])).is_some());
    }

    #[test]
    fn checker_finds_circular_information() {
        let history = history(&[(1, &[(8, &[2])], &[7]), (2, &[(7, &[1])], &[8])]);
        assert!(not_snapshot(&history, &lists(&[(7, &[1]), (8, &[2])])).is_some());
    }

    #[test]
    fn checker_finds_read_skew() {
        let history = history(&[(1, &[], &[7, 8]), (2, &[(7, &[]), (8, &[1])], &[])]);
        assert!(not_snapshot(&history, &lists(&[(7, &[1]), (8, &[1])])).is_some());
    }

    #[test]
    fn checker_finds_a_long_fork() {
        let history = history(&[
            (1, &[], &[7]),
            (2, &[], &[8]),
            (3, &[(7, &[1]), (8, &[])], &[]),
            (4, &[(7, &[]), (8, &[2])], &[]),
        ]);
        assert!(not_snapshot(&history, &lists(&[(7, &[1]), (8, &[2])])).is_some());
    }

    #[test]
    fn checker_tells_write_skew_from_a_violation_of_snapshot_isolation() {
        let history = history(&[(1, &[(8, &[])], &[7]), (2, &[(7, &[])], &[8])]);
        let lists = lists(&[(7, &[1]), (8, &[2])]);
        assert_eq!(not_snapshot(&history, &lists), None);
        assert!(serializability_violation(&history, &lists).is_some());
    }

    #[test]
    fn checker_finds_a_stale_read_in_the_same_thread() {
        let mut history = history(&[(1, &[], &[7]), (2, &[(7, &[])], &[])]);
        history[1].thread = history[0].thread;
        assert!(not_snapshot(&history, &lists(&[(7, &[1])])).is_some());
    }

    #[test]
    fn checker_lets_appends_that_commute_overlap() {
        let history = history(&[(1, &[], &[7, 8]), (2, &[(8, &[])], &[7])]);
        let lists = lists(&[(7, &[1, 2]), (8, &[1])]);
        assert!(not_snapshot(&history, &lists).is_some());
        assert_eq!(snapshot_isolation_violation(&history, &lists, |key| key == 7), None);
    }

    #[test]
    fn checker_accepts_a_serial_history() {
        let history = history(&[
            (1, &[(7, &[])], &[7]),
            (2, &[(7, &[1])], &[8]),
            (3, &[(7, &[1]), (8, &[2])], &[7]),
        ]);
        let lists = lists(&[(7, &[1, 3]), (8, &[2])]);
        assert_eq!(serializability_violation(&history, &lists), None);
        assert_eq!(not_snapshot(&history, &lists), None);
    }
}
