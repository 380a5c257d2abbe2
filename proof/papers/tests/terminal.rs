//! Output of every command on terminals of 40 to 200 columns: no line is wider, nothing is cut or left out silently,
//! and the figures are those of `--wide`.

#[path = "../../../tune/portolan/tests/terminal/fits.rs"]
mod fits;
#[path = "../../../tune/portolan/tests/terminal/screen.rs"]
mod screen;

use fits::{everywhere, has_words};
use portolan_cli::display::width;
use portolan_papers::{reproduce, scale, synthetic};
use portolan_sim::profile::Profile;
use screen::{fits_terminals, terminal};

const PROGRAM: &str = env!("CARGO_BIN_EXE_portolan-papers");

fn profile(name: &str) -> Profile {
    Profile::by_name(name).unwrap()
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
fn the_built_command_fits_terminals_and_colours_them() {
    fits_terminals("synthetic camera 2>/dev/null");
    fits_terminals("scale --cpus 1 --cpus 4 --horizon 1 2>/dev/null");
}

/// Goes to the start of a terminal's line and clears it.
const CLEAR: &str = "\r\u{1b}[K";

#[test]
fn all_published_results_fit_a_terminal_and_progress_is_told_before() {
    let Some(shown) = terminal(60, "reproduce all", "1") else {
        return;
    };
    // Progress is cleared before the results come. They take longer than the second in which it is silent.
    let (progress, text) = shown.rsplit_once(CLEAR).expect("progress");
    let lines: Vec<&str> = progress.split(CLEAR).filter(|line| !line.is_empty()).collect();
    for line in &lines {
        let words: Vec<&str> = line.split(", ").collect();
        let [steps, percent, rate, left] = words.as_slice() else {
            panic!("{line:?}");
        };
        let done: u64 = steps.strip_suffix(" of 6").unwrap().parse().unwrap();
        assert_eq!(*percent, format!("{} %", done * 100 / 6));
        assert!(rate.ends_with("/s") && left.ends_with(" left"), "{line:?}");
    }
    assert!(!lines.is_empty(), "{shown}");
    assert!(text.lines().all(|line| width(line) <= 60), "{text}");
    let (first, rest) = text.split_once("\n\n").unwrap();
    assert!(first.contains("6 published results") && !rest.contains("FAIL"), "{first}");
}
