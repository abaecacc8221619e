//! The dashboard, the alerts and the table of metrics in the guide know the metrics that a server exports.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::common::scrape::scrape;
use crate::common::serve_with;
use duramen_server::{Config, FAMILIES, SETTINGS, variable};

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name)
}

fn read(name: &str) -> String {
    fs::read_to_string(path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The words of a text that begin with `duramen_`.
fn names(text: &str) -> BTreeSet<&str> {
    let is_letter = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    text.split(|letter| !is_letter(letter))
        .filter(|word| word.starts_with("duramen_"))
        .collect()
}

#[test]
fn the_dashboard_and_the_alerts_name_metrics_that_a_server_exports() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve_with(directory.path(), &[("metrics_listen", "127.0.0.1:0")]);
    let exported = scrape(&server).families;
    for file in ["packaging/grafana/duramen.json", "packaging/prometheus/alerts.yml"] {
        let text = read(file);
        let names = names(&text);
        assert!(names.len() >= 8, "{file}");
        for name in names {
            let is_exported = match name.strip_suffix("_bucket") {
                Some(histogram) => exported.get(histogram).is_some_and(|kind| kind == "histogram"),
                None => exported.contains_key(name),
            };
            assert!(is_exported, "{file} names {name}, which the server does not export");
        }
    }
}

#[test]
fn the_dashboard_is_json_with_a_query_and_a_place_for_each_panel() {
    let dashboard: serde_json::Value = serde_json::from_str(&read("packaging/grafana/duramen.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let (mut ids, mut places) = (BTreeSet::new(), BTreeSet::new());
    for panel in panels {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{panel}");
        let place = &panel["gridPos"];
        assert!(
            places.insert((place["y"].as_u64().unwrap(), place["x"].as_u64().unwrap())),
            "{panel}"
        );
        if panel["type"] == "row" {
            continue;
        }
        let targets = panel["targets"].as_array().unwrap();
        assert!(!targets.is_empty());
        for target in targets {
            assert!(target["expr"].as_str().unwrap().contains("duramen_"), "{target}");
        }
    }
}

#[test]
fn every_alert_has_a_rule_a_severity_and_texts() {
    let text = read("packaging/prometheus/alerts.yml");
    assert!(!text.contains('\t'), "YAML has no tabs");
    let alerts: Vec<_> = text.split("      - alert: ").skip(1).collect();
    assert!(alerts.len() >= 6);
    for alert in alerts {
        for key in [
            "        expr: ",
            "          severity: ",
            "          summary: ",
            "          description: ",
        ] {
            let count = alert.lines().filter(|line| line.starts_with(key)).count();
            assert_eq!(count, 1, "{key:?} in {alert}");
        }
    }
    assert!(read("packaging/prometheus/prometheus.yml").contains("- alerts.yml"));
}

#[test]
fn the_guide_has_a_line_for_each_metric() {
    let guide = read("docs/guide/server.md");
    // The table of alerts has fewer columns.
    let is_row = |line: &&str| line.starts_with("| `duramen_") && line.matches(" | ").count() == 3;
    let found: Vec<_> = guide.lines().filter(is_row).collect();
    let row = |family: &duramen_server::Family| {
        let labels: Vec<_> = family.labels.iter().map(|label| format!("`{label}`")).collect();
        let kind = family.kind.name();
        format!(
            "| `{}` | {kind} | {} | {} |",
            family.name,
            labels.join(", "),
            family.help
        )
    };
    let expected: Vec<_> = FAMILIES.iter().map(row).collect();
    if std::env::var_os("DURAMEN_UPDATE").is_some() {
        let (first, last) = (found.first().unwrap(), found.last().unwrap());
        let (before, _) = guide.split_once(first).unwrap();
        let (_, after) = guide.rsplit_once(last).unwrap();
        let table = expected.join("\n");
        fs::write(path("docs/guide/server.md"), format!("{before}{table}{after}")).unwrap();
        return;
    }
    assert_eq!(
        found, expected,
        "DURAMEN_UPDATE=1 cargo test -p duramen-server --test suite packaging writes the table"
    );
}

/// The settings that a file names as variables of the environment.
fn named_settings(file: &str) -> Vec<String> {
    let text = read(file);
    let is_letter = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let words = text.split(|letter| !is_letter(letter));
    words
        .filter(|word| word.starts_with("DURAMEN_"))
        .map(String::from)
        .collect()
}

#[test]
fn the_unit_and_the_container_name_settings_that_there_are() {
    let known: BTreeSet<_> = SETTINGS.iter().map(|setting| variable(setting.name)).collect();
    for file in ["packaging/duramen.service", "packaging/Containerfile"] {
        let named = named_settings(file);
        assert!(named.len() >= 3, "{file}");
        for name in named {
            assert!(known.contains(&name), "{file} names {name}");
        }
    }
}

/// All addresses of a container are remote ones: the server does not listen there without a decision of its user.
#[test]
fn the_container_does_not_serve_plaintext_by_accident() {
    let flags = [
        ("data_dir", "store".to_string()),
        ("listen", "0.0.0.0:7420".to_string()),
    ];
    let refused = Config::collect(&flags, None).unwrap_err().to_string();
    assert!(refused.contains("allow_remote_plaintext"), "{refused}");
    let text = read("packaging/Containerfile");
    let environment: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
    assert!(!environment.join("\n").contains("ALLOW_REMOTE_PLAINTEXT"));
}
