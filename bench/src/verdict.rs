//! The verdict in words: the rows in which the first peer leads or loses, by how much, and how sure that is. The first
//! peer is Duramen, where it takes part. The verdict also names the rows that cannot be compared, and why. It follows
//! from the rows by rule, so no person chooses what to mention.
//!
//! Every row in which the first peer meets another store is in the verdict once. These rules decide a row without a
//! time:
//!
//! | the first peer | the others | the row |
//! |---|---|---|
//! | was stopped, or failed | one has a time | is lost |
//! | has a time | none has one | cannot be compared |
//! | was stopped, or failed | none has a time | cannot be compared |
//! | cannot do it | one took part | cannot be compared |
//! | cannot do it | nor can they | is left out |

use crate::analysis::{Entry, NO_STORES, Row, Standing, rows_of, runs_of, workloads};
use crate::machine::Machine;
use crate::peer::Class;
use crate::results::Results;
use crate::statistics::{Spread, spread};
use crate::text::{bytes_text, time_text};

/// Times closer than this are called equal.
const SAME: f64 = 0.03;
/// Number of repetitions from which on agreement means something.
const REPETITIONS: usize = 3;

/// The outcome of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The first peer is faster than the best of the others.
    Leads,
    /// The best of the others is faster, or finished what the first peer did not finish.
    Loses,
    /// The difference is small, or the repetitions disagree about the faster peer.
    Even,
    /// There are not two times to compare.
    NotComparable,
}

/// All sides, in the order in which the report shows them.
pub const SIDES: [Side; 4] = [Side::Leads, Side::Loses, Side::Even, Side::NotComparable];

/// How sure a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sureness {
    /// All of three or more repetitions agree.
    AllAgree(usize),
    /// The repetitions disagree.
    Disagree(usize),
    /// There were too few repetitions to decide.
    Few(usize),
}

impl Sureness {
    /// Formats this as text.
    pub fn text(&self) -> String {
        match self {
            Sureness::AllAgree(count) => format!("all {count} repetitions agree"),
            Sureness::Disagree(count) => format!("the {count} repetitions disagree"),
            Sureness::Few(1) => "one repetition: nothing is known of how sure this is".to_string(),
            Sureness::Few(count) => format!("{count} repetitions, too few to be sure"),
        }
    }
}

/// The basis of a finding.
#[derive(Debug)]
pub enum Ground {
    /// Two times.
    Times {
        /// The best of the others.
        rival: String,
        /// Time of the rival divided by the first peer's: above 1 the first peer is faster.
        ratio: Spread,
        /// How sure it is which peer is faster.
        sureness: Sureness,
    },
    /// What the peers did, when there are not two times.
    Words(String),
}

/// The first peer against one of the others in one row.
#[derive(Debug)]
pub struct Duel {
    /// Name of the other peer.
    pub peer: String,
    /// Class of the other peer.
    pub class: Option<Class>,
    /// Which of the two is faster.
    pub side: Side,
    /// Time of the other peer divided by the first peer's, if both have a time.
    pub ratio: Option<Spread>,
    /// Why the other peer has no time, if it has none.
    pub absence: Option<(Standing, String)>,
}

impl Duel {
    fn of(own: &Entry, rival: &Entry) -> Duel {
        let (ours, theirs) = (own.standing, rival.standing);
        let ratio = (ours == Standing::Timed && theirs == Standing::Timed).then(|| rival.times_of(own));
        let ratio = ratio.flatten();
        let side = match (ratio, ours, theirs) {
            (Some(ratio), ..) => side_of(ratio),
            (None, Standing::Stopped | Standing::Failed, Standing::Timed) => Side::Loses,
            _ => Side::NotComparable,
        };
        Duel {
            peer: rival.peer.to_string(),
            class: rival.class,
            side,
            ratio,
            absence: (theirs != Standing::Timed).then(|| (theirs, rival.absence.clone())),
        }
    }
}

/// One row of the verdict.
#[derive(Debug)]
pub struct Finding {
    /// Number of the results that the row comes from.
    pub part: usize,
    /// Name of the task.
    pub workload: String,
    /// Title of the comparison.
    pub title: String,
    /// Position of the row among the rows of its workload.
    pub place: usize,
    /// Class of the first peer.
    pub class: Option<Class>,
    /// The first peer against each of the others, in the order of the results.
    pub duels: Vec<Duel>,
    /// Which peer is faster.
    pub side: Side,
    /// The basis of the finding.
    pub ground: Ground,
}

impl Finding {
    fn of(row: &Row, place: usize, results: &Results, part: usize) -> Option<Finding> {
        let own = row.baseline(results)?;
        let is_rival = |entry: &&Entry| entry.peer != own.peer && !NO_STORES.contains(&entry.peer);
        let rivals: Vec<&Entry> = row.entries.iter().filter(is_rival).collect();
        let has_anybody = rivals.iter().chain([&own]).any(|one| one.standing != Standing::Absent);
        if rivals.is_empty() || !has_anybody {
            return None;
        }
        let duels: Vec<Duel> = rivals.iter().map(|rival| Duel::of(own, rival)).collect();
        let best = rivals
            .iter()
            .zip(&duels)
            .filter(|(entry, _)| entry.standing == Standing::Timed)
            .max_by(|(one, _), (other, _)| one.rate().unwrap_or(0.0).total_cmp(&other.rate().unwrap_or(0.0)));
        let (side, ground) = match best {
            Some((rival, duel)) if duel.side == Side::Loses && duel.ratio.is_none() => {
                (Side::Loses, ended_words(own, rival))
            }
            Some((
                rival,
                Duel {
                    side,
                    ratio: Some(ratio),
                    ..
                },
            )) => (*side, by_times(own, rival, *ratio)),
            _ => (Side::NotComparable, all_words(own, &rivals)),
        };
        Some(Finding {
            part,
            workload: row.workload.to_string(),
            title: row.title(),
            place,
            class: own.class,
            duels,
            side,
            ground,
        })
    }

    /// Describes by how much and how surely the peers differ, or why there is nothing to compare.
    pub fn text(&self) -> String {
        let (rival, ratio, sureness) = match &self.ground {
            Ground::Words(words) => return words.clone(),
            Ground::Times { rival, ratio, sureness } => (rival, *ratio, sureness.text()),
        };
        let Spread { median, min, max } = ratio;
        // The factor is given from the side of the faster peer, so that equal losses and leads have equal factors.
        match self.side {
            Side::Leads => format!(
                "{} as {rival}, the best of the others; {sureness}",
                told(median, min, max)
            ),
            Side::Loses => format!("{rival} is {}; {sureness}", told(1.0 / median, 1.0 / max, 1.0 / min)),
            Side::Even | Side::NotComparable => {
                format!("as fast as {rival}, within the noise ({min:.2} to {max:.2} times); {sureness}")
            }
        }
    }

    /// Returns the distance between the two. An unfinished row is further behind than any factor.
    fn weight(&self) -> f64 {
        match &self.ground {
            Ground::Times { ratio, .. } => ratio.median.max(1e-9).ln().abs(),
            Ground::Words(_) => f64::INFINITY,
        }
    }

    fn is_sure(&self) -> bool {
        matches!(
            self.ground,
            Ground::Times {
                sureness: Sureness::AllAgree(_),
                ..
            }
        )
    }
}

/// Whether repetitions differ about the faster peer.
fn is_disputed(ratio: Spread) -> bool {
    ratio.min < 1.0 && ratio.max > 1.0
}

fn side_of(ratio: Spread) -> Side {
    if is_disputed(ratio) {
        return Side::Even;
    }
    factor_side(ratio.median)
}

/// Returns the side of a factor of which no repetitions are known.
pub fn factor_side(factor: f64) -> Side {
    match factor {
        factor if factor > 1.0 + SAME => Side::Leads,
        factor if factor < 1.0 / (1.0 + SAME) => Side::Loses,
        _ => Side::Even,
    }
}

fn by_times(own: &Entry, rival: &Entry, ratio: Spread) -> Ground {
    let count = own.phases.len().min(rival.phases.len());
    let sureness = match count {
        _ if is_disputed(ratio) => Sureness::Disagree(count),
        ..REPETITIONS => Sureness::Few(count),
        _ => Sureness::AllAgree(count),
    };
    let rival = rival.name();
    Ground::Times { rival, ratio, sureness }
}

/// Formats a factor and its range in words.
fn told(factor: f64, least: f64, most: f64) -> String {
    let text = |factor: f64| {
        if factor < 10.0 {
            format!("{factor:.2}")
        } else {
            format!("{factor:.0}")
        }
    };
    let range = if least == most {
        String::new()
    } else {
        format!(" ({} to {})", text(least), text(most))
    };
    format!("{} times as fast{range}", text(factor))
}

/// Describes the result of a peer in a row: `lmdb (written): stopped at 10 of 1000`.
fn outcome(entry: &Entry) -> String {
    let time = entry
        .time()
        .map(|time| format!("{} an operation", time_text(time.median)));
    format!("{}: {}", entry.name(), time.unwrap_or_else(|| entry.absence.clone()))
}

fn ended_words(own: &Entry, rival: &Entry) -> Ground {
    Ground::Words(format!("{}, while {} finished", outcome(own), rival.name()))
}

fn all_words(own: &Entry, rivals: &[&Entry]) -> Ground {
    let all: Vec<String> = std::iter::once(outcome(own))
        .chain(rivals.iter().map(|rival| outcome(rival)))
        .collect();
    Ground::Words(all.join("; "))
}

/// The identity of a row across parts: what ran, how it had to survive, how much of it, and where.
#[derive(Debug, PartialEq)]
struct Subject {
    title: String,
    class: Option<Class>,
    scale: f64,
    seconds: Option<f64>,
    rate: Option<f64>,
    machine: Machine,
}

impl Subject {
    fn of(title: String, workload: &str, results: &Results) -> Subject {
        let header = &results.header;
        let is_own = |name: &str| header.peers.first().is_some_and(|first| first.name == name);
        let runs = runs_of(results, workload);
        Subject {
            title,
            // Rows of reads differ by the class in which the pairs were written.
            class: runs.iter().find(|run| is_own(&run.peer)).and_then(|run| run.class),
            scale: header.scale,
            seconds: header.seconds,
            rate: header.rate,
            machine: header.machine.clone(),
        }
    }
}

/// The size of the files in a workload.
#[derive(Debug)]
pub struct Space {
    /// Number of the results that the size comes from.
    pub part: usize,
    /// Name of the task.
    pub workload: String,
    /// Comparison with the rival, in words.
    pub text: String,
}

/// Rows of a workload that no longer count, because a later part has them too.
#[derive(Debug)]
pub struct Superseded {
    /// Name of the task.
    pub workload: String,
    /// The part with the rows that no longer count.
    pub earlier: usize,
    /// The part with the rows that count.
    pub later: usize,
    /// The findings of the rows in the earlier part.
    pub findings: Vec<Finding>,
}

impl Superseded {
    /// Formats this as text, with the parts numbered from 1.
    pub fn text(&self) -> String {
        let count = |side| self.findings.iter().filter(|finding| finding.side == side).count();
        format!(
            "{}, rows: {}. Part {} counts in place of part {}, which has leads: {}, losses: {}, even: {}, not comparable: {}",
            self.workload,
            self.findings.len(),
            self.later + 1,
            self.earlier + 1,
            count(Side::Leads),
            count(Side::Loses),
            count(Side::Even),
            count(Side::NotComparable)
        )
    }
}

/// The whole verdict.
#[derive(Debug)]
pub struct Verdict {
    /// The peer that the verdict is about.
    pub peer: String,
    /// Rows, those with the largest difference first.
    pub findings: Vec<Finding>,
    /// Space of the peer's files against the smallest of the others, by workload.
    pub space: Vec<Space>,
    /// Rows left out of the verdict.
    pub superseded: Vec<Superseded>,
}

impl Verdict {
    /// Creates the verdict of one run.
    pub fn of(results: &Results) -> Option<Verdict> {
        Verdict::over(&[(0, results)])
    }

    /// Creates the verdict of several parts, each with its number. All parts have one first peer. For a row in several
    /// parts, the part that began last counts.
    pub fn over(parts: &[(usize, &Results)]) -> Option<Verdict> {
        let (_, first) = parts.first()?;
        let mut verdict = Verdict {
            peer: first.header.peers.first()?.name.clone(),
            findings: Vec::new(),
            space: Vec::new(),
            superseded: Vec::new(),
        };
        let mut parts = parts.to_vec();
        parts.sort_by_key(|(part, results)| (results.header.started_unix, *part));
        let (mut rows, mut sizes): (Latest<Finding>, Latest<Space>) = (Latest::default(), Latest::default());
        for (part, results) in parts {
            for workload in workloads(results) {
                let all = rows_of(results, workload);
                for (place, row) in all.iter().enumerate() {
                    let Some(finding) = Finding::of(row, place, results, part) else {
                        continue;
                    };
                    let earlier = rows.put(Subject::of(row.title(), workload, results), finding);
                    earlier.into_iter().for_each(|earlier| verdict.supersede(earlier, part));
                }
                if let Some(text) = space_text(&all, results, &verdict.peer) {
                    let workload = workload.to_string();
                    let subject = Subject::of(workload.clone(), &workload, results);
                    sizes.put(subject, Space { part, workload, text });
                }
            }
        }
        verdict.findings = rows.values();
        verdict
            .findings
            .sort_by(|one, other| other.weight().total_cmp(&one.weight()));
        verdict.space = sizes.values();
        Some(verdict)
    }

    fn supersede(&mut self, earlier: Finding, later: usize) {
        let is_same = |one: &&mut Superseded| {
            (one.earlier, one.later) == (earlier.part, later) && one.workload == earlier.workload
        };
        match self.superseded.iter_mut().find(is_same) {
            Some(superseded) => superseded.findings.push(earlier),
            None => self.superseded.push(Superseded {
                workload: earlier.workload.clone(),
                earlier: earlier.part,
                later,
                findings: vec![earlier],
            }),
        }
    }

    /// Returns the findings on one side.
    pub fn on(&self, side: Side) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(move |finding| finding.side == side)
    }

    /// Returns the verdict in a sentence or two.
    pub fn sentence(&self) -> String {
        let count = |side| self.on(side).count();
        let rows = self.findings.len();
        if rows == 0 {
            return format!("{} was compared with no other store.", self.peer);
        }
        let sure = self.findings.iter().filter(|finding| finding.is_sure()).count();
        let is_ended = |finding: &&Finding| matches!(finding.ground, Ground::Words(_));
        let ended = match self.on(Side::Loses).filter(is_ended).count() {
            0 => String::new(),
            ended => format!(
                " {ended} of the losses are rows that another store finished and {} did not.",
                self.peer
            ),
        };
        format!(
            "Against the best of the other stores, {} leads in {} of {rows} rows, loses in {}, is even in {}, and {} are not \
             comparable.{ended} In {sure} of them all of three or more repetitions agree on who is faster.",
            self.peer,
            count(Side::Leads),
            count(Side::Loses),
            count(Side::Even),
            count(Side::NotComparable)
        )
    }
}

/// Values by subject: the latest of each, in the order in which the subjects first appeared.
struct Latest<T>(Vec<(Subject, T)>);

impl<T> Default for Latest<T> {
    fn default() -> Latest<T> {
        Latest(Vec::new())
    }
}

impl<T> Latest<T> {
    /// Stores a value, and returns the superseded value.
    fn put(&mut self, subject: Subject, value: T) -> Option<T> {
        match self.0.iter_mut().find(|(other, _)| *other == subject) {
            Some((_, place)) => Some(std::mem::replace(place, value)),
            None => {
                self.0.push((subject, value));
                None
            }
        }
    }

    fn values(self) -> Vec<T> {
        self.0.into_iter().map(|(_, value)| value).collect()
    }
}

/// Describes the largest size of the files in a workload: the first peer's, and the smallest of the others.
fn space_text(rows: &[Row], results: &Results, peer: &str) -> Option<String> {
    let largest = |name: &str| {
        let entries = rows
            .iter()
            .flat_map(|row| &row.entries)
            .filter(|entry| entry.peer == name);
        let sizes = entries.filter_map(|entry| {
            let sizes = entry.values(|phase| phase.file_bytes as f64);
            spread(sizes.into_iter().map(|(_, size)| size))
        });
        sizes.map(|size| size.median).fold(0.0, f64::max)
    };
    let own = largest(peer);
    let others = results.header.peers.iter().map(|other| other.name.as_str());
    let (name, size) = others
        .filter(|name| *name != peer && !NO_STORES.contains(name))
        .map(|name| (name, largest(name)))
        .filter(|(_, size)| *size > 0.0)
        .min_by(|one, other| one.1.total_cmp(&other.1))?;
    (own > 0.0).then(|| {
        format!(
            "{peer} {}, the smallest of the others {} ({name}): {:.2} times",
            bytes_text(own),
            bytes_text(size),
            own / size
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::{header, part, results, run};
    use crate::results::{Outcome, Run};

    /// Returns the verdict on results with `lmdb` as the first peer.
    fn verdict(own: [u64; 3], rival: [u64; 3]) -> Verdict {
        let both = (0..3u32).flat_map(|at| {
            [
                run("lmdb", Class::Written, at, own[at as usize]),
                run("redb", Class::Written, at, rival[at as usize]),
            ]
        });
        Verdict::of(&results(both.collect())).expect("peers")
    }

    /// Returns a run that the limit of the cell stopped in its puts, so that it never reached its gets.
    fn stopped(peer: &str) -> Run {
        let mut run = run(peer, Class::Written, 0, 100);
        let Outcome::Passed(record) = &mut run.outcome else {
            panic!("it passed")
        };
        record.phases[0].stopped_at_of = Some(1000);
        record.phases.pop();
        run
    }

    fn failed(peer: &str) -> Run {
        let mut run = run(peer, Class::Written, 0, 100);
        run.outcome = Outcome::Failed("a wrong value".to_string());
        run
    }

    fn passed(peer: &str) -> Run {
        run(peer, Class::Written, 0, 100)
    }

    /// Returns the sides of puts and gets when there are only these runs.
    fn sides(runs: Vec<Run>) -> Vec<Side> {
        let verdict = Verdict::of(&results(runs)).expect("peers");
        verdict.findings.iter().map(|finding| finding.side).collect()
    }

    #[test]
    fn loss_is_told_as_plainly_as_a_lead() {
        let leads = verdict([100, 100, 100], [200, 210, 220]);
        let loses = verdict([200, 210, 220], [100, 100, 100]);
        assert_eq!((leads.on(Side::Leads).count(), loses.on(Side::Loses).count()), (2, 2));
        assert!(leads.findings[0].text().contains("2.10 times"), "{leads:?}");
        assert!(
            loses.findings[0]
                .text()
                .contains("redb (written) is 2.10 times as fast (2.00 to 2.20)"),
            "{loses:?}"
        );
        assert!(loses.sentence().contains("loses in 2"), "{}", loses.sentence());
        assert!(leads.findings[0].text().contains("all 3 repetitions agree"));
        assert!(
            leads.sentence().contains("In 2 of them all of three"),
            "{}",
            leads.sentence()
        );
    }

    #[test]
    fn repetitions_that_disagree_make_a_row_even() {
        let verdict = verdict([100, 100, 100], [300, 300, 90]);
        assert!(verdict.findings.iter().all(|finding| finding.side == Side::Even));
        assert!(verdict.findings[0].text().contains("noise"));
        assert!(verdict.findings[0].text().contains("the 3 repetitions disagree"));
    }

    #[test]
    fn row_that_the_first_peer_did_not_finish_is_a_loss() {
        let mut slower = vec![stopped("lmdb"), passed("redb")];
        assert_eq!(sides(slower.clone()), [Side::Loses; 2]);
        assert_eq!(sides(vec![failed("lmdb"), passed("redb")]), [Side::Loses; 2]);
        slower.push(run("null", Class::None, 0, 1));
        let verdict = Verdict::of(&results(slower)).expect("peers");
        let texts: Vec<String> = verdict.findings.iter().map(Finding::text).collect();
        assert_eq!(
            texts,
            [
                "lmdb (written): stopped at 10 of 1000, while redb (written) finished",
                "lmdb (written): not reached: stopped at 10 of 1000 in put, while redb (written) finished"
            ]
        );
        let sentence = verdict.sentence();
        assert!(
            sentence.contains("loses in 2")
                && sentence.contains("2 of the losses are rows that another store finished"),
            "{sentence}"
        );
    }

    #[test]
    fn row_without_two_times_is_counted_as_not_comparable() {
        use Side::NotComparable;
        assert_eq!(sides(vec![passed("lmdb"), stopped("redb")]), [NotComparable; 2]);
        assert_eq!(sides(vec![passed("lmdb"), failed("redb")]), [NotComparable; 2]);
        assert_eq!(sides(vec![stopped("lmdb"), stopped("redb")]), [NotComparable]);
        let verdict = Verdict::of(&results(vec![passed("lmdb"), stopped("redb")])).expect("peers");
        assert_eq!(
            verdict.findings[0].text(),
            "lmdb (written): 100 ns an operation; redb (written): stopped at 10 of 1000"
        );
        assert!(
            verdict.sentence().contains("of 2 rows") && verdict.sentence().contains("2 are not comparable"),
            "{}",
            verdict.sentence()
        );
    }

    #[test]
    fn row_that_the_first_peer_cannot_do_is_told_and_one_that_nobody_can_is_not() {
        let cannot = |peer: &str| {
            let mut run = passed(peer);
            let Outcome::Passed(record) = &mut run.outcome else {
                panic!("it passed")
            };
            record.phases.pop();
            record
                .unsupported
                .push(("get".to_string(), "is write-only".to_string()));
            run
        };
        let verdict = Verdict::of(&results(vec![cannot("lmdb"), passed("redb")])).expect("peers");
        let told: Vec<&Finding> = verdict.on(Side::NotComparable).collect();
        assert_eq!(told.len(), 1);
        assert!(
            told[0].text().contains("lmdb (written): n/a: is write-only"),
            "{told:?}"
        );
        let nobody = sides(vec![cannot("lmdb"), cannot("redb"), run("null", Class::Written, 0, 1)]);
        assert_eq!(nobody, [Side::Even], "only the puts");
    }

    #[test]
    fn what_was_not_finished_is_told_before_any_factor() {
        let mut slow = passed("redb");
        slow.workload = "map/1M".to_string();
        let mut slower = run("lmdb", Class::Written, 0, 900);
        slower.workload = "map/1M".to_string();
        let verdict = Verdict::of(&results(vec![slower, slow, stopped("lmdb"), passed("redb")])).expect("peers");
        let order: Vec<&str> = verdict.on(Side::Loses).map(|one| one.workload.as_str()).collect();
        assert_eq!(order, ["first", "first", "map/1M", "map/1M"]);
    }

    #[test]
    fn nobody_leads_against_what_is_no_store() {
        let results = results(vec![
            run("lmdb", Class::Written, 0, 100),
            run("null", Class::Written, 0, 1),
        ]);
        let verdict = Verdict::of(&results).expect("peers");
        assert!(verdict.findings.is_empty());
        assert!(verdict.sentence().contains("no other store"));
    }

    #[test]
    fn part_that_began_later_supersedes_whatever_its_place() {
        let (earlier, later) = (part(100, 300, 100), part(200, 100, 300));
        for parts in [[(0, &earlier), (1, &later)], [(1, &earlier), (0, &later)]] {
            let verdict = Verdict::over(&parts).expect("peers");
            assert_eq!((verdict.findings.len(), verdict.on(Side::Leads).count()), (2, 2));
            let [superseded] = verdict.superseded.as_slice() else {
                panic!("one workload: {verdict:?}")
            };
            assert_eq!(superseded.findings.len(), 2);
            assert!(
                superseded.text().contains("leads: 0, losses: 2"),
                "{}",
                superseded.text()
            );
            assert!(verdict.findings.iter().all(|finding| finding.part == superseded.later));
        }
        let text = Verdict::over(&[(0, &earlier), (1, &later)]).expect("peers").superseded[0].text();
        assert!(
            text.starts_with("first, rows: 2. Part 2 counts in place of part 1"),
            "{text}"
        );
    }

    #[test]
    fn rows_of_another_class_scale_or_machine_supersede_nothing() {
        let first = part(100, 100, 300);
        let mut scaled = part(200, 300, 100);
        scaled.header.scale = 1.0;
        let mut elsewhere = part(200, 300, 100);
        elsewhere.header.machine.processor = "another".to_string();
        let mut synced = part(200, 300, 100);
        for run in &mut synced.runs {
            run.class = Some(Class::Synced);
        }
        for other in [scaled, elsewhere, synced] {
            let verdict = Verdict::over(&[(0, &first), (1, &other)]).expect("peers");
            assert!(verdict.superseded.is_empty(), "{verdict:?}");
            assert_eq!(
                (verdict.on(Side::Leads).count(), verdict.on(Side::Loses).count()),
                (2, 2)
            );
        }
    }

    #[test]
    fn later_part_without_rivals_hides_no_loss() {
        let first = part(100, 300, 100);
        let mut alone = results(vec![run("lmdb", Class::Written, 0, 1)]);
        alone.header = header(&["lmdb"]);
        alone.header.started_unix = 200;
        let verdict = Verdict::over(&[(0, &first), (1, &alone)]).expect("peers");
        assert_eq!(verdict.on(Side::Loses).count(), 2);
    }

    #[test]
    fn space_is_told_once_for_a_workload_that_is_in_two_parts() {
        let with_files = |started, bytes| {
            let mut part = part(started, 100, 100);
            for run in &mut part.runs {
                let own = run.peer == "lmdb";
                let Outcome::Passed(record) = &mut run.outcome else {
                    panic!("it passed")
                };
                record.phases[0].file_bytes = if own { bytes } else { 1_000 };
            }
            part
        };
        let (earlier, later) = (with_files(100, 3_000), with_files(200, 2_000));
        let verdict = Verdict::over(&[(0, &earlier), (1, &later)]).expect("peers");
        let texts: Vec<&str> = verdict.space.iter().map(|space| space.text.as_str()).collect();
        assert_eq!(texts, ["lmdb 2 kB, the smallest of the others 1 kB (redb): 2.00 times"]);
    }
}
