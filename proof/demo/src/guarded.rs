//! Reach of a device: nothing, then a buffer, then nothing again.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;

use portolan::addr::{Iova, PciFunction};
use portolan::dma::Direction;
use portolan::iommu::{FaultEvent, IommuDomains};
use portolan::platform::{Nanos, Platform, poll};
use portolan_bare::pci::Function;
use portolan_bare::{Machine, Pages};
use portolan_hw::topology::{DeviceOptions, Iommus};

use crate::edu::{ADDRESS_BITS, Edu};
use crate::{Outcome, say};

const PAGE: u64 = 4096;
/// Bytes that the device writes: some of its releases do not take their whole buffer.
const BYTES: u64 = 2048;
/// Value that the pages are filled with. The device's own buffer is zero.
const UNTOUCHED: u8 = 0x5a;
/// A unit records a fault while the access is refused, or soon after.
const SOON: Nanos = Nanos::from_millis(1000);

pub fn show(machine: Machine, iommus: &Iommus<Machine>, function: &Function) -> Outcome<()> {
    let edu = Edu::new(machine, function)?;
    // The device writes to `at`, and none of it arrives at `page`.
    let must_be_refused = |what, at, page: &mut Pages| -> Outcome<()> {
        forget_faults(iommus.unit_of(function.at())?.0)?;
        page.bytes_mut().fill(UNTOUCHED);
        edu.write(at, BYTES)?;
        if page.bytes().iter().any(|byte| *byte != UNTOUCHED) {
            return Err(format!("a device that is {what} wrote to memory").into());
        }
        let recorded = recorded(machine, iommus, function.at())?;
        say!("{what}: refused, {recorded}");
        Ok(())
    };

    // Its driver was never given the device: a physical address is worth nothing.
    let mut page = machine.pages(PAGE as usize).ok_or("no memory")?;
    let physical = Iova::new(page.memory().start().get());
    must_be_refused("not opened", physical, &mut page)?;

    // Opened, it reaches the page that is mapped.
    let mut options = DeviceOptions::trusted();
    options.constraints = options.constraints.address_bits(ADDRESS_BITS);
    let device = iommus.device_with(function.at(), &options)?;
    let mut mapping = device.map(page, Direction::FromDevice).map_err(|failed| failed.error)?;
    let mapped = mapping.iova();
    edu.write(mapped, BYTES)?;
    mapping.sync_for_cpu();
    let mut seen = [UNTOUCHED; BYTES as usize];
    mapping.read(0, &mut seen)?;
    if seen.iter().any(|byte| *byte != 0) {
        return Err("a device did not reach the buffer that it was given".into());
    }
    say!("mapped at {mapped}: written");

    // Taken back, the same address is worth nothing.
    let mut page = mapping.unmap().map_err(|failed| failed.error)?;
    must_be_refused("taken back", mapped, &mut page)
}

/// Reads the unit's records so far.
pub fn forget_faults(unit: &Arc<dyn IommuDomains>) -> Outcome<()> {
    while unit.next_fault()?.is_some() {}
    Ok(())
}

/// Record of the unit about the access that `function` has just made, as text.
pub fn recorded<P: Platform>(
    machine: Machine,
    iommus: &Iommus<P>,
    function: PciFunction,
) -> Outcome<String> {
    let (unit, stream) = iommus.unit_of(function)?;
    let Ok(found) = poll(&machine, SOON, || unit.next_fault().transpose()) else {
        return Ok("not recorded".into());
    };
    match found? {
        FaultEvent::Fault(record) if record.stream == stream => Ok(match record.iova {
            Some(iova) => format!("{:?} at {iova}", record.reason),
            None => format!("{:?}", record.reason),
        }),
        _ => Err("another fault was recorded".into()),
    }
}
