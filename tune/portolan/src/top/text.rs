//! An interval for people.

use portolan_cli::display::{bytes, counted, fitted, grouped, micros, wrapped};

use super::{DeviceRow, GroupPolicy, TopInterval};

/// Meaning of the columns, for `--help`.
pub(super) const COLUMNS_IN_WORDS: &str = "\
Columns, each a rate of the interval; those devices are first that cost most:
  CPU us/s       microseconds of CPU time a second for mapping and unmapping: the kernel's work
                 for each operation at the prices of a machine profile, which the last line
                 names, or measured here with --latency; waits of two CPUs for each other are
                 not in it
  maps/s         maps and unmaps by the kernel's drivers, from its events
  flushes/s      commands that make the IOMMU forget what was unmapped, by Linux's rules for the
                 same operations; the last lines have the kernel's own count, if it says it
  exposed        most memory at once that a driver had unmapped and that the device could still
                 reach: 0 where unmaps wait for it, all where no IOMMU stands in between
  policy         of the device's group: strict (DMA in sysfs), lazy (DMA-FQ), identity, none
With --json an object a line: its numbers are counts of the interval of `seconds`, which ends at `t`.
It runs until Ctrl-C, shows once more what came since, and leaves the kernel's tracing as it was.";

/// Columns, and the order in which they are left out.
const COLUMNS: [(&str, u8); 8] = [
    ("device", 0),
    ("driver", 2),
    ("policy", 0),
    ("CPU us/s", 0),
    ("maps/s", 0),
    ("unmaps/s", 1),
    ("flushes/s", 3),
    ("exposed", 0),
];
/// Those of them that are numbers.
const NUMBERS: [usize; 5] = [3, 4, 5, 6, 7];

/// The interval in lines of `columns`, `lines` of them at the most, as long as the words around the table fit.
pub(super) fn text(interval: &TopInterval, columns: usize, lines: usize) -> String {
    let mut shown = interval.devices.len();
    loop {
        let text = with(interval, columns, shown);
        let over = text.lines().count().saturating_sub(lines);
        if over == 0 || shown == 0 {
            return text;
        }
        // One line counts those that are left out.
        shown = shown.saturating_sub(over);
    }
}

/// The interval with the first `shown` devices.
fn with(interval: &TopInterval, columns: usize, shown: usize) -> String {
    let mut out = wrapped(&format!("{}\n", head(interval)), columns);
    let rows = interval.devices.iter().take(shown);
    let rows: Vec<_> = rows.map(|row| cells(row, interval.seconds)).collect();
    if !rows.is_empty() {
        out += &fitted(&COLUMNS, &NUMBERS, &rows, columns).text;
        out.push('\n');
    }
    let more = (interval.devices.len() - shown) as u64;
    if more > 0 {
        out += &wrapped(&format!("{} more: --wide has all.\n", counted(more, "device")), columns);
    }
    out + &wrapped(&foot(interval), columns)
}

fn head(interval: &TopInterval) -> String {
    let lost = match interval.lost_events {
        0 => "no event was lost".to_owned(),
        lost => format!(
            "the kernel lost {}: all counts are too small, --buffer-kb makes room",
            counted(lost, "event")
        ),
    };
    let work = match interval.devices.len() as u64 {
        0 => "no device did DMA through the kernel".to_owned(),
        some => format!("{} at work", counted(some, "device")),
    };
    format!("{:.1} s: {work}; {lost}.", interval.t)
}

fn foot(interval: &TopInterval) -> String {
    let rate = |count: u64| grouped((count as f64 / length(interval.seconds)).round() as u64);
    let sent = interval.kernel_invalidations.map_or(String::new(), |sent| {
        format!("The kernel itself counts {} flushes a second.\n", rate(sent))
    });
    let unnamed = match interval.unmaps_without_device {
        0 => String::new(),
        some => format!("{} unmaps a second name no device.\n", rate(some)),
    };
    format!("{sent}{unnamed}{}\n", interval.prices)
}

/// Length of an interval that can be divided by.
fn length(seconds: f64) -> f64 {
    seconds.max(1e-3)
}

fn cells(row: &DeviceRow, seconds: f64) -> Vec<String> {
    let rate = |count: u64| grouped((count as f64 / length(seconds)).round() as u64);
    let unknown = || "?".to_owned();
    let exposed = match (row.exposed_bytes, row.policy) {
        (_, GroupPolicy::Identity | GroupPolicy::None) => "all".to_owned(),
        (Some(exposed), _) => bytes(exposed),
        (None, _) => unknown(),
    };
    vec![
        row.device.clone(),
        row.driver.clone().unwrap_or_else(|| "-".to_owned()),
        row.policy.name().to_owned(),
        row.cpu_us.map_or_else(unknown, |us| micros(us / length(seconds))),
        rate(row.maps),
        rate(row.unmaps),
        row.invalidations.map_or_else(unknown, rate),
        exposed,
    ]
}
