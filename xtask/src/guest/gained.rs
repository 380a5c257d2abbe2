//! Gain of a lazy kernel, by the guest's clock, compared with the gain that a replay predicts.
//!
//! QEMU counts instructions (`-icount`) and the guest's clock goes by them, so that it hardly moves from run to run.
//! The gain is the instructions that Linux does not execute: an emulated invalidation is done when the write that
//! asks for it is, and costs the guest no time. The prediction is the advice's on a strict recording, with prices
//! calibrated there.

use serde_json::Value;

use super::GuestRun;
use super::kernel::Kernel;
use super::loads::NEWEST_STRICT;
use super::machines::{Machine, PORTOLAN, program};

/// Largest difference between the first half of the packets and the second, by the second.
const STEADY: f64 = 0.02;
/// Most that predictions may be off, and the fewest invalidations of a lazy kernel that are judged: no timer is late.
const WITHIN: f64 = 0.15;
const ENOUGH: f64 = 50.0;
/// Packets that the guest times together, and number of such groups.
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
    ports: &["record.gz", "latencies.gz", "lazy.gz", "queued.gz"],
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
        "portolan record -o /dev/virtio-ports/lazy.gz -- send-packets 12",
        "portolan record --latency 1 -o /dev/virtio-ports/queued.gz -- send-packets 4",
    ],
    traced: &["vtd_inv_desc_iotlb_*"],
    check,
    ..NEWEST_STRICT
};

fn check(ran: &GuestRun) -> Result<(), String> {
    let (strict, lazy) = (Packets::of(ran, "DMA")?, Packets::of(ran, "DMA-FQ")?);
    let (profile, recording) = ("mine.toml", "record.gz");
    ran.portolan(&[
        "calibrate",
        "latencies.gz",
        // Work that a strict kernel does not do is measured of the lazy one.
        "queued.gz",
        recording,
        "--force",
        "-o",
        profile,
    ])?;
    let replayed = ran.portolan(&["replay", recording, "--machine", profile])?;
    let predicted = predicted(&replayed).ok_or("the replay does not advise a lazy group")?;
    let gained = strict.mean() - lazy.mean();
    println!(
        "a packet takes {:.0} ns strict, {:.0} lazy: {gained:.0} are gained; predicted for an unmap: {predicted:.0}",
        strict.mean(),
        lazy.mean(),
    );
    if gained <= 0.0 || !strict.are_steady() || !lazy.are_steady() {
        return Err("a lazy kernel gains nothing, or the guest's clock is not steady".to_owned());
    }
    if (predicted / gained - 1.0).abs() > WITHIN {
        return Err(format!("{predicted:.0} ns predicted, {gained:.0} gained"));
    }
    check_lazy(&ran.portolan(&["replay", "lazy.gz"])?)
}

/// Gain of lazy by the advice, in ns for an unmap.
fn predicted(replayed: &Value) -> Option<f64> {
    let mut advice = replayed["advice"].as_array()?.iter();
    let lazy = advice.find(|setting| setting["rule"] == "lazy-group")?;
    let us = |end: &str| lazy["effect"]["saving"][end].as_f64();
    let gained = us("before_us")? - us("after_us")?;
    Some(gained * 1000.0 / replayed["trace"]["unmaps"].as_f64()?)
}

/// Compares the replay's prediction for a lazy kernel with the invalidations that the lazy recording has.
fn check_lazy(replayed: &Value) -> Result<(), String> {
    let sent = ["page", "range", "context", "global"];
    let sent = sent.map(|width| replayed["sent"]["invalidations"][width].as_f64());
    let sent: f64 = sent.into_iter().flatten().sum();
    let predicted = replayed["predicted"]["lazy"]
        .as_f64()
        .ok_or("the replay predicts nothing of a lazy kernel")?;
    println!("{sent} invalidations while lazy; {predicted} predicted");
    if sent >= ENOUGH && (predicted / sent - 1.0).abs() <= WITHIN {
        Ok(())
    } else {
        Err(format!("{predicted} invalidations predicted, {sent} sent"))
    }
}

/// Nanoseconds that a packet takes: one mean for each thousand packets.
struct Packets(Vec<f64>);

impl Packets {
    /// Numbers of the first program that sent some under `kind`.
    fn of(ran: &GuestRun, kind: &str) -> Result<Self, String> {
        let lines = ran.console.lines();
        let all: Vec<f64> = lines.filter_map(|line| sent(line, kind)).collect();
        // Before, a strict guest records; afterwards a lazy one does.
        let all = match kind {
            "DMA" => all.get(all.len().saturating_sub(THOUSANDS)..),
            _ => all.get(..THOUSANDS),
        };
        match all {
            Some(all) if all.len() == THOUSANDS => Ok(Self(all.to_vec())),
            _ => Err(format!("the guest did not say often enough what is sent under {kind}")),
        }
    }

    fn mean(&self) -> f64 {
        mean(&self.0)
    }

    fn are_steady(&self) -> bool {
        let (first, second) = self.0.split_at(self.0.len() / 2);
        (mean(first) / mean(second) - 1.0).abs() <= STEADY
    }
}

fn mean(times: &[f64]) -> f64 {
    times.iter().sum::<f64>() / times.len() as f64
}

/// `sent: 1000 packets in 36393564 ns, DMA`: ns for a packet.
fn sent(line: &str, kind: &str) -> Option<f64> {
    let (told, of) = line.trim_end().strip_prefix("sent: ")?.split_once(" ns, ")?;
    let (_, time) = told.split_once(" packets in ")?;
    let time: f64 = time.parse().ok()?;
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
