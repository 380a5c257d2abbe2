//! A unit and a device that do not snoop: table entries and buffers are written back and taken in, or nothing works.

mod cache;

use portolan::dma::{Device, Direction};
use portolan_bare::Machine;
use portolan_bare::pci::Function;
use portolan_hw::TrustedDescription;
use portolan_hw::topology::{Iommus, Options};

use crate::commands::Commands;
use crate::edu::Edu;
use crate::uncached::{self, Aside};
use crate::{Outcome, guarded, say};
use cache::Unsnooped;

/// Bytes that the device writes, as in [`guarded`].
const BYTES: u64 = 2048;
const UNTOUCHED: u8 = 0x5a;

/// Enables the units on the machine with a cache, and shows what a device reaches and when. Nothing is shown for units
/// that always snoop.
pub fn show(machine: Machine, function: &Function, aside: &Aside) -> Outcome<()> {
    let has = |signature: &[u8]| machine.tables().any(|table| table.starts_with(signature));
    let (vtd, smmu) = (has(b"DMAR"), has(b"IORT"));
    if !vtd && !smmu {
        return Ok(());
    }
    let platform = Unsnooped::new(machine, smmu)?;
    // SAFETY: the tables are this machine's, by the word of its loader.
    let described = unsafe { TrustedDescription::new() };
    let iommus = machine.topology()?.enable(platform, Options::default(), described)?;
    if let Some(Err(error)) = iommus.units().iter().find(|unit| unit.is_err()) {
        return Err((*error).into());
    }
    let edu = Edu::new(machine, function)?;
    let device = uncached::unsnooped(&iommus, function)?;

    reach(&platform, &iommus, function, &device, &edu)?;
    if aside.is_uncached() {
        uncached::ring(&device, &edu)?;
    }
    drop(device);
    Commands::of(&iommus).print();
    core::mem::forget(iommus);
    Ok(())
}

/// Maps a page, lets the device write to it, and unmaps it.
fn reach(
    platform: &Unsnooped,
    iommus: &Iommus<Unsnooped>,
    function: &Function,
    device: &Device<Unsnooped>,
    edu: &Edu,
) -> Outcome<()> {
    let mut page = platform.page().ok_or("no memory")?;
    page.bytes_mut().fill(UNTOUCHED);
    let enabled = platform.exchanged();
    let mut mapping = device.map(page, Direction::FromDevice).map_err(|failed| failed.error)?;
    let (at, mapped) = (mapping.iova(), platform.exchanged());
    let mut seen = [0; BYTES as usize];
    edu.write(at, BYTES)?;
    mapping.read(0, &mut seen)?;
    if seen.iter().any(|byte| *byte != UNTOUCHED) {
        return Err("a device that does not snoop wrote to the cache".into());
    }
    mapping.sync_for_cpu();
    mapping.read(0, &mut seen)?;
    if seen.iter().any(|byte| *byte != 0) {
        return Err("a device did not reach the buffer that it was given".into());
    }
    let synced = platform.exchanged();
    drop(mapping.unmap().map_err(|failed| failed.error)?);
    let unmapped = platform.exchanged();

    guarded::forget_faults(iommus.unit_of(function.at())?.0)?;
    edu.write(at, BYTES)?;
    let recorded = guarded::recorded(platform.machine(), iommus, function.at())?;
    say!("without snooping: written, then refused, {recorded}");
    let [enabled, mapping, unmapping] = [
        enabled.written_back,
        mapped.written_back - enabled.written_back,
        unmapped.written_back - synced.written_back,
    ];
    let taken_in = synced.taken_in - mapped.taken_in;
    say!("  lines written back: {enabled} before, {mapping} to map, {unmapping} to unmap");
    say!("  lines taken in: {taken_in}");
    match mapping == 0 || unmapping == 0 || taken_in != BYTES / cache::LINE {
        true => Err("a change of a table was not written back, or a buffer not taken in".into()),
        false => Ok(()),
    }
}
