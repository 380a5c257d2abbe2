//! Units that change hands while devices are at work: from a driver in one kernel to one in the next.
//!
//! Intel Virtualization Technology for Directed I/O (D51397), revision 4.1, sections 3.4, 6.5.2 (queue off and
//! on), 6.6, 9.1 to 9.6 and 9.10. Translation stays on, and so does the remapping of interrupts; the root and the
//! interrupt table stay as they are: neither the driver that leaves nor the one that comes writes an entry. The
//! latter brings a queue.
//!
//! Not supported: posted interrupts, page requests, nested domains, tables of processes.

use super::attach::{AttachTarget, RID_PASID, remote};
use super::control::{VtdControl, Way};
use super::domain::{FirstDomain, SecondDomain};
use super::features::{Config, Features, Mode};
use super::tables::{
    Attachment, InheritedTranslation, Key, Streams, Structures, VtdInterruptTable, mode_bits,
};
use super::tags::split_id;
use super::takeover::{Offer, quiet};
use super::unit::{DeviceTlbUse, History, PASS, Vtd, VtdAllocations};
use crate::chassis::book::Hold;
use crate::chassis::handed::{
    Adopted, Booked, as_recorded, record, same_features, same_tables, without_interrupts,
};
use crate::chassis::{OperationState, Present as _};
use crate::handover::AdoptError;
use crate::promise::of_former_kernel;
use alloc::sync::Arc;
use alloc::vec::Vec;
use portolan::addr::{InvalTag, Pasid, PhysAddr, StreamId};
use portolan::iommu::handover::{
    DomainHandover, HandoverTarget, MemoryHandover, StreamHandover, UnitHandover,
};
use portolan::iommu::{IommuError, PagedDomain, Requester, Stage};
use portolan::platform::{TableClaims, UnitPlatform};
use portolan::table::FormerTable;
use portolan::table::format::{DirtyTracking, VtdFirstLevels, VtdLevels};
use portolan_spec::vtd::reg::{self, command};

/// The features that a record has.
fn features_of<P: UnitPlatform>(regs: &P::Registers, remaps: bool) -> Result<[u64; 4], IommuError> {
    Ok([regs.present64(reg::CAP)?, regs.present64(reg::ECAP)?, 0, remaps.into()])
}

/// The attachment of a record as the driver's book names it.
fn key_of(requester: Requester) -> Result<Key, AdoptError> {
    let stream = requester.stream;
    let number = u16::try_from(stream.get()).map_err(|_| AdoptError::Entry { stream })?;
    match requester.pasid.map(Pasid::get) {
        Some(RID_PASID) => Err(AdoptError::Entry { stream }),
        pasid => Ok((number, pasid.unwrap_or(RID_PASID))),
    }
}

/// Interrupt table that a unit uses since before this kernel, if interrupts are to be remapped.
fn former_interrupts<P: UnitPlatform>(
    regs: &P::Registers,
    config: &Config,
    features: &Features,
    former: &UnitHandover,
) -> Result<Option<VtdInterruptTable<P>>, AdoptError> {
    let Some(wanted) = config.interrupts else {
        without_interrupts(former)?;
        return Ok(None);
    };
    if regs.present32(reg::GSTS)? & command::IRE == 0 {
        return Err(AdoptError::Interrupts);
    }
    as_recorded(regs, reg::IRTA, former.interrupt_root)?;
    let table = VtdInterruptTable::of_former(former.interrupt_root, features, wanted)?;
    match table.address() == former.interrupt_root {
        true => Ok(Some(table)),
        false => Err(AdoptError::Interrupts),
    }
}

impl<P: UnitPlatform> Vtd<P> {
    /// State of the unit for the next kernel.
    pub(super) fn state(&self) -> Result<UnitHandover, IommuError> {
        let regs = &self.core.control.regs;
        let ring = match &self.core.way {
            Way::Ring(ring) => Some(ring.commands()),
            Way::Direct(_) => None,
        };
        let queue = ring.map(|block| MemoryHandover { at: block.at, bytes: block.size.bytes() });
        let mut state = UnitHandover {
            features: features_of::<P>(regs, self.remap.is_some())?,
            root: regs.present64(reg::RTADDR)?,
            interrupt_root: match &self.remap {
                Some(_) => regs.present64(reg::IRTA)?,
                None => 0,
            },
            queues: queue.into_iter().collect(),
            ..UnitHandover::default()
        };
        if let Some(remap) = &self.remap {
            remap.slots.with(self.turn(), |slots| slots.record(&mut state.interrupts))??;
        }
        self.book.with(self.turn(), |streams| {
            let kept = |at: &Attachment| at.domain.is_none() && at.to.id != PASS;
            if streams.attached(..).any(|(_, at)| kept(at)) {
                return Err(IommuError::Unsupported);
            }
            state.shape = streams.state.directory_code();
            let known = self.known.lock();
            let booked = streams.attached(..).map(|((stream, pasid), at)| Booked {
                requester: Requester {
                    stream: StreamId::new(stream.into()),
                    pasid: (pasid != RID_PASID).then_some(Pasid::new(pasid)),
                },
                domain: at.to.context.zip(at.domain.as_ref()),
                tlb: at.to.remote.map(|remote| remote.device),
            });
            let booked: Vec<_> = booked.collect();
            let nested = |of: &Booked<'_>| {
                of.domain.is_some_and(|(tag, _)| known.parents.get(split_id(tag).0).is_some())
            };
            if booked.iter().any(nested) {
                return Err(IommuError::Unsupported);
            }
            drop(known);
            record(&mut state, booked.into_iter())
        })??;
        Ok(state)
    }

    /// Leaves the unit as it is to another driver.
    pub(super) fn leave_unit(&self) -> Result<(), IommuError> {
        self.book.with(self.turn(), |_| {
            if let Way::Ring(ring) = &self.core.way {
                ring.drain(&*self.core)?;
            }
            self.core.operation.set(OperationState::Stopped);
            Ok(())
        })?
    }

    /// Takes the unit over from the driver of a former kernel, which left it as `former` says. No access of any
    /// device is blocked or goes elsewhere meanwhile: the tables stay in use, and are this driver's from then on.
    ///
    /// # Errors
    /// See [`AdoptError`]. Until a command fails ([`AdoptError::Iommu`]) the unit is as it was; with
    /// [`Vtd::enable`] all its streams are blocked.
    pub fn adopt(
        regs: P::Registers,
        mem: P::Memory,
        clock: P,
        mut config: Config,
        former: &UnitHandover,
        claims: &mut TableClaims<'_>,
    ) -> Result<Self, AdoptError> {
        let offer = Offer::read(&regs, &mut config)?;
        let found = features_of::<P>(&regs, config.interrupts.is_some())?;
        same_features(found, former.features)?;
        if regs.present32(reg::GSTS)? & command::TE == 0 {
            return Err(AdoptError::Off);
        }
        as_recorded(&regs, reg::RTADDR, former.root)?;
        let root = PhysAddr::new(former.root & !mode_bits(config.mode));
        let mut structures = Structures::at(root, config.mode, offer.pasid_bits(&config));
        if former.shape != structures.directory_code() {
            return Err(AdoptError::Shape { root });
        }
        structures.adopt(&mem, claims)?;
        let mut parts = VtdAllocations::new(structures);
        let remap = former_interrupts::<P>(&regs, &config, &offer.features, former)?;
        parts.remap = remap.map(|table| table.claimed(claims)).transpose()?;
        parts.make_ring(&mem, &config, offer.width)?;
        let control = VtdControl::new(regs, clock, config.limit, offer.features);
        let mut unit = Self::of(control, mem, config, parts, InheritedTranslation::Translation);
        unit.root.is_set();
        // The unit does not run yet: of what is refused nothing is invalidated, and nothing is freed.
        let adopted = unit.go_on_with(former, claims);
        let adopted = adopted.inspect_err(|_| unit.give_up())?;
        let started = quiet(&unit.core.control, InheritedTranslation::Translation, false)
            .and_then(|()| unit.start_queue())
            .and_then(|()| unit.forget_all_interrupts())
            .and_then(|()| unit.forget_everything())
            .and_then(|()| unit.translate());
        started.inspect_err(|_| unit.core.operation.set(OperationState::Stopped))?;
        unit.adopted = adopted;
        Ok(unit)
    }

    /// Leaves the unit before it was told of anything.
    fn give_up(&self) {
        if let Way::Ring(ring) = &self.core.way {
            ring.free(&self.core.mem);
        }
    }

    /// Notes the attachments of `former`, each of which is checked with the entry that gives it to the unit.
    fn go_on_with(
        &self,
        former: &UnitHandover,
        claims: &mut TableClaims<'_>,
    ) -> Result<Adopted<P, Self>, AdoptError> {
        let (mut firsts, mut seconds) = (Vec::new(), Vec::new());
        for domain in &former.domains {
            let (id, stage) = split_id(domain.tag);
            if domain.tag.get() >> 17 != 0 || !self.core.ids.take_this(id.into()) {
                return Err(AdoptError::Shape { root: domain.tables.root });
            }
            match stage {
                Stage::First => firsts.push((domain.tag, Arc::new(self.first_of(domain, claims)?))),
                Stage::Second => {
                    seconds.push((domain.tag, Arc::new(self.second_of(domain, claims)?)));
                }
            }
        }
        let target = |tag: InvalTag| {
            let of = |(its, _): &&(InvalTag, Arc<SecondDomain<P>>)| *its == tag;
            let second = seconds.iter().find(of).map(|(_, domain)| AttachTarget::Second {
                context: tag,
                root: domain.table().root().get(),
                levels: domain.table().format().levels,
                domain: Hold(domain.clone()),
            });
            let of = |(its, _): &&(InvalTag, Arc<FirstDomain<P>>)| *its == tag;
            let first = firsts.iter().find(of).map(|(_, domain)| AttachTarget::First {
                context: tag,
                root: domain.table().root().get(),
                levels: domain.table().format().levels,
                domain: Hold(domain.clone()),
            });
            second.or(first)
        };
        let noted = self.book.with(self.turn().always(), |streams| {
            for stream in &former.streams {
                self.note_former(streams, stream, claims, &target)?;
            }
            self.check_all(streams)
        });
        noted??;
        self.hold_interrupts(former)?;
        let firsts = Adopted::new(firsts.into_iter(), former);
        Ok(firsts.and(Adopted::new(seconds.into_iter(), former)))
    }

    /// Notes one attachment.
    fn note_former(
        &self,
        streams: &mut Streams,
        former: &StreamHandover,
        claims: &TableClaims<'_>,
        target: &impl Fn(InvalTag) -> Option<AttachTarget>,
    ) -> Result<(), AdoptError> {
        let (key, stream) = (key_of(former.requester)?, former.requester.stream);
        let wrong = AdoptError::Entry { stream };
        let target = match former.target {
            HandoverTarget::Domain(tag) => target(tag).ok_or(wrong)?,
            HandoverTarget::Interrupts => return Err(wrong),
            HandoverTarget::Everything if claims.memory().passes().is_none() => {
                return Err(AdoptError::Passes { stream });
            }
            HandoverTarget::Everything => AttachTarget::Pass,
        };
        if let Some(tlb) = former.tlb {
            let history = History::Unknown;
            let mut known = self.known.lock();
            known.devices.list().reserve(1);
            known.devices.insert(key.0, DeviceTlbUse { tlb, history });
        }
        let new = target.attachment(former.tlb.map(|tlb| remote(key, tlb))).ok_or(wrong)?;
        let words = self.words(&target, Some(new.to)).map_err(|_| wrong)?;
        let at = streams.state.known_entry(key).ok_or(wrong)?;
        if at.read(&self.core.mem) != words {
            return Err(wrong);
        }
        let to = new.to;
        streams.begin(key, new);
        self.note(to, key, at);
        Ok(())
    }

    /// Checks that each entry of the tables is that of an attachment.
    fn check_all(&self, streams: &mut Streams) -> Result<(), AdoptError> {
        let (table, mem) = (streams.state.root, &self.core.mem);
        for (key, at) in streams.state.open_entries(mem) {
            if streams.attachment(key).is_none() {
                return Err(AdoptError::Unrecorded { table: at.table });
            }
        }
        if self.config.mode == Mode::Legacy {
            return Ok(());
        }
        // The contexts of scalable mode lead to PASID tables, blocked or not.
        for stream in streams.state.devices() {
            let (at, words) = self.context_of(streams, stream);
            let at = at.ok_or(AdoptError::Unrecorded { table })?;
            if at.read(mem) != words {
                return Err(AdoptError::Entry { stream: StreamId::new(stream.into()) });
            }
        }
        Ok(())
    }

    /// A domain over first-stage tables of a former kernel.
    fn first_of(
        &self,
        former: &DomainHandover,
        claims: &mut TableClaims<'_>,
    ) -> Result<FirstDomain<P>, AdoptError> {
        let DomainHandover { tag, tables } = former;
        let levels = match tables.levels {
            4 => VtdFirstLevels::Four,
            5 => VtdFirstLevels::Five,
            _ => return Err(AdoptError::Shape { root: tables.root }),
        };
        let features = self.features();
        let table =
            FormerTable::new(self.first_format(levels)?, self.core.mem.clone(), tables.root);
        let table = table.limited(features.width, features.first_sizes()).check(claims)?;
        let (caps, quirks) = (self.first_capabilities(), self.config.quirks);
        let promised = of_former_kernel(claims.memory());
        let domain = PagedDomain::adopted(table, promised, *tag, caps, quirks, self.queue());
        same_tables(&domain, tables)?;
        Ok(domain)
    }

    /// The same with second-stage tables.
    fn second_of(
        &self,
        former: &DomainHandover,
        claims: &mut TableClaims<'_>,
    ) -> Result<SecondDomain<P>, AdoptError> {
        let DomainHandover { tag, tables } = former;
        let all = [VtdLevels::Three, VtdLevels::Four, VtdLevels::Five];
        let levels = all.into_iter().find(|levels| levels.count() == tables.levels);
        let levels = levels.ok_or(AdoptError::Shape { root: tables.root })?;
        let features = self.features();
        let format = self.second_format(levels)?;
        // Its entries have to have the marks that this driver asks for.
        if format.dirty == DirtyTracking::Hardware {
            self.core.tag(*tag, |tag| tag.marks = format.dirty);
        }
        let table = FormerTable::new(format, self.core.mem.clone(), tables.root);
        let table = table.limited(features.width, features.second_sizes()).check(claims)?;
        let (caps, quirks) = (self.second_capabilities(), self.config.quirks);
        let promised = of_former_kernel(claims.memory());
        let domain = PagedDomain::adopted(table, promised, *tag, caps, quirks, self.queue());
        same_tables(&domain, tables)?;
        Ok(domain.shadowed(features.shadowing()))
    }
}
