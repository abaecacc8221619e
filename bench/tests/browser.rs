//! The report in a real browser, without a window: it is shown whole, nothing is said on the console, and nothing is
//! loaded. The page forbids loading by a policy of its own, so a request would be an error on the console; that such an
//! error is seen is tested too. Without a browser on the machine there is nothing to test.

mod common;

use std::path::Path;
use std::process::{Command, Output};

use common::{Place, text};

const BROWSERS: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "chrome"];

/// Opens a page and returns the document as the browser has it then, and what it logged.
fn open(place: &Place, page: &Path) -> Option<Output> {
    let url = format!("file://{}", page.display());
    let profile = format!("--user-data-dir={}", place.file("profile").display());
    let arguments = [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--enable-logging=stderr",
        "--dump-dom",
    ];
    let found = BROWSERS.iter().find_map(|browser| {
        Command::new(browser)
            .args(arguments)
            .arg(&profile)
            .arg(&url)
            .env("HOME", place.path())
            .output()
            .ok()
    });
    if found.is_none() {
        eprintln!("n/a: there is no browser on this machine");
    }
    found
}

fn console(output: &Output) -> Vec<String> {
    let errors = text(&output.stderr);
    errors
        .lines()
        .filter(|line| line.contains("CONSOLE"))
        .map(str::to_string)
        .collect()
}

#[test]
fn report_is_shown_whole_without_a_word_on_the_console_and_loads_nothing() {
    let place = Place::new();
    let output = place.run(&[
        "first",
        "synced-puts",
        "--peers",
        "lmdb,sqlite",
        "--scale",
        "0.001",
        "--repeat",
        "2",
    ]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(place.lab(&["report", "results.json"]).status.success());
    let page = place.file("results.html");
    let Some(shown) = open(&place, &page) else { return };
    let document = text(&shown.stdout);
    assert!(shown.status.success(), "{}", text(&shown.stderr));
    assert!(
        document.contains("Verdict") && document.contains("</footer>"),
        "{document}"
    );
    assert!(
        document.contains("<polyline") && document.contains("synced-puts: 8 threads"),
        "{document}"
    );
    assert_eq!(console(&shown), Vec::<String>::new());

    let spoiled = place.file("spoiled.html");
    let html = std::fs::read_to_string(&page).expect("a page");
    std::fs::write(
        &spoiled,
        html.replace("<main>", "<main><img src=\"http://127.0.0.1:9/x.png\">"),
    )
    .expect("a page");
    let shown = open(&place, &spoiled).expect("a browser, as before");
    assert!(
        !console(&shown).is_empty(),
        "a page that loads something is seen: {}",
        text(&shown.stderr)
    );
}
