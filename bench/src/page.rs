//! The report: one HTML page that works offline and loads nothing. The front comes first, with the matrix, the charts and
//! the losses. Each part follows, folded away, with its machine and its workloads: bars, curves, full tables, figures
//! that others published, and the command that repeats it.
//!
//! The page has no script, and its policy forbids the browser to load anything. Bars are cells of a table, so that
//! readers who cannot see them get the numbers in the same order.

use std::fmt::Write as _;

use crate::analysis::{Entry, Row, rows_of, runs_of, spread_text, workloads};
use crate::curves::Curves;
use crate::front::{write_front, write_part_heading};
use crate::html::{anchor, escaped};
use crate::measure::Phase;
use crate::probe::{DISTURBED, Probe};
use crate::published::figures;
use crate::reasons::Reasons;
use crate::results::Results;
use crate::statistics::spread;
use crate::storage::StorageCounter;
use crate::terminal::remarks;
use crate::text::{bytes_text, count_text, ratio_text, time_text};

/// Returns the page of one or more results, with the reasons for rows in which the first peer does not lead.
pub fn page(all: &[Results], reasons: &Reasons) -> String {
    let title = match all {
        [one] => format!("Lab report of {}", one.header.started),
        _ => format!("Lab report of {} runs", all.len()),
    };
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta http-equiv=\"Content-Security-Policy\" \
         content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\"><meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\"><title>{0}</title><link rel=\"icon\" href=\"data:,\"><style>{1}</style></head><body>\n<a class=\"skip\" \
         href=\"#verdict\">Skip to the verdict</a>\n<header><h1>{0}</h1></header>\n<main>\n",
        escaped(&title),
        include_str!("page.css")
    );
    let curves = Curves::of(all);
    write_front(&mut html, all, reasons, &curves);
    for (number, results) in all.iter().enumerate() {
        html.push_str("<details class=\"part\"><summary>");
        if all.len() > 1 {
            let names = workloads(results).join(", ");
            let _ = write!(html, "Part {}: {}</summary>", number + 1, escaped(&names));
            write_part_heading(&mut html, number, results, reasons);
        } else {
            html.push_str("Machine, peers, and all numbers of all rows</summary>");
        }
        let curves = &curves;
        Part {
            results,
            number,
            curves,
        }
        .write(&mut html);
        html.push_str("</details>\n");
    }
    html.push_str(FOOTER);
    html
}

const FOOTER: &str = "</main>\n<footer><p class=\"soft\">Made by the lab of Duramen. Every value that was read was checked; \
    every workload read back what it wrote after the clock; percentiles are of every operation. Writes are compared only within \
    a durability class. How to read this page, and what the lab cannot tell, is in docs/lab of the repository.</p></footer>\n\
    </body></html>\n";

/// One run on the page.
struct Part<'a> {
    results: &'a Results,
    number: usize,
    curves: &'a Curves,
}

impl Part<'_> {
    fn write(&self, html: &mut String) {
        self.write_machine(html);
        self.write_peers(html);
        let names = workloads(self.results);
        html.push_str("<nav aria-label=\"Workloads\"><ul>");
        for name in &names {
            let _ = write!(
                html,
                "<li><a href=\"#{}\">{}</a></li>",
                anchor(self.number, name),
                escaped(name)
            );
        }
        html.push_str("</ul></nav>\n");
        for name in names {
            self.write_workload(html, name);
        }
    }

    fn write_machine(&self, html: &mut String) {
        let header = &self.results.header;
        let machine = &header.machine;
        html.push_str("<section><h2>Machine and run</h2><dl class=\"card\">");
        let mut row = |name: &str, value: String| {
            let _ = write!(html, "<dt>{}</dt><dd>{}</dd>", escaped(name), escaped(&value));
        };
        row("Processor", format!("{} x {}", machine.processors, machine.processor));
        row("Memory", bytes_text(machine.memory_bytes as f64));
        row("Kernel", format!("Linux {}", machine.kernel));
        row(
            "File system",
            format!("{} ({})", machine.file_system, header.directory.display()),
        );
        row("Begun", header.started.clone());
        row("Commit", self.commits());
        row("Seed", header.seed.to_string());
        row("Scale", header.scale.to_string());
        row("Repetitions", header.repeat.to_string());
        row("Time limit of a cell", format!("{} s", header.limit_seconds));
        row("Caches of stores that have one", header.cache_text());
        for (name, value) in self.probes() {
            row(name, value);
        }
        let _ = writeln!(
            html,
            "</dl><p>Repeat it; <code>--directory</code> chooses the disk that the stores are made on:</p>\
             <pre tabindex=\"0\">{}</pre></section>",
            escaped(&self.command(&header.workloads.join(" ")))
        );
    }

    fn commits(&self) -> String {
        let mut commits: Vec<&str> = self.results.runs.iter().map(|run| run.commit.as_str()).collect();
        commits.dedup();
        commits.join(", then ")
    }

    /// Returns the findings of the probes beside the cells.
    fn probes(&self) -> Vec<(&'static str, String)> {
        let probes: Vec<_> = self.results.runs.iter().filter_map(|run| run.probe.as_ref()).collect();
        let over = |value: fn(&Probe) -> f64| spread(probes.iter().map(|probe| value(probe)));
        let disturbed = probes.iter().filter(|probe| probe.is_disturbed()).count();
        let mut rows = Vec::new();
        let times = [
            ("Sync of 4 KiB", over(|probe| probe.sync_nanos_p50 as f64)),
            ("Waking a thread", over(|probe| probe.wake_nanos_p50 as f64)),
            ("Timers are late by", over(|probe| probe.timer_nanos_p50 as f64)),
        ];
        for (name, found) in times {
            rows.extend(found.map(|found| (name, spread_text(found, time_text))));
        }
        if !probes.is_empty() {
            rows.push((
                "Other load",
                format!(
                    "in {disturbed} of {} cells others used more than {:.0} % of the processors",
                    probes.len(),
                    DISTURBED * 100.0
                ),
            ));
        }
        rows
    }

    fn command(&self, workloads: &str) -> String {
        let header = &self.results.header;
        let names: Vec<&str> = header.peers.iter().map(|peer| peer.name.as_str()).collect();
        // The alias builds without RocksDB, whose build takes half an hour.
        let lab = if names.contains(&"rocksdb") {
            "cargo run --release --manifest-path bench/Cargo.toml --features rocksdb --"
        } else {
            "cargo lab"
        };
        let mut command = format!(
            "{lab} run {workloads} --peers {} --scale {} --repeat {} --seed {} --limit {}",
            names.join(","),
            header.scale,
            header.repeat,
            header.seed,
            header.limit_seconds
        );
        let options = [
            header.seconds.map(|seconds| format!(" --seconds {seconds}")),
            header.rate.map(|rate| format!(" --rate {rate}")),
            header.durability.map(|class| format!(" --durability {class}")),
        ];
        command.extend(options.into_iter().flatten());
        command
    }

    fn write_peers(&self, html: &mut String) {
        html.push_str(
            "<section><h2>Peers</h2><div class=\"scroll\" tabindex=\"0\"><table><caption>Version, durability classes, and every \
             option that is not the default</caption><thead><tr><th scope=\"col\">peer</th><th scope=\"col\">version</th>\
             <th scope=\"col\">classes</th><th scope=\"col\">options</th></tr></thead><tbody>",
        );
        for peer in &self.results.header.peers {
            let classes: Vec<String> = peer
                .classes
                .iter()
                .map(|(class, how)| format!("{class}: {how}"))
                .collect();
            let options = peer.options_text();
            let _ = write!(
                html,
                "<tr><th scope=\"row\">{}</th><td class=\"text\">{}</td><td class=\"text\">{}</td><td class=\"text\">{}</td></tr>",
                escaped(&peer.name),
                escaped(&peer.version),
                escaped(&classes.join("; ")),
                escaped(&options)
            );
        }
        html.push_str("</tbody></table></div></section>\n");
    }

    fn write_workload(&self, html: &mut String, workload: &str) {
        let _ = write!(
            html,
            "<section><h2 id=\"{}\">{}</h2>",
            anchor(self.number, workload),
            escaped(workload)
        );
        let base = workload.split('/').next().unwrap_or(workload);
        let known = crate::workloads::ALL.iter().find(|one| one.name == base);
        if let Some(known) = known {
            let _ = write!(html, "<p class=\"soft\">{}</p>", escaped(known.about));
        }
        let rows = rows_of(self.results, workload);
        let workers = self.curves.threads("Operations a second against threads", &rows);
        if !workers.is_empty() {
            let _ = write!(html, "<div class=\"charts\">{workers}</div>");
        }
        for row in &rows {
            self.write_row(html, row);
        }
        let remarks = remarks(&runs_of(self.results, workload));
        if !remarks.trim().is_empty() {
            let _ = write!(
                html,
                "<details><summary>Remarks of the runs</summary><pre tabindex=\"0\">{}</pre></details>",
                escaped(remarks.trim_end())
            );
        }
        let _ = writeln!(
            html,
            "<p>Repeat it:</p><pre tabindex=\"0\">{}</pre></section>",
            escaped(&self.command(workload))
        );
    }

    fn write_row(&self, html: &mut String, row: &Row) {
        let class = row.class.map_or(String::new(), |class| format!(", class {class}"));
        let _ = write!(html, "<h3>{}{class}</h3>", escaped(&row.phase));
        self.write_bars(html, row);
        if let Some(text) = row.timed_text() {
            let _ = write!(html, "<p class=\"soft\">{}</p>", escaped(&text));
        }
        if self.results.header.scale == 1.0 {
            for figure in figures(row.workload, &row.phase) {
                let _ = write!(
                    html,
                    "<p class=\"soft\">Published: {} ({})</p>",
                    escaped(figure.figure),
                    escaped(figure.source)
                );
            }
        }
        let charts = [
            self.curves.latency("Latency by percentile", row),
            self.curves.throughput("Throughput over time", row),
            self.curves.memory(row),
        ]
        .concat();
        if !charts.is_empty() {
            let _ = write!(
                html,
                "<details><summary>Curves of {}</summary><div class=\"charts\">{charts}</div></details>",
                escaped(&row.title())
            );
        }
        let _ = write!(
            html,
            "<details><summary>All numbers of {}</summary>",
            escaped(&row.title())
        );
        self.write_numbers(html, row);
        html.push_str("</details>\n");
    }

    fn write_bars(&self, html: &mut String, row: &Row) {
        let best = row.best_rate();
        let baseline = row.baseline(self.results);
        let compared = baseline.map_or(String::new(), |baseline| format!("time / {}", baseline.peer));
        let _ = write!(
            html,
            "<div class=\"scroll\" tabindex=\"0\"><table><caption class=\"hidden\">{}</caption><thead><tr><th scope=\"col\">peer</th>\
             <th scope=\"col\" class=\"barcell\">longer is faster<span class=\"wordy\">; the line is the spread</span></th><th scope=\"col\">op/s</th>\
             <th scope=\"col\">time/op</th><th scope=\"col\">{}</th></tr></thead><tbody>",
            escaped(&row.title()),
            escaped(&compared)
        );
        for entry in &row.entries {
            let own = baseline.is_some_and(|baseline| baseline.peer == entry.peer);
            let _ = write!(
                html,
                "<tr{}><th scope=\"row\">{}</th>",
                if own { " class=\"own\"" } else { "" },
                escaped(&entry.name())
            );
            match (entry.time(), entry.rate()) {
                (Some(time), Some(rate)) => {
                    let part = |nanos: f64| (1e9 / nanos.max(1e-3) / best * 100.0).min(100.0);
                    let ratio = baseline.filter(|_| !own).and_then(|other| entry.times_of(other));
                    let operations = entry.median(|phase| phase.operations as f64);
                    let _ = write!(
                        html,
                        "<td class=\"barcell\"><div class=\"bar b{}\"><i style=\"width:{:.1}%\"></i><b \
                         style=\"left:{:.1}%;width:{:.1}%\"></b></div></td><td>{}</td><td>{}</td><td>{}</td></tr>",
                        self.curves.style(entry.peer) % crate::charts::STYLES,
                        part(time.median),
                        part(time.max),
                        part(time.min) - part(time.max),
                        if operations > 1.0 {
                            count_text(rate)
                        } else {
                            "-".to_string()
                        },
                        escaped(&time_text(time.median)),
                        ratio.map_or("-".to_string(), |ratio| spread_text(ratio, ratio_text))
                    );
                }
                _ => {
                    let absence = escaped(&entry.absence);
                    let _ = write!(html, "<td class=\"text\" colspan=\"4\">{absence}</td></tr>");
                }
            }
        }
        html.push_str("</tbody></table></div>");
    }

    fn write_numbers(&self, html: &mut String, row: &Row) {
        let columns = [
            "peer",
            "time/op (min .. max)",
            "operations",
            "found",
            "cpu/op",
            "callers' cpu/op",
            "written",
            "to storage",
            "read",
            "from storage",
            "files",
            "resident",
            "own memory",
            "p50",
            "p90",
            "p99",
            "p99.9",
            "p99.99",
            "max",
        ];
        html.push_str("<div class=\"scroll\" tabindex=\"0\"><table><thead><tr>");
        for column in columns {
            let _ = write!(html, "<th scope=\"col\">{column}</th>");
        }
        html.push_str("</tr></thead><tbody>");
        for entry in row.entries.iter().filter(|entry| entry.time().is_some()) {
            let _ = write!(html, "<tr><th scope=\"row\">{}</th>", escaped(&entry.name()));
            for cell in numbers(entry) {
                let _ = write!(html, "<td>{}</td>", escaped(&cell));
            }
            html.push_str("</tr>");
        }
        html.push_str("</tbody></table></div>");
        for counter in storage_counters(row) {
            let _ = write!(
                html,
                "<p class=\"soft\">Bytes to and from storage: {}.</p>",
                escaped(counter.words())
            );
        }
    }
}

/// Returns the storage counters of a row. There is one, unless a resumed run met a change.
fn storage_counters(row: &Row) -> Vec<StorageCounter> {
    let phases = row.entries.iter().flat_map(|entry| &entry.phases);
    let mut counters: Vec<StorageCounter> = phases.map(|(_, phase)| phase.storage_counter).collect();
    counters.sort_unstable();
    counters.dedup();
    counters
}

fn numbers(entry: &Entry) -> Vec<String> {
    let bytes = |value: fn(&Phase) -> u64| bytes_text(entry.median(|phase| value(phase) as f64));
    let hits = entry.phases.first().and_then(|(_, phase)| phase.hits);
    let mut cells = vec![
        entry.time().map_or(String::new(), |time| spread_text(time, time_text)),
        count_text(entry.median(|phase| phase.operations as f64)),
        hits.map_or("-".to_string(), |_| {
            count_text(entry.median(|phase| phase.hits.unwrap_or(0) as f64))
        }),
        time_text(entry.median_each(|phase| phase.process_cpu_nanos)),
        time_text(entry.median_each(|phase| phase.callers_cpu_nanos)),
        bytes(|phase| phase.write_call_bytes),
        bytes(|phase| phase.storage_bytes),
        bytes(|phase| phase.read_call_bytes),
        bytes(|phase| phase.storage_read_bytes),
        bytes(|phase| phase.file_bytes),
        bytes(|phase| phase.resident_bytes),
        bytes(|phase| phase.anonymous_bytes),
    ];
    let latency = entry.latency();
    let times = latency.map(|found| [found.p50, found.p90, found.p99, found.p99_9, found.p99_99, found.max]);
    cells.extend((0..6).map(|at| times.map_or("-".to_string(), |times| time_text(times[at] as f64))));
    cells
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::{Latency, TimelineRecord};
    use crate::peer::Class;
    use crate::results::Outcome;
    use crate::results::tests::{results, run};

    fn full() -> Results {
        let mut runs: Vec<_> = (0..3)
            .flat_map(|at| {
                [
                    run("lmdb", Class::Written, at, 100),
                    run("redb", Class::Written, at, 150 + u64::from(at)),
                ]
            })
            .collect();
        for run in &mut runs {
            let Outcome::Passed(record) = &mut run.outcome else {
                continue;
            };
            for phase in &mut record.phases {
                phase.latency = Some(Latency {
                    p50: 90,
                    p90: 120,
                    p99: 400,
                    p99_9: 900,
                    p99_99: 1_000,
                    max: 5_000,
                });
                phase.curve = vec![(0.5, 90), (0.9, 120), (0.99, 400), (1.0, 5_000)];
                phase.timeline = Some(TimelineRecord {
                    step_nanos: 50_000_000,
                    operations: vec![3, 3, 3, 1],
                    resident_bytes: vec![1 << 20; 4],
                });
            }
            record.notes.push("a note with <b>marks</b>".to_string());
        }
        let mut absent = run("null", Class::None, 0, 1);
        absent.outcome = Outcome::NotApplicable("has no class".to_string());
        runs.push(absent);
        results(runs)
    }

    #[test]
    fn page_loads_nothing_and_has_no_script() {
        let html = page(&[full()], &Reasons::default());
        for loader in [
            "<script",
            "http:",
            "https:",
            "url(",
            "@import",
            "src=",
            "<link rel=\"stylesheet",
        ] {
            assert!(!html.contains(loader), "{loader}");
        }
        assert!(html.contains("lang=\"en\"") && html.contains("viewport"));
    }

    #[test]
    fn matrix_comes_first_then_charts_then_losses_then_leads() {
        let html = page(&[full()], &Reasons::default());
        let place = |text: &str| html.find(text).unwrap_or_else(|| panic!("{text} is missing"));
        assert!(place("id=\"verdict\"") < place("<table class=\"matrix\">"));
        assert!(place("<table class=\"matrix\">") < place("id=\"charts\""));
        assert!(place("id=\"charts\"") < place("Where lmdb loses: 0"));
        assert!(place("Where lmdb loses: 0") < place("Where lmdb leads: 2"));
        assert!(place("Where lmdb leads: 2") < place("<details class=\"part\">"));
        assert!(place("<details class=\"part\">") < place("Machine and run"));
        assert!(html.contains("1.51 times as fast (1.50 to 1.52) as redb"), "{html}");
    }

    #[test]
    fn reasons_stand_beside_losses_and_the_lack_of_one_is_told() {
        let mut results = full();
        results.header.peers.swap(0, 1);
        let reasons = Reasons::parse("first: put | because <b> it was so").unwrap();
        let html = page(&[results], &reasons);
        let loss = "<summary><b>first: put, class written</b>: lmdb (written) is";
        assert!(
            html.find(loss) < html.find("Why: because &lt;b&gt; it was so"),
            "{html}"
        );
        assert!(
            html.contains(loss) && html.contains("Why: because &lt;b&gt; it was so"),
            "{html}"
        );
        assert_eq!(html.matches("Why: the reason is not known yet").count(), 1);
    }

    #[test]
    fn every_element_that_is_opened_is_closed() {
        let html = page(&[full(), full()], &Reasons::default());
        for element in [
            "section", "table", "tr", "td", "th", "div", "details", "figure", "svg", "ul", "li", "pre", "dl", "h2",
            "h3",
        ] {
            let opened = html.matches(&format!("<{element}>")).count() + html.matches(&format!("<{element} ")).count();
            assert_eq!(opened, html.matches(&format!("</{element}>")).count(), "{element}");
        }
    }

    #[test]
    fn text_from_results_is_escaped_and_absences_are_explained() {
        let results = full();
        let html = page(std::slice::from_ref(&results), &Reasons::default());
        assert!(html.contains("a note with &lt;b&gt;marks&lt;/b&gt;"));
        assert!(html.contains("has no class"), "{html}");
    }

    #[test]
    fn curves_are_drawn_for_every_peer_and_told_in_words() {
        let html = page(&[full()], &Reasons::default());
        assert!(html.contains("Latency by percentile") && html.contains("Throughput over time"));
        assert!(html.contains("99 percent at most 400 ns"));
        assert!(html.contains("role=\"img\""));
    }

    #[test]
    fn what_is_counted_as_storage_stands_below_the_numbers() {
        let (device, process) = (StorageCounter::Device.words(), StorageCounter::Process.words());
        let mut results = full();
        let html = page(std::slice::from_ref(&results), &Reasons::default());
        assert_eq!((html.matches(device).count(), html.matches(process).count()), (2, 0));
        let Outcome::Passed(record) = &mut results.runs[0].outcome else {
            panic!("it passed")
        };
        record.phases[0].storage_counter = StorageCounter::Process;
        let html = page(&[results], &Reasons::default());
        assert_eq!((html.matches(device).count(), html.matches(process).count()), (2, 1));
    }

    #[test]
    fn published_figures_stand_only_beside_full_scale() {
        let mut results = full();
        for run in &mut results.runs {
            run.workload = "map/1M".to_string();
            if let Outcome::Passed(record) = &mut run.outcome {
                record.phases[0].name = "write".to_string();
            }
        }
        assert!(!page(std::slice::from_ref(&results), &Reasons::default()).contains("Published:"));
        results.header.scale = 1.0;
        assert!(page(&[results], &Reasons::default()).contains("Published: 25,200 /s (mmcmap"));
    }

    #[test]
    fn row_says_when_its_latencies_are_of_commits() {
        let mut results = full();
        let words = "A latency here is that of a commit, pass or step of about 5 operations.";
        assert!(!page(std::slice::from_ref(&results), &Reasons::default()).contains(words));
        let Outcome::Passed(record) = &mut results.runs[0].outcome else {
            panic!("it passed")
        };
        record.phases[0].timed = Some(2);
        assert_eq!(page(&[results], &Reasons::default()).matches(words).count(), 1);
    }

    #[test]
    fn command_that_repeats_a_run_builds_the_peers_that_it_names() {
        let mut results = full();
        let html = page(std::slice::from_ref(&results), &Reasons::default());
        assert!(
            html.contains(">cargo lab run first --peers lmdb,redb,null --scale 0.5"),
            "{html}"
        );
        assert!(!html.contains("--features"));
        assert_eq!(
            html.matches("--directory").count(),
            1,
            "a hint, and no place of this machine"
        );
        results.header.peers[1].name = "rocksdb".to_string();
        let html = page(&[results], &Reasons::default());
        let command =
            "cargo run --release --manifest-path bench/Cargo.toml --features rocksdb -- run first --peers lmdb,rocksdb";
        assert_eq!(
            html.matches(command).count(),
            2,
            "of the run and of its workload: {html}"
        );
        assert!(!html.contains("cargo lab run"));
    }

    #[test]
    fn size_of_caches_is_stated_and_older_results_say_that_it_is_not() {
        let mut results = full();
        results.header.cache_bytes.insert("first".to_string(), 1 << 30);
        assert!(page(std::slice::from_ref(&results), &Reasons::default()).contains("<dd>1 GiB</dd>"));
        results.header.cache_bytes.clear();
        assert!(page(&[results], &Reasons::default()).contains("not stated"));
    }

    #[test]
    fn parts_come_after_the_front_and_every_link_has_a_place() {
        let html = page(&[full(), full()], &Reasons::default());
        let place = |text: &str| html.find(text).unwrap_or_else(|| panic!("{text} is missing"));
        assert!(place("id=\"verdict\"") < place("id=\"parts\"") && place("id=\"parts\"") < place("id=\"part-0\""));
        for link in html.split("href=\"#").skip(1) {
            let target = link.split('"').next().unwrap_or_default();
            assert_eq!(html.matches(&format!("id=\"{target}\"")).count(), 1, "{target}");
        }
        assert_eq!(html.matches("The verdict of this part alone").count(), 2);
    }
}
