//! The report in a real headless browser: it is shown in full, the console stays empty, and nothing is loaded. The
//! page's own policy forbids loading, so a request would be an error on the console. A test checks that such an error
//! would be noticed. On a phone nothing is wider than the screen, and the page is dark for users who prefer that.
//! Without a browser on the machine there is nothing to test.

mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::{Place, text};

const BROWSERS: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "chrome"];

/// Opens a page. Returns the browser's document at that point, and its log.
fn open(place: &Place, page: &Path, options: &[&str]) -> Option<Output> {
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
            .args(options)
            .arg(&profile)
            .arg(&url)
            .env("HOME", place.path())
            .output()
            .ok()
    });
    if found.is_none() {
        assert!(std::env::var_os("LAB_TOOLS_REQUIRED").is_none(), "a browser is missing");
        eprintln!("n/a: there is no browser on this machine, so the report is not looked at here");
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

/// Makes a report with tables, curves and two parts.
fn report(place: &Place) -> PathBuf {
    let workloads = ["first", "synced-puts", "--peers", "lmdb,sqlite"];
    let output = place.run(&[&workloads[..], &["--scale", "0.001", "--repeat", "2"]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let output = place.lab(&["report", "results.json", "results.json", "--output", "report.html"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    place.file("report.html")
}

/// A script that inspects a page with everything unfolded. The report itself forbids scripts, so the test inspects a
/// copy.
const LOOK: &str = "<script>document.querySelectorAll('details').forEach(one => { one.open = true; });\
    document.body.dataset.seen = [innerWidth, document.documentElement.scrollWidth, \
    getComputedStyle(document.body).backgroundColor.replaceAll(' ', '')].join(' ');</script>";

/// Returns the width of the window, the width of the page, and its background colour.
fn seen(place: &Place, page: &Path, options: &[&str]) -> Option<(u32, u32, String)> {
    let html = std::fs::read_to_string(page).expect("a page");
    let allowed = html.replace("default-src 'none'", "script-src 'unsafe-inline'");
    assert_ne!(html, allowed, "the policy of the page is another one");
    let copy = place.file("copy.html");
    std::fs::write(&copy, allowed.replace("</body>", &format!("{LOOK}</body>"))).expect("a page");
    let document = text(&open(place, &copy, options)?.stdout);
    let found = document
        .split("data-seen=\"")
        .nth(1)
        .and_then(|rest| rest.split('"').next());
    let words: Vec<&str> = found
        .unwrap_or_else(|| panic!("the script ran: {document}"))
        .split(' ')
        .collect();
    let [window, page, ground] = words.as_slice() else {
        panic!("three words: {words:?}")
    };
    let number = |word: &str| word.parse().expect("a number");
    Some((number(window), number(page), ground.to_string()))
}

#[test]
fn on_a_phone_nothing_is_wider_than_the_screen() {
    let place = Place::new();
    let page = report(&place);
    let Some((window, width, _)) = seen(&place, &page, &["--window-size=400,800"]) else {
        return;
    };
    assert!(window <= 640, "as narrow as the style sheet thinks of: {window}");
    assert!(width <= window, "{width} in a window of {window}");

    let wide = place.file("wide.html");
    let html = std::fs::read_to_string(&page).expect("a page");
    std::fs::write(
        &wide,
        html.replace("<main>", "<main><p style=\"width:2000px\">wide</p>"),
    )
    .expect("a page");
    let (window, width, _) = seen(&place, &wide, &["--window-size=400,800"]).expect("a browser, as before");
    assert!(width > window, "what is too wide is seen");
}

#[test]
fn report_is_dark_for_who_wants_it_so() {
    let place = Place::new();
    let page = report(&place);
    let Some((_, _, light)) = seen(&place, &page, &[]) else {
        return;
    };
    let (_, _, dark) = seen(&place, &page, &["--force-dark-mode"]).expect("a browser, as before");
    assert_eq!((light.as_str(), dark.as_str()), ("rgb(255,255,255)", "rgb(13,17,23)"));
}

#[test]
fn report_is_shown_whole_without_a_word_on_the_console_and_loads_nothing() {
    let place = Place::new();
    let page = report(&place);
    let Some(shown) = open(&place, &page, &[]) else { return };
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
    let shown = open(&place, &spoiled, &[]).expect("a browser, as before");
    assert!(
        !console(&shown).is_empty(),
        "a page that loads something is seen: {}",
        text(&shown.stderr)
    );
}
