//! Checks of a command's text: no line is wider than the terminal, nothing is cut or left out silently, and the
//! figures are those of `--wide`. Tests of other crates include it by `#[path]`.

use std::collections::BTreeSet;

use portolan_cli::display::width;

const COLUMNS: [usize; 5] = [40, 60, 80, 120, 200];

/// Figures as printed: words with a digit in them, without the marks that end a sentence. Words in brackets or with a
/// `=` stay whole.
fn figures(text: &str) -> BTreeSet<&str> {
    let words =
        text.split_whitespace().map(|word| word.trim_matches(|one: char| ".,;:()`".contains(one)));
    words
        .filter(|word| word.contains(|one: char| one.is_ascii_digit()) && !word.contains('…'))
        .collect()
}

/// Tells if `line` is the one below a table's head, and no sentence that begins with an option.
fn is_rule(line: &str) -> bool {
    line.starts_with("--") && line.chars().all(|one| one == '-' || one == ' ')
}

/// Compares a text for `columns` columns with the output of `--wide`.
pub fn fits(name: &str, text: &str, wide: &str, columns: usize) {
    let what = format!("{name} on {columns} columns");
    assert!(!text.is_empty() && text.ends_with('\n'), "{what}");
    for line in text.lines() {
        // A file's name stays whole on the narrowest, to be copied.
        let name = columns < 60 && line.starts_with("/sys/") && !line.contains(' ');
        assert!(width(line) <= columns || name, "{what}: `{line}`\n{text}");
        assert_eq!(line.trim_end(), line, "{what}");
    }
    assert!(!text.contains('\u{1b}'), "{what}: {text:?}");
    assert!(!text.contains(['—', '–']), "{what}: a dash\n{text}");
    let (here, all) = (figures(text), figures(wide));
    let odd: Vec<_> = here.difference(&all).collect();
    assert!(odd.is_empty(), "{what}: {odd:?} are not in\n{wide}\nbut in\n{text}");
    assert!(here.len() * 4 >= all.len().min(40), "{what}: hardly a figure\n{text}");
    // Columns that are missing are named, in words that may be broken between.
    let said = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(text.contains('…'), said.contains("… ends what was cut"), "{what}\n{text}");
    let rules = |text: &str| -> Vec<usize> {
        let rules = text.lines().filter(|line| is_rule(line));
        rules.map(|rule| rule.split(' ').count()).collect()
    };
    let (rules, whole) = (rules(text), rules(wide));
    assert_eq!(rules.len(), whole.len(), "{what}: tables\n{text}");
    let lacking = rules.iter().zip(&whole).filter(|(here, all)| here < all);
    let told = said.matches("Left out for want of room: ").count();
    // Several tables may say it together.
    let lacking = lacking.count();
    assert!(told <= lacking, "{what}: columns left out\n{text}");
    assert_eq!(lacking > 0, told > 0, "{what}: columns left out\n{text}");
    for lacks in ["Left out", "… ends"] {
        assert!(!wide.contains(lacks), "{name}: {wide}");
    }
}

/// Compares a text of every width with the output of `--wide`.
pub fn everywhere(name: &str, text: impl Fn(usize) -> String) {
    let wide = text(usize::MAX);
    for columns in COLUMNS {
        fits(name, &text(columns), &wide, columns);
    }
}

/// Each word above a table of `wide` is in the output of `--help`, units and numbers aside.
pub fn has_words(name: &str, wide: &str, help: &str) {
    let units = ["µs", "ns", "%", "MiB", "KiB", "4", "16", "a", "its"];
    let lines: Vec<&str> = wide.lines().collect();
    for pair in lines.windows(2) {
        let [head, rule] = pair else { continue };
        if !is_rule(rule) {
            continue;
        }
        let words = head.split_whitespace().map(|word| word.trim_matches(','));
        for word in words.filter(|word| !units.contains(word)) {
            let found = help.to_lowercase().contains(&word.to_lowercase());
            assert!(found, "{name}: {word} is not in\n{help}");
        }
    }
}
