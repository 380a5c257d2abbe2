//! A container of the library behind the SMMUv3 driver, on the model of its registers: the accesses of a
//! device wait where nothing is mapped, until the dispatcher has answered.
//!
//! A guest's memory is a second stage without PASIDs, a process's a first stage that a PASID names. The
//! unit writes an event for an access that waits; the driver reads it, the container maps, and CMD_RESUME has the
//! access tried again (IHI 0070, sections 3.12.2 and 4.7).

use crate::buffers::{promised, simulated};
use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use portolan::addr::{Iova, IovaRange, Pasid, PhysAddr, StreamId};
use portolan::demand::{
    Frames, Ioas, IoasOptions, Pager, PopulateError, RegionOptions, Residency, Unreached, Usage,
    Window,
};
use portolan::iommu::{Attach as _, Domain};
use portolan::iopf::{Bounds, Dispatcher, Flow, Handler};
use portolan::platform::{Nanos, UnitParts};
use portolan::table::Access;
use portolan_chips::Transfer;
use portolan_chips::memory::{ModelMemory, Visibility};
use portolan_chips::smmuv3::{CommandKind, SmmuIdentification, SmmuRegisters, SmmuSetup};
use portolan_hw::smmuv3::{Config, FirstStage, SecondStage, Smmu, SmmuDomainOptions, StallOrFault};
use portolan_sim::clock::PollingClock;
use portolan_sim::decode::AccessKind;
use portolan_sim::iommu::Temper;
use portolan_sim::profile::Profile;

const STREAM: StreamId = StreamId::new(1);
/// Bytes of an access.
const WORD: u64 = 4;
const PAGE: u64 = 4096;
/// Offset of the owner's memory behind the IOMMU from the address that leads there.
const MEMORY: u64 = 1 << 44;
/// Address of the memory of tables and queues.
const TABLES: PhysAddr = PhysAddr::new(1 << 28);
const TABLE_PAGES: u32 = 2048;
/// Accesses to a page until one succeeds: one that faults, and one afterwards.
const TRIES: u32 = 2;
/// Longest wait of the driver, in virtual time.
const LIMIT: Nanos = Nanos::from_millis(100);
/// Virtual nanoseconds between two looks of it.
const LOOK_NS: u64 = 10;
/// Exponent of a device's PASIDs.
const PASIDS_LG2: u32 = 4;

type Clock = Arc<PollingClock<Arc<SmmuRegisters>>>;
/// Parts of the machine.
type Parts = UnitParts<Arc<SmmuRegisters>, Arc<ModelMemory>, Clock>;
type Unit = Smmu<Parts>;
type Guest = SecondStage<12, Parts>;
type Process = FirstStage<12, Parts>;

/// Owner of the memory that a device uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    /// A guest's.
    Guest,
    /// A process's.
    Process(Pasid),
}

/// Counts of a device's accesses to a container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct AccessCounts {
    /// Faults.
    pub(super) faults: u64,
    /// Accesses that the unit held back, and commands that ended that.
    pub(super) stalled: [u64; 2],
    /// Pages that they mapped.
    pub(super) mapped: u64,
    /// Pages that the device accessed.
    pub(super) used: u64,
}

impl AccessCounts {
    /// Percentage of the mapped pages that the device did not access.
    pub(super) fn wasted_pct(self) -> f64 {
        100.0 * (self.mapped - self.used) as f64 / self.mapped.max(1) as f64
    }
}

/// Memory that is always there, in one piece.
struct Contiguous;

impl Pager for Contiguous {
    fn populate(
        &self,
        range: IovaRange,
        _access: Access,
        frames: &mut Frames,
    ) -> Result<(), PopulateError> {
        let pa = PhysAddr::new(MEMORY + range.start().get());
        let iova = range.start();
        (frames.push(promised(pa, range.len_minus_one() + 1)))
            .map_err(|_| PopulateError::OutOfMemory { iova })
    }

    fn pin(
        &self,
        range: IovaRange,
        access: Access,
        frames: &mut Frames,
    ) -> Result<(), PopulateError> {
        self.populate(range, access, frames)
    }

    fn unpin(&self, _pinned: &Unreached) {}
}

/// A container that serves faults, and its counts.
type Served = (Arc<dyn Handler>, Box<dyn Fn() -> Usage>);

fn container<D: Domain + 'static>(
    domain: Arc<D>,
    clock: Clock,
    window: Window,
    range: IovaRange,
) -> Result<Served> {
    let options = IoasOptions { window, ..IoasOptions::default() };
    let container = Arc::new(Ioas::new(domain, clock, options, simulated())?);
    let region =
        RegionOptions { range, access: Access::READ | Access::WRITE, hold: Residency::OnDemand };
    container.add_region(&region, Contiguous)?;
    let handler = container.clone();
    Ok((handler, Box::new(move || container.usage())))
}

/// A device and the memory that it may use.
pub(super) struct Machine {
    // Before the unit: its mappings are taken back through the unit's queue.
    desk: Dispatcher<Clock, Arc<Unit>>,
    usage: Box<dyn Fn() -> Usage>,
    unit: Arc<Unit>,
    registers: Arc<SmmuRegisters>,
    pasid: Option<Pasid>,
    used: BTreeSet<u64>,
}

impl Machine {
    /// A device that may use `memory` bytes from address 0.
    pub(super) fn new(
        profile: &Profile,
        whose: Whose,
        window: Window,
        memory: u64,
    ) -> Result<Self> {
        let setup = SmmuSetup {
            identification: SmmuIdentification::able().stalls(),
            temper: Temper::Realistic(profile.caches()),
            ..SmmuSetup::default()
        };
        let tables = Arc::new(ModelMemory::new(TABLES, TABLE_PAGES, Visibility::AtOnce));
        let registers = Arc::new(SmmuRegisters::new(setup, tables.clone()));
        let looks = PollingClock::new(registers.clock().clone(), LOOK_NS, registers.clone());
        let clock: Clock = Arc::new(looks);
        let mut config = Config::default();
        config.limit = LIMIT;
        let unit = Smmu::enable(registers.clone(), tables, UnitParts::new(clock.clone()), config)?;
        let range = IovaRange::from_len(Iova::new(0), memory).context("memory without bytes")?;
        unit.enable_stalls(STREAM)?;
        let mut options = SmmuDomainOptions::default();
        let (pasid, (handler, usage)) = match whose {
            Whose::Guest => {
                options.input_lg2 = Some(profile.format().input_lg2().into());
                let domain: Arc<Guest> = Arc::new(unit.second_stage(&options)?);
                unit.attach(STREAM, &domain)?;
                (None, container(domain, clock.clone(), window, range)?)
            }
            Whose::Process(pasid) => {
                unit.enable_pasids(STREAM, PASIDS_LG2)?;
                let domain: Arc<Process> = Arc::new(unit.first_stage(&options)?);
                unit.attach_pasid(STREAM, pasid, &domain)?;
                (Some(pasid), container(domain, clock.clone(), window, range)?)
            }
        };
        let unit = Arc::new(unit);
        let bounds = Bounds { flow: Flow::UNBOUNDED, ..Bounds::default() };
        let desk = Dispatcher::new(clock, unit.clone(), bounds)?;
        desk.register(STREAM, pasid, range, handler)?;
        Ok(Self { desk, usage, unit, registers, pasid, used: BTreeSet::new() })
    }

    /// Lets the device access a page; returns `true` if it had to wait.
    pub(super) fn access(&mut self, page: u64, kind: AccessKind) -> Result<bool> {
        self.used.insert(page);
        let iova = Iova::new(page * PAGE);
        let mut went = (self.registers).transfer(STREAM, self.pasid, iova, kind, WORD);
        for tried in 0..TRIES {
            match went {
                Transfer::Done(pieces) => {
                    let at = pieces.first().map(|piece| piece.pa);
                    if at != Some(PhysAddr::new(MEMORY + iova.get())) {
                        bail!("{iova} leads to {at:?}");
                    }
                    return Ok(tried != 0);
                }
                Transfer::Refused(fault) => bail!("{iova} was refused: {fault:?}"),
                Transfer::Stalled(_) => went = self.serve()?,
            }
        }
        bail!("{iova} faults after its fault was served");
    }

    /// Answers the waiting access; returns its continuation.
    fn serve(&self) -> Result<Transfer> {
        let Some(StallOrFault::Stalled { request, .. }) = self.unit.next_stall_or_fault()? else {
            bail!("an access waits, and no event says so");
        };
        self.desk.accept(request)?;
        while self.desk.serve()?.is_some() {}
        let ended = self.registers.finished().pop();
        ended.map(|(_, went)| went).context("an access was answered, and goes on waiting")
    }

    /// Counts so far.
    ///
    /// # Errors
    /// If the hardware has complaints, or an access was not answered, or twice.
    pub(super) fn counted(&self) -> Result<AccessCounts> {
        let (usage, seen) = ((self.usage)(), self.registers.counts());
        let wrong = self.registers.violations();
        let open = self.registers.unanswered();
        if !wrong.is_empty() || !open.is_empty() || seen.stray_responses != 0 {
            return Err(anyhow!("{wrong:?}, {open:?}, {seen:?}"));
        }
        let resumed = seen.commands.get(&CommandKind::Resume);
        Ok(AccessCounts {
            faults: usage.faults,
            stalled: [seen.faults, resumed.copied().unwrap_or(0)],
            mapped: usage.granules_mapped,
            used: self.used.len() as u64,
        })
    }
}
