//! The matrix of the report: a line for each workload, a column for each of the other stores, and in each cell the time
//! of that store divided by the first peer's. A second matrix, folded away, has a line for each row.
//!
//! The ratios and their sides come from the verdict. This module adds only the geometric mean over the rows of a
//! workload. Colour repeats what the number and the mark of a cell say.

use std::fmt::Write as _;

use crate::analysis::{Standing, sized};
use crate::html::{anchor, escaped};
use crate::peer::Class;
use crate::text::ratio_text;
use crate::verdict::{Duel, Finding, Side, Verdict, factor_side};
use crate::workloads::ALL;

/// Factors from which on a cell has the second and the third depth of its colour.
const DEPTHS: [f64; 2] = [1.5, 3.0];

/// A line of the matrix: the rows of one workload in one part.
struct Group<'a> {
    part: usize,
    workload: &'a str,
    class: Option<Class>,
    findings: Vec<&'a Finding>,
}

impl Group<'_> {
    /// Returns the order of the lines: workloads as the lab lists them, then by size.
    fn key(&self) -> (usize, f64) {
        let base = self.workload.split('/').next().unwrap_or(self.workload);
        let place = ALL.iter().position(|one| one.name == base).unwrap_or(ALL.len());
        (place, sized(self.workload).map_or(0.0, |(_, size)| size))
    }

    fn duels<'a>(&'a self, peer: &'a str) -> impl Iterator<Item = &'a Duel> {
        duels(&self.findings, peer)
    }
}

fn duels<'a>(findings: &'a [&Finding], peer: &'a str) -> impl Iterator<Item = &'a Duel> {
    let all = findings.iter().flat_map(|finding| &finding.duels);
    all.filter(move |duel| duel.peer == peer)
}

fn groups(verdict: &Verdict) -> Vec<Group<'_>> {
    let mut groups: Vec<Group> = Vec::new();
    for finding in &verdict.findings {
        let is_of = |group: &&mut Group| group.part == finding.part && group.workload == finding.workload;
        match groups.iter_mut().find(is_of) {
            Some(group) => group.findings.push(finding),
            None => groups.push(Group {
                part: finding.part,
                workload: &finding.workload,
                class: finding.class,
                findings: vec![finding],
            }),
        }
    }
    for group in &mut groups {
        group.findings.sort_by_key(|finding| finding.place);
    }
    groups.sort_by(|one, other| {
        let ((place, size), (place_other, size_other)) = (one.key(), other.key());
        let by_size = size.total_cmp(&size_other);
        let by_name = (one.workload, one.part).cmp(&(other.workload, other.part));
        place.cmp(&place_other).then(by_size).then(by_name)
    });
    groups
}

/// A store against the first peer over several rows.
struct Tally {
    /// Geometric mean of the ratios, if there are any.
    mean: Option<f64>,
    /// Number of rows.
    rows: usize,
    /// Number of rows that the first peer leads.
    leads: usize,
    /// Number of rows that the first peer loses.
    loses: usize,
    /// What stands in the cell if there is no ratio: the words of a loss, or else of the first row.
    words: &'static str,
}

impl Tally {
    fn over<'a>(duels: impl Iterator<Item = &'a Duel>) -> Tally {
        let duels: Vec<&Duel> = duels.collect();
        let logs: Vec<f64> = duels
            .iter()
            .filter_map(|duel| Some(duel.ratio?.median.max(1e-9).ln()))
            .collect();
        let count = |side| duels.iter().filter(|duel| duel.side == side).count();
        Tally {
            mean: (!logs.is_empty()).then(|| (logs.iter().sum::<f64>() / logs.len() as f64).exp()),
            rows: duels.len(),
            leads: count(Side::Leads),
            loses: count(Side::Loses),
            words: words(
                duels
                    .iter()
                    .find(|duel| duel.side == Side::Loses)
                    .or(duels.first())
                    .copied(),
            ),
        }
    }

    fn write(&self, html: &mut String) {
        let Some(mean) = self.mean else {
            let side = if self.loses > 0 {
                Side::Loses
            } else {
                Side::NotComparable
            };
            return write_words(html, side, self.words);
        };
        let (class, mark) = look(factor_side(mean), mean);
        let _ = write!(html, "<td class=\"cell {class}\">{mark} {}", ratio_text(mean));
        let _ = write!(
            html,
            "<small>{}&#9650; {}&#9660; of {}</small></td>",
            self.leads, self.loses, self.rows
        );
    }
}

/// Returns the class of the style sheet and the mark of a ratio.
fn look(side: Side, ratio: f64) -> (String, &'static str) {
    let factor = ratio.max(1.0 / ratio.max(1e-9));
    let depth = 1 + DEPTHS.iter().filter(|least| factor >= **least).count();
    match side {
        Side::Leads => (format!("win{depth}"), "&#9650;"),
        Side::Loses => (format!("loss{depth}"), "&#9660;"),
        Side::Even | Side::NotComparable => ("level".to_string(), "="),
    }
}

fn write_words(html: &mut String, side: Side, words: &str) {
    let (class, mark) = if side == Side::Loses {
        ("loss3", "&#9660; ")
    } else {
        ("apart", "")
    };
    let _ = write!(html, "<td class=\"cell {class}\">{mark}{}</td>", escaped(words));
}

/// Describes a store that has no ratio in a row.
fn words(duel: Option<&Duel>) -> &'static str {
    let Some(duel) = duel else { return "n/a" };
    match duel.absence {
        Some((Standing::Stopped, _)) => "stopped",
        Some((Standing::Failed, _)) => "FAILED",
        Some(_) => "n/a",
        None if duel.side == Side::Loses => "finished",
        None => "no ratio",
    }
}

fn write_duel(html: &mut String, duel: Option<&Duel>, own: Option<Class>) {
    let Some((duel, ratio)) = duel.and_then(|duel| Some((duel, duel.ratio?))) else {
        let side = duel.map_or(Side::NotComparable, |duel| duel.side);
        return write_words(html, side, words(duel));
    };
    let (class, mark) = look(duel.side, ratio.median);
    let _ = write!(html, "<td class=\"cell {class}\">{mark} {}", ratio_text(ratio.median));
    if let Some(other) = duel.class.filter(|other| Some(*other) != own) {
        let _ = write!(html, " <small>{other}</small>");
    }
    html.push_str("</td>");
}

/// Writes the matrix of a verdict. `peers` gives the order of the columns.
pub fn write_matrix(html: &mut String, verdict: &Verdict, peers: &[&str], has_parts: bool) {
    // A store that can do no row of these has no column.
    let has_met = |peer: &&&str| {
        let mut all = verdict.findings.iter().flat_map(|finding| &finding.duels);
        all.any(|duel| duel.peer == **peer && !matches!(duel.absence, Some((Standing::Absent, _))))
    };
    let matrix = Matrix {
        verdict,
        peers: peers.iter().filter(has_met).copied().collect(),
        groups: groups(verdict),
        has_parts,
    };
    if matrix.groups.is_empty() {
        return;
    }
    matrix.write_legend(html);
    matrix.write_workloads(html);
    matrix.write_rows(html);
}

struct Matrix<'a> {
    verdict: &'a Verdict,
    peers: Vec<&'a str>,
    groups: Vec<Group<'a>>,
    has_parts: bool,
}

impl Matrix<'_> {
    fn write_head(&self, html: &mut String, caption: &str, first: &str) {
        let _ = write!(
            html,
            "<div class=\"scroll\" tabindex=\"0\"><table class=\"matrix\"><caption>{}</caption><thead><tr><th scope=\"col\">{first}</th>",
            escaped(caption)
        );
        for peer in &self.peers {
            let _ = write!(html, "<th scope=\"col\">{}</th>", escaped(peer));
        }
        html.push_str("</tr></thead>");
    }

    fn write_workloads(&self, html: &mut String) {
        let own = &self.verdict.peer;
        self.write_head(
            html,
            &format!("Time of each store / time of {own}; above 1, {own} is faster"),
            "workload",
        );
        let all: Vec<&Finding> = self.verdict.findings.iter().collect();
        let _ = write!(html, "<tbody><tr><th scope=\"row\">all {} rows</th>", all.len());
        for peer in &self.peers {
            Tally::over(duels(&all, peer)).write(html);
        }
        html.push_str("</tr>");
        for group in &self.groups {
            let _ = write!(html, "<tr><th scope=\"row\">{}</th>", self.name(group));
            for peer in &self.peers {
                match group.findings.as_slice() {
                    [only] => write_duel(html, group.duels(peer).next(), only.class),
                    _ => Tally::over(group.duels(peer)).write(html),
                }
            }
            html.push_str("</tr>");
        }
        html.push_str("</tbody></table></div>");
        let _ = write!(
            html,
            "<p class=\"soft\">Colours are deeper from {} and {} times on. A line of several rows has the geometric mean of their \
             ratios, and beside it how many rows {} leads and loses.</p>",
            DEPTHS[0],
            DEPTHS[1],
            escaped(own)
        );
    }

    /// Returns the name of a line as a link to its workload.
    fn name(&self, group: &Group) -> String {
        let class = group.class.map(|class| class.to_string());
        let part = self.has_parts.then(|| format!("part {}", group.part + 1));
        let notes: Vec<String> = class.into_iter().chain(part).collect();
        let (place, workload) = (anchor(group.part, group.workload), escaped(group.workload));
        format!(
            "<a href=\"#{place}\">{workload}</a> <small>{}</small>",
            notes.join(", ")
        )
    }

    fn write_legend(&self, html: &mut String) {
        let own = escaped(&self.verdict.peer);
        let _ = write!(
            html,
            "<ul class=\"key\" aria-label=\"Legend\"><li><b class=\"cell win2\">&#9650; above 1</b> {own} is faster</li>\
             <li><b class=\"cell loss2\">&#9660; below 1</b> {own} is slower, or did not finish</li>\
             <li><b class=\"cell level\">=</b> within 3 %, or the repetitions disagree</li>\
             <li><b class=\"cell apart\">n/a</b> not run, or not possible</li></ul>"
        );
    }

    fn write_rows(&self, html: &mut String) {
        let _ = write!(
            html,
            "<details><summary>The matrix of all {} rows</summary>",
            self.verdict.findings.len()
        );
        self.write_head(html, "Every row of every workload", "row");
        for group in &self.groups {
            let _ = write!(
                html,
                "<tbody><tr><th scope=\"rowgroup\" colspan=\"{}\">{}</th></tr>",
                self.peers.len() + 1,
                self.name(group)
            );
            for finding in &group.findings {
                let title = finding.title.strip_prefix(&format!("{}: ", group.workload));
                let title = title.unwrap_or(&finding.title);
                let _ = write!(html, "<tr><th scope=\"row\">{}</th>", escaped(title));
                for peer in &self.peers {
                    let duel = finding.duels.iter().find(|duel| duel.peer == *peer);
                    write_duel(html, duel, finding.class);
                }
                html.push_str("</tr>");
            }
            html.push_str("</tbody>");
        }
        html.push_str("</table></div></details>");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::{results, run};
    use crate::results::{Outcome, Run};

    const PEERS: [&str; 3] = ["lmdb", "redb", "null"];

    fn matrix(runs: Vec<Run>) -> String {
        let verdict = Verdict::of(&results(runs)).expect("peers");
        let mut html = String::new();
        write_matrix(&mut html, &verdict, &PEERS, false);
        html
    }

    /// Returns a pair of runs of a workload.
    fn pair(workload: &str, own: u64, rival: u64) -> Vec<Run> {
        let mut runs = vec![
            run("lmdb", Class::Written, 0, own),
            run("redb", Class::Written, 0, rival),
        ];
        for run in &mut runs {
            run.workload = workload.to_string();
        }
        runs
    }

    #[test]
    fn cell_is_the_time_of_the_other_store_divided_by_the_first_peers() {
        let html = matrix(pair("first", 100, 400));
        assert!(html.contains("above 1, lmdb is faster"), "{html}");
        assert!(
            html.contains("<td class=\"cell win3\">&#9650; 4.00<small>2&#9650; 0&#9660; of 2</small></td>"),
            "{html}"
        );
        assert_eq!(
            html.matches("<td class=\"cell win3\">&#9650; 4.00</td>").count(),
            2,
            "a row of each phase: {html}"
        );
        let html = matrix(pair("first", 400, 300));
        assert!(
            html.contains("<td class=\"cell loss1\">&#9660; 0.75<small>0&#9650; 2&#9660; of 2</small></td>"),
            "{html}"
        );
    }

    #[test]
    fn store_that_did_not_run_is_not_applicable_and_null_has_no_column() {
        let mut runs = pair("first", 100, 400);
        runs.push(run("null", Class::None, 0, 1));
        runs.extend(pair("map/1M", 100, 400).into_iter().take(1));
        let mut cannot = run("redb", Class::Written, 0, 1);
        cannot.workload = "map/1M".to_string();
        cannot.outcome = Outcome::NotApplicable("has no class".to_string());
        runs.push(cannot);
        let html = matrix(runs);
        assert!(html.contains("<td class=\"cell apart\">n/a</td>"), "{html}");
        assert!(html.contains(">redb<") && !html.contains(">null<"), "{html}");
    }

    #[test]
    fn row_that_the_first_peer_did_not_finish_is_a_loss_and_a_stopped_rival_is_none() {
        let stop = |run: &mut Run| {
            let Outcome::Passed(record) = &mut run.outcome else {
                panic!("it passed")
            };
            record.phases.truncate(1);
            record.phases[0].stopped_at_of = Some(1000);
        };
        let mut runs = pair("first", 100, 400);
        stop(&mut runs[0]);
        let html = matrix(runs);
        assert_eq!(
            html.matches("<td class=\"cell loss3\">&#9660; finished</td>").count(),
            4,
            "{html}"
        );
        let mut runs = pair("first", 100, 400);
        stop(&mut runs[1]);
        let html = matrix(runs);
        assert!(
            html.contains("<td class=\"cell apart\">stopped</td>") && !html.contains("td class=\"cell win"),
            "{html}"
        );
    }

    #[test]
    fn lines_are_in_the_order_of_the_lab_and_then_of_size() {
        let names = ["ycsb-a", "map/16M", "map/100k", "map/2M", "first"];
        let runs = names.iter().flat_map(|name| pair(name, 100, 200)).collect();
        let html = matrix(runs);
        let places =
            ["first", "map/100k", "map/2M", "map/16M", "ycsb-a"].map(|name| html.find(&format!(">{name}</a>")));
        assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{places:?}");
        assert!(html.find("all 10 rows") < places[0], "{html}");
        assert!(
            html.find(">put, class written<") < html.find(">get<"),
            "phases as they ran: {html}"
        );
    }

    #[test]
    fn mean_of_a_factor_and_its_inverse_is_even_and_both_are_counted() {
        let mut runs = pair("first", 100, 200);
        let Outcome::Passed(record) = &mut runs[1].outcome else {
            panic!("it passed")
        };
        record.phases[1].wall_nanos = 250;
        let html = matrix(runs);
        assert!(
            html.contains("<td class=\"cell level\">= 1.00<small>1&#9650; 1&#9660; of 2</small></td>"),
            "{html}"
        );
    }

    #[test]
    fn colour_is_deeper_for_larger_factors_and_never_alone() {
        let looks = [1.2, 2.0, 5.0].map(|ratio| look(factor_side(ratio), ratio));
        assert_eq!(looks.map(|(class, _)| class), ["win1", "win2", "win3"]);
        let looks = [0.9, 0.5, 0.2].map(|ratio| look(factor_side(ratio), ratio));
        assert_eq!(
            looks.map(|(class, mark)| (class, mark.len())),
            [1, 2, 3].map(|depth| (format!("loss{depth}"), 7))
        );
        assert_eq!(look(factor_side(1.01), 1.01), ("level".to_string(), "="));
    }
}
