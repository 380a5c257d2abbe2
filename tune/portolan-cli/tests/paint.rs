//! Conditions for colour, and that colour carries no information by itself.

use std::collections::BTreeMap;

use portolan_cli::paint::Paint;

const PAGE: &str = "\
A sentence with holds in it.

policy     total
           µs
---------- -----
strict *      12
lazy           9
* costs least.

holds: one and one; two.
FAILS: one and two; three.
";

fn decided(is_terminal: bool, variables: &[(&str, &str)]) -> Paint {
    let variables: BTreeMap<_, _> = variables.iter().copied().collect();
    Paint::decide(is_terminal, |name| variables.get(name).map(Into::into))
}

#[test]
fn colour_is_for_terminals_unless_somebody_says_otherwise() {
    let xterm = ("TERM", "xterm");
    assert_eq!(decided(true, &[xterm]), Paint::On);
    assert_eq!(decided(false, &[xterm]), Paint::Off);
    assert_eq!(decided(true, &[]), Paint::Off);
    assert_eq!(decided(true, &[("TERM", "dumb")]), Paint::Off);
    assert_eq!(decided(true, &[xterm, ("NO_COLOR", "0")]), Paint::Off);
    assert_eq!(decided(true, &[xterm, ("NO_COLOR", "")]), Paint::On);
    let force = ("CLICOLOR_FORCE", "1");
    assert_eq!(decided(false, &[force]), Paint::On);
    assert_eq!(decided(false, &[("CLICOLOR_FORCE", "0")]), Paint::Off);
    assert_eq!(decided(false, &[force, ("NO_COLOR", "1")]), Paint::Off);
}

#[test]
fn colour_is_made_from_words_and_marks() {
    assert_eq!(Paint::Off.page(PAGE), PAGE);
    let painted = Paint::On.page(PAGE);
    for line in [
        "\u{1b}[1mpolicy     total\u{1b}[0m",
        "\u{1b}[1m           µs\u{1b}[0m",
        "strict *      12\u{1b}[0m",
        "\u{1b}[32mholds\u{1b}[0m: one",
        "FAILS\u{1b}[0m: one",
    ] {
        assert!(painted.contains(line), "{line}: {painted:?}");
    }
    for line in ["A sentence with holds in it.", "lazy           9", "* costs least."] {
        assert!(painted.lines().any(|painted| painted == line), "{line}: {painted:?}");
    }
    // Without the escape sequences it is the same page.
    let mut bare = String::new();
    for (number, part) in painted.split('\u{1b}').enumerate() {
        let end = part.find('m').map_or(0, |end| end + 1);
        bare += if number == 0 { part } else { &part[end..] };
    }
    assert_eq!(bare, PAGE);
}
