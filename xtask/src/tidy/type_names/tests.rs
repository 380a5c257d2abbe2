//! Two types with one name are found, and the list of those that are left can only shrink.

use super::*;

fn findings(files: &[(&str, &str)], known: &[(&str, usize)]) -> Vec<(&'static str, String)> {
    let sources = files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned()));
    let sources: Vec<_> = sources.collect();
    let known = known.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
    let known = Repeated::from([("crates/a".to_owned(), known)]);
    let found = check(&sources, &known).into_iter();
    found.map(|finding| (finding.rule, finding.what)).collect()
}

const TWICE: [(&str, &str); 2] = [
    ("crates/a/src/one.rs", "pub(crate) struct Place<T>(T);\n"),
    ("crates/a/src/two.rs", "#[derive(Debug)]\nenum Place {\n    Here,\n}\n"),
];

#[test]
fn a_name_of_two_types_is_found_with_both_files() {
    let what = "2 types are called Place: crates/a/src/one.rs, crates/a/src/two.rs".to_owned();
    assert_eq!(findings(&TWICE, &[]), [("type-name", what)]);
}

#[test]
fn a_trait_and_a_type_in_one_file_are_two() {
    let found = findings(&[("crates/a/src/one.rs", "trait Turn {}\n\nstruct Turn;\n")], &[]);
    assert_eq!(found.len(), 1, "{found:?}");
}

#[test]
fn packages_tests_aliases_and_variants_may_share_a_name() {
    let files = [
        ("crates/a/src/lib.rs", "#[cfg(test)]\nmod rig;\n"),
        ("crates/a/src/one.rs", "struct Place;\n"),
        ("crates/a/src/two.rs", "type Place = u8;\n\n#[cfg(test)]\nmod tests { struct Place; }\n"),
        ("crates/a/src/rig.rs", "struct Place;\n"),
        ("crates/a/src/four.rs", "enum Way {\n    Place(u8),\n}\n"),
        ("crates/a/tests/five.rs", "struct Place;\n"),
        ("crates/b/src/one.rs", "struct Place;\n"),
    ];
    assert_eq!(findings(&files, &[]), []);
}

#[test]
fn each_driver_has_its_own_registers() {
    let text = "pub struct Registers;\n";
    assert_eq!(findings(&[("crates/a/src/b.rs", text), ("crates/a/src/c.rs", text)], &[]), []);
}

#[test]
fn the_list_can_only_shrink() {
    assert_eq!(findings(&TWICE, &[("Place", 2)]), []);
    let three = [TWICE[0], TWICE[1], ("crates/a/src/three.rs", "union Place {}\n")];
    assert_eq!(findings(&three, &[("Place", 2)]).len(), 1);
    let fewer = findings(&TWICE, &[("Place", 3)]);
    assert_eq!(fewer, [("stale-type-name", "crates/a: Place = 2 is enough".to_owned())]);
    let unique = findings(&TWICE[..1], &[("Place", 2)]);
    let what = "crates/a: remove Place, which is unique".to_owned();
    assert_eq!(unique, [("stale-type-name", what)]);
}
