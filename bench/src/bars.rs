//! A chart for documents: for a few rows, a bar for each of the other stores, as long as its time is a multiple of the
//! first peer's. The chart is one SVG file that loads nothing and follows the colour scheme of its reader.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};

use crate::analysis::without_class;
use crate::html::escaped;
use crate::reasons::row_lines;
use crate::text::ratio_text;
use crate::verdict::{Duel, Finding, Verdict};

const WIDTH: f64 = 720.0;
/// Where the bars begin, and where the longest of them ends.
const LEFT: f64 = 110.0;
const RIGHT: f64 = WIDTH - 60.0;
/// Room for the sentence that says what is shown.
const TOP: f64 = 30.0;
const LABEL_HEIGHT: f64 = 20.0;
const BAR_HEIGHT: f64 = 15.0;
const GAP: f64 = 10.0;

const STYLE: &str = "text{font:12px system-ui,sans-serif;fill:#1b1f24}.label{font-weight:600}.soft{fill:#57606a}\
    .lead{fill:#0550ae}.lose{fill:#b0410a}.one{stroke:#57606a}\
    @media (prefers-color-scheme:dark){text{fill:#e6edf3}.soft{fill:#9da7b3}.lead{fill:#79c0ff}.lose{fill:#ffa657}\
    .one{stroke:#9da7b3}}";

/// A row of the report, and what the chart calls it.
struct Row<'a> {
    finding: &'a Finding,
    label: &'a str,
}

/// Draws the rows that a file lists: a line `ROW | LABEL` for each. ROW is a row's title as the report shows it, with or
/// without the class. Empty lines and lines that begin with `#` are ignored.
pub fn svg(verdict: &Verdict, rows: &Path) -> Result<String> {
    let text = std::fs::read_to_string(rows).with_context(|| format!("reading {}", rows.display()))?;
    let rows: Vec<Row> = listed(verdict, &text).with_context(|| format!("in {}", rows.display()))?;
    Ok(draw(&verdict.peer, &rows))
}

fn listed<'a>(verdict: &'a Verdict, text: &'a str) -> Result<Vec<Row<'a>>> {
    let lines = row_lines(text, "LABEL")?;
    ensure!(!lines.is_empty(), "no row is listed: a line is `ROW | LABEL`");
    let titles = |findings: &[&Finding]| {
        let titles: Vec<&str> = findings.iter().map(|finding| finding.title.as_str()).collect();
        titles.join("\n  ")
    };
    let all: Vec<&Finding> = verdict.findings.iter().collect();
    let row = |(title, label)| {
        let is_it = |finding: &&Finding| finding.title == title || without_class(&finding.title) == title;
        let found: Vec<&Finding> = all.iter().copied().filter(is_it).collect();
        match found[..] {
            [finding] => Ok(Row { finding, label }),
            [] => bail!("the results have no row {title:?}; they have:\n  {}", titles(&all)),
            _ => bail!("several rows are {title:?}; name one of:\n  {}", titles(&found)),
        }
    };
    lines.into_iter().map(row).collect()
}

fn ratio(duel: &Duel) -> Option<f64> {
    Some(duel.ratio?.median.max(1e-9))
}

fn draw(own: &str, rows: &[Row]) -> String {
    let ratios = || rows.iter().flat_map(|row| row.finding.duels.iter().filter_map(ratio));
    // On a logarithmic axis half of the time and twice the time have bars of one length.
    let (from, to) = ratios().fold((0.8f64, 1.25f64), |(from, to), ratio| (from.min(ratio), to.max(ratio)));
    let place = |ratio: f64| LEFT + (ratio / from).ln() / (to / from).ln() * (RIGHT - LEFT);
    let height_of = |row: &Row| LABEL_HEIGHT + row.finding.duels.len() as f64 * BAR_HEIGHT + GAP;
    let height = TOP + rows.iter().map(height_of).sum::<f64>();
    let own = escaped(own);
    let words = format!("Time of each store / time of {own}, on a logarithmic axis; above 1, {own} is faster");
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{words}\">\
         <style>{STYLE}</style><text class=\"soft\" x=\"0\" y=\"14\">{words}</text>"
    );
    let mut top = TOP;
    for row in rows {
        let _ = write!(
            svg,
            "\n<text class=\"label\" x=\"0\" y=\"{:.1}\">{}</text>",
            top + LABEL_HEIGHT - 6.0,
            escaped(row.label)
        );
        top += LABEL_HEIGHT;
        let bottom = top + row.finding.duels.len() as f64 * BAR_HEIGHT;
        let _ = write!(
            svg,
            "\n<line class=\"one\" x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"{top:.1}\" y2=\"{bottom:.1}\"/>",
            place(1.0)
        );
        for duel in &row.finding.duels {
            draw_bar(&mut svg, duel, top, place);
            top += BAR_HEIGHT;
        }
        top += GAP;
    }
    svg.push_str("\n</svg>\n");
    svg
}

fn draw_bar(svg: &mut String, duel: &Duel, top: f64, place: impl Fn(f64) -> f64) {
    let (text_y, one) = (top + BAR_HEIGHT - 4.0, place(1.0));
    let peer = escaped(&duel.peer);
    let _ = write!(
        svg,
        "\n<text x=\"{:.1}\" y=\"{text_y:.1}\" text-anchor=\"end\">{peer}</text>",
        LEFT - 8.0
    );
    let Some(ratio) = ratio(duel) else {
        let _ = write!(
            svg,
            "<text class=\"soft\" x=\"{:.1}\" y=\"{text_y:.1}\">n/a</text>",
            one + 5.0
        );
        return;
    };
    let end = place(ratio);
    let (class, left) = if ratio < 1.0 { ("lose", end) } else { ("lead", one) };
    let _ = write!(
        svg,
        "<rect class=\"{class}\" x=\"{left:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\"/>\
         <text x=\"{:.1}\" y=\"{text_y:.1}\">{}</text>",
        top + 2.0,
        (end - one).abs(),
        BAR_HEIGHT - 4.0,
        end.max(one) + 5.0,
        ratio_text(ratio)
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::Class;
    use crate::results::Outcome;
    use crate::results::tests::{results, run};

    /// Returns a verdict of two rows: the first peer leads one and loses the other.
    fn verdict() -> Verdict {
        let mut runs = vec![run("lmdb", Class::Written, 0, 100), run("redb", Class::Written, 0, 400)];
        let Outcome::Passed(record) = &mut runs[1].outcome else {
            panic!("it passed")
        };
        record.phases[1].wall_nanos = 250;
        Verdict::of(&results(runs)).expect("peers")
    }

    #[test]
    fn bars_lie_inside_of_the_chart_and_begin_or_end_at_one() {
        let verdict = verdict();
        let lines = verdict
            .findings
            .iter()
            .map(|finding| format!("{} | puts < 1 us\n", without_class(&finding.title)));
        let text = format!("# rows\n\n{}", lines.collect::<String>());
        let rows = listed(&verdict, &text).expect("rows");
        let svg = draw("lmdb", &rows);
        assert!(
            svg.contains("puts &lt; 1 us") && svg.contains(">4.00<") && svg.contains(">0.50<"),
            "{svg}"
        );
        let number = |rect: &str, name: &str| -> f64 {
            let value = rect
                .split(&format!(" {name}=\""))
                .nth(1)
                .and_then(|rest| rest.split('"').next());
            value.expect("an attribute").parse().expect("a number")
        };
        let bars: Vec<(f64, f64)> = svg
            .split("<rect")
            .skip(1)
            .map(|rect| (number(rect, "x"), number(rect, "x") + number(rect, "width")))
            .collect();
        assert_eq!(bars.len(), 2);
        assert!(
            bars.iter().all(|(from, to)| *from >= LEFT - 0.1 && *to <= RIGHT + 0.1),
            "{bars:?}"
        );
        let (lead, loss) = (bars[0].0.max(bars[1].0), bars[0].1.min(bars[1].1));
        assert!((lead - loss).abs() < 0.2, "both meet at one: {bars:?}");
    }

    #[test]
    fn row_that_the_results_lack_is_an_error_that_names_those_they_have() {
        let verdict = verdict();
        let error = listed(&verdict, "nothing: here | label")
            .err()
            .expect("an error")
            .to_string();
        assert!(
            error.contains("nothing: here") && error.contains(&verdict.findings[0].title),
            "{error}"
        );
        let error = listed(&verdict, "no bar").err().expect("an error").to_string();
        assert!(error.contains("ROW | LABEL"), "{error}");
        assert!(listed(&verdict, "# nothing").is_err());
    }

    #[test]
    fn row_of_several_classes_is_named_with_its_class() {
        let classes = [Class::Written, Class::None];
        let runs = classes
            .into_iter()
            .flat_map(|class| [run("lmdb", class, 0, 100), run("redb", class, 0, 400)]);
        let verdict = Verdict::of(&results(runs.collect())).expect("peers");
        let error = listed(&verdict, "first: put | label")
            .err()
            .expect("an error")
            .to_string();
        assert!(error.contains("first: put, class none"), "{error}");
        let rows = listed(&verdict, "first: put, class none | label").expect("a row");
        assert_eq!(rows[0].finding.class, Some(Class::None));
    }
}
