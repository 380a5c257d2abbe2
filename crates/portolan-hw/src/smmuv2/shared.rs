//! Parts that a unit and its domains share: registers, context banks, synchronisations.
//!
//! Steps of plans become register writes here (IHI 0062, TLB maintenance): invalidations of a first
//! stage and by second-stage address go through the domain's context bank, and are complete with
//! that bank's synchronisation; invalidation by VMID is a global register, and is complete with the
//! global one.

use super::counts::WriteKind;
use super::implementation::Implementation;
use super::machine::{ANYTHING, Bank, Banks, Machine};
use super::stalling::Stalling;
use super::sync::Gate;
use crate::chassis::Submitters;
use crate::ids::Ids;
use alloc::vec::Vec;
use portolan::addr::{InvalTag, Iova};
use portolan::inval::{Command, Depth, InvalidationQueue, Step, TablesLeft};
use portolan::iommu::{IommuError, TagPool};
use portolan::platform::{Guarded, UnitPlatform};
use portolan_spec::smmuv2::{bank, global};

/// Stage of translation that a context bank does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Stage {
    One,
    Two,
}

/// Bank and stage that a domain has of the unit. Its bank is also its identifier: see
/// [`Shared::number`].
///
/// *Context.* Interrupt: a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Tag {
    pub bank: Bank,
    pub stage: Stage,
}

/// The highest VMID: 8 bits of CBAR.
const MOST_VMID: u16 = 0xff;

/// Set in the identifier of a second-stage domain.
const SECOND_STAGE: u32 = 1 << 16;

impl Tag {
    /// The identifier that goes through plans.
    pub fn context(self) -> InvalTag {
        let stage = match self.stage {
            Stage::One => 0,
            Stage::Two => SECOND_STAGE,
        };
        InvalTag::new(stage | u32::from(self.bank.0))
    }

    /// Back from such an identifier; `None` if it is no such.
    pub fn of(context: InvalTag) -> Option<Self> {
        let raw = context.get();
        let stage = match raw & SECOND_STAGE {
            0 => Stage::One,
            _ => Stage::Two,
        };
        let bank = u8::try_from(raw & !SECOND_STAGE).ok()?;
        let bank = Bank(bank);
        Some(Self { bank, stage })
    }
}

/// Parts that a unit and its domains share.
///
/// *Context.* Atomic: functions that sync or forget wait for the unit. [`Shared::new`] and
/// [`Shared::take`] take heap memory and are for tasks; [`Shared::number`] and
/// [`Shared::give_back`] are for interrupts as well.
pub(super) struct Shared<P: UnitPlatform> {
    pub machine: Machine<P>,
    pub implementation: Implementation,
    /// Banks of either stage.
    pub banks: Ids<P>,
    /// Banks of stage 2 only.
    pub banks_of_stage2: Ids<P>,
    /// For each bank.
    gates: Vec<Gate<P>>,
    global: Gate<P>,
    /// Banks in use, for the search for faults. A leaf: no other lock is taken under it.
    pub in_use: Guarded<P, Banks>,
    /// Banks whose accesses stall. A leaf as well.
    pub stalling: Guarded<P, Stalling>,
    /// Each CPU its own: those that meet share their waits already ([`Gate`]), and commands are no ranges.
    pub submitters: Submitters<P>,
}

impl<P: UnitPlatform> Shared<P> {
    /// The CPUs that submit.
    pub(super) fn cpus(&self) -> &P {
        &self.machine.clock
    }

    pub fn new(machine: Machine<P>, implementation: Implementation, banks: u32) -> Self {
        let features = &machine.features;
        let (most, second) = (features.banks, features.banks_of_stage2.min(banks));
        Self {
            banks: Ids::new(second, banks.saturating_sub(1)),
            banks_of_stage2: match second {
                // An empty set.
                0 => Ids::new(1, 0),
                some => Ids::new(0, some - 1),
            },
            gates: (0..most).map(|_| Gate::default()).collect(),
            global: Gate::default(),
            in_use: Guarded::default(),
            stalling: Guarded::new(Stalling::new(most as usize)),
            submitters: Submitters::alone(),
            machine,
            implementation,
        }
    }

    /// The ASID of a first stage, the VMID of a second. First stages have VMID 0.
    pub fn number(&self, tag: Tag) -> u16 {
        self.machine.above_bank.saturating_add(tag.bank.0.into())
    }

    /// A bank for `stage`.
    pub fn take(&self, stage: Stage) -> Result<Tag, IommuError> {
        let second = match stage {
            Stage::One => None,
            Stage::Two => self.banks_of_stage2.take(),
        };
        let found = second.or_else(|| self.banks.take());
        let bank = found.and_then(|bank| u8::try_from(bank).ok());
        let bank = Bank(bank.ok_or(IommuError::OutOfContexts)?);
        let tag = Tag { bank, stage };
        if stage == Stage::Two && self.number(tag) > MOST_VMID {
            self.give_back(tag);
            return Err(IommuError::OutOfContexts);
        }
        Ok(tag)
    }

    pub fn give_back(&self, tag: Tag) {
        self.in_use.lock().remove(tag.bank);
        self.stalling.lock().remove(tag.bank);
        let bank = u32::from(tag.bank.0);
        self.banks_of_stage2.give_back(bank);
        self.banks.give_back(bank);
    }

    /// Waits until the invalidations of a bank are complete, and all accesses that used the
    /// invalidated translations.
    pub fn sync(&self, bank: Bank) -> Result<(), IommuError> {
        let machine = &self.machine;
        let gate = self.gates.get(usize::from(bank.0));
        let gate = gate.ok_or(IommuError::Unsupported)?;
        let (begin, status) =
            (machine.bank(bank, bank::TLBSYNC), machine.bank(bank, bank::TLBSTATUS));
        gate.pass(
            &machine.clock,
            machine.sync_limit,
            || machine.write(WriteKind::TlbSync, begin, ANYTHING),
            || Ok(machine.read(status)? & bank::SACTIVE != 0),
        )
    }

    /// Waits until all invalidations are complete.
    pub fn sync_all(&self) -> Result<(), IommuError> {
        let machine = &self.machine;
        self.global.pass(
            &machine.clock,
            machine.sync_limit,
            || machine.write(WriteKind::TlbGlobalSync, global::TLBGSYNC, ANYTHING),
            || Ok(machine.read(global::TLBGSTATUS)? & global::GSACTIVE != 0),
        )
    }

    /// Forgets everything, and waits.
    pub fn forget_everything(&self) -> Result<(), IommuError> {
        let machine = &self.machine;
        machine.write(WriteKind::TlbiAllNsnh, global::TLBIALLNSNH, ANYTHING);
        self.sync_all()
    }

    /// Has the unit forget all of a domain, without waiting.
    fn forget_all_of(&self, tag: Tag) {
        let machine = &self.machine;
        let number = u32::from(self.number(tag));
        match tag.stage {
            Stage::One => {
                let register = machine.bank(tag.bank, bank::TLBIASID);
                machine.write(WriteKind::TlbiAsid, register, number);
            }
            Stage::Two => machine.write(WriteKind::TlbiVmid, global::TLBIVMID, number),
        }
    }

    /// Forgets all of a domain, and waits.
    pub fn forget(&self, tag: Tag) -> Result<(), IommuError> {
        self.forget_all_of(tag);
        match tag.stage {
            Stage::One => self.sync(tag.bank),
            Stage::Two => self.sync_all(),
        }
    }

    fn forget_page(&self, tag: Tag, iova: Iova, depth: Depth) {
        let unit = iova.get() >> bank::UNIT_LG2;
        let (kind, register, value) = match (tag.stage, depth) {
            (Stage::One, depth) => {
                let address = unit & ((1 << bank::VA_BITS) - 1);
                let value = u64::from(self.number(tag)) << bank::ASID_LSB | address;
                match depth {
                    Depth::LeafOnly => (WriteKind::TlbiVal, bank::TLBIVAL, value),
                    Depth::AllLevels => (WriteKind::TlbiVa, bank::TLBIVA, value),
                }
            }
            (Stage::Two, depth) => {
                let value = unit & ((1 << bank::IPA_BITS) - 1);
                match depth {
                    Depth::LeafOnly => (WriteKind::TlbiIpas2l, bank::TLBIIPAS2L, value),
                    Depth::AllLevels => (WriteKind::TlbiIpas2, bank::TLBIIPAS2, value),
                }
            }
        };
        let register = self.machine.bank(tag.bank, register);
        self.machine.write64(kind, register, value);
    }
}

/// Writes that are not known to be complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pending {
    Nothing,
    /// In one bank.
    Bank(Bank),
    /// In several, or by global registers.
    All,
}

impl Pending {
    fn add(&mut self, bank: Bank) {
        *self = match *self {
            Self::Nothing => Self::Bank(bank),
            Self::Bank(old) if old == bank => Self::Bank(bank),
            _ => Self::All,
        };
    }
}

crate::chassis::handle!(SmmuV2Queue of Shared, AtomicU64);

impl<P: UnitPlatform> Shared<P> {
    fn finish(&self, pending: Pending) -> Result<(), IommuError> {
        match pending {
            Pending::Nothing => Ok(()),
            Pending::Bank(bank) => self.sync(bank),
            Pending::All => self.sync_all(),
        }
    }

    fn invalidate(&self, command: Command, pending: &mut Pending) -> Result<(), IommuError> {
        let shared = self;
        let known = |context| Tag::of(context).ok_or(IommuError::Unsupported);
        match command {
            Command::Page { context, iova, depth, .. } => {
                let tag = known(context)?;
                shared.forget_page(tag, iova, depth);
                pending.add(tag.bank);
            }
            Command::Context { context } => {
                let tag = known(context)?;
                shared.forget_all_of(tag);
                match tag.stage {
                    Stage::One => pending.add(tag.bank),
                    Stage::Two => *pending = Pending::All,
                }
            }
            // There are no ranges; where streams go is not cached apart.
            Command::Range { .. } => return Err(IommuError::Unsupported),
            Command::Global | Command::Configuration { .. } => {
                let machine = &shared.machine;
                machine.write(WriteKind::TlbiAllNsnh, global::TLBIALLNSNH, ANYTHING);
                *pending = Pending::All;
            }
        }
        Ok(())
    }
}

impl<P: UnitPlatform> InvalidationQueue for Shared<P> {
    type Error = IommuError;

    fn pay(&self, steps: &mut dyn Iterator<Item = Step>, _: TablesLeft) -> Result<(), IommuError> {
        let mut pending = Pending::Nothing;
        for step in steps {
            match step {
                // There is no such buffer.
                Step::FlushWriteBuffer => {}
                Step::Invalidate(command) => self.invalidate(command, &mut pending)?,
                Step::Sync => {
                    self.finish(pending)?;
                    pending = Pending::Nothing;
                }
            }
        }
        Ok(())
    }
}

impl<P: UnitPlatform> TagPool for SmmuV2Queue<P> {
    fn release(&self, context: InvalTag) -> Result<(), IommuError> {
        let tag = Tag::of(context).ok_or(IommuError::Unsupported)?;
        let machine = &self.0.machine;
        // No stream comes here any more: the bank walks nothing from now on.
        machine.configure(machine.bank(tag.bank, bank::SCTLR), 0);
        machine.clear_fault(tag.bank)?;
        self.0.forget(tag)?;
        self.0.give_back(tag);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_there_and_back() {
        for stage in [Stage::One, Stage::Two] {
            let tag = Tag { bank: Bank(127), stage };
            assert_eq!(Tag::of(tag.context()), Some(tag));
        }
        assert_eq!(Tag::of(InvalTag::new(1 << 17)), None);
    }
}
