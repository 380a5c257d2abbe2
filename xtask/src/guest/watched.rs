//! Output of `portolan top` in a guest, compared with a recording of the same load, with the kernel's own counts and,
//! by these, with QEMU's trace.

use serde_json::Value;

use super::machines::{Machine, PORTOLAN, READ_BLOCKS, RECORD, program};
use super::{GuestRun, recording};

/// Requests of the load: 4 MiB by 4 KiB.
const REQUESTS: u64 = 1024;

/// `portolan top` while an NVMe disk is read.
pub const TOP: Machine = Machine {
    name: "top",
    step: "Linux guest: portolan top",
    ports: &["top", "trace.gz"],
    programs: &[READ_BLOCKS, PORTOLAN, program("watch-top")],
    applets: &[],
    runs: &["watch-top /dev/nvme0n1"],
    check,
    ..RECORD
};

/// Sum of `key` over all intervals and devices.
fn sum(lines: &[Value], key: &str, driver: Option<&str>) -> u64 {
    let rows = lines.iter().filter_map(|line| line["devices"].as_array()).flatten();
    let rows = rows.filter(|row| driver.is_none_or(|driver| row["driver"] == driver));
    rows.filter_map(|row| row[key].as_u64()).sum()
}

fn check(ran: &GuestRun) -> Result<(), String> {
    if !ran.console.contains("top: nothing is left") {
        return Err("something is left of it".to_owned());
    }
    let text = std::fs::read_to_string(ran.place.join("top")).map_err(|e| e.to_string())?;
    let lines: Result<Vec<Value>, _> = text.lines().map(serde_json::from_str).collect();
    let lines = lines.map_err(|error| format!("{error}: {text}"))?;
    let of = |key: &str| lines.iter().filter_map(|line| line[key].as_u64()).sum::<u64>();
    let (lost, sent) = (of("lost_events"), of("kernel_invalidations"));
    let nvme = Some("nvme");
    let (maps, unmaps) = (sum(&lines, "maps", nvme), sum(&lines, "unmaps", nvme));
    let (ruled, ended) = (sum(&lines, "invalidations", None), sum(&lines, "unmaps", None));
    let recorded = ran.portolan(&["replay", "trace.gz", "--group-by", "driver"])?;
    let groups = recorded["aggregate"]["grouped"]["groups"].as_array();
    let group = groups.into_iter().flatten().find(|group| group["name"] == "nvme");
    let known = group.and_then(|group| group["maps"].as_u64()).unwrap_or(0);
    let traced = recording::invalidations(ran, "trace.gz")?.len() as u64;
    let row = lines.iter().flat_map(|line| line["devices"].as_array()).flatten();
    let row = row.into_iter().find(|row| row["driver"] == "nvme").cloned().unwrap_or_default();
    println!(
        "{} intervals, {lost} events lost; the disk: {maps} maps, {unmaps} unmaps, {known} maps recorded; all: {ended} \
         unmaps, {ruled} invalidations by the rules, {sent} by the kernel's count, {traced} of them recorded and in \
         QEMU's trace; {row}",
        lines.len()
    );
    if lines.len() != 3 || lost > 0 {
        return Err("three intervals, and nothing lost".to_owned());
    }
    if maps < REQUESTS || maps != known || unmaps < REQUESTS {
        return Err(
            "the counts of the disk are not those of its load and of its recording".to_owned()
        );
    }
    if (ruled, ended) != (sent, sent) || sent < traced {
        return Err(format!("a strict kernel sends one for each of {ended} unmaps"));
    }
    let is_told = row["policy"] == "strict" && row["exposed_bytes"] == 0;
    match row["cpu_us"].as_f64() {
        Some(us) if us > 0.0 && is_told => Ok(()),
        _ => Err(format!("the disk's line is {row}")),
    }
}
