//! A device that reads memory after it was unmapped: QEMU's `edu`, driven over VFIO. The IOMMU refuses, and the kernel
//! says so in its log.
//!
//! ```text
//! stray 0000:00:05.0
//! ```
//!
//! `edu` copies between memory and a buffer of its own (docs/specs/edu of QEMU). It has to take addresses of 32 bits
//! (`dma_mask=0xffffffff`).

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Parser;
use portolan::addr::{Iova, PciFunction};
use portolan::dma::{Constraints, Device, Direction, DmaSpace, SpaceOptions};
use portolan::platform::Mmio as _;
use portolan_linux::memory::{Pages, Process};
use portolan_linux::vfio::{self, Bar, DomainOptions};

const PAGE: usize = 4096;
/// Registers of the copy: source, destination, bytes, and the command that starts it.
const SOURCE: usize = 0x80;
const DESTINATION: usize = 0x88;
const BYTES: usize = 0x90;
const COMMAND: usize = 0x98;
/// Starts a copy from memory; clear when it is done.
const START: u64 = 1;
/// The buffer of the device.
const BUFFER: u64 = 0x40000;
/// Command register of PCI, and its bit that lets a device reach memory.
const PCI_COMMAND: u64 = 4;
const BUS_MASTER: u16 = 1 << 2;
const LIMIT: Duration = Duration::from_secs(30);

/// Has QEMU's `edu` read a page while it is mapped, and once more after its unmap.
#[derive(Parser)]
struct Arguments {
    /// The device's PCI function, as `lspci -D` writes it.
    function: PciFunction,
}

fn main() -> ExitCode {
    let ended = run(Arguments::parse().function);
    portolan_cli::exit("stray", ended.map(|()| portolan_cli::Outcome::Good))
}

fn run(function: PciFunction) -> Result<()> {
    vfio::bind(function)?;
    let opened = vfio::open(&[function])?;
    let edu = opened.devices.first().context("no device")?;
    let command = edu.config_read16(PCI_COMMAND)?;
    edu.config_write16(PCI_COMMAND, command | BUS_MASTER)?;
    let domain = opened.unit.domain_with(DomainOptions::default())?;
    let space = DmaSpace::new(opened.unit.bind(domain), Process, &SpaceOptions::default())?;
    let device = Device::translated(Arc::new(space), edu.stream(), Constraints::trusted())?;
    let bar = edu.bar(0)?;
    let page = Pages::new(PAGE).context("no memory")?;
    let mapping = device.map(page, Direction::ToDevice).map_err(|failed| failed.error)?;
    let at = mapping.iova();
    ensure!(at.get() >> 32 == 0, "the device has no address {at}");
    copy(&bar, at)?;
    mapping.unmap().map_err(|failed| failed.error)?;
    copy(&bar, at)?;
    println!("stray: read {at} once while it was mapped, and once after");
    Ok(())
}

/// Has the device read a page, and waits until it has tried.
fn copy(bar: &Bar, from: Iova) -> Result<()> {
    for (register, value) in
        [(SOURCE, from.get()), (DESTINATION, BUFFER), (BYTES, PAGE as u64), (COMMAND, START)]
    {
        bar.write64(register, value);
    }
    let begin = Instant::now();
    while bar.read64(COMMAND) & START != 0 {
        if begin.elapsed() > LIMIT {
            bail!("the device does not end a copy");
        }
    }
    Ok(())
}
