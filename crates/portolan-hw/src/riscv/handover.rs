//! Units that change hands while devices are at work: from a driver in one kernel to one in the next.
//!
//! RISC-V IOMMU Architecture Specification, version 1.0, sections "Device-directory-table pointer" (6.5) and
//! "Guidelines for initialization". The directory stays where it is, as there is no way from one to another but
//! through Off, and so do the MSI page tables. The driver that comes brings a command queue and a fault queue.
//!
//! A device with translations of its own keeps them.
//!
//! Not supported: PASIDs; devices that send page requests, whose queue is off meanwhile.

use super::command::{PASSING, RiscvControl, RiscvTag, translated};
use super::features::{Config, RiscvFeature};
use super::messages::{FormerContext, MessageTables};
use super::queue::{RiscvQueue, RiscvShared};
use super::tables::{CONTEXT, Directory, DirectoryShape, Remotes, Streams, Tables};
use super::takeover::{has_features, start, stop_queues};
use super::unit::{FIRST, FirstDomain, RiscvAllocations, RiscvIommu, SECOND, SecondDomain};
use crate::chassis::book::{Attachment, Book};
use crate::chassis::entry::Words;
use crate::chassis::handed::{
    Adopted, Booked, record, same_features, same_tables, without_interrupt_root,
};
use crate::chassis::{OperationState, Present as _};
use crate::handover::AdoptError;
use crate::promise::of_former_kernel;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use portolan::addr::{InvalTag, PhysAddr, StreamId};
use portolan::iommu::handover::{
    DomainHandover, HandoverTarget, InterruptHandover, MemoryHandover, StreamHandover, UnitHandover,
};
use portolan::iommu::{DeviceTlb, IommuError, PagedDomain, Requester};
use portolan::platform::{TableClaims, UnitPlatform};
use portolan::table::format::{Riscv, RiscvLevels};
use portolan::table::{Format, FormerTable};
use portolan_spec::riscv::PPN;
use portolan_spec::riscv::context::CONTROL;
use portolan_spec::riscv::reg::{self, directory};

/// Words of contexts, and width of the numbers of devices, as a record has them.
fn shape_of(words: usize, lg2: u32) -> u64 {
    words as u64 | u64::from(lg2) << 8
}

/// The features that a record has.
fn features_of<P: UnitPlatform>(regs: &P::Registers, remaps: bool) -> Result<[u64; 4], IommuError> {
    Ok([regs.present64(reg::CAPABILITIES)?, 0, 0, remaps.into()])
}

/// A device with translations of its own, as a record has it: commands name the stream alone.
fn tlb_of(stream: StreamId) -> DeviceTlb {
    DeviceTlb { depth: 1, physical: stream.get() as u16, twice: false }
}

/// Words of a context and its attachment.
type Former = (Words, Attachment<Option<RiscvTag>>);

impl<P: UnitPlatform> RiscvIommu<P> {
    /// State of the unit for the next kernel.
    pub(super) fn state(&self) -> Result<UnitHandover, IommuError> {
        let control = &self.shared.control;
        let commands = self.shared.queue.commands();
        let queue = MemoryHandover { at: commands.at, bytes: commands.size.bytes() };
        let mut state = UnitHandover {
            features: features_of::<P>(&control.regs, self.interrupts_config().is_some())?,
            root: control.directory()?,
            shape: shape_of(control.features.context_words(), self.streams_lg2()),
            queues: Vec::from([queue]),
            ..UnitHandover::default()
        };
        self.book.with(self.turn(), |streams| {
            let tables = &streams.state;
            let remote = streams.attached(..).any(|((stream, _), _)| tables.remotes.has(stream));
            let asks = remote && self.shared.requests.is_some();
            if asks || !tables.processes.is_empty() {
                return Err(IommuError::Unsupported);
            }
            let tlb = |Requester { stream, .. }, at: &Attachment<Option<RiscvTag>>| {
                let keeps = at.to.is_some() && tables.remotes.has(stream.get());
                keeps.then(|| tlb_of(stream))
            };
            for table in tables.messages.iter().flat_map(MessageTables::tables) {
                table.record(&mut state.interrupts)?;
            }
            let requester = |stream| Requester { stream: StreamId::new(stream), pasid: None };
            let alone = |at: &Attachment<Option<RiscvTag>>| at.to.is_some() && at.domain.is_none();
            let tag = tables.messages.as_ref().map(MessageTables::tag);
            let all = || streams.attached(..).map(|((stream, _), at)| (requester(stream), at));
            // One that goes on through tables of the kernel before this.
            if all().any(|(_, at)| alone(at) && at.to != tag) {
                return Err(IommuError::Unsupported);
            }
            let interrupts = all().filter(|(_, at)| alone(at)).map(|(requester, at)| {
                let target = HandoverTarget::Interrupts;
                StreamHandover { requester, target, tlb: tlb(requester, at) }
            });
            state.streams.extend(interrupts);
            let booked = all().filter(|(_, at)| !alone(at)).map(|(requester, at)| Booked {
                requester,
                domain: at.to.map(RiscvTag::context).zip(at.domain.as_ref()),
                tlb: tlb(requester, at),
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

    /// Takes the unit over from the driver of a former kernel, which left it as `former` says. No access of any
    /// device is blocked or goes elsewhere meanwhile: the tables stay in use, and are this driver's from then on.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// See [`AdoptError`]. Until a command fails ([`AdoptError::Iommu`]) the unit is as it was; with
    /// [`RiscvIommu::enable`] all its streams are blocked.
    pub fn adopt(
        regs: P::Registers,
        mem: P::Memory,
        clock: P,
        mut config: Config,
        former: &UnitHandover,
        claims: &mut TableClaims<'_>,
    ) -> Result<Self, AdoptError> {
        let (features, shape) = Self::offered(&regs, &mut config)?;
        same_features(features_of::<P>(&regs, config.interrupts.is_some())?, former.features)?;
        without_interrupt_root(former)?;
        let control = RiscvControl::new(regs, mem, clock, &config, features);
        let (value, recorded) = (control.directory()?, former.root);
        if value != recorded {
            return Err(AdoptError::Register { offset: reg::DIRECTORY, value, recorded });
        }
        if !has_features(&control, config.signal)? {
            let value = control.read(reg::FEATURES)?.into();
            return Err(AdoptError::Register { offset: reg::FEATURES, value, recorded: 0 });
        }
        let root = PhysAddr::new(PPN.of(former.root) << 12);
        let levels = directory::MODE.of(former.root).checked_sub(directory::ONE_LEVEL - 1);
        let levels = levels.filter(|levels| *levels >= shape.levels.into() && *levels <= 3);
        let levels = levels.ok_or(AdoptError::Off)? as u32;
        if former.shape != shape_of(shape.words, shape.lg2) {
            return Err(AdoptError::Shape { root });
        }
        let mem = &control.mem;
        let directory = Directory::adopt(mem, root, DirectoryShape { levels, ..shape }, claims)?;
        let mut parts = RiscvAllocations::new(mem, &config, &features)?;
        let tables = Tables {
            directory,
            messages: parts.messages.take(),
            processes: BTreeMap::new(),
            remotes: Remotes::default(),
        };
        let shared = Arc::new(RiscvShared::of(control, parts, &config));
        let (book, adopted) = (Book::new(Streams::new(tables)), Adopted::default());
        // The unit does not run yet: of what is refused nothing is invalidated, and nothing is freed.
        let mut unit = Self { shared, book, config, adopted };
        let adopted = unit.go_on_with(former, claims);
        let adopted = adopted.inspect_err(|_| unit.shared.free_queues())?;
        let started = stop_queues(&unit.shared.control)
            .and_then(|()| start(&unit.shared, unit.config.signal));
        started.inspect_err(|_| unit.shared.operation.set(OperationState::Stopped))?;
        unit.adopted = adopted;
        Ok(unit)
    }

    /// Notes the attachments of `former`, each of which is checked with the context that gives it to the unit.
    fn go_on_with(
        &self,
        former: &UnitHandover,
        claims: &mut TableClaims<'_>,
    ) -> Result<Adopted<P, Self>, AdoptError> {
        let (mut firsts, mut seconds) = (Vec::new(), Vec::new());
        for domain in &former.domains {
            let tag = domain.tag;
            let free = match RiscvTag::of(tag) {
                RiscvTag::First(id) => self.shared.firsts.take_this(id),
                RiscvTag::Second(id) => self.shared.seconds.take_this(id),
            };
            if !free {
                return Err(AdoptError::Shape { root: domain.tables.root });
            }
            match RiscvTag::of(tag) {
                RiscvTag::First(_) => {
                    let made: FirstDomain<P> = self.domain_of(domain, &FIRST, claims)?;
                    firsts.push((tag, Arc::new(made)));
                }
                RiscvTag::Second(_) => {
                    let made: SecondDomain<P> = self.domain_of(domain, &SECOND, claims)?;
                    seconds.push((tag, Arc::new(made)));
                }
            }
        }
        let of = |tag: InvalTag| -> Option<Former> {
            let name = RiscvTag::of(tag);
            let first = firsts.iter().find(|(its, _)| *its == tag).map(|(_, domain)| {
                let table = domain.table();
                let words = translated(name, table.root(), table.format().levels.count());
                (words, Attachment::new(Some(name), domain))
            });
            let second = seconds.iter().find(|(its, _)| *its == tag).map(|(_, domain)| {
                let table = domain.table();
                let words = translated(name, table.root(), table.format().levels.count());
                (words, Attachment::new(Some(name), domain))
            });
            first.or(second)
        };
        let noted = self.book.with(self.turn().always(), |streams| {
            for stream in &former.streams {
                self.note_former(streams, stream, claims, &of)?;
            }
            self.hold_interrupts(&mut streams.state, former)?;
            let directory = &streams.state.directory;
            let contexts = directory.contexts(&self.shared.control.mem);
            let mut open =
                contexts.into_iter().filter(|stream| streams.attachment((*stream, 0)).is_none());
            let table = directory.root().at;
            if open.next().is_some() {
                return Err(AdoptError::Unrecorded { table });
            }
            match streams.state.remotes.streams.is_empty() {
                true => Ok(()),
                false => Ok(streams.state.remotes.make_room(&self.shared.control.mem)?),
            }
        });
        noted??;
        let firsts = Adopted::new(firsts.into_iter(), former);
        Ok(firsts.and(Adopted::new(seconds.into_iter(), former)))
    }

    /// Notes one attachment.
    fn note_former(
        &self,
        streams: &mut Streams,
        former: &StreamHandover,
        claims: &mut TableClaims<'_>,
        of: &impl Fn(InvalTag) -> Option<Former>,
    ) -> Result<(), AdoptError> {
        let stream = former.requester.stream;
        let wrong = AdoptError::Entry { stream };
        let whole = former.requester.pasid.is_none();
        let able =
            self.features().has.contains(RiscvFeature::ATS) && self.shared.requests.is_none();
        let passes = former.target == HandoverTarget::Everything;
        let keeps = |tlb| tlb == tlb_of(stream) && able && !passes;
        let whole = whole && former.tlb.is_none_or(keeps);
        let number = Directory::has(self.streams_lg2(), stream).filter(|_| whole).ok_or(wrong)?;
        if former.tlb.is_some() {
            streams.state.remotes.streams.insert(number);
        }
        let at = streams.state.directory.known(number).ok_or(wrong)?;
        let mem = &self.shared.control.mem;
        let found = at.read(mem);
        let (mut words, new) = match former.target {
            HandoverTarget::Domain(tag) => of(tag).ok_or(wrong)?,
            HandoverTarget::Interrupts => {
                let messages = streams.state.messages.as_mut().ok_or(wrong)?;
                let words = messages.adopt_empty(mem, &found, claims)?;
                (words, Attachment::without_domain(Some(messages.tag())))
            }
            HandoverTarget::Everything if claims.memory().passes().is_none() => {
                return Err(AdoptError::Passes { stream });
            }
            HandoverTarget::Everything => (PASSING, Attachment::without_domain(None)),
        };
        if new.to.is_some() {
            words[CONTROL] |= self.lets(&streams.state, number);
        }
        let messages = streams.state.messages.as_mut();
        if let (Some(messages), Some(RiscvTag::Second(_))) = (messages, new.to) {
            let context = FormerContext { words: &words, found: &found };
            words = messages.adopt_table(number, context, claims)?;
        }
        if found != words || CONTEXT.is_closed(words[0]) {
            return Err(wrong);
        }
        self.enter(&mut streams.state, (number, 0), Some(new.to));
        streams.begin((number, 0), new);
        Ok(())
    }

    /// Holds the interrupts of `former`, each of which is checked with the entry that lets it through.
    fn hold_interrupts(
        &self,
        tables: &mut Tables,
        former: &UnitHandover,
    ) -> Result<(), AdoptError> {
        let mem = &self.shared.control.mem;
        let mut open = BTreeSet::new();
        for interrupt in &former.interrupts {
            let InterruptHandover { source, index, target } = *interrupt;
            let wrong = AdoptError::InterruptEntry { from: source, index };
            let stream = self.sender(source).map_err(|_| wrong)?;
            let entry = self.entry(&target).map_err(|_| wrong)?;
            let messages = tables.messages.as_mut();
            let table = messages.and_then(|messages| messages.known(stream)).ok_or(wrong)?;
            if !table.hold(mem, interrupt, entry) {
                return Err(wrong);
            }
            open.insert((stream, index));
        }
        tables.messages.as_ref().map_or(Ok(()), |messages| messages.check_closed(mem, &open))
    }

    /// A domain over tables of a former kernel, of a stage whose levels are `of`.
    fn domain_of<const ROOT: u32>(
        &self,
        former: &DomainHandover,
        of: &[(RiscvLevels, RiscvFeature)],
        claims: &mut TableClaims<'_>,
    ) -> Result<PagedDomain<Riscv<ROOT>, P::Memory, RiscvQueue<P>>, AdoptError>
    where
        Riscv<ROOT>: Format<Word = core::sync::atomic::AtomicU64>,
    {
        let DomainHandover { tag, tables } = former;
        let shape = AdoptError::Shape { root: tables.root };
        let known = of.iter().find(|(levels, _)| levels.count() == tables.levels);
        let (levels, _) = *known.ok_or(shape)?;
        self.walks(of, levels)?;
        let format: Riscv<ROOT> = self.format(levels);
        let table = FormerTable::new(format, self.shared.control.mem.clone(), tables.root);
        let table = table.check(claims)?;
        let quirks = self.features().quirks(self.config.quirks);
        let (caps, promised) = (self.capabilities(), of_former_kernel(claims.memory()));
        let domain = PagedDomain::adopted(table, promised, *tag, caps, quirks, self.queue());
        same_tables(&domain, tables)?;
        Ok(domain)
    }
}
