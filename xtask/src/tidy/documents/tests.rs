//! Each check fails on the mistakes that it is for, and on nothing else.

use std::path::Path;

use super::*;

const CODE: &str = "
    pub unsafe trait Platform: Clone + 'static { fn now(&self) -> u64; fn relax(&self) { \"}\"; } }
    pub struct Heap<const N: usize> { pub free: u64 }
    impl<const N: usize> Heap<N> { const MOST: char = '}'; fn take(&self) -> impl Sized {} }
    impl Platform for Heap<2> { fn now(&self) -> u64 { 0 } }
    pub type Small = Heap<1>;
    macro_rules! causes { ($($cause:ident)*) => { pub enum Cause { $($cause,)* } } }
    causes! { Full Empty }
    // fn gone_as_it_stands_in_a_comment() {}
    fn a_heap_gives_back_what_it_was_given() {}";

fn stale(text: &str) -> Vec<String> {
    let source = |path: &str, text: &str| (path.to_owned(), text.to_owned());
    let sources = [source("crates/x/tests/heap.rs", CODE)];
    let paths = ["crates/x/tests/heap.rs", "crates/x/Cargo.toml", "docs/heap.md"];
    let paths = paths.map(str::to_owned);
    let definitions = Definitions::of(&sources);
    let packages = [("x".to_owned(), "crates/x".to_owned())].into();
    names::Known::new(&paths, &packages, &definitions).check("docs/page.md", text)
}

#[test]
fn names_that_are_there_pass() {
    for name in [
        "Heap",
        "Heap::take",
        "Heap::take()",
        "Heap::MOST",
        "Heap::free",
        "x::Heap::take",
        "Heap::relax",
        "Small::take",
        "Platform::relax",
        "Cause::Full",
        "Empty",
        "take()",
        "a_heap_gives_back_what_it_was_given",
        "crates/x/tests/heap.rs::a_heap_gives_back_what_it_was_given",
        "crates/x/tests/heap.rs::*",
        "crates/x/tests/heap.rs::*_gives_back_*",
        "crates/*/tests/heap.rs::*",
        "tests/heap.rs",
        "heap.md",
        "cargo test -p x --test heap",
        "some words, and a = b",
        "unmap_page",
    ] {
        assert_eq!(stale(&format!("Text `{name}`.")), [""; 0], "{name}");
    }
}

#[test]
fn stale_names_are_found() {
    for name in [
        "Stack",
        "Heap::steal",
        "Heap::now_and_then",
        "Stack::take",
        "Small::steal",
        "Platform::take",
        "Cause::Late",
        "x::heaps::take",
        "steal()",
        "gone_as_it_stands_in_a_comment",
        "crates/x/tests/heap.rs::a_heap_keeps_everything",
        "crates/x/tests/heap.rs::*_steals_*",
        "crates/x/tests/stack.rs::a_heap_gives_back_what_it_was_given",
        "tests/stack.rs",
        "cargo test -p y",
        "cargo test -p x --test stack",
        "cargo run -p x --example heap",
    ] {
        assert_eq!(stale(&format!("Text `{name}`.")).len(), 1, "{name}");
    }
    assert_eq!(stale("```text\n`Stack`\n```\n"), [""; 0]);
}

#[test]
fn a_list_of_others_names_has_none_that_is_not_needed() {
    let definitions = Definitions::default();
    let packages = [].into();
    let known = names::Known::new(&[], &packages, &definitions);
    let before = known.unused_foreign().len();
    assert!(known.check("docs/page.md", "`LocalCluster`").is_empty());
    assert_eq!(known.unused_foreign().len(), before - 1);
}

#[test]
fn links_lead_to_files_and_headings() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let found = |text: &str| links(&root, "docs/page.md", text).len();
    for good in [
        "[a](../README.md)",
        "[b](../CONTRIBUTING.md#rules-for-a-change)",
        "[c](https://a.b/c#d)",
        "```text\n[d](nothing.md)\n```",
    ] {
        assert_eq!(found(good), 0, "{good}");
    }
    for bad in [
        "[a](nothing.md)",
        "[b](../CONTRIBUTING.md#rules-for-no-change)",
        "[c](../Cargo.toml#workspace)",
        "[d](#nowhere)",
    ] {
        assert_eq!(found(bad), 1, "{bad}");
    }
    let two = "# Two\n\n## `a::b` & c\n\n## `a::b` & c\n";
    let headings = ["two", "ab--c", "ab--c-1", "ab--c-2"].map(|name| links::has_heading(two, name));
    assert_eq!(headings, [true, true, true, false]);
}

#[test]
fn readmes_are_short() {
    let lines = |count| "a\n".repeat(count);
    assert_eq!(too_long("README.md", &lines(130)), None);
    assert!(too_long("README.md", &lines(131)).is_some());
    assert!(too_long("README.md", &"a ".repeat(1_001)).is_some());
    assert_eq!(too_long("crates/x/README.md", &lines(40)), None);
    assert!(too_long("crates/x/README.md", &lines(41)).is_some());
    assert_eq!(too_long("docs/page.md", &lines(1_000)), None);
}

#[test]
fn each_dependency_has_a_reason() {
    let there = BTreeSet::from(["anyhow".to_owned()]);
    assert!(dependencies(&there, "| `anyhow` | errors |\n").is_empty());
    assert_eq!(dependencies(&there, "").len(), 1);
    assert_eq!(dependencies(&there, "| `anyhow` | a |\n| `gone` | b |\n").len(), 1);
}

#[test]
fn figures_of_the_readme_are_those_that_were_measured() {
    let page = "| `map` | 7.38 (5.91–8.55) | 107 (84–115) | 14 |\n";
    assert!(figures("| a page | `map` | 7.38 | 107 |\n", page).is_empty());
    assert_eq!(figures("| a page | `map` | 7.3 | 107 |\n", page).len(), 1);
    assert_eq!(figures("| a page | `unmap` | 7.38 | 107 |\n", page).len(), 1);
}
