//! The text of a line of progress, and the part of it that a terminal shows.

use std::process::Command;
use std::sync::LazyLock;

use super::*;

#[test]
fn steps_are_told_with_their_share_their_rate_and_the_time_left() {
    let work = Progress::new(2000);
    let pace = Pace(Duration::from_secs(3));
    assert_eq!(work.text(1500, pace), "1,500 of 2,000, 75 %, 500/s, 1 s left");
    assert_eq!(work.text(6, pace), "6 of 2,000, 0 %, 2.0/s, 16 min 37 s left");
    assert_eq!(Progress::unbounded().text(1500, pace), "1,500, 500/s");
    work.set(500);
    work.add(5);
    assert_eq!(work.done.load(Ordering::Relaxed), 505);
}

#[test]
fn time_left_is_told_only_where_it_can_be() {
    let pace = Pace(Duration::from_secs(10));
    assert_eq!(pace.left(0, 100), "");
    assert_eq!(pace.left(1, u64::MAX), "");
    assert_eq!(pace.left(100, 50), ", 0 s left");
    assert_eq!(pace.left(1, 1000), ", 2 h 46 min left");
    assert_eq!(Pace(Duration::ZERO).left(1, 2), ", 0 s left");
}

/// Milliseconds on the clock of [`steps_of_a_clock_s_own`].
static AT_MS: AtomicU64 = AtomicU64::new(0);
// CLOCK: an origin for the test's own clock; its value does not matter.
static BEGIN: LazyLock<Instant> = LazyLock::new(Instant::now);

fn clock() -> Instant {
    *BEGIN + Duration::from_millis(AT_MS.load(Ordering::Relaxed))
}

#[test]
#[ignore = "a_terminal_shows_the_rate_and_the_time_left runs it on a terminal"]
fn steps_of_a_clock_s_own() {
    let work = Progress::by(clock, 8);
    for at_ms in [999, 1000, 1099, 1100, 61_000] {
        AT_MS.store(at_ms, Ordering::Relaxed);
        work.add(1);
    }
}

/// Bytes that [`steps_of_a_clock_s_own`] sends to a terminal of `columns`; nothing without util-linux's `script`.
fn on_a_terminal(columns: usize) -> Option<String> {
    let program = std::env::current_exe().unwrap();
    let run = format!(
        "stty cols {columns} rows 24 && '{}' --exact progress::tests::steps_of_a_clock_s_own --ignored --nocapture \
         >/dev/null",
        program.display()
    );
    let output = Command::new("script")
        .args(["--quiet", "--return", "--command", &run, "/dev/null"])
        .output();
    let Ok(output) = output else {
        println!("SKIP: no `script` (Debian: bsdutils), so no terminal");
        return None;
    };
    assert!(output.status.success(), "{output:?}");
    Some(String::from_utf8(output.stdout).unwrap())
}

#[test]
fn a_terminal_shows_the_rate_and_the_time_left() {
    // Nothing in the first second, then a line at most every tenth of one, each in place of the one before.
    let lines = [
        "2 of 8, 25 %, 2.0/s, 3 s left",
        "4 of 8, 50 %, 3.6/s, 1 s left",
        "5 of 8, 62 %, 0.1/s, 37 s left",
        "",
    ];
    let wanted: String = lines.map(|line| format!("{CLEAR}{line}")).concat();
    if let Some(shown) = on_a_terminal(80) {
        assert_eq!(shown, wanted);
    }
    if let Some(shown) = on_a_terminal(20) {
        let lines = shown.split(CLEAR);
        let widths: Vec<_> = lines.map(display::width).collect();
        assert_eq!(widths, [0, 19, 19, 19, 0], "{shown:?}");
    }
}
