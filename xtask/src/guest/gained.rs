//! What a lazy kernel gains, by the guest's own clock, beside what a replay predicts.
//!
//! QEMU counts instructions (`-icount`) and the guest's clock goes by them, so that it hardly moves from run to run. What
//! is gained are the instructions that Linux does not execute: an emulated invalidation is done when the write
//! that asks for it is, and costs the guest no time. The prediction is a replay's of a strict recording, with prices
//! calibrated there. It is printed and not judged: the kernel's own trace event in a submission is part of its latency
//! as `portolan record --latency` measures it, and takes longer than an emulated submission itself.

use super::Ran;
use super::kernel::Kernel;
use super::loads::NEWEST_STRICT;
use super::machines::{Machine, PORTOLAN, program};

/// How far a thousand packets may be from the median, for nine of ten of them.
const STEADY: f64 = 0.02;
/// Packets of which the guest says the time together, and how often it does.
const EACH: f64 = 1000.0;
const THOUSANDS: usize = 24;

/// Packets of one CPU, strict and lazy.
pub const GAINED: Machine = Machine {
    name: "gained",
    step: "Linux guest: what lazy gains, in instructions",
    kernel: Kernel::Newest,
    devices: &[
        "-device",
        "intel-iommu,intremap=on",
        "-smp",
        "1",
        "-icount",
        "shift=2,sleep=off",
        "-netdev",
        "user,id=net,restrict=on",
        // Packets leave by a timer of the guest's time, not when the host gets to it.
        "-device",
        "virtio-net-pci,netdev=net,disable-legacy=on,iommu_platform=on,romfile=,tx=timer",
    ],
    ports: &["record.gz", "latencies.gz"],
    // Packets that have left are taken back when others are sent, without interrupts.
    kernel_arguments: "intel_iommu=on iommu.strict=1 ipv6.disable=1 virtio_net.napi_tx=0",
    modules: &["virtio_net"],
    programs: &[program("send-packets"), PORTOLAN],
    applets: &["ip"],
    tools: false,
    runs: &[
        "ip address add 10.0.2.15/24 dev eth0",
        "ip link set eth0 up",
        "portolan record -o /dev/virtio-ports/record.gz -- send-packets 2",
        "portolan record --latency 1 -o /dev/virtio-ports/latencies.gz -- send-packets 4",
        "send-packets 24",
        "send-packets 24 DMA-FQ",
    ],
    traced: &["vtd_inv_desc_iotlb_*"],
    check,
    ..NEWEST_STRICT
};

fn check(ran: &Ran) -> Result<(), String> {
    let (strict, lazy) = (Packets::of(ran, "DMA")?, Packets::of(ran, "DMA-FQ")?);
    let (profile, recording) = ("mine.toml", "record.gz");
    ran.portolan(&[
        "calibrate",
        "latencies.gz",
        recording,
        "--force",
        "-o",
        profile,
    ])?;
    let replayed = ran.portolan(&["replay", recording, "--machine", profile])?;
    let policies = replayed["policies"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    let time = |name: &str| {
        let policy = policies.iter().find(|policy| policy["policy"] == name);
        let time = policy.and_then(|policy| policy["time_us"]["total"].as_f64());
        time.ok_or_else(|| format!("the replay has no {name}"))
    };
    let unmaps = replayed["trace"]["unmaps"].as_f64();
    let unmaps = unmaps.ok_or("the replay has no unmaps")?;
    let gained = strict.median - lazy.median;
    println!(
        "a packet takes {:.0} ns strict, {:.0} lazy: {gained:.0} are gained; predicted for an unmap: {:.0}",
        strict.median,
        lazy.median,
        (time("strict-page")? - time("lazy")?) * 1000.0 / unmaps,
    );
    match gained > 0.0 && strict.are_steady() && lazy.are_steady() {
        true => Ok(()),
        false => Err("a lazy kernel gains nothing, or the guest's clock is not steady".to_owned()),
    }
}

/// How long a packet takes, in ns: of each thousand, and the median.
struct Packets {
    all: Vec<f64>,
    median: f64,
}

impl Packets {
    /// Those of the last program that sent under `kind`.
    fn of(ran: &Ran, kind: &str) -> Result<Self, String> {
        let mut all: Vec<f64> = ran
            .console
            .lines()
            .filter_map(|line| sent(line, kind))
            .collect();
        all.drain(..all.len().saturating_sub(THOUSANDS));
        let mut sorted = all.clone();
        sorted.sort_by(f64::total_cmp);
        match sorted.get(sorted.len() / 2) {
            Some(&median) if all.len() == THOUSANDS => Ok(Self { all, median }),
            _ => Err(format!(
                "the guest said {} times what is sent under {kind}",
                all.len()
            )),
        }
    }

    fn are_steady(&self) -> bool {
        let near = |time: &&f64| (**time / self.median - 1.0).abs() <= STEADY;
        self.all.iter().filter(near).count() * 10 >= self.all.len() * 9
    }
}

/// `sent: 1000 packets in 36393564 ns, DMA`: ns for a packet.
fn sent(line: &str, kind: &str) -> Option<f64> {
    let (told, of) = line
        .trim_end()
        .strip_prefix("sent: ")?
        .split_once(" ns, ")?;
    let (_, time) = told.split_once(" packets in ")?;
    let time: f64 = time.parse().ok()?;
    // Of those that were sent within it: a few of others leave with them, or after them.
    (of == kind).then_some(time / EACH)
}

#[cfg(test)]
mod tests {
    use super::sent;

    #[test]
    fn times_are_read_by_kind() {
        let line = "sent: 998 packets in 36400000 ns, DMA\r";
        assert_eq!(sent(line, "DMA"), Some(36_400.0));
        assert_eq!(sent(line, "DMA-FQ"), None);
        assert_eq!(sent("sent: nothing", "DMA"), None);
    }
}
