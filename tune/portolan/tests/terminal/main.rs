//! Output of every command on terminals of 40 to 200 columns: no line is wider, nothing is cut or left out without a
//! word, and the figures are those of `--wide`. Texts are rendered here; `pty.rs` runs the built command on
//! terminals.

mod pty;

use std::collections::BTreeSet;
use std::path::Path;

use portolan_cli::display::width;
use portolan_sim::profile::Profile;
use portolan_tune::linux::{Asked, LinuxArgs};
use portolan_tune::replay::Policy;
use portolan_tune::{explain, firmware, machines, replay, reproduce, scale, synthetic};

const COLUMNS: [usize; 5] = [40, 60, 80, 120, 200];

/// Figures as printed: words with a digit in them, without the marks that end a sentence. Those in brackets or beside
/// a `=` stay whole.
fn figures(text: &str) -> BTreeSet<&str> {
    let words = text.split_whitespace();
    let words = words.map(|word| word.trim_matches(|one: char| ".,;:()`".contains(one)));
    words
        .filter(|word| word.contains(|one: char| one.is_ascii_digit()) && !word.contains('…'))
        .collect()
}

/// Holds one text, printed on so many columns, against that of `--wide`.
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
        let rules = text.lines().filter(|line| line.starts_with("--"));
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

fn everywhere(name: &str, text: impl Fn(usize) -> String) {
    let wide = text(usize::MAX);
    for columns in COLUMNS {
        fits(name, &text(columns), &wide, columns);
    }
}

/// Each word above a table of `wide` is in the output of `--help`, units and numbers aside.
fn has_words(name: &str, wide: &str, help: &str) {
    let units = ["µs", "ns", "%", "MiB", "KiB", "4", "16", "a", "its"];
    let lines: Vec<&str> = wide.lines().collect();
    for pair in lines.windows(2) {
        let [head, rule] = pair else { continue };
        if !rule.starts_with("--") {
            continue;
        }
        let words = head.split_whitespace();
        let words = words.map(|word| word.trim_matches(','));
        for word in words.filter(|word| !units.contains(word)) {
            let found = help.to_lowercase().contains(&word.to_lowercase());
            assert!(found, "{name}: {word} is not in\n{help}");
        }
    }
}

fn profile(name: &str) -> Profile {
    Profile::by_name(name).unwrap()
}

#[test]
fn replays_fit() {
    let xeon = profile("xeon-vtd");
    let bounce: Policy = "bounce".parse().unwrap();
    let asked = LinuxArgs { as_linux: Some(Asked::Lazy), ..LinuxArgs::default() };
    let policies = [&Policy::ALL[..], &[bounce]].concat();
    let rules = asked.rules(&xeon).unwrap();
    let report = replay::run_file(None, &xeon, &policies, rules).unwrap();
    everywhere("replay", |columns| replay::text(&report, columns));
    has_words("replay", &replay::text(&report, usize::MAX), replay::COLUMNS_IN_WORDS);
}

#[test]
fn loads_that_nobody_recorded_fit() {
    for machine in ["tegra210", "sm8150"] {
        let report = synthetic::camera::run(&profile(machine)).unwrap();
        everywhere(machine, |columns| synthetic::text(&report, columns));
        let wide = synthetic::text(&report, usize::MAX);
        has_words(machine, &wide, synthetic::COLUMNS_IN_WORDS);
    }
}

#[test]
fn throughput_by_cpus_fits() {
    let few = scale::Options { policies: Vec::new(), cpus: vec![1, 2, 16], seed: 1, horizon_ms: 1 };
    for machine in ["vtd-nested", "grace"] {
        let report = scale::run(&profile(machine), &few).unwrap();
        everywhere(machine, |columns| scale::text(&report, columns));
        has_words(machine, &scale::text(&report, usize::MAX), scale::COLUMNS_IN_WORDS);
    }
}

#[test]
fn published_results_fit() {
    let walk = reproduce::walk_flush().unwrap();
    published("walk-flush", |columns| reproduce::text(&walk, columns));
    let range = reproduce::range_flush().unwrap();
    published("range-flush", |columns| reproduce::text(&range, columns));
    let queue = reproduce::flush_queue().unwrap();
    published("flush-queue", |columns| reproduce::flush_queue_text(&queue, columns));
    let pools = reproduce::swiotlb().unwrap();
    published("swiotlb", |columns| reproduce::swiotlb_text(&pools, columns));
    let faults = reproduce::iopf().unwrap();
    published("iopf", |columns| reproduce::iopf_text(&faults, columns));
    let others = reproduce::held_out().unwrap();
    published("held-out", |columns| reproduce::held_out_text(&others, columns));
}

fn published(name: &str, text: impl Fn(usize) -> String) {
    everywhere(name, &text);
    has_words(name, &text(usize::MAX), reproduce::COLUMNS_IN_WORDS);
}

#[test]
fn machines_and_their_policies_fit() {
    let profiles = Profile::builtin().unwrap();
    everywhere("machines", |columns| machines::list(&profiles, columns));
    everywhere("machines NAME", |columns| machines::text(&profiles, columns));
    for wide in [machines::list(&profiles, usize::MAX), machines::text(&profiles, usize::MAX)] {
        has_words("machines", &wide, machines::COLUMNS_IN_WORDS);
    }
    let mut explanation = explain::explain(&profiles);
    everywhere("explain", |columns| explain::text(&explanation, columns));
    explanation.table = explain::everything();
    everywhere("explain --all", |columns| explain::text(&explanation, columns));
    has_words("explain", &explain::text(&explanation, usize::MAX), explain::COLUMNS_IN_WORDS);
}

#[test]
fn firmware_s_tables_fit() {
    let report = firmware_report("0000:00:1e.0");
    everywhere("firmware", |columns| firmware::text(&report, columns));
    has_words("firmware", &firmware::text(&report, usize::MAX), explain::COLUMNS_IN_WORDS);
}

/// A machine whose maker and functions have odd names.
pub fn firmware_report(name: &str) -> firmware::Report {
    let unit = firmware::UnitReport {
        unit: 0,
        kind: "VT-d",
        place: "registers at 0xfed90000..=0xfed90fff".to_owned(),
        serves: vec![name.to_owned()],
        refused: Some(format!("its registers are those of {name}")),
        limits: vec![format!("{name}: addresses up to 0xfffffffff")],
        reserved: vec![firmware::ReservedReport {
            first_stream: 0x128,
            last_stream: 0x12f,
            start: 0x7000_0000,
            last: 0x7fff_ffff,
            kind: "firmware's memory: mapped one to one until a driver takes over".to_owned(),
        }],
    };
    let function = |unit, group: &str| firmware::FunctionReport {
        function: name.to_owned(),
        id: "8086:1236".to_owned(),
        class: "0200".to_owned(),
        kind: "conventional PCI device".to_owned(),
        unit,
        streams: vec![0x128, 0xf0],
        group: group.to_owned(),
        below: unit.map(|_| name.to_owned()),
        refused: unit.is_none().then(|| format!("no unit serves {name}")),
        last_address: unit.map(|_| 0x7f_ffff_ffff),
    };
    firmware::Report {
        table: firmware::TableReport {
            signature: "DMAR".to_owned(),
            bytes: 112,
            maker: name.to_owned(),
            source: Path::new("/sys/firmware/acpi/tables/DMAR").display().to_string(),
        },
        units: vec![unit],
        functions: vec![function(Some(0), "0000:00:1e.0"), function(None, name)],
        wants_dma_protection: true,
        external_ports: vec![name.to_owned()],
        groups: vec![firmware::GroupReport {
            functions: vec![name.to_owned(), "0000:01:04.0".to_owned()],
            reasons: vec![format!("{name} is behind 0000:00:1e.0: conventional PCI has no ACS")],
        }],
        remarks: vec![firmware::RemarkReport {
            wrong: true,
            text: format!("two units claim {name}"),
        }],
    }
}
