//! The verdict in words: in which rows the first peer, which is Duramen where it takes part, leads or loses, by how much,
//! and how sure that is. It is drawn from the rows by rule, so that nobody chooses what to mention.

use crate::analysis::{NO_STORES, Row, bytes_text, rows_of, workloads};
use crate::results::Results;
use crate::statistics::{Spread, spread};

/// Times closer than this are called the same.
const SAME: f64 = 0.03;
/// Repetitions from which on agreement means something.
const REPETITIONS: usize = 3;

/// How a row went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// It is faster than the best of the others.
    Leads,
    /// The best of the others is faster.
    Loses,
    /// The difference is small, or the repetitions disagree on who is faster.
    Even,
}

/// How sure that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sureness {
    /// All of three or more repetitions agree.
    AllAgree(usize),
    /// They disagree.
    Disagree(usize),
    /// There were too few to say.
    Few(usize),
}

impl Sureness {
    /// In words.
    pub fn text(&self) -> String {
        match self {
            Sureness::AllAgree(count) => format!("all {count} repetitions agree"),
            Sureness::Disagree(count) => format!("the {count} repetitions disagree"),
            Sureness::Few(1) => "one repetition: nothing is known of how sure this is".to_string(),
            Sureness::Few(count) => format!("{count} repetitions, too few to be sure"),
        }
    }
}

/// One row of the verdict.
#[derive(Debug)]
pub struct Finding {
    /// What was compared.
    pub title: String,
    /// The best of the others.
    pub rival: String,
    /// Time of the rival divided by the first peer's: above 1 the first peer is faster.
    pub ratio: Spread,
    /// Who is faster.
    pub side: Side,
    /// How sure that is.
    pub sureness: Sureness,
}

impl Finding {
    fn of(row: &Row, results: &Results) -> Option<Finding> {
        let own = row.baseline(results)?;
        own.time()?;
        let others = row
            .entries
            .iter()
            .filter(|entry| entry.peer != own.peer && !NO_STORES.contains(&entry.peer));
        let rival = others
            .filter(|entry| entry.time().is_some())
            .max_by(|one, other| one.rate().unwrap_or(0.0).total_cmp(&other.rate().unwrap_or(0.0)))?;
        let ratio = rival.times_of(own)?;
        let count = own.phases.len().min(rival.phases.len());
        let disagree = ratio.min < 1.0 && ratio.max > 1.0;
        let sureness = match count {
            _ if disagree => Sureness::Disagree(count),
            ..REPETITIONS => Sureness::Few(count),
            _ => Sureness::AllAgree(count),
        };
        let side = match ratio.median {
            _ if disagree => Side::Even,
            median if median > 1.0 + SAME => Side::Leads,
            median if median < 1.0 / (1.0 + SAME) => Side::Loses,
            _ => Side::Even,
        };
        Some(Finding {
            title: row.title(),
            rival: rival.name(),
            ratio,
            side,
            sureness,
        })
    }

    /// By how much, in words.
    pub fn text(&self) -> String {
        let Spread { median, min, max } = self.ratio;
        // Told from the side of whoever is faster, so that a factor of a loss is as large as that of a lead.
        let told = |factor: f64, least: f64, most: f64| {
            let text = |factor: f64| {
                if factor < 10.0 {
                    format!("{factor:.2}")
                } else {
                    format!("{factor:.0}")
                }
            };
            let range = if min == max {
                String::new()
            } else {
                format!(" ({} to {})", text(least), text(most))
            };
            format!("{} times as fast{range}", text(factor))
        };
        match self.side {
            Side::Leads => format!("{} as {}, the best of the others", told(median, min, max), self.rival),
            Side::Loses => format!("{} is {}", self.rival, told(1.0 / median, 1.0 / max, 1.0 / min)),
            Side::Even => format!(
                "as fast as {}, within the noise ({min:.2} to {max:.2} times)",
                self.rival
            ),
        }
    }
}

/// Everything that can be said.
#[derive(Debug)]
pub struct Verdict {
    /// Whose verdict it is.
    pub peer: String,
    /// Rows, those with the largest difference first.
    pub findings: Vec<Finding>,
    /// Space of its files against the smallest of the others, by workload.
    pub space: Vec<String>,
}

impl Verdict {
    /// Draws it.
    pub fn of(results: &Results) -> Option<Verdict> {
        let peer = results.header.peers.first()?.name.clone();
        let mut findings: Vec<Finding> = workloads(results)
            .into_iter()
            .flat_map(|workload| rows_of(results, workload))
            .filter_map(|row| Finding::of(&row, results))
            .collect();
        let weight = |finding: &Finding| finding.ratio.median.max(1e-9).ln().abs();
        findings.sort_by(|one, other| weight(other).total_cmp(&weight(one)));
        Some(Verdict {
            space: space(results, &peer),
            peer,
            findings,
        })
    }

    /// The findings on one side.
    pub fn on(&self, side: Side) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(move |finding| finding.side == side)
    }

    /// The verdict in a sentence.
    pub fn sentence(&self) -> String {
        let count = |side| self.on(side).count();
        let sure = self
            .findings
            .iter()
            .filter(|finding| matches!(finding.sureness, Sureness::AllAgree(_)))
            .count();
        let rows = self.findings.len();
        if rows == 0 {
            return format!("{} was compared with no other store.", self.peer);
        }
        format!(
            "Against the best of the other stores, {} leads in {} of {rows} rows, loses in {}, and is even in {}. In {sure} of \
             them all of three or more repetitions agree on who is faster.",
            self.peer,
            count(Side::Leads),
            count(Side::Loses),
            count(Side::Even)
        )
    }
}

/// The largest size of the files in each workload: the first peer's, and the smallest of the others.
fn space(results: &Results, peer: &str) -> Vec<String> {
    let mut lines = Vec::new();
    for workload in workloads(results) {
        let rows = rows_of(results, workload);
        let largest = |name: &str| {
            let entries = rows
                .iter()
                .flat_map(|row| &row.entries)
                .filter(|entry| entry.peer == name);
            let sizes = entries.filter_map(|entry| {
                spread(
                    entry
                        .values(|phase| phase.file_bytes as f64)
                        .into_iter()
                        .map(|(_, size)| size),
                )
            });
            sizes.map(|size| size.median).fold(0.0, f64::max)
        };
        let own = largest(peer);
        let others = results.header.peers.iter().map(|other| other.name.as_str());
        let smallest = others
            .filter(|name| *name != peer && !NO_STORES.contains(name))
            .map(|name| (name, largest(name)))
            .filter(|(_, size)| *size > 0.0)
            .min_by(|one, other| one.1.total_cmp(&other.1));
        if let (true, Some((name, size))) = (own > 0.0, smallest) {
            lines.push(format!(
                "{workload}: {peer} {}, the smallest of the others {} ({name}): {:.2} times",
                bytes_text(own),
                bytes_text(size),
                own / size
            ));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::Class;
    use crate::results::tests::{results, run};

    /// `lmdb` is the first peer of these results.
    fn verdict(own: [u64; 3], rival: [u64; 3]) -> Verdict {
        let both = (0..3u32).flat_map(|at| {
            [
                run("lmdb", Class::Written, at, own[at as usize]),
                run("redb", Class::Written, at, rival[at as usize]),
            ]
        });
        Verdict::of(&results(both.collect())).expect("peers")
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
        assert_eq!(leads.findings[0].sureness, Sureness::AllAgree(3));
    }

    #[test]
    fn repetitions_that_disagree_make_a_row_even() {
        let verdict = verdict([100, 100, 100], [300, 300, 90]);
        assert!(verdict.findings.iter().all(|finding| finding.side == Side::Even));
        assert_eq!(verdict.findings[0].sureness, Sureness::Disagree(3));
        assert!(verdict.findings[0].text().contains("noise"));
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
}
