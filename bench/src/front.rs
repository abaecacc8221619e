//! The front of the report: warnings, the matrix, charts, the verdict over all parts row by row, and an index of the
//! parts when there are several. Reasons of losses, and all rows that are not lost, are folded away.
//!
//! Each part also shows its own verdict, folded away, so that readers can still see what a later part supersedes.

use std::fmt::Write as _;

use crate::analysis::workloads;
use crate::curves::Curves;
use crate::gallery::write_gallery;
use crate::html::{anchor, escaped};
use crate::matrix::write_matrix;
use crate::reasons::Reasons;
use crate::results::{Label, Results};
use crate::verdict::{Finding, SIDES, Side, Verdict};

/// Returns the name of a side as a class of the style sheet, and in words.
fn names(side: Side) -> (&'static str, &'static str) {
    match side {
        Side::Leads => ("leads", "leads"),
        Side::Loses => ("loses", "loses"),
        Side::Even => ("even", "is even with the best"),
        Side::NotComparable => ("apart", "is not comparable"),
    }
}

/// Writes the front.
pub fn write_front(html: &mut String, all: &[Results], reasons: &Reasons, curves: &Curves) {
    html.push_str("<section><h2 id=\"verdict\">Verdict</h2>");
    let has_parts = all.len() > 1;
    for (part, results) in all.iter().enumerate() {
        let of_part = if has_parts {
            format!("Part {}: ", part + 1)
        } else {
            String::new()
        };
        for banner in banners(results) {
            write_banner(html, &format!("{of_part}{banner}"));
        }
    }
    let verdicts = verdicts(all);
    for verdict in &verdicts {
        let _ = write!(html, "<p>{}</p>", escaped(&verdict.sentence()));
        write_matrix(html, verdict, &curves.peers(), has_parts);
    }
    html.push_str("</section>\n");
    write_gallery(html, all, curves);
    html.push_str("<section><h2 id=\"rows\">Losses, and every other row</h2>");
    for verdict in &verdicts {
        VerdictSection {
            verdict,
            reasons,
            has_parts,
        }
        .write(html);
        write_superseded(html, verdict);
    }
    html.push_str("</section>\n");
    if has_parts {
        write_index(html, all);
    }
}

/// Writes the heading of one of several parts: its name, its warnings, and its own verdict.
pub fn write_part_heading(html: &mut String, part: usize, results: &Results, reasons: &Reasons) {
    let _ = write!(
        html,
        "<section><h2 id=\"part-{part}\">Part {}, begun {}: {}</h2>",
        part + 1,
        escaped(&results.header.started),
        escaped(&workloads(results).join(", "))
    );
    banners(results).iter().for_each(|banner| write_banner(html, banner));
    if let Some(verdict) = Verdict::of(results) {
        let _ = write!(
            html,
            "<p>{}</p><details><summary>The verdict of this part alone</summary>",
            escaped(&verdict.sentence())
        );
        VerdictSection {
            verdict: &verdict,
            reasons,
            has_parts: false,
        }
        .write(html);
        html.push_str("</details>");
    }
    html.push_str("</section>\n");
}

/// Returns one verdict for each baseline peer; mostly there is one such peer.
fn verdicts(all: &[Results]) -> Vec<Verdict> {
    let own = |results: &Results| results.header.peers.first().map(|peer| peer.name.clone());
    let mut names: Vec<String> = Vec::new();
    for name in all.iter().filter_map(own) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let of_name = |name: String| {
        let parts = all.iter().enumerate();
        let parts: Vec<_> = parts
            .filter(|(_, results)| own(results).as_ref() == Some(&name))
            .collect();
        Verdict::over(&parts)
    };
    names.into_iter().filter_map(of_name).collect()
}

fn banners(results: &Results) -> Vec<String> {
    let header = &results.header;
    let mut banners = Vec::new();
    if header.label == Label::Quick {
        banners.push("Sanity, not evidence: small counts and few repetitions.".to_string());
    }
    if header.machine.is_in_memory() {
        banners.push("The stores were in memory: nothing here says anything about a disk.".to_string());
    }
    if let Some(rate) = header.rate {
        banners.push(format!(
            "Open loop: {rate} operations a second were due, whatever the store did. Look at latencies, not at rates."
        ));
    }
    let failures = results.failures();
    banners.extend(failures.iter().map(|failure| format!("FAILED: {failure}")));
    banners
}

fn write_banner(html: &mut String, banner: &str) {
    let _ = write!(html, "<p class=\"banner\" role=\"note\">{}</p>", escaped(banner));
}

fn write_superseded(html: &mut String, verdict: &Verdict) {
    if verdict.superseded.is_empty() {
        return;
    }
    html.push_str(
        "<details><summary>Rows of which a later part counts</summary><p>Where a row of the same workload, durability and scale is in several parts, this verdict has it from the part that \
         began last; the tables have both.</p><ul>",
    );
    for superseded in &verdict.superseded {
        let _ = write!(html, "<li>{}</li>", escaped(&superseded.text()));
    }
    html.push_str("</ul></details>");
}

/// The rows of a verdict by side, and the space.
struct VerdictSection<'a> {
    verdict: &'a Verdict,
    reasons: &'a Reasons,
    /// Whether the verdict covers several parts, so that each line names its part.
    has_parts: bool,
}

impl VerdictSection<'_> {
    fn write(&self, html: &mut String) {
        self.write_losses(html);
        let others = SIDES.into_iter().filter(|side| *side != Side::Loses);
        others.for_each(|side| self.write_side(html, side));
        if self.verdict.space.is_empty() {
            return;
        }
        html.push_str(
            "<details class=\"side\"><summary>Space: the largest size of the files in each workload</summary><ul>",
        );
        for space in &self.verdict.space {
            let _ = write!(
                html,
                "<li>{}: {}{}</li>",
                escaped(&space.workload),
                escaped(&space.text),
                self.link(space.part, &space.workload)
            );
        }
        html.push_str("</ul></details>");
    }

    /// Writes the losses, each with its reason folded away.
    fn write_losses(&self, html: &mut String) {
        let _ = write!(html, "<div class=\"side loses\">{}", self.heading("h3", Side::Loses));
        for finding in self.verdict.on(Side::Loses) {
            let line = self.line(finding);
            let _ = match self.reason(finding) {
                None => write!(html, "<p>{line}</p>"),
                Some(reason) => write!(html, "<details><summary>{line}</summary><p>{reason}</p></details>"),
            };
        }
        html.push_str("</div>");
    }

    fn heading(&self, element: &str, side: Side) -> String {
        let (_, words) = names(side);
        let (peer, count) = (escaped(&self.verdict.peer), self.verdict.on(side).count());
        format!("<{element}>Where {peer} {words}: {count}</{element}>")
    }

    fn line(&self, finding: &Finding) -> String {
        let (title, text) = (escaped(&finding.title), escaped(&finding.text()));
        format!("<b>{title}</b>: {text}{}", self.link(finding.part, &finding.workload))
    }

    fn write_side(&self, html: &mut String, side: Side) {
        let (class, _) = names(side);
        let heading = self.heading("summary", side);
        let _ = write!(html, "<details class=\"side {class}\">{heading}<ul>");
        for finding in self.verdict.on(side) {
            let reason = self
                .reason(finding)
                .map_or(String::new(), |reason| format!("<br>{reason}"));
            let _ = write!(html, "<li>{}{reason}</li>", self.line(finding));
        }
        html.push_str("</ul></details>");
    }

    /// Names the part that a line comes from, if there are several.
    fn link(&self, part: usize, workload: &str) -> String {
        if self.has_parts {
            format!(" (<a href=\"#{}\">part {}</a>)", anchor(part, workload), part + 1)
        } else {
            String::new()
        }
    }

    /// Returns why the first peer does not lead. Rows that cannot be compared explain themselves.
    fn reason(&self, finding: &Finding) -> Option<String> {
        if matches!(finding.side, Side::Leads | Side::NotComparable) || self.reasons.is_empty() {
            return None;
        }
        let reason = self.reasons.of(&finding.title);
        let reason = reason.unwrap_or("the reason is not known yet");
        Some(format!("<span class=\"soft\">Why: {}</span>", escaped(reason)))
    }
}

fn write_index(html: &mut String, all: &[Results]) {
    html.push_str(
        "<section><h2 id=\"parts\">Parts</h2><div class=\"scroll\" tabindex=\"0\"><table><caption>What each part is, and how its \
         rows went in it alone</caption><thead><tr>",
    );
    let columns = [
        "part",
        "begun",
        "workloads",
        "class",
        "scale",
        "repetitions",
        "commit",
        "leads",
        "loses",
        "even",
        "not comparable",
    ];
    for column in columns {
        let _ = write!(html, "<th scope=\"col\">{column}</th>");
    }
    html.push_str("</tr></thead><tbody>");
    for (part, results) in all.iter().enumerate() {
        write_index_row(html, part, results);
    }
    html.push_str("</tbody></table></div></section>\n");
}

fn write_index_row(html: &mut String, part: usize, results: &Results) {
    let header = &results.header;
    let link = |name: &str| format!("<a href=\"#{}\">{}</a>", anchor(part, name), escaped(name));
    let links: Vec<String> = workloads(results).into_iter().map(link).collect();
    let class = header
        .durability
        .map_or("as it fits".to_string(), |class| class.to_string());
    let _ = write!(
        html,
        "<tr><th scope=\"row\"><a href=\"#part-{part}\">part {}</a></th><td>{}</td><td class=\"text\">{}</td><td>{class}</td>\
         <td>{}</td><td>{}</td><td>{}</td>",
        part + 1,
        escaped(&header.started),
        links.join(", "),
        header.scale,
        header.repeat,
        escaped(&header.commit)
    );
    let verdict = Verdict::of(results);
    for side in SIDES {
        let count = verdict.as_ref().map_or(0, |verdict| verdict.on(side).count());
        let _ = write!(html, "<td>{count}</td>");
    }
    html.push_str("</tr>");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Outcome;
    use crate::results::tests::part;

    fn front(all: &[Results]) -> String {
        let mut html = String::new();
        write_front(&mut html, all, &Reasons::default(), &Curves::of(all));
        html
    }

    #[test]
    fn several_parts_have_one_verdict_and_an_index_with_links() {
        let mut failed = part(200, 100, 300);
        failed.runs[1].workload = "map/1M".to_string();
        failed.runs[1].outcome = Outcome::Failed("a wrong value".to_string());
        let html = front(&[part(100, 300, 100), failed]);
        assert_eq!(html.matches("<h2 id=\"verdict\">").count(), 1);
        assert_eq!(html.matches("Where lmdb loses: ").count(), 1);
        assert!(html.contains("Part 2: FAILED: map/1M redb"), "{html}");
        for link in ["#part-0", "#part-1", "#w0-first", "#w1-first", "#w1-map-1M"] {
            assert!(html.contains(&format!("href=\"{link}\"")), "{link}: {html}");
        }
    }

    #[test]
    fn row_of_two_parts_counts_once_and_the_words_say_which() {
        let html = front(&[part(100, 300, 100), part(200, 100, 300)]);
        assert!(html.contains("Where lmdb leads: 2") && html.contains("Where lmdb loses: 0"));
        assert!(html.contains("from the part that began last"), "{html}");
        assert!(
            html.contains("first, rows: 2. Part 2 counts in place of part 1"),
            "{html}"
        );
        assert!(!front(&[part(100, 300, 100)]).contains("began last"));
    }

    #[test]
    fn parts_with_different_first_peers_have_a_verdict_each() {
        let mut other = part(200, 100, 300);
        other.header.peers.swap(0, 1);
        let html = front(&[part(100, 300, 100), other]);
        assert!(
            html.contains("Where lmdb loses: 2") && html.contains("Where redb loses: 2"),
            "{html}"
        );
        assert!(!html.contains("began last"), "{html}");
    }

    #[test]
    fn row_that_was_stopped_is_listed_and_counted() {
        let mut all = part(100, 100, 300);
        let Outcome::Passed(record) = &mut all.runs[1].outcome else {
            panic!("it passed")
        };
        record.phases[0].stopped_at_of = Some(1000);
        let html = front(&[all]);
        assert!(html.contains("Where lmdb is not comparable: 1"), "{html}");
        assert!(html.contains("redb (written): stopped at 10 of 1000"), "{html}");
    }
}
