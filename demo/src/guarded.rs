//! What a device reaches: nothing, then a buffer, then nothing again.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;

use portolan::addr::{Iova, PciFunction};
use portolan::dma::Direction;
use portolan::iommu::{FaultEvent, IommuDomains};
use portolan::platform::{Nanos, poll};
use portolan_bare::Machine;
use portolan_hw::topology::{DeviceOptions, Iommus};

use crate::edu::{ADDRESS_BITS, Edu};
use crate::pci::Function;
use crate::{Outcome, say};

const PAGE: u64 = 4096;
/// What the device writes: some of its releases do not take their whole buffer.
const BYTES: u64 = 2048;
/// What the pages are filled with. The device's own buffer is zero.
const UNTOUCHED: u8 = 0x5a;
/// A unit records a fault while the access is refused, or soon after.
const SOON: Nanos = Nanos::from_millis(1000);

pub fn show(machine: Machine, iommus: &Iommus<Machine>, function: &Function) -> Outcome<()> {
    let edu = Edu::new(machine, function).ok_or("the edu device has no registers")?;
    let (unit, _) = iommus.unit_of(function.at)?;
    forget_faults(unit)?;

    // Its driver was never given the device: a physical address is worth nothing.
    let mut page = machine.pages(PAGE as usize).ok_or("no memory")?;
    page.bytes_mut().fill(UNTOUCHED);
    let physical = Iova::new(page.memory().start().get());
    edu.write(physical, BYTES)?;
    if page.bytes().iter().any(|byte| *byte != UNTOUCHED) {
        return Err("a device that was never opened wrote to memory".into());
    }
    say!(
        "not opened: refused, {}",
        recorded(machine, iommus, function.at)?
    );

    // Opened, it reaches the page that is mapped.
    let mut options = DeviceOptions::default();
    options.constraints = options.constraints.address_bits(ADDRESS_BITS);
    let device = iommus.device_with(function.at, &options)?;
    let mapping = device.map(page, Direction::FromDevice);
    let mut mapping = mapping.map_err(|failed| failed.error)?;
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
    page.bytes_mut().fill(UNTOUCHED);
    forget_faults(unit)?;
    edu.write(mapped, BYTES)?;
    if page.bytes().iter().any(|byte| *byte != UNTOUCHED) {
        return Err("a device wrote to a buffer that was taken back".into());
    }
    say!(
        "taken back: refused, {}",
        recorded(machine, iommus, function.at)?
    );
    Ok(())
}

/// Reads what the unit has recorded so far.
pub fn forget_faults(unit: &Arc<dyn IommuDomains>) -> Outcome<()> {
    while unit.next_fault()?.is_some() {}
    Ok(())
}

/// What the unit has recorded of the access that `function` has just made, as text.
pub fn recorded(
    machine: Machine,
    iommus: &Iommus<Machine>,
    function: PciFunction,
) -> Outcome<String> {
    let (unit, stream) = iommus.unit_of(function)?;
    let look = || match unit.next_fault() {
        Ok(None) => None,
        found => Some(found),
    };
    let Ok(found) = poll(&machine, SOON, look) else {
        return Ok("not recorded".to_string());
    };
    match found? {
        Some(FaultEvent::Fault(record)) if record.stream == stream => Ok(match record.iova {
            Some(iova) => format!("{:?} at {iova}", record.reason),
            None => format!("{:?}", record.reason),
        }),
        _ => Err("another fault was recorded".into()),
    }
}
