//! Tables of intervals: what fits, what is left out, and what is said of it.

use super::super::text::text;
use super::super::{DeviceRow, GroupPolicy, TopInterval};

fn row(number: u64) -> DeviceRow {
    DeviceRow {
        device: format!("0000:{number:02x}:00.0"),
        driver: Some("nvme".to_owned()),
        maps: 2000 * number,
        unmaps: 2000 * number,
        invalidations: Some(2000 * number),
        cpu_us: Some(3000.5 * number as f64),
        exposed_bytes: Some(4096 * number),
        policy: GroupPolicy::Lazy,
        group_type: Some("DMA-FQ".to_owned()),
    }
}

fn interval(devices: Vec<DeviceRow>) -> TopInterval {
    TopInterval {
        t: 12.0,
        seconds: 2.0,
        devices,
        lost_events: 0,
        kernel_invalidations: Some(84),
        unmaps_without_device: 0,
        prices: "Priced as spr-vm, fitted: the nearest machine that is known.".to_owned(),
    }
}

#[test]
fn a_table_has_rates_and_says_where_its_numbers_come_from() {
    let text = text(&interval(vec![row(1)]), 80, usize::MAX);
    let lines: Vec<_> = text.lines().map(str::trim_end).collect();
    assert_eq!(lines[0], "12.0 s: 1 device at work; no event was lost.");
    let cells: Vec<_> = lines[3].split_whitespace().collect();
    let wanted = ["0000:01:00.0", "nvme", "lazy", "1,500", "1,000", "1,000", "1,000", "4", "KiB"];
    assert_eq!(cells, wanted, "{text}");
    assert_eq!(lines[4], "The kernel itself counts 42 flushes a second.");
    assert!(lines[5].starts_with("Priced as spr-vm"), "{text}");
}

#[test]
fn a_table_fits_the_terminal_and_says_what_it_leaves_out() {
    let rows: Vec<_> = (1..=200).rev().map(row).collect();
    for (columns, lines) in [(40, 12), (60, 24), (80, 24), (200, 50)] {
        let text = text(&interval(rows.clone()), columns, lines);
        assert!(text.lines().count() <= lines, "{columns}x{lines}: {text}");
        let fits = |line: &str| line.chars().count() <= columns;
        assert!(text.lines().all(fits), "{columns}x{lines}: {text}");
        assert!(text.contains("more"), "{text}");
    }
    let all = text(&interval(rows), usize::MAX, usize::MAX);
    assert!(all.contains("0000:01:00.0") && !all.contains("more"), "{all}");
}

#[test]
fn what_is_not_known_and_what_is_lost_is_said() {
    let unknown = DeviceRow {
        invalidations: None,
        cpu_us: None,
        exposed_bytes: None,
        policy: GroupPolicy::Unknown,
        ..row(1)
    };
    let direct = DeviceRow { policy: GroupPolicy::None, exposed_bytes: None, ..row(2) };
    let lost = TopInterval {
        lost_events: 1234,
        kernel_invalidations: None,
        unmaps_without_device: 6,
        ..interval(vec![direct, unknown])
    };
    let text = text(&lost, 100, usize::MAX);
    assert!(text.contains("lost 1,234 events: all counts are too small"), "{text}");
    assert!(text.contains("3 unmaps a second name no device."), "{text}");
    let cells = |word: &str| {
        let mut lines = text.lines();
        lines.find(|line| line.contains(word)).unwrap().split_whitespace()
    };
    assert_eq!(cells("0000:02").next_back(), Some("all"), "{text}");
    assert_eq!(cells("0000:01").filter(|cell| *cell == "?").count(), 3, "{text}");
    assert!(!text.contains("kernel itself counts"), "{text}");
    let idle = super::super::text::text(&interval(Vec::new()), 80, 24);
    assert!(idle.contains("no device did DMA"), "{idle}");
}
