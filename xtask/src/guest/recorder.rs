//! Guests in which `portolan record` itself is looked at: on an older kernel, and at high rates.

use serde::Deserialize;

use super::GuestRun;
use super::kernel::Kernel;
use super::machines::{CALIBRATE, Machine, PORTOLAN, READ_BLOCKS, RECORD, program};

/// Events a second at which nothing may be lost.
const SURE: u64 = 100_000;
/// Fraction of a rate that has to be sent.
const SENT: f64 = 0.9;

/// Latencies on a kernel whose instances cannot trace functions.
pub const CALIBRATE_OLDER: Machine = Machine {
    name: "calibrate-older",
    step: "Linux guest: portolan record --latency, Linux 6.1",
    kernel: Kernel::Older,
    ports: &["record.gz"],
    modules: &["nvme", "virtio_pci", "virtio_console"],
    programs: &[READ_BLOCKS, PORTOLAN, program("read-on"), program("measure-older")],
    runs: &["measure-older /dev/nvme0n1"],
    check: older,
    ..CALIBRATE
};

/// A second of load at each rate, by the guest's clock: each instruction takes 1 ns of it, on one CPU at a time.
pub const RATES: Machine = Machine {
    name: "record-rates",
    step: "Linux guest: what portolan record loses",
    limit: "900",
    devices: &["-icount", "shift=0"],
    disks: &[],
    ports: &[],
    programs: &[PORTOLAN, program("record-rates")],
    applets: &[],
    runs: &["record-rates 100000 300000"],
    traced: &[],
    check: rates,
    ..RECORD
};

/// The replay uses the prices that were measured in the main tracing.
fn older(ran: &GuestRun) -> Result<(), String> {
    let replayed = ran.portolan(&["replay", "record.gz"])?;
    let measured = &replayed["chosen"]["measured"];
    let understood = &replayed["trace"]["understood"];
    println!("a replay by its recording's own prices: {measured}; understood: {understood}");
    if measured["calls"].as_u64().unwrap_or(0) == 0 {
        return Err(format!("no price of its own: {}", replayed["chosen"]));
    }
    Ok(())
}

/// The guest's line on one rate.
#[derive(Deserialize)]
struct Rate {
    asked: u64,
    sent: u64,
    recorded: u64,
    lost: u64,
}

fn rates(ran: &GuestRun) -> Result<(), String> {
    let lines = ran.console.lines().filter_map(|line| line.strip_prefix("rate: "));
    let rates: Result<Vec<Rate>, _> = lines.map(serde_json::from_str).collect();
    let rates = rates.map_err(|error| error.to_string())?;
    for rate in &rates {
        println!(
            "{:>9} events a second asked for, {:>9} sent; {:>9} recorded in all, {} lost",
            rate.asked, rate.sent, rate.recorded, rate.lost
        );
    }
    let sure = rates
        .iter()
        .find(|rate| rate.asked == SURE)
        .ok_or("the rate at which nothing may be lost is not there")?;
    let is_sent = sure.sent as f64 >= SENT * SURE as f64;
    if is_sent && sure.lost == 0 {
        Ok(())
    } else {
        Err(format!("{} events a second were sent, {} lost", sure.sent, sure.lost))
    }
}
