//! Takes a unit over from firmware or a previous kernel, in any state, so that it uses our
//! directory.
//!
//! RISC-V IOMMU Architecture Specification, version 1.0, sections "Guidelines for initialization",
//! "Device-directory-table pointer" (6.5) and "Features-control register" (6.4).
//!
//! Devices that firmware has at work go on throughout where the unit lets all accesses through (Bare) and has the
//! features that are wanted: it does so until it uses a directory that leads to their memory. From another directory
//! there is no way but through Off (6.5), and features change in Off alone (6.4): in these cases the unit lets nothing
//! through meanwhile. Nothing passes untranslated, unless it did before.

use super::command::{RiscvControl, Turned};
use super::features::{RiscvFeature, Signal};
use super::queue::RiscvShared;
use super::tables::Directory;
use crate::chassis::OperationState;

use portolan::iommu::IommuError;
use portolan::platform::{Mmio, UnitPlatform};
use portolan_spec::riscv::reg::{self, directory, feature, pending};
use portolan_spec::riscv::{PPN, page_of};

/// Stops the queues, and lets no access through: unless there are devices `at_work` that need not be stopped.
pub(super) fn stop<P: UnitPlatform>(
    unit: &RiscvControl<P>,
    signal: Signal,
    at_work: bool,
) -> Result<(), IommuError> {
    stop_queues(unit)?;
    let as_wanted = has_features(unit, signal)?;
    let bare = directory::MODE.of(unit.directory()?) == directory::BARE;
    if at_work && bare && as_wanted { Ok(()) } else { close(unit) }
}

/// Stops the queues.
pub(super) fn stop_queues<P: UnitPlatform>(unit: &RiscvControl<P>) -> Result<(), IommuError> {
    let requests = unit.features.has.contains(RiscvFeature::ATS);
    let requests = requests.then_some(reg::REQUEST_CONTROL);
    let queues = [reg::COMMAND_CONTROL, reg::FAULT_CONTROL];
    for control in queues.into_iter().chain(requests) {
        unit.turn_queue(control, Turned::Off)?;
    }
    Ok(())
}

/// Tells if the unit has the features that are wanted.
pub(super) fn has_features<P: UnitPlatform>(
    unit: &RiscvControl<P>,
    signal: Signal,
) -> Result<bool, IommuError> {
    let (of_us, wanted) = features(signal);
    Ok(unit.read(reg::FEATURES)? & of_us == wanted)
}

/// Lets no access through.
pub(super) fn close<P: UnitPlatform>(unit: &RiscvControl<P>) -> Result<(), IommuError> {
    set_mode(unit, directory::OFF)
}

/// Changes the directory's mode, and leaves its address, as it must be where nothing is let through.
fn set_mode<P: UnitPlatform>(unit: &RiscvControl<P>, mode: u64) -> Result<(), IommuError> {
    let before = unit.directory()?;
    let value = unit.set_directory(before & PPN.mask() | directory::MODE.at(mode))?;
    let offset = reg::DIRECTORY;
    if directory::MODE.of(value) == mode {
        Ok(())
    } else {
        Err(IommuError::Nonsense { offset, value })
    }
}

/// From a stopped unit to one that carries commands out and has forgotten everything.
///
/// # Errors
/// [`IommuError::Unsupported`] if the unit has no queues so long, or no message with such an address.
pub(super) fn start<P: UnitPlatform>(
    shared: &RiscvShared<P>,
    signal: Signal,
) -> Result<(), IommuError> {
    let RiscvShared { control: unit, queue, faults, requests, operation, .. } = shared;
    queue.restart::<RiscvShared<P>>();
    set_features(unit, signal)?;
    set_signal(unit, signal)?;
    unit.install(reg::COMMAND_BASE, super::queue::base(queue))?;
    unit.regs.write32(reg::COMMAND_TAIL, 0);
    if unit.features.has.contains(RiscvFeature::COUNTERS) {
        // Those of a previous owner.
        unit.regs.write32(reg::COUNTER_INHIBIT, super::queue::NONE);
    }
    let records = [Some(faults), requests.as_ref()];
    for records in records.into_iter().flatten() {
        records.install(unit)?;
    }
    unit.turn_queue(reg::COMMAND_CONTROL, Turned::On { more: 0 })?;
    for records in records.into_iter().flatten() {
        records.turn_on(unit)?;
    }
    operation.set(OperationState::Running);
    shared.forget_everything()
}

/// From there to a unit that uses `directory`, which gets as many levels as the unit wants.
///
/// # Errors
/// [`IommuError::Unsupported`] if the unit has no directory so deep.
pub(super) fn use_directory<P: UnitPlatform>(
    unit: &RiscvControl<P>,
    directory: &mut Directory,
) -> Result<(), IommuError> {
    let before = directory::MODE.of(unit.directory()?);
    loop {
        let mode = directory::ONE_LEVEL + u64::from(directory.levels()) - 1;
        let value = directory::MODE.at(mode) | page_of(directory.root().at.get());
        let got = unit.set_directory(value)?;
        if got == value {
            return Ok(());
        }
        // A unit may take yet another mode, from which there is no way but through this.
        if directory::MODE.of(got) != before {
            close(unit)?;
        }
        directory.deepen(&unit.mem)?;
    }
}

/// Bits of the features that are the driver's, and those of them that are set: little-endian structures, wide guests,
/// and interrupts as they are wanted.
fn features(signal: Signal) -> (u32, u32) {
    match signal {
        Signal::None => (feature::BIG_ENDIAN | feature::GUEST_32, 0),
        Signal::Wired => (OF_ALL, feature::WIRED),
        Signal::Message { .. } => (OF_ALL, 0),
    }
}

fn set_features<P: UnitPlatform>(unit: &RiscvControl<P>, signal: Signal) -> Result<(), IommuError> {
    if has_features(unit, signal)? {
        return Ok(());
    }
    let (of_us, wanted) = features(signal);
    let before = unit.read(reg::FEATURES)?;
    unit.regs.write32(reg::FEATURES, before & !of_us | wanted);
    if has_features(unit, signal)? { Ok(()) } else { Err(IommuError::Unsupported) }
}

/// All features.
const OF_ALL: u32 = feature::BIG_ENDIAN | feature::GUEST_32 | feature::WIRED;

/// Vector 0 for every cause, and its message.
fn set_signal<P: UnitPlatform>(unit: &RiscvControl<P>, signal: Signal) -> Result<(), IommuError> {
    let regs = &unit.regs;
    if signal != Signal::None {
        regs.write32(reg::VECTORS, 0);
    }
    if let Signal::Message { address, data } = signal {
        unit.install(reg::MESSAGES, address.at().get())?;
        regs.write32(reg::MESSAGES + 8, data);
        regs.write32(reg::MESSAGES + 12, 0);
    }
    regs.write32(reg::PENDING, pending::ALL);
    Ok(())
}

/// Lets all accesses through, and turns the command queue off.
pub(super) fn turn_off<P: UnitPlatform>(unit: &RiscvControl<P>) -> Result<(), IommuError> {
    set_mode(unit, directory::OFF)?;
    set_mode(unit, directory::BARE)?;
    unit.turn_queue(reg::COMMAND_CONTROL, Turned::Off)
}
