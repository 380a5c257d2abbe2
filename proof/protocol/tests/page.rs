//! The page of the protocol names all of it, and the code that it names is there.

use std::path::Path;

use portolan_protocol::defects::{defects, starvations};
use portolan_protocol::formats::claims::CLAIMS;
use portolan_protocol::protocol::{Protocol, address_space};
use portolan_protocol::small;

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// A page with one space between words, as lines break anywhere.
fn page(name: &str) -> String {
    let text = std::fs::read_to_string(root().join("docs").join(name)).expect("the page");
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn the_page_has_every_fact_step_conjunct_promise_and_defect() {
    let (page, protocol) = (page("protocol.md"), address_space());
    let facts = protocol.relations.iter().flat_map(|one| [one.name, one.meaning]);
    let steps = protocol.steps.iter().map(|step| step.name);
    let claims = protocol.invariant.iter().chain(&protocol.safety).map(|claim| claim.says);
    let (wrong, starving) = (defects(), starvations());
    let wrong = wrong.iter().chain(&starving).map(|defect| defect.says);
    let all: Vec<&str> = facts.chain(steps).chain(claims).chain(wrong).collect();
    let missing: Vec<&&str> = all.iter().filter(|words| !page.contains(**words)).collect();
    assert!(missing.is_empty(), "not in docs/protocol.md: {missing:#?}");
}

#[test]
fn the_page_of_small_protocols_has_all_of_them() {
    let page = page("small-protocols.md");
    for scope in small::all() {
        let Protocol { relations, steps, invariant, safety, .. } = &scope.protocol;
        let facts = relations.iter().flat_map(|one| [one.name, one.meaning]);
        let steps = steps.iter().map(|step| step.name);
        let claims = invariant.iter().chain(safety).map(|claim| claim.says);
        let starving = scope.endless.iter().flat_map(|one| &one.starvations);
        let wrong = scope.defects.iter().chain(starving);
        let wrong = wrong.flat_map(|defect| [defect.says, defect.seen]);
        let ends = scope.endless.iter().map(|one| one.says);
        let all: Vec<&str> = facts.chain(steps).chain(claims).chain(wrong).chain(ends).collect();
        let missing: Vec<&&str> = all.iter().filter(|words| !page.contains(**words)).collect();
        assert!(missing.is_empty(), "{}: not in docs/small-protocols.md: {missing:#?}", scope.name);
    }
}

#[test]
fn the_page_of_formats_has_every_claim_and_mistake() {
    let page = page("formats.md");
    let claims = CLAIMS.iter().flat_map(|(name, says)| [*name, *says]);
    let mistakes = portolan_formats::mistakes();
    let all: Vec<&str> = claims.chain(mistakes.iter().map(|mistake| mistake.says)).collect();
    let missing: Vec<&&str> = all.iter().filter(|words| !page.contains(**words)).collect();
    assert!(missing.is_empty(), "not in docs/formats.md: {missing:#?}");
}

#[test]
fn the_code_of_each_step_is_where_it_says() {
    let small = small::all().into_iter().flat_map(|scope| scope.protocol.steps);
    for step in address_space().steps.into_iter().chain(small) {
        let Some((file, function)) = step.place.split_once(' ') else {
            assert!(step.place.is_empty(), "{}", step.name);
            continue;
        };
        let code = std::fs::read_to_string(root().join(file)).expect(file);
        assert!(code.contains(&format!("fn {function}")), "{}: {}", step.name, step.place);
    }
}
