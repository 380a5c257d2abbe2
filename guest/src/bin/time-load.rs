//! `time-load COUNT`: sends packets, so many thousands, and prints how long each thousand takes by the guest's clock.
//!
//! A packet is mapped when it is sent, and unmapped when a later one finds it done: the CPU never waits for a device.
#![forbid(unsafe_code)]

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// The host, as QEMU's user network has it; it throws away what it gets.
const HOST: ([u8; 4], u16) = ([10, 0, 2, 2], 9);
const PACKET: [u8; 64] = [1; 64];
const EACH: u32 = 1000;

fn main() -> Result<()> {
    let count = std::env::args().nth(1).context("usage: time-load COUNT")?;
    let count: u32 = count.parse().context("COUNT is no number")?;
    let socket = UdpSocket::bind(("0.0.0.0", 0))?;
    socket.connect(std::net::SocketAddr::from(HOST))?;
    // The first one waits for the host's address.
    socket.send(&PACKET)?;
    std::thread::sleep(Duration::from_millis(100));
    for _ in 0..count {
        let begun = Instant::now();
        for _ in 0..EACH {
            socket.send(&PACKET)?;
        }
        println!("sent: {EACH} packets in {} ns", begun.elapsed().as_nanos());
    }
    Ok(())
}
