//! Units that change hands while devices are at work: from a driver in one kernel to one in the next, with a record
//! or, after a crash, without.
//!
//! AMD I/O Virtualization Technology (IOMMU) Specification (48882), revision 3.10, sections 2.2.2 and 3.4.1 to 3.4.5.
//! The unit stays on, and so do the device table and the interrupt tables that it names. The driver that comes brings a
//! command buffer and an event log.
//!
//! A stream with guest tables has a GCR3 table, which its entry names with its levels and its domain identifier: they
//! are read from there. The record names what each PASID leads to. Names of domains with guest tables are the driver's
//! own, which no table confirms: a record numbers them from zero.
//!
//! Not supported: devices that send page requests, as the unit refuses these while its logs are exchanged; a guest's
//! own tables; tables of processes.

use super::command::{self, AmdAtc, AmdControl, GuestUse};
use super::config::Config;
use super::faults::Logs;
use super::features::{Capability, Features, Offers};
use super::former;
use super::guest::{
    AmdGuestDomain, DEFAULT, GuestAttachment, GuestKey, GuestPlace, GuestTable, WithoutPasid,
    all_of, guest_names,
};
use super::prepared;
use super::queue::{self, AmdQueue, AmdShared, PASS};
use super::tables::entry_of;
use super::tables::{
    AmdInterruptTables, AmdPlace, Attachment, DeviceTable, INTERRUPTS, InterruptSlots, MoverState,
    Streams,
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
use portolan::addr::{InvalTag, Pasid, StreamId};
use portolan::inval::Ranges;
use portolan::iommu::handover::{
    DomainHandover, HandoverTarget, MemoryHandover, StreamHandover, UnitHandover,
};
use portolan::iommu::{IommuError, PagedDomain, Requester};
use portolan::platform::{FormerMemory, Guarded, TableClaims, UnitPlatform};
use portolan::table::format::{AmdLevels, AmdV2Levels};
use portolan::table::{Format as _, FormerTable};
use portolan_spec::amd::ADDRESS;
use portolan_spec::amd::entry::GUEST;
use portolan_spec::amd::guest::V;
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

/// Numbers the domains with guest tables from zero.
fn number_guests(state: &mut UnitHandover) {
    let guests = state.domains.iter_mut().filter(|of| command::guest_name(of.tag).is_some());
    for (number, domain) in (0..).zip(guests) {
        let (old, new) = (domain.tag, command::guest_context(number));
        domain.tag = new;
        let its = |target: &&mut HandoverTarget| **target == HandoverTarget::Domain(old);
        let targets = state.streams.iter_mut().map(|stream| &mut stream.target);
        targets.filter(its).for_each(|target| *target = HandoverTarget::Domain(new));
    }
}

/// Tells if accesses of `stream` without a PASID pass through.
fn passes(former: &UnitHandover, stream: u16) -> bool {
    let requester = Requester { stream: StreamId::new(stream.into()), pasid: None };
    let passes = |of: &StreamHandover| of.target == HandoverTarget::Everything;
    former.streams.iter().any(|of| of.requester == requester && passes(of))
}

/// Domains of a former kernel, by their tags.
struct FormerDomains<P: UnitPlatform> {
    hosts: Vec<(InvalTag, Arc<AmdDomain<P>>)>,
    guests: Vec<(InvalTag, Arc<AmdGuestDomain<P>>)>,
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
        let booked = self.book.with(self.turn(), |streams| {
            self.close_empty(streams)?;
            record(&mut state, self.booked(streams)?.into_iter())
        });
        booked??;
        number_guests(&mut state);
        Ok(state)
    }

    /// Closes the entries of streams that lead to a GCR3 table in which nothing is: nothing is attached that a record
    /// could name.
    fn close_empty(&self, streams: &mut Streams) -> Result<(), IommuError> {
        let guests = &streams.state.guests;
        let empty = |(stream, at): (u16, &Attachment)| {
            let table = guests.tables.get(&stream).filter(|table| table.id == at.to.domain)?;
            let used = guests.pasids.not_blocked(all_of(stream)).next().is_some();
            (table.without == WithoutPasid::Default && !used).then_some(stream)
        };
        let empty: Vec<u16> = streams.attached(..).filter_map(empty).collect();
        for stream in empty {
            self.discharge(&self.move_stream(streams, stream, None, None)?);
        }
        Ok(())
    }

    /// Attachments as the record names them.
    fn booked<'b>(&self, streams: &'b Streams) -> Result<Vec<Booked<'b>>, IommuError> {
        let requester = |stream: u16, pasid: Option<u32>| Requester {
            stream: StreamId::new(stream.into()),
            pasid: pasid.map(Pasid::new),
        };
        let guests = &streams.state.guests;
        let mut booked = Vec::new();
        for (stream, at) in streams.attached(..) {
            let tlb = at.to.told.map(AmdAtc::tlb);
            let asks = tlb.is_some() && self.shared.logs.requests.is_some();
            if at.to.below.is_some() || asks {
                return Err(IommuError::Unsupported);
            }
            let table = guests.tables.get(&stream).filter(|table| table.id == at.to.domain);
            let passes = match table {
                Some(table) => table.without == WithoutPasid::Pass,
                None => at.to.domain == PASS,
            };
            let domain = at.domain.as_ref().map(|hold| (InvalTag::new(at.to.domain.into()), hold));
            match (passes || domain.is_some(), table) {
                (true, _) => {
                    booked.push(Booked { requester: requester(stream, None), domain, tlb })
                }
                (false, Some(_)) => {}
                // Through tables of the kernel before this.
                (false, None) => return Err(IommuError::Unsupported),
            }
            let pasids = guests.pasids.attached(all_of(stream)).map(|((_, pasid), at)| Booked {
                requester: requester(stream, (pasid != DEFAULT).then_some(pasid)),
                domain: at.domain.as_ref().map(|hold| (at.to.context, hold)),
                tlb,
            });
            booked.extend(pasids);
        }
        Ok(booked)
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
            .and_then(|()| unit.forget_all_interrupts())
            .and_then(|()| match former.streams.iter().any(|of| of.tlb.is_some()) {
                true => unit.limit_devices(),
                false => Ok(()),
            });
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
        let mut domains = FormerDomains { hosts: Vec::new(), guests: Vec::new() };
        for domain in &former.domains {
            let tag = domain.tag;
            let known = match command::guest_name(tag) {
                // In order of tags.
                Some(name) => {
                    name as usize == domains.guests.len() && self.shared.guest_ids.take_this(name)
                }
                None => self.shared.ids.take_this(tag.get()),
            };
            match known {
                false => return Err(AdoptError::Shape { root: domain.tables.root }),
                true if command::guest_name(tag).is_some() => {
                    domains.guests.push((tag, Arc::new(self.guest_domain_of(domain, claims)?)));
                }
                true => domains.hosts.push((tag, Arc::new(self.domain_of(domain, claims)?))),
            }
        }
        let noted = self.book.with(self.turn().always(), |streams| {
            let pasids = self.note_tables(streams, former, claims)?;
            for stream in &former.streams {
                self.note_former(streams, stream, &domains, claims)?;
            }
            let mem = &self.shared.control.mem;
            let open = (0..self.table.streams()).map(|stream| stream as u16);
            let mut open = open.filter(|stream| !self.table.blocks(mem, *stream));
            let named = |key: &GuestKey| streams.state.guests.pasids.attachment(*key).is_some();
            let all = open.all(|stream| streams.attachment(stream).is_some());
            match all && pasids.iter().all(named) {
                true => Ok(()),
                false => Err(AdoptError::Unrecorded { table: self.table.base }),
            }
        });
        noted??;
        self.hold_interrupts(former, claims)?;
        let hosts = Adopted::new(domains.hosts.into_iter(), former);
        Ok(hosts.and(Adopted::new(domains.guests.into_iter(), former)))
    }

    /// Notes the devices that keep translations, and the GCR3 tables to which entries lead; returns the PASIDs in
    /// these.
    fn note_tables(
        &self,
        streams: &mut Streams,
        former: &UnitHandover,
        claims: &mut TableClaims<'_>,
    ) -> Result<Vec<GuestKey>, AdoptError> {
        for one in &former.streams {
            let wrong = AdoptError::Entry { stream: one.requester.stream };
            let key = self.table.has(one.requester.stream).ok_or(wrong)?;
            if let Some(tlb) = one.tlb {
                let atc = AmdAtc::new(key, tlb);
                let known = *streams.state.remotes.entry(key).or_insert(atc);
                // One device has one queue, and entries that let it ask are not recorded.
                if tlb != known.tlb() || self.shared.logs.requests.is_some() {
                    return Err(wrong);
                }
            }
        }
        let (mem, mut pasids) = (&self.shared.control.mem, Vec::new());
        for stream in (0..self.table.streams()).map(|stream| stream as u16) {
            let found = self.table.at(stream).read(mem);
            if self.table.blocks(mem, stream) || found[0] & GUEST == 0 {
                continue;
            }
            let wrong = AdoptError::Entry { stream: StreamId::new(stream.into()) };
            let guests = self.features().guests.ok_or(wrong)?;
            let bits = guests.width(self.config.pasid_bits);
            let words = [found[0], found[1], found[INTERRUPTS]];
            let (table, open) = GuestTable::adopt(mem, words, bits, claims)?;
            let told = streams.state.remotes.get(&stream).copied();
            let memory = self.memory_for(table.memory(), told);
            let as_recorded = self.table.holds(mem, stream, memory)
                && passes(former, stream) == (table.without == WithoutPasid::Pass)
                && self.shared.ids.take_this(table.id.into());
            if !as_recorded {
                return Err(wrong);
            }
            let to = AmdPlace { told, ..AmdPlace::of(table.id) };
            self.begin(streams, stream, Attachment::without_domain(to));
            streams.state.guests.tables.insert(stream, table);
            pasids.extend(open.into_iter().map(|pasid| (stream, pasid)));
        }
        Ok(pasids)
    }

    /// Notes that a stream has been attached from the start.
    fn begin(&self, streams: &mut Streams, stream: u16, new: Attachment) {
        if let Some((context, kept)) = new.to.kept() {
            self.shared.atcs.add(context, kept);
        }
        streams.begin(stream, new);
    }

    /// Notes one attachment.
    fn note_former(
        &self,
        streams: &mut Streams,
        former: &StreamHandover,
        domains: &FormerDomains<P>,
        claims: &TableClaims<'_>,
    ) -> Result<(), AdoptError> {
        let Requester { stream, pasid } = former.requester;
        let wrong = AdoptError::Entry { stream };
        let key = self.table.has(stream).ok_or(wrong)?;
        let told = streams.state.remotes.get(&key).copied();
        // All of a device's attachments, or none.
        if former.tlb != told.map(AmdAtc::tlb) {
            return Err(wrong);
        }
        let guests = streams.state.guests.tables.contains_key(&key);
        let (memory, new) = match former.target {
            HandoverTarget::Domain(tag) if command::guest_name(tag).is_some() => {
                let domain = domains.guests.iter().find(|(its, _)| *its == tag).ok_or(wrong)?;
                return self.note_pasid(streams, former.requester, domain);
            }
            HandoverTarget::Domain(tag) if pasid.is_none() && !guests => {
                let domain = domains.hosts.iter().find(|(its, _)| *its == tag);
                let (_, domain) = domain.ok_or(wrong)?;
                let to = AmdPlace { told, ..AmdPlace::of(command::domain_of(tag)) };
                let memory = entry_of(&domain.table(), tag, domain.dirty_tracking());
                (memory, Attachment::new(to, domain))
            }
            HandoverTarget::Everything if claims.memory().passes().is_none() => {
                return Err(AdoptError::Passes { stream });
            }
            // Its GCR3 table says so.
            HandoverTarget::Everything if pasid.is_none() && guests => return Ok(()),
            HandoverTarget::Everything if pasid.is_none() && told.is_none() => {
                (super::attach::passing(), Attachment::without_domain(AmdPlace::of(PASS)))
            }
            _ => return Err(wrong),
        };
        let memory = self.memory_for(memory, told);
        if !self.table.holds(&self.shared.control.mem, key, memory) {
            return Err(wrong);
        }
        self.begin(streams, key, new);
        Ok(())
    }

    /// Notes an attachment to guest tables.
    fn note_pasid(
        &self,
        streams: &mut Streams,
        Requester { stream, pasid }: Requester,
        of: &(InvalTag, Arc<AmdGuestDomain<P>>),
    ) -> Result<(), AdoptError> {
        let wrong = AdoptError::Entry { stream };
        let (context, domain) = of;
        let stream = self.table.has(stream).ok_or(wrong)?;
        let told = streams.state.remotes.get(&stream).copied();
        let guests = &mut streams.state.guests;
        let table = guests.tables.get(&stream).ok_or(wrong)?;
        let pasid = match pasid {
            Some(pasid) => self.checked(pasid).map_err(|_| wrong)?,
            None if table.without == WithoutPasid::Default => DEFAULT,
            None => return Err(wrong),
        };
        let word = table.known(pasid).ok_or(wrong)?.read(&self.shared.control.mem)[0];
        let tables = domain.table();
        if word != tables.root().get() & ADDRESS | V || table.deep != tables.format().levels {
            return Err(wrong);
        }
        let to = GuestPlace::new(*context, GuestUse { domain: table.id, pasid }, told);
        self.shared.enter_guest(to);
        guests.pasids.begin((stream, pasid), GuestAttachment::new(to, domain));
        Ok(())
    }

    /// A domain over guest tables of a former kernel.
    fn guest_domain_of(
        &self,
        former: &DomainHandover,
        claims: &mut TableClaims<'_>,
    ) -> Result<AmdGuestDomain<P>, AdoptError> {
        let DomainHandover { tag, tables } = former;
        let levels = match tables.levels {
            4 => AmdV2Levels::Four,
            5 => AmdV2Levels::Five,
            _ => return Err(AdoptError::Shape { root: tables.root }),
        };
        let format = self.guest_format(levels, self.config.dirty)?;
        let table = FormerTable::new(format, self.shared.control.mem.clone(), tables.root);
        let promised = of_former_kernel(claims.memory());
        let (table, caps) = (table.check(claims)?, self.capabilities());
        let (quirks, queue) = (self.config.quirks, AmdQueue(Arc::clone(&self.shared)));
        let domain = PagedDomain::adopted(table, promised, *tag, caps, quirks, queue);
        same_tables(&domain, tables)?;
        Ok(domain.shadowed(self.features().shadowing()))
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
