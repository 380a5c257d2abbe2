//! `send-packets THOUSANDS [TYPE]`: sends packets over the first interface, and says how long each thousand takes by
//! the guest's clock. The interface's IOMMU group gets the type first, if there is one (`DMA-FQ` is lazy).
//!
//! A packet is mapped when it is sent, and unmapped when a later one finds that it has left: the CPU waits for nothing.
#![forbid(unsafe_code)]

use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::time::{ClockId, clock_gettime};

/// The host, as QEMU's user network has it; it throws away what it gets.
const HOST: ([u8; 4], u16) = ([10, 0, 2, 2], 9);
const PACKET: [u8; 64] = [1; 64];
const EACH: u32 = 1000;
const GROUP: &str = "/sys/class/net/eth0/device/../iommu_group/type";

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let count = arguments
        .next()
        .context("usage: send-packets THOUSANDS [TYPE]")?;
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
        for _ in 0..EACH {
            socket.send(&PACKET)?;
        }
        let (took, sent) = ((busy() - begun).as_nanos(), sent()? - before);
        println!("sent: {sent} packets in {took} ns, {}", kind.trim());
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
