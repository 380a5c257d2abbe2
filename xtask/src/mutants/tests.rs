//! Choosing, naming and counting, without the tool.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::equivalents::Equivalents;
use super::options::Options;
use super::report::{Fate, Report};
use super::sample::{Listed, Mutant, choose};
use super::stage::{Reach, Verdict, ends_well, known};
use super::tool::check_out;

fn mutant(package: &str, file: &str, place: usize) -> Mutant {
    let file = format!("crates/{package}/src/{file}");
    Mutant {
        name: format!("{file}:{place}:1: replace + with - in sum"),
        package: package.to_owned(),
        file,
        change: "replace + with - in sum".to_owned(),
        line: format!("a + {place}"),
        diff: String::new(),
    }
}

fn many() -> Vec<Mutant> {
    let rooms = [("portolan", "dma/space.rs", 40), ("portolan", "ids.rs", 3)];
    let rooms = rooms.into_iter().chain([("portolan-hw", "vtd/ring.rs", 90)]);
    rooms
        .flat_map(|(package, file, number)| (0..number).map(move |at| mutant(package, file, at)))
        .collect()
}

fn rooms(chosen: &[Mutant]) -> BTreeMap<String, usize> {
    let mut rooms = BTreeMap::new();
    for mutant in chosen {
        *rooms.entry(mutant.room()).or_default() += 1;
    }
    rooms
}

#[test]
fn each_room_has_its_share() {
    let all = many();
    let chosen = choose(&all, 23, 7);
    let expected = [("portolan/dma", 10), ("portolan/ids", 3), ("portolan-hw/vtd", 10)];
    let expected = expected.map(|(room, number)| (room.to_owned(), number));
    assert_eq!(rooms(&chosen), BTreeMap::from(expected));
    assert_eq!(choose(&all, 1000, 7).len(), all.len());
    // Fewer places than rooms: not always the same rooms.
    let first = |seed| choose(&all, 1, seed)[0].room();
    let found: std::collections::BTreeSet<_> = (0..50).map(first).collect();
    assert_eq!(found.len(), 3);
}

#[test]
fn the_same_seed_chooses_the_same_mutants_in_any_order() {
    let mut all = many();
    let chosen = choose(&all, 20, 42);
    all.reverse();
    assert_eq!(choose(&all, 20, 42), chosen);
    assert_ne!(choose(&all, 20, 43), chosen);
}

#[test]
fn a_mutant_knows_its_line_and_its_change_without_the_place() {
    let listed = r#"{"name": "crates/portolan/src/a.rs:2:9: replace f -> X with Y: Z",
        "diff": "--- crates/portolan/src/a.rs\n+++ replace f\n@@ -1 +1 @@\n-a\n+b\n",
        "package": "portolan", "file": "crates/portolan/src/a.rs", "genre": "FnValue",
        "span": {"start": {"line": 2, "column": 9}, "end": {"line": 2, "column": 12}}}"#;
    let listed: Listed = serde_json::from_str(listed).unwrap();
    let mutant = Mutant::of(listed, "fn f() -> X {\n    X::new()\n}\n");
    assert_eq!(mutant.change, "replace f -> X with Y: Z");
    assert_eq!((mutant.line.as_str(), mutant.room().as_str()), ("X::new()", "portolan/a"));
    let file = "crates/portolan/src/a.rs";
    let patch = format!("--- a/{file}\n+++ b/{file}\n@@ -1 +1 @@\n-a\n+b\n");
    assert_eq!(mutant.patch(), patch);
}

#[test]
fn an_exclusion_that_matches_no_mutant_is_stale() {
    let text = r"exclude_re = ['src/ids\.rs.*: replace \+ with - in sum$', 'src/gone\.rs']";
    let stale = Equivalents::parse(text).unwrap().stale(&many()).unwrap();
    assert_eq!(stale, [r"src/gone\.rs"]);
    let no_pattern = Equivalents::parse("exclude_re = ['(']").unwrap();
    assert!(no_pattern.stale(&many()).is_err());
    assert!(Equivalents::parse("exclude = 1").is_err());
}

/// A run that was cut short left a part of a line.
#[test]
fn an_interrupted_run_goes_on_where_it_was() {
    let record = concat!(
        r#"{"name": "a", "reach": "Own", "verdict": "Survived"}"#,
        "\n",
        r#"{"name": "a", "reach": "Wider", "verdict": "Hung"}"#,
        "\n",
        r#"{"name": "b", "reach": "Own", "verd"#
    );
    let known = known(record);
    let of = |name: &str, reach| known.get(&(name.to_owned(), reach)).copied();
    assert_eq!(of("a", Reach::Own), Some(Verdict::Survived));
    assert_eq!(of("a", Reach::Wider), Some(Verdict::Hung));
    assert_eq!(of("b", Reach::Own), None);
}

#[test]
fn tests_that_do_not_end_are_stopped_with_all_that_they_started() {
    let shell = |script: &str, limit| {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdout(Stdio::piped());
        ends_well(&mut command, limit).unwrap()
    };
    let (long, none) = (Duration::from_secs(600), Duration::ZERO);
    assert_eq!(shell("true", long), Some(true));
    assert_eq!(shell("exit 3", long), Some(false));
    assert_eq!(shell("sleep 600 & sleep 600", none), None);
}

#[test]
fn percentages_leave_out_what_cannot_be_caught() {
    let all = many();
    let fates = [Fate::Caught, Fate::Caught, Fate::CaughtWider, Fate::Survived, Fate::Unviable];
    let mut report = Report {
        commit: "0123456789abcdef".to_owned(),
        seed: 5,
        of: all.len(),
        excluded: 7,
        least: 75.0,
        stale: Vec::new(),
        results: all.into_iter().zip(fates).collect(),
    };
    let total = report.total();
    assert_eq!((total.sampled, total.own, total.wider), (5, 2, 1));
    assert_eq!((total.unviable, total.survived), (1, 1));
    assert_eq!(total.percent(), 75.0);
    assert!(report.good());
    let text = report.to_string();
    for said in ["5 of 133 mutants of 0123456789ab, --seed 5; 7 are", "3 of 4", "(75.0 %)"] {
        assert!(text.contains(said), "{said:?} is not in\n{text}");
    }
    let json: serde_json::Value = serde_json::from_str(&report.json().unwrap()).unwrap();
    assert_eq!(json["total"]["survived"], 1);
    assert_eq!(json["rooms"]["portolan/dma"]["sampled"], 5);
    assert_eq!(json["survivors"][0]["line"], "a + 3");
    report.least = 75.1;
    assert!(!report.good());
    report.least = 0.0;
    report.stale.push("gone".to_owned());
    assert!(!report.good());
}

#[test]
fn options_are_read_or_refused() {
    let parsed = Options::parse(&["--sample", "4", "--seed", "9", "--least", "50.5", "--json"]);
    let options = parsed.unwrap();
    assert_eq!((options.sample, options.seed), (4, 9));
    assert!(options.json && !options.list && options.least == 50.5);
    assert_eq!(Options::parse(&[]).unwrap().sample, 200);
    let parts = ["1/3", "2/3", "3/3"].map(|word| Options::parse(&["--part", word]).unwrap().part);
    let parts = parts.map(|part| part.of((0..7).collect()));
    assert_eq!(parts, [vec![0, 3, 6], vec![1, 4], vec![2, 5]]);
    let wrong = [
        &["--sample"][..],
        &["--sample", "0"],
        &["--seed", "-1"],
        &["--least", "101"],
        &["--least", "NaN"],
        &["--part", "0/3"],
        &["--part", "4/3"],
        &["--part", "1"],
        &["--many"],
    ];
    for words in wrong {
        assert!(Options::parse(words).is_err(), "{words:?}");
    }
}

#[test]
fn a_work_tree_of_which_git_knows_nothing_any_more_is_made_again() {
    let folder = std::env::temp_dir().join(format!("pruned-tree-{}", std::process::id()));
    let (root, tree) = (folder.join("root"), folder.join("tree"));
    std::fs::create_dir_all(&root).unwrap();
    let author = ["-c", "user.name=a", "-c", "user.email=a@b"];
    for arguments in [&["init"][..], &["commit", "--allow-empty", "-m", "first"]] {
        let mut git = Command::new("git");
        git.args(author).args(arguments).current_dir(&root).stdout(Stdio::null());
        assert!(git.stderr(Stdio::null()).status().unwrap().success());
    }
    check_out(&root, &tree, "HEAD").unwrap();
    std::fs::write(tree.join("left"), "of another run").unwrap();
    check_out(&root, &tree, "HEAD").unwrap();
    assert!(tree.join("left").exists(), "a tree that is known stays");
    std::fs::remove_dir_all(root.join(".git/worktrees")).unwrap();
    check_out(&root, &tree, "HEAD").unwrap();
    assert!(tree.join(".git").exists() && !tree.join("left").exists());
    std::fs::remove_dir_all(&folder).unwrap();
}
