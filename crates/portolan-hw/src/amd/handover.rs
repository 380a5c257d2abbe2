//! Units that change hands while devices are at work: from a driver in one kernel to one in the next, with a record
//! or, after a crash, without.
//!
//! AMD I/O Virtualization Technology (IOMMU) Specification (48882), revision 3.10, sections 2.2.2 and 3.4.1 to 3.4.5.
//! The unit stays on, and so do the device table and the interrupt tables that it names. The driver that comes brings a
//! command buffer and an event log.
//!
//! Not supported: devices that keep translations.

use super::command::{self, AmdControl};
use super::config::Config;
use super::faults::Logs;
use super::features::{Capability, Features, Offers};
use super::former;
use super::guest::guest_names;
use super::prepared;
use super::queue::{self, AmdQueue, AmdShared, PASS};
use super::tables::entry_of;
use super::tables::{
    AmdInterruptTables, AmdPlace, Attachment, DeviceTable, InterruptSlots, MoverState, Streams,
};
use super::takeover::{has_interrupt_form, start, stop_rings};
use super::unit::{AmdDomain, AmdVi, domain_ids};
use crate::chassis::book::Book;
use crate::chassis::handed::{
    Adopted, Booked, as_recorded, record, same_features, same_tables, without_interrupt_root,
};
use crate::chassis::sets::Sets;
use crate::chassis::{Operation, OperationState, Present as _, Ring, Submitters};
use crate::handover::AdoptError;
use crate::promise::of_former_kernel;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::AtomicBool;
use portolan::addr::{InvalTag, StreamId};
use portolan::inval::Ranges;
use portolan::iommu::handover::{
    DomainHandover, HandoverTarget, MemoryHandover, StreamHandover, UnitHandover,
};
use portolan::iommu::{IommuError, PagedDomain, Requester};
use portolan::platform::{FormerMemory, Guarded, TableClaims, UnitPlatform};
use portolan::table::format::AmdLevels;
use portolan::table::{Format as _, FormerTable};
use portolan_spec::amd::reg::{self, control};
use portolan_tables::describe::UnitKind;

/// The features that a record has, of a unit that offers some.
fn features_of<P: UnitPlatform>(
    regs: &P::Registers,
    capability: &Capability,
    remaps: bool,
) -> Result<[u64; 4], IommuError> {
    let features = match capability.offers.contains(Offers::EXTENDED) {
        true => regs.present64(reg::FEATURES)?,
        false => 0,
    };
    Ok([features, 0, 0, remaps.into()])
}

impl<P: UnitPlatform> AmdVi<P> {
    /// State of the unit for the next kernel.
    pub(super) fn state(&self) -> Result<UnitHandover, IommuError> {
        let control = &self.shared.control;
        let (regs, capability) = (&control.regs, &control.features.capability);
        let commands = self.shared.queue.commands();
        let queue = MemoryHandover { at: commands.at, bytes: commands.size.bytes() };
        let mut state = UnitHandover {
            features: features_of::<P>(regs, capability, self.remap.is_some())?,
            root: control.read(reg::DEVICE_TABLE)?,
            shape: self.table.nothing_at(),
            queues: Vec::from([queue]),
            ..UnitHandover::default()
        };
        if let Some(remap) = &self.remap {
            let mut record = |table: &InterruptSlots| table.slots.record(&mut state.interrupts);
            remap
                .tables
                .with(self.turn(), |tables| tables.values().try_for_each(&mut record))??;
        }
        self.book.with(self.turn(), |streams| {
            // The record has no room for what a device was told last.
            if !streams.state.remotes.is_empty() {
                return Err(IommuError::Unsupported);
            }
            // Nor for tables that are not this driver's.
            let kept = |at: &Attachment| at.domain.is_none() && at.to.domain != PASS;
            let nested = |at: &Attachment| at.to.below.is_some();
            if streams.attached(..).any(|(_, at)| kept(at) || nested(at)) {
                return Err(IommuError::Unsupported);
            }
            // Nor for GCR3 tables.
            let tables = &streams.state.guests.tables;
            let mut ids = streams.attached(..).map(|(stream, at)| (tables.get(&stream), at.to));
            if ids.any(|(table, to)| table.is_some_and(|table| table.id == to.domain)) {
                return Err(IommuError::Unsupported);
            }
            let booked = streams.attached(..).map(|(stream, at)| Booked {
                requester: Requester { stream: StreamId::new(stream.into()), pasid: None },
                domain: at.domain.as_ref().map(|hold| (InvalTag::new(at.to.domain.into()), hold)),
                tlb: None,
            });
            record(&mut state, booked)
        })??;
        Ok(state)
    }

    /// Leaves the unit as it is to another driver.
    pub(super) fn leave_unit(&self) -> Result<(), IommuError> {
        self.book.with(self.turn(), |_| {
            self.shared.queue.drain(&*self.shared)?;
            self.shared.operation.set(OperationState::Stopped);
            Ok(())
        })?
    }

    /// Takes the unit with `capability` over from the driver of a former kernel, which left it as `former` says. No
    /// access of any device is blocked or goes elsewhere meanwhile: the tables stay in use, and are this driver's
    /// from then on.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// See [`AdoptError`]. Until a command fails ([`AdoptError::Iommu`]) the unit is as it was; with
    /// [`AmdVi::enable`] all its streams are blocked.
    pub fn adopt(
        regs: P::Registers,
        mem: P::Memory,
        clock: P,
        capability: Capability,
        mut config: Config,
        former: &UnitHandover,
        claims: &mut TableClaims<'_>,
    ) -> Result<Self, AdoptError> {
        let features = Features::read(&regs, capability, config.host_translation)?;
        features.can_mark(config.dirty)?;
        features.can_log_requests(config.requests_lg2)?;
        features.can_post(&config)?;
        config.reserved.within(prepared::address_lg2(&features, &config));
        config.reserved.hold(UnitKind::AmdVi.not_translated());
        let remap = config.interrupts;
        let remap = remap.map(|wanted| AmdInterruptTables::new(&features, wanted)).transpose()?;
        let on = regs.present64(reg::CONTROL)?;
        if on & control::ENABLE == 0 {
            return Err(AdoptError::Off);
        }
        if remap.is_some() && !has_interrupt_form(on, &config) {
            return Err(AdoptError::Interrupts);
        }
        let found = features_of::<P>(&regs, &capability, remap.is_some())?;
        same_features(found, former.features)?;
        without_interrupt_root(former)?;
        as_recorded(&regs, reg::DEVICE_TABLE, former.root)?;
        let table = DeviceTable::adopt(&mem, &config, former, claims)?;
        let control = AmdControl::new(regs, mem, clock, config.limit, features);
        let queue: Ring<P> = queue::ring(&control.mem, config.queue_lg2)?;
        let logs = Logs::new(&control.mem, &config).inspect_err(|_| queue.free(&control.mem));
        let logs = logs.map_err(IommuError::from)?;
        let ranges = Ranges::of(&features.capabilities());
        let submitters = Submitters::new(&control.clock, ranges, config.combining);
        let shared = AmdShared {
            control,
            queue,
            logs,
            requests_cut: AtomicBool::new(false),
            atcs: Sets::default(),
            ids: domain_ids(),
            guest_ids: guest_names(),
            guests: Sets::default(),
            nested: Sets::default(),
            streams: table.streams(),
            entries: table.at(0),
            submitters,
            operation: Operation::default(),
        };
        let (book, signals) = (Book::new(Streams::new(MoverState::default())), Guarded::default());
        let (shared, adopted) = (Arc::new(shared), Adopted::default());
        // The unit does not run yet: of what is refused nothing is invalidated, and nothing is freed.
        let counters = Guarded::default();
        let mut unit = Self { shared, config, table, book, remap, signals, adopted, counters };
        let adopted = unit.go_on_with(former, claims);
        let adopted = adopted.inspect_err(|_| {
            unit.shared.queue.free(&unit.shared.control.mem);
            unit.shared.logs.free(&unit.shared.control.mem);
        })?;
        let started = stop_rings(&unit.shared.control)
            .and_then(|()| start(&unit.shared, &unit.table, &unit.config))
            .and_then(|()| unit.forget_all_interrupts());
        started.inspect_err(|_| unit.shared.operation.set(OperationState::Stopped))?;
        unit.adopted = adopted;
        Ok(unit)
    }

    /// Notes the attachments of `former`, each of which is checked with the entry that gives it to the unit.
    fn go_on_with(
        &self,
        former: &UnitHandover,
        claims: &mut TableClaims<'_>,
    ) -> Result<Adopted<P, Self>, AdoptError> {
        let mut domains = Vec::new();
        for domain in &former.domains {
            if !self.shared.ids.take_this(domain.tag.get()) {
                return Err(AdoptError::Shape { root: domain.tables.root });
            }
            domains.push((domain.tag, Arc::new(self.domain_of(domain, claims)?)));
        }
        let noted = self.book.with(self.turn().always(), |streams| {
            for stream in &former.streams {
                self.note_former(streams, stream, claims, &domains)?;
            }
            let mem = &self.shared.control.mem;
            let open = (0..self.table.streams()).map(|stream| stream as u16);
            let mut open = open.filter(|stream| !self.table.blocks(mem, *stream));
            match open.find(|stream| streams.attachment(*stream).is_none()) {
                Some(_) => Err(AdoptError::Unrecorded { table: self.table.base }),
                None => Ok(()),
            }
        });
        noted??;
        self.hold_interrupts(former, claims)?;
        Ok(Adopted::new(domains.into_iter(), former))
    }

    /// Notes one attachment.
    fn note_former(
        &self,
        streams: &mut Streams,
        former: &StreamHandover,
        claims: &TableClaims<'_>,
        domains: &[(InvalTag, Arc<AmdDomain<P>>)],
    ) -> Result<(), AdoptError> {
        let stream = former.requester.stream;
        let wrong = AdoptError::Entry { stream };
        let whole = former.requester.pasid.is_none() && former.tlb.is_none();
        let key = self.table.has(stream).filter(|_| whole).ok_or(wrong)?;
        let (memory, new) = match former.target {
            HandoverTarget::Domain(tag) => {
                let of = |(its, _): &&(InvalTag, Arc<AmdDomain<P>>)| *its == tag;
                let (_, domain) = domains.iter().find(of).ok_or(wrong)?;
                let new = Attachment::new(AmdPlace::of(command::domain_of(tag)), domain);
                (entry_of(&domain.table(), tag, domain.dirty_tracking()), new)
            }
            HandoverTarget::Interrupts => return Err(wrong),
            HandoverTarget::Everything if claims.memory().passes().is_none() => {
                return Err(AdoptError::Passes { stream });
            }
            HandoverTarget::Everything => {
                (super::attach::passing(), Attachment::without_domain(AmdPlace::of(PASS)))
            }
        };
        if !self.table.holds(&self.shared.control.mem, key, memory) {
            return Err(wrong);
        }
        streams.begin(key, new);
        Ok(())
    }

    /// A domain over tables of a former kernel.
    fn domain_of(
        &self,
        former: &DomainHandover,
        claims: &mut TableClaims<'_>,
    ) -> Result<AmdDomain<P>, AdoptError> {
        let DomainHandover { tag, tables } = former;
        let features = self.features();
        let all = [AmdLevels::Three, AmdLevels::Four, AmdLevels::Five];
        let walks = |levels: &AmdLevels| levels.count() == tables.levels && features.walks(*levels);
        let levels = all.into_iter().find(walks);
        let levels = levels.ok_or(AdoptError::Shape { root: tables.root })?;
        let format = features.format(&self.config, levels);
        let table = FormerTable::new(format, self.shared.control.mem.clone(), tables.root);
        let table = table.limited(features.input_lg2(), format.page_sizes()).check(claims)?;
        let (caps, quirks) = (self.capabilities(), self.config.quirks);
        let (promised, queue) =
            (of_former_kernel(claims.memory()), AmdQueue(Arc::clone(&self.shared)));
        let domain = PagedDomain::adopted(table, promised, *tag, caps, quirks, queue);
        same_tables(&domain, tables)?;
        Ok(domain.shadowed(features.shadowing()))
    }
}

impl<P: UnitPlatform> AmdVi<P> {
    /// As [`AmdVi::enable`], but the streams in `keep` go on through the tables that the system before left in
    /// memory, until they are moved: the words about memory of their entries are copied, and the tables of these stay
    /// in use. For a kernel that starts after a crash, and has to write its memory to a disk that is still at work.
    /// Returns the streams that were kept: all others are blocked or reach what [`Config::reserved`] names for them,
    /// also those whose old entry blocks, has no TV, has guest tables, cannot be read, or has a domain identifier that
    /// is needed otherwise. Those that passed through are kept with leave alone ([`FormerMemory::passing`]).
    ///
    /// At most two words of `former` are read for each stream. Interrupts, page requests and PASIDs are not kept.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// As [`AmdVi::enable`].
    pub fn take_over(
        regs: P::Registers,
        mem: P::Memory,
        clock: P,
        capability: Capability,
        config: Config,
        keep: &[StreamId],
        former: FormerMemory<'_>,
    ) -> Result<(Self, Vec<StreamId>), IommuError> {
        let features = Features::read(&regs, capability, config.host_translation)?;
        let control = AmdControl::new(regs, mem, clock, config.limit, features);
        let mut streams = Vec::new();
        let unit = Self::enable_keeping(control, config, |unit, table, ids| {
            let kept = former::kept(unit, table, ids, keep, former)?;
            streams = kept.iter().map(|one| StreamId::new(one.stream.into())).collect();
            Ok(kept)
        })?;
        Ok((unit, streams))
    }
}
