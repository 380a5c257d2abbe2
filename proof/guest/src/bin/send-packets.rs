//! `send-packets THOUSANDS [TYPE]`: sends packets over the first interface, and prints the time that each thousand
//! takes by the guest's clock. The interface's IOMMU group gets the type first, if there is one (`DMA-FQ` is lazy).
//!
//! A packet is mapped when it is sent, and unmapped when a later one finds that it has left: the CPU waits for
//! nothing. Packets go in bursts that the card's queue has room for, and each burst leaves before the next, so that a
//! thousand packets are a thousand maps and as many unmaps. The CPU hardly rests, so that the work of the kernel's
//! timers is in the time as well.
#![forbid(unsafe_code)]

use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::time::{ClockId, clock_gettime};

/// The host, as QEMU's user network has it; it throws away the packets that it gets.
const HOST: ([u8; 4], u16) = ([10, 0, 2, 2], 9);
const PACKET: [u8; 64] = [1; 64];
/// Bursts that are timed together, and packets of each: the queue holds 256.
const BURSTS: u32 = 20;
const BURST: u32 = 50;
/// Time in which a burst leaves.
const REST: Duration = Duration::from_micros(300);
/// Rounds of a loop after it: some 4 ms.
const ROUNDS: u32 = 200_000;
const GROUP: &str = "/sys/class/net/eth0/device/../iommu_group/type";

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let count = arguments.next().context("usage: send-packets THOUSANDS [TYPE]")?;
    let count: u32 = count.parse().context("THOUSANDS is no number")?;
    if let Some(kind) = arguments.next() {
        fs::write(GROUP, &kind).with_context(|| format!("{GROUP}: {kind}"))?;
    }
    let kind = fs::read_to_string(GROUP).context(GROUP)?;
    let socket = UdpSocket::bind(("0.0.0.0", 0))?;
    socket.connect(SocketAddr::from(HOST))?;
    // The first one waits for the host's address.
    socket.send(&PACKET)?;
    std::thread::sleep(Duration::from_millis(100));
    for _ in 0..count {
        let (begun, before) = (busy(), sent()?);
        for _ in 0..BURSTS {
            for _ in 0..BURST {
                socket.send(&PACKET)?;
            }
            std::thread::sleep(REST);
            (0..ROUNDS).for_each(|round| {
                std::hint::black_box(round);
            });
        }
        let (took, sent) = (busy() - begun, sent()? - before);
        // The card counts packets that were taken back, which for the last ones is done with the next.
        let missing = sent.abs_diff(u64::from(BURSTS * BURST));
        ensure!(missing <= u64::from(BURST), "{sent} packets were sent");
        println!("sent: {sent} packets in {} ns, {}", took.as_nanos(), kind.trim());
    }
    Ok(())
}

/// CPU time of this process so far: other tasks, which a guest has after its boot, do not count.
fn busy() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Packets that the interface has sent so far.
fn sent() -> Result<u64> {
    let path = "/sys/class/net/eth0/statistics/tx_packets";
    let count = fs::read_to_string(path).context(path)?;
    count.trim().parse().context(path)
}
