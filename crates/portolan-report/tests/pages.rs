//! Pages in a browser: whole, and what is wrong with broken ones is found.

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
    assert!(
        visit.complaints.is_empty(),
        "{}",
        visit.complaints.join("\n")
    );
    let drawn = html.matches("class=\"plot\"").count();
    assert!(
        visit.plots == drawn && drawn > 20,
        "{} of {drawn} plots",
        visit.plots
    );
    for (name, from, to, complaint) in BROKEN {
        assert!(html.contains(from), "{name}: no {from} to break");
        let broken = html.replacen(from, to, 1);
        let visit = browser.visit(&write(&format!("{name}.html"), &broken));
        let found = visit
            .complaints
            .iter()
            .any(|found| found.contains(complaint));
        assert!(found, "{name} is not found: {:?}", visit.complaints);
    }
}

/// What a page is broken by, and what has to be found then.
const BROKEN: &[(&str, &str, &str, &str)] = &[(
    "overflow",
    "<main",
    "<div style=\"width:2000px\">wide</div><main",
    "pixels wide",
)];
