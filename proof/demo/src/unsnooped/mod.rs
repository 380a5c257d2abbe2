//! A unit and a device that do not snoop: table entries and buffers are written back and taken in, or nothing works.

mod cache;

use alloc::vec::Vec;

use portolan::dma::{Device, Direction};
use portolan_bare::Machine;
use portolan_bare::pci::Function;
use portolan_hw::TrustedDescription;
use portolan_hw::topology::{Iommus, Options, Topology};

use crate::commands::Commands;
use crate::edu::Edu;
use crate::uncached::{self, Aside};
use crate::{Outcome, guarded, say};
use cache::Unsnooped;

/// Bytes that the device writes, as in [`guarded`].
const BYTES: u64 = 2048;
const UNTOUCHED: u8 = 0x5a;
/// The type of an SMMUv3's node in an IORT, the offset of its flags, and the flag.
const SMMU_V3: u8 = 4;
const FLAGS: usize = 24;
const COHACC_OVERRIDE: u8 = 1;

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
    let tables: Vec<Vec<u8>> = machine.tables().map(not_coherent).collect();
    let topology = Topology::from_acpi(tables.iter().map(Vec::as_slice))?;
    let iommus = topology.enable(platform, Options::default(), described)?;
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

/// A table of firmware's, an IORT without the flag that an SMMUv3 snoops whatever its IDR0 says (Arm DEN 0049,
/// version E.f, sections 3 and 3.1.1.2: COHACC override).
fn not_coherent(table: &[u8]) -> Vec<u8> {
    let mut table = table.to_vec();
    if table.starts_with(b"IORT") {
        let _ = clear_override(&mut table);
    }
    table
}

/// Clears the flag in all nodes of an IORT; `None` if a node is not where it should be, which the topology refuses.
fn clear_override(iort: &mut [u8]) -> Option<()> {
    let word = |iort: &[u8], at: usize| {
        let bytes = iort.get(at..at.checked_add(4)?)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    };
    let (nodes, mut at) = (word(iort, 36)?, word(iort, 40)? as usize);
    for _ in 0..nodes {
        let [kind, low, high, _] = word(iort, at)?.to_le_bytes();
        if kind == SMMU_V3 {
            *iort.get_mut(at + FLAGS)? &= !COHACC_OVERRIDE;
        }
        at += usize::from(u16::from_le_bytes([low, high]));
    }
    let sum = iort.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
    let checksum = iort.get_mut(9)?;
    *checksum = checksum.wrapping_sub(sum);
    Some(())
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
