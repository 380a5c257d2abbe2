//! Domains of a unit (second stage, first stage, and one nested in the other), and addresses that no
//! domain maps.
//!
//! Intel Virtualization Technology for Directed I/O (D51397), revision 4.1, sections 3.5 to 3.8,
//! 8.4 (memory that firmware lists for a device) and 3.13 (interrupt messages). Each domain has a domain
//! identifier of its own, nested ones too: no two tables share a tag.

use super::features::{self, Mode, VtdFeature};
use super::queue::VtdQueue;
use super::tags::{context_id, split_id};
use super::unit::{Parent, Vtd};
use crate::chassis::book::Hold;
use crate::chassis::with_room;
use crate::reservations::Reservations;
use alloc::sync::Arc;
use core::sync::atomic::AtomicU64;
use portolan::addr::StreamId;
use portolan::inval::{Capabilities, Quirks, Walker};
use portolan::iommu::{AttachError, Domain, IommuError, PagedDomain, Stage};
use portolan::platform::{ForeignTables, TableMem, UnitPlatform};
use portolan::table::PageTable;
use portolan::table::format::{
    DirtyTracking, VtdFirstLevels, VtdFirstStage, VtdLevels, VtdSecondStage,
};

/// A domain with second-stage tables.
pub type SecondDomain<P> = PagedDomain<VtdSecondStage, <P as UnitPlatform>::Memory, VtdQueue<P>>;
/// A domain with first-stage tables in memory `T`.
type FirstOver<T, P> = PagedDomain<VtdFirstStage, T, VtdQueue<P>>;
/// A domain with first-stage tables.
pub type FirstDomain<P> = FirstOver<<P as UnitPlatform>::Memory, P>;
/// A domain over first-stage tables that a kernel built itself.
pub type ForeignFirstDomain<P> = PagedDomain<VtdFirstStage, ForeignTables, VtdQueue<P>>;

impl<P: UnitPlatform> Vtd<P> {
    /// Walker of the unit: coherent, or one that has to be told of changes.
    fn walker(&self) -> Walker {
        let snoops = match self.config.mode {
            Mode::Legacy => VtdFeature::SNOOPS,
            Mode::Scalable => VtdFeature::SCALABLE_SNOOPS,
        };
        if self.features().has.contains(snoops) { Walker::Coherent } else { Walker::NonCoherent }
    }

    /// Capabilities of the hardware for the plans of second-stage domains.
    ///
    /// *Context.* Interrupt.
    pub fn second_capabilities(&self) -> Capabilities {
        self.features().second_capabilities(self.walker())
    }

    /// Capabilities of the hardware for the plans of first-stage domains.
    ///
    /// *Context.* Interrupt.
    pub fn first_capabilities(&self) -> Capabilities {
        self.features().first_capabilities(self.walker())
    }
}

impl<P: UnitPlatform> Vtd<P> {
    /// An empty domain with second-stage tables of the depth that covers all addresses. It maps those
    /// that devices may use (`CAP.MGAW`), which are often fewer than its tables could.
    ///
    /// # Errors
    /// [`IommuError::Unsupported`] without second stage; [`IommuError::OutOfContexts`],
    /// [`IommuError::Memory`].
    pub fn second_stage(&self) -> Result<SecondDomain<P>, IommuError> {
        let levels = self.features().best_second_levels();
        let levels = levels.ok_or(IommuError::Unsupported)?;
        self.second_stage_as(levels, self.second_capabilities(), self.config.quirks)
    }

    /// As [`Vtd::second_stage`], with everything chosen by the caller.
    ///
    /// # Errors
    /// As there; and [`IommuError::Unsupported`] for a depth that the unit does not have.
    pub fn second_stage_as(
        &self,
        levels: VtdLevels,
        caps: Capabilities,
        quirks: Quirks,
    ) -> Result<SecondDomain<P>, IommuError> {
        let format = self.second_format(levels)?;
        let dirty = format.dirty;
        let features = self.features();
        let table = PageTable::new(format, self.core.mem.clone())?;
        let table = table.limited(features.width, features.second_sizes());
        let context = context_id(self.core.take_id()?, Stage::Second);
        if dirty == DirtyTracking::Hardware {
            self.core.tag(context, |tag| tag.marks = dirty);
        }
        let domain = PagedDomain::new(table, context, caps, quirks, self.queue());
        Ok(domain.shadowed(self.features().shadowing()))
    }

    /// The format of second-stage tables.
    pub(super) fn second_format(&self, levels: VtdLevels) -> Result<VtdSecondStage, IommuError> {
        let has = self.features().has;
        let mode = self.config.mode == Mode::Legacy || has.contains(VtdFeature::SCALABLE_SECOND);
        let deep = self.features().second_levels().any(|has| has == levels);
        if !mode || !deep {
            return Err(IommuError::Unsupported);
        }
        let dirty = self.marked(Stage::Second)?;
        Ok(VtdSecondStage { levels, output_lg2: self.config.output_lg2, dirty })
    }

    /// An empty domain with first-stage tables.
    ///
    /// # Errors
    /// [`IommuError::Unsupported`] outside scalable mode, or without such tables;
    /// [`IommuError::OutOfContexts`], [`IommuError::Memory`].
    pub fn first_stage(&self, levels: VtdFirstLevels) -> Result<FirstDomain<P>, IommuError> {
        let table = PageTable::new(self.first_format(levels)?, self.core.mem.clone())?;
        let features = self.features();
        self.first_over(table.limited(features.width, features.first_sizes()))
    }

    /// A first-stage domain over the tables of a process, which its kernel built and keeps: those
    /// at which CR3 of its CPUs points, with so many levels, for a PASID of a device that shares
    /// them (SVA). It has a domain identifier of its own, and the kernel forwards its invalidations
    /// ([`PagedDomain::invalidate`]). A stream with ranges that firmware reserves is refused: they
    /// cannot be mapped in such tables.
    ///
    /// # Errors
    /// As [`Vtd::first_stage`], but for memory.
    pub fn foreign_first_stage(
        &self,
        levels: VtdFirstLevels,
        tables: ForeignTables,
    ) -> Result<ForeignFirstDomain<P>, IommuError> {
        // Their owner reads the marks.
        let format = VtdFirstStage { dirty: DirtyTracking::Off, ..self.first_format(levels)? };
        self.first_over(PageTable::foreign(format, tables))
    }

    /// Dirty state of new tables of `stage`.
    fn marked(&self, stage: Stage) -> Result<DirtyTracking, IommuError> {
        match self.config.dirty {
            DirtyTracking::Hardware if !self.features().marks(self.config.mode, stage) => {
                Err(IommuError::Unsupported)
            }
            dirty => Ok(dirty),
        }
    }

    /// The format of first-stage tables.
    pub(super) fn first_format(&self, levels: VtdFirstLevels) -> Result<VtdFirstStage, IommuError> {
        let scalable = self.config.mode == Mode::Scalable;
        if !scalable || !self.features().has_first(levels) {
            return Err(IommuError::Unsupported);
        }
        let dirty = self.marked(Stage::First)?;
        Ok(VtdFirstStage { levels, output_lg2: self.config.output_lg2, dirty })
    }

    /// A domain over `table`.
    fn first_over<T: TableMem<AtomicU64>>(
        &self,
        table: PageTable<VtdFirstStage, T>,
    ) -> Result<FirstOver<T, P>, IommuError> {
        let id = self.core.take_id()?;
        // Who had the identifier before may have been nested.
        let before = self.known.lock().parents.remove(id);
        drop(before);
        let context = context_id(id, Stage::First);
        let caps = self.first_capabilities();
        let quirks = self.config.quirks;
        Ok(PagedDomain::new(table, context, caps, quirks, self.queue()))
    }

    /// A first stage whose addresses, those of its tables included, `parent` translates: `parent`
    /// has to map table memory at its own addresses. It is kept alive until its
    /// child's identifier is given out again, or the unit goes.
    ///
    /// # Errors
    /// As [`Vtd::first_stage`]; also without nested translation, or if `parent` is another unit's.
    pub fn nested(
        &self,
        levels: VtdFirstLevels,
        parent: &Arc<SecondDomain<P>>,
    ) -> Result<FirstDomain<P>, IommuError> {
        let ours = Arc::ptr_eq(&parent.queue().0, &self.core);
        if !ours || !self.features().has.contains(VtdFeature::NESTED) {
            return Err(IommuError::Unsupported);
        }
        let domain = self.first_stage(levels)?;
        let (id, _) = split_id(domain.context());
        self.core.tag(parent.context(), |tag| tag.nested.push(id));
        let parent = Parent {
            root: parent.table().root().get(),
            levels: parent.table().format().levels,
            context: parent.context(),
            _domain: Hold(parent.clone()),
        };
        let before = with_room(
            &self.known,
            |known| known.parents.list(),
            |known| known.parents.insert(id, parent),
        );
        drop(before);
        Ok(domain)
    }
}

/// The graphics of a chipset or a processor: device 2 of the first bus.
const GRAPHICS: StreamId = StreamId::new(0x10);
/// The sound controller of a chipset: device 27 of the first bus.
const AZALIA: StreamId = StreamId::new(0xd8);

impl<P: UnitPlatform> Vtd<P> {
    /// Tells if `stream` may not be attached, as it does not work translated.
    pub(super) fn is_untranslated(&self, stream: StreamId) -> bool {
        let quirk = match stream {
            GRAPHICS => features::Quirks::GRAPHICS_UNTRANSLATED,
            AZALIA => features::Quirks::AZALIA_UNTRANSLATED,
            _ => return false,
        };
        self.config.chip.contains(quirk)
    }

    /// Addresses reserved for streams, and the reservations of
    /// [`Config::reserved`](super::Config::reserved) that were ignored.
    ///
    /// *Context.* Interrupt.
    pub fn reservations(&self) -> &Reservations {
        &self.config.reserved
    }

    /// Maps the memory that `stream` reaches at its own addresses into `domain`, unless it is there
    /// already.
    pub(super) fn hold_reserved(
        &self,
        stream: StreamId,
        domain: &impl Domain,
    ) -> Result<(), AttachError> {
        self.config.reserved.map_into(stream, domain)
    }
}
