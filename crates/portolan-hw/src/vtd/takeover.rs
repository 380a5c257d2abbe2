//! Taking a unit over from firmware or an earlier system, whose translation may be on.
//!
//! Intel Virtualization Technology for Directed I/O (D51397), revision 4.1, sections 3.14 and 6.6
//! to 6.8, 6.5.2 (turning a queue off), 9.1 to 9.6 (entries that are kept), 11.4.4 and 11.4.5 (setting
//! the root while translation is on). Turning translation off lets DMA under way through with its
//! addresses as they are, so it stays on: the unit changes from the old root to the new one.

use super::command::{Contexts, Iotlb, Request};
use super::control::{Core, Switch, VtdControl, Way};
use super::faults::{FaultReader, PageQueue};
use super::features::{Config, Features, Invalidation, Mode, Quirks, Takeover, VtdFeature};
use super::former::{FormerEntry, FormerTables, FormerTags};
use super::queue::{self, Width};
use super::tables::{
    AttachedContext, Attachment, EntryRequests, InheritedTranslation, OwnMessages, Root, Streams,
    Structures, change, mode_bits,
};
use super::unit::{KnownDevices, PASS, Vtd, VtdAllocations};
use crate::chassis::book::Book;
use crate::chassis::handed::Adopted;
use crate::chassis::{Operation, OperationState, Present, Submitters, wait_until};
use crate::ids::Ids;
use alloc::sync::Arc;
use alloc::vec::Vec;
use portolan::addr::StreamId;
use portolan::inval::{Ranges, Walker};
use portolan::iommu::{Awaited, IommuError, Stage};
use portolan::platform::{FormerMemory, Guarded, Mmio, UnitPlatform};
use portolan::table::format::DirtyTracking;
use portolan_spec::vtd::reg::{self, command, fsts, root_mode};
use portolan_tables::describe::UnitKind;

/// Features of a unit that are used.
pub(super) struct Offer {
    pub(super) features: Features,
    /// Width of descriptors, if there is to be a queue.
    pub(super) width: Option<Width>,
}

impl Offer {
    /// Reads the features of the unit, and makes `config` fit for them.
    pub(super) fn read(regs: &impl Mmio, config: &mut Config) -> Result<Self, IommuError> {
        config.reserved.within(config.output_lg2);
        config.reserved.hold(UnitKind::Vtd.not_translated());
        let mut features = Features::read(regs)?;
        if config.chip.contains(Quirks::WRITE_BUFFER) {
            features.has.insert(VtdFeature::WRITE_BUFFER);
        }
        let scalable = config.mode == Mode::Scalable;
        if scalable && !features.has.contains(VtdFeature::SCALABLE) {
            return Err(IommuError::Unsupported);
        }
        let marks = |stage| features.marks(config.mode, stage);
        if config.dirty == DirtyTracking::Hardware && !marks(Stage::First) && !marks(Stage::Second)
        {
            return Err(IommuError::Unsupported);
        }
        let queued =
            features.has.contains(VtdFeature::QUEUE) && config.invalidation == Invalidation::Best;
        let registers = features.has.contains(VtdFeature::REGISTERS) && !scalable;
        if !queued && !registers {
            return Err(IommuError::Unsupported);
        }
        let width = if scalable { Width::Bits256 } else { Width::Bits128 };
        Ok(Self { features, width: queued.then_some(width) })
    }

    /// Width of the PASIDs of a unit with `config`.
    pub(super) fn pasid_bits(&self, config: &Config) -> u32 {
        config.pasid_bits.min(self.features.pasid_bits)
    }
}

/// State in which the unit is found; [`IommuError::Unsupported`] if that cannot be changed to the
/// one of `config` without a moment in which devices reach everything.
pub(super) fn inherited(
    regs: &impl Mmio,
    config: &Config,
) -> Result<InheritedTranslation, IommuError> {
    let (status, root) = (regs.present32(reg::GSTS)?, regs.present64(reg::RTADDR)?);
    let stays = config.chip.contains(Quirks::KEEP_TRANSLATION);
    let bypass = config.takeover != Takeover::Translated && !stays;
    if status & command::TE == 0 || bypass {
        return Ok(InheritedTranslation::Nothing);
    }
    if root & root_mode::MASK == mode_bits(config.mode) {
        Ok(InheritedTranslation::Translation)
    } else {
        Err(IommuError::Unsupported)
    }
}

/// Stops all parts that were left running: translation, unless it is inherited, then the queue,
/// once that is empty or has been waited for in vain. The remapping of interrupts as well if the driver
/// is to do it: otherwise it is the embedder's.
pub(super) fn quiet<P: UnitPlatform>(
    control: &VtdControl<P>,
    inherited: InheritedTranslation,
    remaps: bool,
) -> Result<(), IommuError> {
    if inherited == InheritedTranslation::Nothing {
        control.switch(command::TE, Switch::Off)?;
    }
    // The old table is in memory that has no owner any more.
    if remaps {
        control.switch(command::IRE, Switch::Off)?;
    }
    if control.status()? & command::QIE == 0 {
        return Ok(());
    }
    // Errors of before keep the queue from draining.
    let errors = fsts::IQE | fsts::ICE | fsts::ITE;
    control.regs.write32(reg::FSTS, errors);
    let regs = &control.regs;
    let at = |offset| regs.present64(offset).map(|index| reg::queue::OFFSET.of(index));
    let is_empty = || Ok(at(reg::IQH)? == at(reg::IQT)?);
    match wait_until(&control.clock, control.limit, Awaited::Completion, is_empty) {
        // Whatever it waits for, a crash left it so, and nothing of it is needed.
        Ok(()) | Err(IommuError::TimedOut { .. }) => control.switch(command::QIE, Switch::Off),
        Err(error) => Err(error),
    }
}

impl<P: UnitPlatform> Vtd<P> {
    /// As [`Vtd::enable`], but does not change to the new tables yet: until [`Vtd::translate`],
    /// devices reach the same memory as before, which is all of it if translation was off. Streams
    /// attached in between are never blocked, which those with reserved memory
    /// ([`Config::reserved`]) may not survive.
    ///
    /// `former` has the tables of before. Until the unit has forgotten these no domain gets an identifier that they
    /// use, so that no attached stream hits one of their translations. Where they cannot be read whole, each
    /// attachment before
    /// [`Vtd::translate`] is [`IommuError::Unsupported`], unless the unit forgets with the change
    /// ([`VtdFeature::ROOT_INVALIDATES`]); so is one that passes through, if their domains use the identifier of
    /// such streams.
    ///
    /// # Errors
    /// As [`Vtd::enable`].
    pub fn prepare(
        regs: P::Registers,
        mem: P::Memory,
        clock: P,
        config: Config,
        former: FormerMemory<'_>,
    ) -> Result<Self, IommuError> {
        let unit = Self::begin(regs, mem, clock, config)?;
        if !unit.former.lock().are_known() {
            unit.find_former(&unit.former_tables(former))?;
        }
        Ok(unit)
    }

    /// As [`Vtd::prepare`], with tables of before that are not read.
    pub(super) fn begin(
        regs: P::Registers,
        mem: P::Memory,
        clock: P,
        mut config: Config,
    ) -> Result<Self, IommuError> {
        let offer = Offer::read(&regs, &mut config)?;
        let inherited = inherited(&regs, &config)?;
        let control = VtdControl::new(regs, clock, config.limit, offer.features);
        let structures = Structures::new(&mem, config.mode, offer.pasid_bits(&config))?;
        let mut parts = VtdAllocations::new(structures);
        let inherits = parts
            .make_ring(&mem, &config, offer.width)
            .and_then(|()| parts.make_remap(&mem, &config, &offer.features))
            .and_then(|()| quiet(&control, inherited, parts.remap.is_some()));
        if let Err(error) = inherits {
            parts.free(&mem);
            return Err(error);
        }
        let unit = Self::of(control, mem, config, parts, inherited);
        let forgets = unit.features().has.contains(VtdFeature::ROOT_INVALIDATES);
        if inherited == InheritedTranslation::Translation && !forgets {
            *unit.former.lock() = FormerTags::Unknown;
        }
        unit.start()?;
        Ok(unit)
    }

    /// The tables that the unit still uses.
    fn former_tables<'r>(&self, memory: FormerMemory<'r>) -> FormerTables<'r> {
        FormerTables::new(self.core.control.regs.read64(reg::RTADDR), self.config.mode, memory)
    }

    /// Keeps the identifiers of the tables of before out of use, if all can be read.
    fn find_former(&self, tables: &FormerTables<'_>) -> Result<(), IommuError> {
        let Some(tags) = tables.tags() else { return Ok(()) };
        for &id in &tags {
            self.core.ids.take_this(id.into());
        }
        // Translations of entries that are gone may have been left: the unit refills from those that are there.
        self.forget_everything()?;
        *self.former.lock() = FormerTags::Named(tags);
        Ok(())
    }

    /// The unit over allocations, of which it was not told.
    pub(super) fn of(
        control: VtdControl<P>,
        mem: P::Memory,
        config: Config,
        parts: VtdAllocations<P>,
        inherited: InheritedTranslation,
    ) -> Self {
        let VtdAllocations { structures, way, remap } = parts;
        let features = control.features;
        let ranges = Ranges::of(&features.second_capabilities(Walker::Coherent));
        let submitters = Submitters::new(&control.clock, ranges, config.combining);
        let root = Root::new(structures.root, config.mode, inherited);
        let last = (1u32 << features.domain_bits) - 1;
        let core = Core {
            control,
            mem,
            way,
            ids: Ids::new(u32::from(PASS) + 1, last),
            tags: Guarded::default(),
            operation: Operation::default(),
            submitters,
        };
        Self {
            core: Arc::new(core),
            config,
            book: Book::new(Streams::new(structures)),
            known: Guarded::new(KnownDevices::default()),
            faults: FaultReader::default(),
            requests: PageQueue::default(),
            root,
            former: Guarded::default(),
            remap,
            messages: OwnMessages::default(),
            adopted: Adopted::default(),
        }
    }

    /// From a quiet unit to one that is about to use the new tables.
    pub(super) fn start(&self) -> Result<(), IommuError> {
        self.start_queue()?;
        self.start_interrupts()?;
        if !self.features().translates() {
            return Ok(());
        }
        match self.root.inherited() {
            // Devices go on with the old root until the new one says where each of them is.
            InheritedTranslation::Translation => Ok(()),
            InheritedTranslation::Nothing => self.set_root(),
        }
    }

    /// Gives back old records, and has the unit carry commands out.
    pub(super) fn start_queue(&self) -> Result<(), IommuError> {
        let Core { control, way, operation, .. } = &*self.core;
        self.faults.discard(control)?;
        if let Way::Ring(ring) = way {
            ring.restart::<Core<P>>();
            control.regs.write64(reg::IQT, 0);
            control.regs.write64(reg::IQA, queue::address(ring));
            control.switch(command::QIE, Switch::On)?;
        }
        operation.set(OperationState::Running);
        Ok(())
    }

    /// Has the unit use the new tables, and forget all of the old.
    pub(super) fn set_root(&self) -> Result<(), IommuError> {
        let control = &self.core.control;
        control.flush_write_buffer()?;
        control.set_root(self.root.address())?;
        if !control.features.has.contains(VtdFeature::ROOT_INVALIDATES) {
            self.forget_everything()?;
        }
        self.root.is_set();
        let former = core::mem::take(&mut *self.former.lock());
        for id in former.named() {
            self.core.ids.give_back(id.into());
        }
        Ok(())
    }

    /// Makes the unit use the new tables, turns translation on, and then protected memory regions
    /// off. Does nothing if all that is done, or the unit does not translate
    /// ([`Features::translates`]).
    ///
    /// With translation on already, DMA under way meets the old tables or the new ones, and nothing
    /// in between (11.4.4: the root may be set while translation is on; cached entries are
    /// invalidated next).
    ///
    /// # Errors
    /// If the hardware does not follow.
    pub fn translate(&self) -> Result<(), IommuError> {
        let control = &self.core.control;
        if !control.features.translates() {
            return Ok(());
        }
        if self.root.is_due() {
            self.set_root()?;
        }
        control.switch(command::TE, Switch::On)?;
        control.unprotect_memory()
    }

    /// Invalidates all that hangs on the root table (6.6).
    pub(super) fn forget_everything(&self) -> Result<(), IommuError> {
        let pasids: &[Request] = match self.config.mode {
            Mode::Legacy => &[],
            Mode::Scalable => &[Request::PasidCacheAll],
        };
        let contexts = [Request::Contexts(Contexts::All)];
        self.core.run(&[&contexts, pasids, &[Request::Iotlb(Iotlb::All)]])
    }
}

impl<P: UnitPlatform> Vtd<P> {
    /// As [`Vtd::enable`], but the streams in `keep` go on through the tables that the system
    /// before left in memory, until they are moved: their context entries are copied, and the
    /// tables of these stay in use. For a kernel that starts after a crash, and has to write its
    /// memory to a disk that is still at work. Returns the streams that were kept: all others are
    /// blocked, also those whose old entry is not present, is no entry, or has the domain identifier
    /// of streams that pass through here. Those that passed through are kept with leave alone
    /// ([`FormerMemory::passing`]).
    ///
    /// Requests with PASID are not kept, nor are page requests.
    ///
    /// # Errors
    /// As [`Vtd::enable`].
    pub fn take_over(
        regs: P::Registers,
        mem: P::Memory,
        clock: P,
        config: Config,
        keep: &[StreamId],
        former: FormerMemory<'_>,
    ) -> Result<(Self, Vec<StreamId>), IommuError> {
        let unit = Self::begin(regs, mem, clock, config)?;
        let mut kept = Vec::new();
        if unit.root.inherited() == InheritedTranslation::Translation {
            let tables = unit.former_tables(former);
            for &stream in keep {
                let one = |streams: &mut Streams| unit.keep(streams, stream, &tables);
                if unit.book.with(unit.turn(), one)?? {
                    kept.push(stream);
                }
            }
        }
        unit.translate()?;
        Ok((unit, kept))
    }

    /// Copies the old context entry of `stream`, if it can be kept; tells if it is.
    fn keep(
        &self,
        streams: &mut Streams,
        stream: StreamId,
        tables: &FormerTables<'_>,
    ) -> Result<bool, IommuError> {
        let Ok(stream) = u16::try_from(stream.get()) else { return Ok(false) };
        let Some(old) = tables.entry(stream) else { return Ok(false) };
        if old.passes && !tables.may_pass() {
            return Ok(false);
        }
        let again = streams.attachment((stream, 0)).is_some();
        if again || !self.reserve(streams, &old) {
            return Ok(false);
        }
        let to = AttachedContext { id: old.domain, context: None, remote: None };
        let at = streams.state.context(&self.core, stream)?;
        change(&self.core, at, &old.words, EntryRequests::NOTHING)?;
        streams.begin((stream, 0), Attachment::without_domain(to));
        Ok(true)
    }

    /// Takes the identifier of an entry out of use, unless it is taken, by another kept stream for one, which is
    /// fine.
    fn reserve(&self, streams: &Streams, old: &FormerEntry) -> bool {
        match old.domain {
            // No domain has it, and caching mode tags absent entries with it.
            0 => !self.features().has.contains(VtdFeature::CACHING_MODE),
            PASS => old.passes,
            id => {
                let kept = streams.attached(..).any(|(_, at)| at.to.id == id);
                kept || self.core.ids.take_this(id.into())
            }
        }
    }
}
