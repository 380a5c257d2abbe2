//! Runs of timers show which CPUs run them a tick late.

use crate::trace::{Reader, from_bytes};

/// A run on `cpu` in `task`, so many microseconds after the trace's beginning, of a timer that was due at `due`.
fn run(task: &str, cpu: u16, us: u64, due: u64) -> String {
    format!(
        "{task} [{cpu:03}] 7.{us:06}: timer_expire_entry: timer=hidden function=hidden now={due} baseclk={due}\n"
    )
}

/// Runs of CPU 0, one each 10 ticks of so many microseconds; the first is due at tick 1000.
fn on_time(tick_us: u64) -> String {
    let all = (0..5).map(|ten| run("a-1", 0, 10 * ten * tick_us, 1000 + 10 * ten));
    all.collect()
}

fn reader(text: String) -> Reader {
    from_bytes(text).unwrap()
}

/// Lateness at an unmap of CPU 1 at the trace's end.
fn lateness(runs: &str) -> Option<bool> {
    let end = "b-2 [001] 7.900000:";
    let text = format!(
        "{runs}{end} map: IOMMU: iova=0x1000 paddr=0x2000 size=4096\n\
         {end} unmap: IOMMU: iova=0x1000 size=4096 unmapped_size=4096\n"
    );
    let mut reader = reader(text);
    reader.next_op().unwrap();
    reader.next_op().unwrap().timers_late
}

#[test]
fn a_run_in_the_tick_after_its_own_is_late() {
    for tick_us in [1000, 4000, 10_000] {
        let of = |task, us, due| lateness(&(on_time(tick_us) + &run(task, 1, us, due)));
        let at = 45 * tick_us;
        assert_eq!(of("b-2", at, 1045), Some(false), "{tick_us}");
        assert_eq!(of("b-2", at + tick_us / 5, 1045), Some(false), "{tick_us}");
        assert_eq!(of("b-2", at, 1044), Some(true), "{tick_us}");
        // Put off while the CPU rested, or held up.
        assert_eq!(of("b-2", at, 1040), None, "{tick_us}");
        assert_eq!(of("<idle>-0", at, 1044), None, "{tick_us}");
    }
}

#[test]
fn the_last_run_of_a_cpu_counts_and_none_tells_nothing() {
    let late = on_time(4000) + &run("b-2", 1, 180_000, 1044);
    assert_eq!(lateness(&late), Some(true));
    let then = late + &run("b-2", 1, 188_000, 1047);
    assert_eq!(lateness(&then), Some(false));
    assert_eq!(lateness(""), None);
    // Too few ticks to tell their length.
    assert_eq!(lateness(&run("b-2", 1, 0, 1000)), None);
    // A length that no kernel has.
    assert_eq!(lateness(&(on_time(2000) + &run("b-2", 1, 90_000, 1044))), None);
}

/// Timers run in pauses too, so neither they nor their CPUs count as part of the load.
#[test]
fn runs_of_timers_are_counted_and_make_a_load_no_longer() {
    let mut reader = reader(
        on_time(4000)
            + "c-3 [000] 7.500000: map: IOMMU: iova=0x1000 paddr=0x2000 size=4096\n"
            + &run("d-4", 9, 900_000, 1225),
    );
    while reader.next_op().is_some() {}
    let summary = reader.summary();
    assert_eq!((summary.events, summary.bad_lines, summary.cpus), (7, 0, 1));
    assert_eq!((summary.first_ns, summary.last_ns), (Some(7_500_000_000), 7_500_000_000));
}

#[test]
fn numbers_of_ticks_that_make_no_sense_do_no_harm() {
    let numbers = ["0", "1", "18446744073709551615", "99999999999999999999", "-1", ""];
    let mut text = String::new();
    for due in numbers {
        for now in numbers {
            for time in ["0.000001", "18446744073.709551615", "9.5"] {
                text += &format!(
                    "b-2 [65535] {time}: timer_expire_entry: timer=0 function=x now={now} baseclk={due}\n"
                );
            }
        }
    }
    let mut reader = reader(text);
    while reader.next_op().is_some() {}
    assert_eq!(reader.summary().events, 108);
}
