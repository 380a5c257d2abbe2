//! Takes a unit over from firmware or a previous kernel, in any state, so that it uses our tables.
//!
//! AMD I/O Virtualization Technology (IOMMU) Specification (48882), revision 3.10, sections 3.4.1
//! to 3.4.5, and 2.12.2.1. A unit that translates goes on doing so: it is never turned off, since accesses would
//! pass untranslated. Only the rings are stopped and exchanged; then the device table is, and all
//! cached copies of the old one are forgotten. Until then devices reach the previous owner's
//! mappings, and afterwards those of our table.

use portolan::iommu::IommuError;
use portolan::platform::{Mmio, UnitPlatform};

use super::command::AmdControl;
use super::config::{self, Config};
use super::features::AmdFeature;
use super::queue::AmdShared;
use super::queue::address;
use super::tables::DeviceTable;
use crate::chassis::{OperationState, Present as _};
use crate::interrupt::ApicMode;
use portolan_spec::amd::reg::{self, control, status};

/// Control bits of the parts that read and write memory of the previous owner, besides the device
/// table and page tables.
const RINGS: u64 = control::COMMANDS
    | control::EVENT_LOG
    | control::EVENT_INTERRUPT
    | control::WAIT_INTERRUPT
    | control::REQUEST_LOG
    | control::REQUEST_INTERRUPT
    | control::REQUESTS
    | control::GUEST_LOG
    | control::GUEST_LOG_INTERRUPT;

/// The same, as the status shows it.
const RINGS_RUN: u64 =
    status::COMMANDS_RUN | status::EVENT_RUNS | status::REQUESTS_RUN | status::GUEST_LOG_RUNS;

/// Control bits for the order and tunnelling of the unit's own traffic.
const TRAFFIC: u64 =
    control::TUNNEL | control::PASS_POSTED | control::RESPONSES_PASS | control::ISOCHRONOUS;

/// Control bits for the form of interrupt tables.
fn interrupt_form(config: &Config) -> u64 {
    let posted = config.sleepers_lg2.map_or(0, |_| control::GUEST_APIC.at(1));
    match config.interrupts.map(|wanted| wanted.apic) {
        Some(ApicMode::X2Apic) => {
            control::WIDE_ENTRIES | control::WIDE_DESTINATIONS | control::WIDE_OWN | posted
        }
        Some(ApicMode::XApic) | None => 0,
    }
}

/// Tells if `control` is of a unit whose interrupt tables have the form that is wanted, posted or not.
pub(super) fn has_interrupt_form(control: u64, config: &Config) -> bool {
    let all = control::WIDE_ENTRIES | control::WIDE_DESTINATIONS | control::WIDE_OWN;
    control & all == interrupt_form(config) & all
}

/// Control bits for page requests and for interrupts of virtual CPUs that are logged, and those of the status that
/// follow.
fn serving<P: UnitPlatform>(shared: &AmdShared<P>) -> (u64, u64) {
    let (mut served, mut runs) = (0, 0);
    if shared.logs.requests.is_some() {
        let answers = match shared.control.features.has.contains(AmdFeature::AUTO_RESPONSE) {
            true => control::AUTO_RESPONSE,
            false => 0,
        };
        served |= control::REQUESTS | control::REQUEST_LOG | answers;
        runs |= status::REQUESTS_RUN;
    }
    if shared.logs.sleepers.is_some() {
        served |= control::GUEST_LOG;
        runs |= status::GUEST_LOG_RUNS;
    }
    (served, runs)
}

/// Stops commands and logs. Accesses go on as they did: translated, or not.
pub(super) fn stop_rings<P: UnitPlatform>(unit: &AmdControl<P>) -> Result<(), IommuError> {
    unit.switch(!RINGS, 0)?;
    unit.await_status(RINGS_RUN, 0)
}

/// From stopped rings to a unit that uses `table`, and has forgotten everything else.
pub(super) fn start<P: UnitPlatform>(
    shared: &AmdShared<P>,
    table: &DeviceTable,
    config: &Config,
) -> Result<(), IommuError> {
    let AmdShared { control: unit, queue, logs, operation, .. } = shared;
    let regs = &unit.regs;
    queue.restart::<AmdShared<P>>();
    regs.write64(reg::COMMAND_BASE, address(queue));
    // While SNP is on it keeps the address of the kernel that turned it on, as does the range in which completions
    // may be stored (2.12.2.1): no wait would end.
    regs.holds(reg::COMMAND_BASE, address(queue))?;
    regs.write64(reg::COMMAND_HEAD, 0);
    regs.write64(reg::COMMAND_TAIL, 0);
    regs.write64(reg::STATUS, status::WAIT_INTERRUPT);
    logs.all().try_for_each(|log| log.hand_over(unit))?;
    regs.write64(reg::DEVICE_TABLE, table.address());
    regs.holds(reg::DEVICE_TABLE, table.address())?;
    let on = control::ENABLE | control::COMMANDS | control::EVENT_LOG | control::COHERENT;
    let (asks, log_runs) = serving(shared);
    // Guest tables stay on as long as an entry that is still cached may need them: with them off,
    // it would let everything through. A table in segments would be ours in part only.
    let guests = unit.features.guests.map_or(0, |offered| match offered.over_host {
        true => control::GUESTS | control::ROOTS_OVER_HOST,
        false => control::GUESTS,
    });
    let form = interrupt_form(config) | guests;
    let first = match unit.read(reg::CONTROL)? & control::ENABLE {
        0 => on | form,
        _ => on,
    };
    unit.switch(!control::SEGMENTS, first)?;
    let run = status::COMMANDS_RUN | status::EVENT_RUNS;
    unit.await_status(run, run)?;
    operation.set(OperationState::Running);
    shared.forget_everything()?;
    // Behind the entries of a previous owner that let devices ask.
    unit.switch(u64::MAX, asks)?;
    unit.await_status(log_runs, log_runs)?;
    // Memory that firmware excluded from translation: none from now on. The half with the enable goes first: a
    // write of both may change the upper half of the base before that, and exclude more.
    regs.write32(reg::EXCLUSION_BASE, 0);
    regs.write64(reg::EXCLUSION_BASE, 0);
    regs.write64(reg::EXCLUSION_LIMIT, 0);
    match unit.read(reg::EXCLUSION_BASE)? {
        0 => {}
        value => {
            let offset = reg::EXCLUSION_BASE;
            return Err(IommuError::Nonsense { offset, value });
        }
    }
    let kept = control::DEVICE_TLB_LIMIT.mask() | on | asks;
    // Entries that named interrupt tables of a previous owner's form are forgotten.
    match config.flags {
        Some(flags) => unit.switch(kept, config::traffic(flags) | form),
        None => unit.switch(kept | TRAFFIC, form),
    }
}

/// Turns off all parts that run: commands, the log, and the unit.
pub(super) fn turn_off<P: UnitPlatform>(unit: &AmdControl<P>) -> Result<(), IommuError> {
    unit.switch(control::DEVICE_TLB_LIMIT.mask() | TRAFFIC, 0)?;
    unit.await_status(RINGS_RUN, 0)
}
