//! Pages in a browser: whole, and faults of broken ones are found.

mod browser;
mod gallery;

use std::path::{Path, PathBuf};

use browser::Browser;

fn write(name: &str, text: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, text).expect("a page can be written");
    path
}

#[test]
fn pages_are_whole_in_a_browser_which_finds_what_is_broken() {
    let Some(mut browser) = Browser::start() else {
        return;
    };
    let html = gallery::page().html().expect("the gallery is drawn");
    let visit = browser.visit(&write("gallery.html", &html));
    assert!(visit.complaints.is_empty(), "{}", visit.complaints.join("\n"));
    let drawn = html.matches("class=\"plot\"").count();
    assert!(visit.plots == drawn && drawn > 20, "{} of {drawn} plots", visit.plots);
    let mut small = gallery::page();
    small.sections.truncate(1);
    small.sections[0].figures.truncate(2);
    let html = small.html().expect("a page is drawn");
    for (name, from, to, complaint) in BROKEN {
        assert!(html.contains(from), "{name}: no {from} to break");
        let broken = html.replacen(from, to, 1);
        let broken = match *name {
            "request" => {
                broken.replacen("<h1>", "<img src=\"http://example.invalid/x.png\"><h1>", 1)
            }
            "exception" => broken.replacen("<h1>", "<script>throw 'x'</script><h1>", 1),
            _ => broken,
        };
        let visit = browser.visit(&write(&format!("{name}.html"), &broken));
        let found = visit.complaints.iter().any(|found| found.contains(complaint));
        assert!(found, "{name} is not found: {:?}", visit.complaints);
    }
}

/// Ways to break a page, and the fault that must then be found.
const BROKEN: &[(&str, &str, &str, &str)] = &[
    ("overflow", "<h1>", "<div style=\"width:2000px\">wide</div><h1>", "pixels wide"),
    (
        "cut",
        "<h1>",
        "<p style=\"width:50px;overflow:hidden;white-space:nowrap\">a long sentence</p><h1>",
        "is cut",
    ),
    ("message", "</h1>", "</h1><script>console.error('x')</script>", "log: "),
    ("image", "<h1>", "<img src=\"http://example.invalid/x.png\" alt=\"\"><h1>", "log: "),
    ("request", "default-src 'none'", "default-src *", "request: "),
    ("exception", "default-src 'none'", "script-src-elem 'unsafe-inline'", "exception: "),
    ("missing", "<svg class=\"wide\"", "<p", "shows 0 plots"),
    ("text", "<text class=\"t e\" x=\"", "<text class=\"t e\" x=\"-", "text stands out"),
    ("unnamed", " role=\"img\"", "", "has no name"),
    ("script", "script-src 'sha256-", "script-src 'sha256-x", "did not run"),
    ("heading", "<h3", "<h4", "heading of level 4"),
    ("link", "href=\"#s0\"", "href=\"#nowhere\"", "leads nowhere"),
];
