//! Each rule catches the lines that it is for, and leaves the rest alone.

use super::*;

fn rules(path: &str, text: &str) -> Vec<&'static str> {
    rules::rust(path, text).into_iter().map(|finding| finding.rule).collect()
}

const GOOD: &str = "//! Header.\n\nfn f() {\n    let c = '{';\n}\n";

#[test]
fn a_good_file_passes() {
    assert!(rules("crates/x/src/walk.rs", GOOD).is_empty());
}

#[test]
fn each_rule_catches_its_case() {
    let long = format!("//! H\n{}", "\n".repeat(700));
    let tests = format!("//! H\nmod tests {{\n{}}}\n", "    g(\"}\"); // {\n".repeat(160));
    let cases = [
        ("crates/x/src/walk.rs", long, "file-length"),
        ("crates/x/src/walk.rs", "fn f() {}\n".to_owned(), "header"),
        ("crates/x/src/utils.rs", GOOD.to_owned(), "name"),
        ("proof/conformance/src/lib.rs", GOOD.to_owned(), "forbid-unsafe"),
        ("crates/x/src/walk.rs", tests, "tests-length"),
        ("crates/x/src/walk.rs", format!("//! {}\n", "x".repeat(130)), "column"),
        ("crates/x/src/walk.rs", format!("{GOOD}// {}ME\n", "FIX"), "mark"),
        ("crates/portolan/src/walk.rs", format!("{GOOD}fn intel() {{}}\n"), "vendor"),
        ("crates/x/src/walk.rs", format!("{GOOD}fn g() -> Option<()> {{}}\n"), "option"),
        ("crates/x/tests/walk.rs", format!("{GOOD}fn g() {{ Instant::now() }}\n"), "clock"),
        (
            "crates/x/src/walk.rs",
            format!("{GOOD}#[cfg(test)]\nmod t {{\n    thread::sleep(1);\n}}\n"),
            "clock",
        ),
        (
            "crates/x/src/walk.rs",
            format!("{GOOD}impl<W: Word, M: TableMem<W>> TableMem<W> for A<M> {{\n}}\n"),
            "protocol-step",
        ),
        (
            "crates/x/src/walk.rs",
            format!("{GOOD}unsafe impl<P> Platform for A<P>\nwhere\n    P: Platform,\n{{\n}}\n"),
            "protocol-step",
        ),
    ];
    for (path, text, rule) in cases {
        assert_eq!(rules(path, &text), [rule], "{path}");
    }
}

#[test]
fn steps_are_passed_on_by_what_stands_before_another() {
    let own = "impl<W: Word> TableMem<W> for A<W> {\n}\n";
    let told = "impl<C: Cpus> Cpus for A<C> {\n    fn protocol_step() {}\n}\n";
    assert!(rules("crates/x/src/walk.rs", &format!("{GOOD}{own}{told}")).is_empty());
}

#[test]
fn what_is_said_in_comments_and_strings_is_not_code() {
    let text = format!("{GOOD}fn g() {{ h(\"intel\") }} // intel\n");
    assert!(rules("crates/portolan/src/walk.rs", &text).is_empty());
}

#[test]
fn the_wall_clock_is_for_products_and_for_tests_with_a_reason() {
    let text = format!("{GOOD}fn g() {{ Instant::now() }}\n");
    assert!(rules("crates/x/src/walk.rs", &text).is_empty());
    let text = format!("{GOOD}// CLOCK: ends a test that hangs.\nfn g() {{ Instant::now() }}\n");
    assert!(rules("crates/x/tests/walk.rs", &text).is_empty());
}

#[test]
fn links_and_paths() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    assert!(documents::links(here, "x.md", "[a](Cargo.toml) [c](https://d.e)").is_empty());
    assert_eq!(documents::links(here, "x.md", "[a](nothing.md)").len(), 1);
    assert_eq!(rules::workplace("x.md", concat!("see /wo", "rk/x")).len(), 1);
}

#[test]
fn contributing_says_what_the_rules_are() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let text = std::fs::read_to_string(root.join("CONTRIBUTING.md")).unwrap();
    let layout = std::fs::read_to_string(root.join("rustfmt.toml")).unwrap();
    let lints = std::fs::read_to_string(root.join("clippy.toml")).unwrap();
    let number = |of: &str, key: &str| -> String {
        of.split(key).nth(1).unwrap().lines().next().unwrap().to_owned()
    };
    let function = number(&lints, "too-many-lines-threshold = ");
    let [file, tests, column] = rules::LIMITS;
    for said in [
        format!("to {file} lines and no longer"),
        format!("functions of at most {function}"),
        format!("more than {tests} lines of tests"),
        format!("strings within {column}"),
    ] {
        assert!(text.contains(&said), "{said}");
    }
    let code = number(&layout, "max_width = ");
    assert!(text.contains(&format!("code within {code} columns")), "{code}");
}

/// `docs/status.md` shortens the commands: `demo NAME`, `guest NAME`, backends of `check`.
#[test]
fn the_status_names_machines_and_backends_that_there_are() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let text = |path: &str| std::fs::read_to_string(root.join(path)).unwrap();
    let (status, backends) =
        (text("docs/status.md"), text("proof/conformance/src/backend/named.rs"));
    let mut seen = 0;
    for span in status.split('`').skip(1).step_by(2) {
        let mut words = span.split_whitespace();
        let first = words.next().unwrap_or("");
        let known = |name: &&str| match first {
            "demo" => crate::demo::all().any(|guest| guest.name == *name),
            _ => crate::guest::ALL.iter().any(|machine| machine.name == *name),
        };
        if first == "demo" || first == "guest" {
            assert_eq!(words.find(|name| !known(name)), None, "{span}");
            seen += 1;
        }
        for backend in
            span.split_whitespace().filter(|word| word.contains("model:") || word.contains("qemu:"))
        {
            assert!(backends.contains(&format!("\"{backend}\"")), "{backend}");
            seen += 1;
        }
    }
    assert!(seen > 20, "{seen}");
}

#[test]
fn arrows_run_one_way() {
    let metadata = |name: &str, on: &str, kind: &str| {
        serde_json::from_str::<serde_json::Value>(&format!(
            r#"{{"packages":[{{"name":"{on}","dependencies":[]}},
                {{"name":"{name}","dependencies":[{{"name":"{on}","kind":{kind}}}]}}]}}"#
        ))
        .unwrap()
    };
    let found = |name, on, kind| arrows::findings(&metadata(name, on, kind)).len();
    assert_eq!(found("portolan-tune", "portolan-sim", "null"), 0);
    assert_eq!(found("portolan-tune", "portolan-chips", "null"), 1);
    assert_eq!(found("portolan-tune", "portolan-verify", "null"), 1);
    assert_eq!(found("portolan", "portolan-chips", "null"), 1);
    assert_eq!(found("portolan", "portolan-chips", "\"dev\""), 0);
    assert_eq!(found("stranger", "portolan", "null"), 1);
}

#[test]
fn a_c_library_of_the_first_command_is_found_once() {
    let tree = "portolan-tune v0.1.0 (/here)\nzstd v0.13.3\nzstd-sys v2.0.1\nzstd-sys v2.0.1 (*)\n";
    let found = arrows::c_libraries(tree);
    assert_eq!(found.len(), 1);
    assert!(found[0].what.contains("zstd-sys"), "{found:?}");
}

#[test]
fn exceptions_need_a_reason_and_a_use() {
    let found = || vec![Finding { path: "a.rs".to_owned(), rule: "header", what: String::new() }];
    let with = |path: &str, reason: &str| Exceptions {
        exception: vec![Exception {
            path: path.to_owned(),
            rule: "header".to_owned(),
            reason: reason.to_owned(),
        }],
    };
    assert!(except(found(), &with("a.rs", "made by a tool")).is_empty());
    assert_eq!(except(found(), &with("a.rs", " ")).len(), 2);
    assert_eq!(except(found(), &with("b.rs", "r"))[1].rule, "stale-exception");
}

fn module_sources() -> Vec<(String, String)> {
    [
        ("a.rs", "// crate::c\nuse crate::b::X;\n"),
        ("b/mod.rs", "use crate::{c::Y, d};\n#[cfg(test)]\nmod tests { use crate::a; }"),
        ("b/deep.rs", "fn f() -> crate::b::Z {}"),
        ("b/tests/one.rs", "use crate::a;"),
        ("c.rs", ""),
        ("d.rs", "use crate::c;"),
    ]
    .map(|(path, text)| (format!("crates/portolan/src/{path}"), text.to_owned()))
    .to_vec()
}

#[test]
fn the_map_of_modules_shows_what_each_uses_behind_it() {
    let map = modules::map(&module_sources());
    let wanted = "portolan\n  c\n  d            c\n  b            c d\n  a            b\n";
    assert!(map.starts_with(wanted), "{map}");
    let rules = |shown: &str| {
        let found = modules::check(&module_sources(), shown);
        found.into_iter().map(|finding| finding.rule).collect::<Vec<_>>()
    };
    assert!(rules(&format!("# Here\n\n{map}")).is_empty());
    assert_eq!(rules(""), ["map"]);
}

#[test]
fn modules_that_use_each_other_are_found() {
    let mut sources = module_sources();
    let uses = modules::uses("crates/portolan/src/", &sources);
    assert!(modules::circles(&uses).is_empty());
    sources.push(("crates/portolan/src/c.rs".to_owned(), "use crate::b;".to_owned()));
    let uses = modules::uses("crates/portolan/src/", &sources);
    assert_eq!(modules::circles(&uses), [["b", "c", "d"]]);
}

#[test]
fn files_of_a_module_that_use_each_other_are_found() {
    let files = [
        ("a/mod.rs", "mod b;\nuse b::c::X;"),
        ("a/b/mod.rs", "use super::d::{self, e::{F, G as H}, I};"),
        ("a/b/c.rs", "use super::Y;\nuse super::super::d::J;"),
        ("a/d.rs", "// super::b::c\nmod inner { use super::*; }"),
        ("a/d/e.rs", "use super::K;"),
    ];
    let uses = |more: (&str, &str)| {
        let all = files
            .into_iter()
            .chain([more])
            .map(|(path, text)| (format!("x/src/{path}"), text.to_owned()));
        modules::files("x/src/", &all.collect::<Vec<_>>())
    };
    let fine = uses(("a/d/f.rs", "use crate::a::{g, d::e::{L}};"));
    assert!(modules::circles(&fine).is_empty(), "{fine:?}");
    let around = uses(("a/d/e.rs", "use super::super::{z, b::{c::M, N}};"));
    assert_eq!(modules::circles(&around), [["a/b", "a/d/e"]]);
}

#[test]
fn a_layer_uses_those_below_it_alone() {
    let uses = |list: &[(&str, &[&str])]| -> modules::Uses {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        list.iter().map(|(file, used)| ((*file).to_owned(), owned(used))).collect()
    };
    let layers = ["ground", "roof"];
    let fine =
        uses(&[("a/roof/tiles", &["a/ground", "b"]), ("a/ground", &["b"]), ("b", &["a/roof"])]);
    assert!(modules::upward(&fine, "a", &layers).is_empty());
    let upward = uses(&[("a/ground/stones", &["a/roof/tiles"]), ("a/cellar", &[])]);
    assert_eq!(modules::upward(&upward, "a", &layers).len(), 2);
}
