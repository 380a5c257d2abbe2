//! Units that change hands while devices are at work: from a driver in one kernel to one in the next.
//!
//! IHI 0070, sections 3.5 (queues), 3.11 and 6.3.9 (CR0: queues are turned off and on while translation stays
//! enabled), 5.2 and 5.4. The stream table stays where it is, as its base may not be written meanwhile. The driver
//! that comes brings a command queue and an event queue.
//!
//! Not supported: substreams, ATS, stalls, nested domains, granules other than 4 KiB.

use super::attach::passed_through;
use super::command::SmmuTag;
use super::domain::{FirstStage, SecondStage, SmmuDomainOptions};
use super::features::Features;
use super::machine::SmmuHardware;
use super::moves::StreamTarget;
use super::queue::{CommandQueue, MoreQueues, SmmuQueue};
use super::tables::{ContextTable, StreamTable, StreamTableShape};
use super::unit::{Config, EnableState, Smmu};
use crate::chassis::book::Hold;
use crate::chassis::handed::{
    Adopted, Booked, as_recorded, record, same_features, same_tables, without_interrupts,
};
use crate::chassis::{Block, OperationState, Present as _};
use crate::handover::AdoptError;
use crate::promise::of_former_kernel;
use crate::turn::TurnWait;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::AtomicU64;
use portolan::addr::{InvalTag, PageSize, PhysAddr, StreamId};
use portolan::inval::Quirks;
use portolan::iommu::handover::{
    DomainHandover, HandoverTarget, MemoryHandover, StreamHandover, UnitHandover,
};
use portolan::iommu::{IommuError, PagedDomain, Requester};
use portolan::platform::{TableClaims, UnitPlatform};
use portolan::table::{Format, FormerTable};
use portolan_spec::smmuv3::{cd, reg, ste};

/// Exponent of the granule of the tables that change hands.
const G: u32 = 12;
/// Control bits of the queues.
const QUEUES: u32 = reg::cr0::CMDQEN | reg::cr0::EVENTQEN | reg::cr0::PRIQEN;

/// Domains of a former kernel, by their tags.
struct Domains<P: UnitPlatform> {
    firsts: Vec<(InvalTag, Arc<FirstStage<G, P>>)>,
    seconds: Vec<(InvalTag, Arc<SecondStage<G, P>>)>,
}

/// Registers that say what the unit can do.
fn features_of<P: UnitPlatform>(regs: &P::Registers) -> Result<[u64; 4], IommuError> {
    let word = |at| regs.present32(at).map(u64::from);
    let [low, high] = [reg::IDR0, reg::IDR1].map(word);
    Ok([low? | high? << 32, word(reg::IDR5)?, 0, 0])
}

/// Options with which a domain was made.
fn options_of(former: &DomainHandover) -> SmmuDomainOptions {
    SmmuDomainOptions {
        input_lg2: Some(former.tables.input_lg2),
        dirty: former.tables.dirty,
        ..SmmuDomainOptions::default()
    }
}

impl<P: UnitPlatform> Smmu<P> {
    fn wait(&self) -> TurnWait<'_, P> {
        let machine = &self.shared.machine;
        TurnWait::new(&machine.clock, machine.limit)
    }

    /// State of the unit for the next kernel.
    pub(super) fn state(&self) -> Result<UnitHandover, IommuError> {
        let machine = &*self.shared.machine;
        let commands = self.shared.queue.commands();
        let queue = MemoryHandover { at: commands.at, bytes: commands.size.bytes() };
        let mut state = UnitHandover {
            features: features_of::<P>(&machine.registers)?,
            root: machine.registers.present64(reg::STRTAB_BASE)?,
            shape: machine.read(reg::STRTAB_BASE_CFG)?.into(),
            queues: Vec::from([queue]),
            ..UnitHandover::default()
        };
        let mut held: Vec<(StreamId, Option<(InvalTag, Hold)>)> = Vec::new();
        for (id, at) in self.table.open_entries(machine) {
            if ste::CONFIG.get(&machine.read_entry(at)) == ste::config::BYPASS {
                held.push((id, None));
                continue;
            }
            let domain = self.streams.of(id).with(self.wait(), |stream| {
                let plain = !stream.ats && !stream.stalls && stream.pasid_lg2 == 0;
                let main = stream.attachments.attachment(None).filter(|_| plain);
                let main = main.filter(|main| !main.to.nested);
                main.and_then(|main| Some((main.to.tag.context(), main.domain.clone()?)))
            })?;
            held.push((id, Some(domain.ok_or(IommuError::Unsupported)?)));
        }
        let booked = held.iter().map(|(stream, domain)| Booked {
            requester: Requester { stream: *stream, pasid: None },
            domain: domain.as_ref().map(|(tag, hold)| (*tag, hold)),
            tlb: None,
        });
        record(&mut state, booked)?;
        Ok(state)
    }

    /// Leaves the unit as it is to another driver.
    pub(super) fn leave_unit(&self) -> Result<(), IommuError> {
        self.begin_leaving()?;
        let drained = self.shared.queues().try_for_each(CommandQueue::drain);
        // The next kernel finds its own; none of these fetches from memory that is another's then.
        let drained =
            drained.and_then(|()| self.shared.more.iter().try_for_each(CommandQueue::stop));
        self.end_change(&drained, EnableState::Left);
        drained?;
        self.shared.queue.operation.set(OperationState::Stopped);
        Ok(())
    }

    /// Takes the unit over from the driver of a former kernel, which left it as `former` says. No access of any
    /// device is blocked or goes elsewhere meanwhile: the tables stay in use, and are this driver's from then on.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// See [`AdoptError`]. Until a command fails ([`AdoptError::Iommu`]) the unit is as it was; with
    /// [`Smmu::enable`] all its streams are blocked.
    pub fn adopt(
        registers: P::Registers,
        mem: P::Memory,
        clock: P,
        mut config: Config,
        former: &UnitHandover,
        claims: &mut TableClaims<'_>,
    ) -> Result<Self, AdoptError> {
        let features = Features::read(&registers)?.on_board(config.coherency, config.update);
        config.reserved.within(features.output_lg2);
        same_features(features_of::<P>(&registers)?, former.features)?;
        without_interrupts(former)?;
        as_recorded(&registers, reg::STRTAB_BASE, former.root)?;
        let machine = SmmuHardware::new(registers, mem, clock, config.limit, features.coherent);
        let machine = Arc::new(machine);
        let (value, recorded) = (machine.read(reg::STRTAB_BASE_CFG)?.into(), former.shape);
        if value != recorded {
            return Err(AdoptError::Register { offset: reg::STRTAB_BASE_CFG, value, recorded });
        }
        if machine.read(reg::CR0ACK)? & reg::cr0::SMMUEN == 0 {
            return Err(AdoptError::Off);
        }
        let shape = StreamTableShape::new(&features, config.streams());
        let table = StreamTable::adopt(&machine, shape, config.blocking, former, claims)?;
        let queues = Self::queues(&machine, features, &config, MoreQueues::None)?;
        let mut unit = Self::of(queues, table, config);
        // The unit does not run yet: of what is refused nothing is invalidated, and nothing is freed.
        unit.shared.queue.operation.set(OperationState::Stopped);
        unit.set_power(EnableState::Left);
        let adopted = unit.go_on_with(former, claims);
        unit.adopted = adopted.inspect_err(|_| unit.free_queues())?;
        unit.restart_queues()?;
        unit.set_power(EnableState::On);
        Ok(unit)
    }

    /// Has the unit use this driver's queues while it goes on translating, and forget everything.
    pub(super) fn restart_queues(&self) -> Result<(), IommuError> {
        let machine = &*self.shared.machine;
        let kept = machine.read(reg::CR0ACK)? & reg::cr0::ALL & !QUEUES;
        machine.control(reg::CR0, reg::CR0ACK, kept)?;
        machine.control(reg::IRQ_CTRL, reg::IRQ_CTRLACK, 0)?;
        self.start_queues(kept)
            .and_then(|()| self.switch_on(kept))
            .inspect_err(|_| self.shared.queue.operation.set(OperationState::Stopped))
    }

    /// Gives back the queues, of which the unit was not told.
    fn free_queues(&self) {
        let machine = &*self.shared.machine;
        for records in [Some(&self.events), self.requests.as_ref()].into_iter().flatten() {
            machine.free(records.with(|records| records.block()));
        }
        self.shared.queue.operation.set(OperationState::Off);
    }

    /// Notes the attachments of `former`, each of which is checked with the entry that gives it to the unit.
    fn go_on_with(
        &self,
        former: &UnitHandover,
        claims: &mut TableClaims<'_>,
    ) -> Result<Adopted<P, Self>, AdoptError> {
        let mut domains = Domains { firsts: Vec::new(), seconds: Vec::new() };
        for domain in &former.domains {
            let (tag, shape) = (domain.tag, AdoptError::Shape { root: domain.tables.root });
            match SmmuTag::of(tag).ok_or(shape)? {
                SmmuTag::Asid(id) if self.shared.asids.take_this(id.get().into()) => {
                    let made = Arc::new(self.former_first(domain, claims)?);
                    domains.firsts.push((tag, made));
                }
                SmmuTag::Vmid(id) if self.shared.vmids.take_this(id.get().into()) => {
                    let made = Arc::new(self.former_second(domain, claims)?);
                    domains.seconds.push((tag, made));
                }
                _ => return Err(shape),
            }
        }
        for stream in &former.streams {
            self.note_former(stream, claims, &domains)?;
        }
        for (id, at) in self.table.open_entries(&self.shared.machine) {
            let named = former.streams.iter().any(|stream| stream.requester.stream == id);
            if !named {
                return Err(AdoptError::Unrecorded { table: at.table });
            }
        }
        let firsts = Adopted::new(domains.firsts.into_iter(), former);
        Ok(firsts.and(Adopted::new(domains.seconds.into_iter(), former)))
    }

    /// Notes one attachment.
    fn note_former(
        &self,
        former: &StreamHandover,
        claims: &mut TableClaims<'_>,
        domains: &Domains<P>,
    ) -> Result<(), AdoptError> {
        let id = former.requester.stream;
        let wrong = AdoptError::Entry { stream: id };
        let whole = former.requester.pasid.is_none() && former.tlb.is_none();
        let place = self.table.known(id).filter(|_| whole).ok_or(wrong)?;
        let target = match former.target {
            HandoverTarget::Domain(tag) => self.former_target(tag, domains).ok_or(wrong)?,
            HandoverTarget::Interrupts => return Err(wrong),
            HandoverTarget::Everything if claims.memory().passes().is_none() => {
                return Err(AdoptError::Passes { stream: id });
            }
            HandoverTarget::Everything => passed_through(&self.shared.features),
        };
        let machine = &*self.shared.machine;
        let found = machine.read_entry(place);
        let StreamTarget { mut entry, descriptor, attachment } = target;
        let noted = self.streams.of(id).with(self.wait(), |stream| {
            if let Some(descriptor) = descriptor {
                let pointer = ste::S1CONTEXTPTR.get(&found) << 6;
                let block = Block {
                    at: PhysAddr::new(pointer).align_down(PageSize::SIZE_4K),
                    size: PageSize::SIZE_4K,
                };
                let current = (pointer & 0xfff) as usize >> cd::LG2_BYTES;
                let mut contexts = ContextTable::single(block, current).ok_or(wrong)?;
                claims.claim(block.at, block.size)?;
                let at = contexts.place(machine, 0)?;
                if machine.read_entry(at) != descriptor {
                    return Err(wrong);
                }
                stream.contexts = Some(contexts);
            }
            self.point(stream, &mut entry, descriptor.is_some());
            if found != entry {
                return Err(wrong);
            }
            if let Some(attachment) = attachment {
                stream.attachments.begin(None, attachment);
            }
            Ok(())
        });
        noted?
    }

    fn former_target(&self, tag: InvalTag, domains: &Domains<P>) -> Option<StreamTarget> {
        let first = domains.firsts.iter().find(|(its, _)| *its == tag);
        let second = domains.seconds.iter().find(|(its, _)| *its == tag);
        match (first, second) {
            (Some((_, domain)), _) => self.first(domain).ok(),
            (None, Some((_, domain))) => self.second(domain).ok(),
            (None, None) => None,
        }
    }

    /// A domain over first-stage tables of a former kernel.
    fn former_first(
        &self,
        former: &DomainHandover,
        claims: &mut TableClaims<'_>,
    ) -> Result<FirstStage<G, P>, AdoptError> {
        self.former_domain(self.first_format(&options_of(former))?, former, claims)
    }

    /// The same with second-stage tables.
    fn former_second(
        &self,
        former: &DomainHandover,
        claims: &mut TableClaims<'_>,
    ) -> Result<SecondStage<G, P>, AdoptError> {
        self.former_domain(self.second_format(&options_of(former))?, former, claims)
    }

    fn former_domain<F: Format<Word = AtomicU64>>(
        &self,
        format: F,
        former: &DomainHandover,
        claims: &mut TableClaims<'_>,
    ) -> Result<PagedDomain<F, P::Memory, SmmuQueue<P>>, AdoptError> {
        let DomainHandover { tag, tables } = former;
        let table = FormerTable::new(format, self.shared.machine.mem.clone(), tables.root);
        let table = table.check(claims)?;
        let caps = self.shared.features.capabilities(F::GRANULE);
        let (quirks, promised) = (Quirks::default(), of_former_kernel(claims.memory()));
        let domain = PagedDomain::adopted(table, promised, *tag, caps, quirks, self.queue());
        same_tables(&domain, tables)?;
        Ok(domain)
    }
}
