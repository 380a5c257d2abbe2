//! Interrupts of devices, which the unit remaps, and the unit's own.
//!
//! Intel Virtualization Technology for Directed I/O (D51397), revision 4.1, chapter 5, sections
//! 6.5.2.7 (interrupt entry cache), 9.10 (entries of 128 bits, remapped format) and 11.4.4 (order of
//! commands). Entries verify their source; messages that choose CPU and vector themselves are
//! blocked (`GCMD.CFI` off).
//!
//! The unit's own are a message for faults and one for page requests (7.3, 7.4, 11.4.11 to 11.4.15).
//! They choose CPU and vector themselves, and no unit remaps them.
//!
//! An entry is posted (5.2, 9.10 and 9.11) to a descriptor, and changes from one format to the other by one store while
//! the device sends: of word 0, or of both words at once, for which table memory needs stores of pairs. Without them a
//! descriptor lies below 4 GiB, since both formats have the same word 1 then.
//!
//! Not supported: the message for completions.

use super::command::{InterruptEntries, Request};
use super::control::{Core, Switch, Way};
use super::features::VtdFeature;
use super::queue::VtdQueue;
use super::tables::{ABSENT, VtdInterruptTable};
use super::unit::Vtd;
use crate::chassis::Present;
use crate::chassis::entry::{After, At, Kind, Live, Stores, WORDS, Words};
use crate::handover::AdoptError;
use crate::interrupt::compose::{self, checked, delivery_mode, plain_message, vtd_message};
use crate::interrupt::{ApicMode, Slots};
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use portolan::addr::StreamId;
use portolan::inval::Walker;
use portolan::iommu::handover::{InterruptHandover, UnitHandover};
use portolan::iommu::{
    DescriptorPosting, Destination, Interrupt, InterruptError, InterruptPlace, InterruptSource,
    InterruptTarget, IommuError, MsiMessage, Polarity, PostedDescriptor, Posting, RedirectionEntry,
    RemapInterrupts, Trigger,
};
use portolan::platform::{Mmio, UnitPlatform};
use portolan_spec::vtd::entry::{P, interrupt as field};
use portolan_spec::vtd::reg::{self, command, event};

/// An entry, which hardware reads by one access (Linux relies on it, too: `cmpxchg16b`). An open one changes by one
/// store or not at all.
pub(crate) const REMAPPING: Kind =
    Kind { deciding: P, closed: 0, reads: |_| [u64::MAX; WORDS], live: Live::OnePair };

/// The words of an entry.
fn entry(
    source: InterruptSource,
    target: &InterruptTarget,
    apic: ApicMode,
) -> Result<Words, InterruptError> {
    checked(target.destination, apic)?;
    let to = match apic {
        ApicMode::XApic => field::DST_XAPIC.at(target.destination.get().into()),
        ApicMode::X2Apic => field::DST.at(target.destination.get().into()),
    };
    let logical = matches!(target.destination, Destination::Logical(_));
    let mode = delivery_mode(target.delivery);
    let mut words = ABSENT;
    words[0] = P
        | field::DM.at(logical.into())
        | field::RH.at(mode)
        | field::TM.at((target.trigger == Trigger::Level).into())
        | field::DLM.at(mode)
        | field::V.at(target.vector.get().into())
        | to;
    words[1] = match source {
        InterruptSource::Requester(of) => {
            field::SVT.at(field::verify::REQUESTER) | field::SID.at(of.get().into())
        }
        InterruptSource::Device(of) => {
            field::SVT.at(field::verify::REQUESTER)
                | field::SQ.at(field::ALL_FUNCTIONS)
                | field::SID.at(of.get().into())
        }
        InterruptSource::Buses { first, last } if first <= last => {
            let buses = u64::from(first) << 8 | u64::from(last);
            field::SVT.at(field::verify::BUSES) | field::SID.at(buses)
        }
        InterruptSource::Buses { .. } => return Err(InterruptError::Source(source)),
    };
    Ok(words)
}

/// The words of an entry that posts.
fn posted(source: InterruptSource, to: &DescriptorPosting) -> Result<Words, InterruptError> {
    let at = to.descriptor.get().get();
    if at % size_of::<PostedDescriptor>() as u64 != 0 {
        return Err(InterruptError::Unposted);
    }
    // The verification of the source is the same in both formats.
    let plain = InterruptTarget::new(to.vector, Destination::Physical(0));
    let mut words = entry(source, &plain, ApicMode::XApic)?;
    words[0] = P
        | field::IM.at(1)
        | field::URG.at(to.urgent.into())
        | field::V.at(to.vector.get().into())
        | field::PDA.at(at >> 6);
    words[1] |= field::PDA_HIGH.at(at >> 32);
    Ok(words)
}

impl<P: UnitPlatform> Core<P> {
    /// Changes an entry step by step.
    fn set_interrupt(&self, at: At, index: u16, new: &Words) -> Result<(), IommuError> {
        let open = at.read(&self.mem)[0] & P != 0;
        let cached = open || self.control.features.has.contains(VtdFeature::CACHING_MODE);
        at.change(&self.mem, self.walker(), &REMAPPING, new, |after| match after {
            After::Closed => self.forget_interrupts(one(index)),
            After::Changed if cached => self.forget_interrupts(one(index)),
            After::Changed | After::Unread => self.control.flush_write_buffer(),
        })
    }

    /// Closes an entry in memory. The verification of the source stays, as the hardware may have
    /// read the other word before.
    fn close_interrupt(&self, at: At) {
        at.write(&self.mem, 0, 0);
        at.publish(&self.mem, self.walker());
    }

    fn forget_interrupts(&self, which: InterruptEntries) -> Result<(), IommuError> {
        self.control.flush_write_buffer()?;
        self.run(&[&[Request::InterruptEntries(which)]])
    }

    /// The way in which the unit reads tables.
    pub(super) fn walker(&self) -> Walker {
        if self.control.features.has.contains(VtdFeature::SNOOPS) {
            Walker::Coherent
        } else {
            Walker::NonCoherent
        }
    }
}

fn one(index: u16) -> InterruptEntries {
    let lg2_count = 0;
    InterruptEntries::Some { index, lg2_count }
}

impl<P: UnitPlatform> Vtd<P> {
    /// Has the unit use its interrupt table, and nothing else. *Context.* Task.
    pub(super) fn start_interrupts(&self) -> Result<(), IommuError> {
        let Some(remap) = &self.remap else {
            return Ok(());
        };
        let control = &self.core.control;
        control.flush_write_buffer()?;
        control.set_interrupt_table(remap.address())?;
        if !control.features.has.contains(VtdFeature::INTERRUPT_ROOT_INVALIDATES) {
            self.core.forget_interrupts(InterruptEntries::All)?;
        }
        control.switch(command::CFI, Switch::Off)?;
        control.switch(command::IRE, Switch::On)
    }

    /// The table, if there is one.
    fn remap(&self) -> Result<&VtdInterruptTable<P>, IommuError> {
        self.remap.as_ref().ok_or(IommuError::Unsupported)
    }

    /// Takes back all interrupts of a stream, or all.
    pub(super) fn revoke_interrupts(&self, stream: Option<StreamId>) -> Result<(), IommuError> {
        let Some(remap) = &self.remap else {
            return Ok(());
        };
        remap.slots.with(self.turn(), |slots| {
            let close = |index| self.core.close_interrupt(remap.at(index));
            if slots.unsettle_all(stream, close) {
                self.settle_interrupts(slots)?;
            }
            Ok(())
        })?
    }

    /// Has the unit forget all entries, after which those that were closed are free.
    fn settle_interrupts(&self, slots: &mut Slots) -> Result<(), IommuError> {
        self.core.forget_interrupts(InterruptEntries::All)?;
        slots.settle_all();
        Ok(())
    }

    /// Entries that are out of use because the unit did not complete an invalidation of them. They
    /// come back when one of all entries completes, at the latest when there is no free one left.
    ///
    /// *Context.* Atomic.
    ///
    /// # Errors
    /// [`IommuError::Unsupported`] without interrupt remapping; if others have the turn for too long.
    pub fn unsettled_interrupts(&self) -> Result<usize, IommuError> {
        let remap = self.remap()?;
        remap.slots.with(self.turn(), |slots| slots.unsettled())
    }

    /// Has the unit forget all entries, if it has a table.
    pub(super) fn forget_all_interrupts(&self) -> Result<(), IommuError> {
        match &self.remap {
            Some(_) => self.core.forget_interrupts(InterruptEntries::All),
            None => Ok(()),
        }
    }

    /// Holds the interrupts of `former`, each of which is checked with the entry that lets it through.
    pub(super) fn hold_interrupts(&self, former: &UnitHandover) -> Result<(), AdoptError> {
        let Some(remap) = &self.remap else { return Ok(()) };
        let mem = &self.core.mem;
        remap.slots.with(self.turn().always(), |slots| {
            let mut open = BTreeSet::new();
            for interrupt in &former.interrupts {
                let InterruptHandover { source, index, target } = *interrupt;
                let wrong = AdoptError::InterruptEntry { from: source, index };
                let words = entry(source, &target, remap.wanted.apic).map_err(|_| wrong)?;
                if !slots.hold(interrupt) || remap.at(index).read(mem) != words {
                    return Err(wrong);
                }
                open.insert(index);
            }
            let mut others = remap.indices().filter(|index| !open.contains(index));
            match others.any(|index| remap.at(index).read(mem)[0] & P != 0) {
                true => Err(AdoptError::Unrecorded { table: remap.table.at }),
                false => Ok(()),
            }
        })?
    }

    /// Form of destinations.
    pub(super) fn apic(&self) -> ApicMode {
        let wanted = self.remap.as_ref().map(|remap| remap.wanted.apic);
        wanted.unwrap_or_default()
    }
}

impl<P: UnitPlatform> RemapInterrupts for Vtd<P> {
    fn adopted_interrupts(
        &self,
        source: InterruptSource,
    ) -> Result<Vec<Interrupt>, InterruptError> {
        let remap = self.remap()?;
        Ok(remap.slots.with(self.turn(), |slots| slots.give_out(remap.table.at, source))?)
    }

    fn allocate(
        &self,
        source: InterruptSource,
        target: InterruptTarget,
    ) -> Result<Interrupt, InterruptError> {
        let remap = self.remap()?;
        let words = entry(source, &target, remap.wanted.apic)?;
        remap.slots.with(self.turn(), |slots| {
            let (index, serial) = match slots.take(source, target) {
                Some(taken) => taken,
                None => {
                    self.settle_interrupts(slots)?;
                    slots.take(source, target).ok_or(InterruptError::Full)?
                }
            };
            let at = remap.at(index);
            if let Err(error) = self.core.set_interrupt(at, index, &words) {
                slots.unsettle(index);
                self.core.close_interrupt(at);
                return Err(error.into());
            }
            let place = InterruptPlace { table: remap.table.at, index, serial };
            Ok(Interrupt::given_out(place, source, target))
        })?
    }

    fn retarget(
        &self,
        interrupt: &mut Interrupt,
        target: InterruptTarget,
    ) -> Result<(), InterruptError> {
        let remap = self.remap()?;
        let words = entry(interrupt.source(), &target, remap.wanted.apic)?;
        remap.slots.with(self.turn(), |slots| {
            let index = remap.used(slots, interrupt)?;
            self.core.set_interrupt(remap.at(index), index, &words)?;
            slots.redirect(index, target);
            interrupt.retargeted(target);
            Ok(())
        })?
    }

    fn post(&self, interrupt: &mut Interrupt, to: Posting) -> Result<(), InterruptError> {
        let remap = self.remap()?;
        let posts = self.features().has.contains(VtdFeature::POSTED_INTERRUPTS);
        let (Posting::Descriptor(to), true) = (to, posts) else {
            return Err(InterruptError::Unposted);
        };
        let words = posted(interrupt.source(), &to)?;
        remap.slots.with(self.turn(), |slots| {
            let index = remap.used(slots, interrupt)?;
            let (at, mem) = (remap.at(index), &self.core.mem);
            if !REMAPPING.changes_in_place(&at.read(mem), &words, Stores::of(mem)) {
                return Err(InterruptError::Unposted);
            }
            self.core.set_interrupt(at, index, &words)?;
            slots.redirect(index, Posting::Descriptor(to));
            Ok(())
        })?
    }

    fn free(&self, interrupt: Interrupt) -> Result<(), InterruptError> {
        let remap = self.remap()?;
        remap.slots.with(self.turn(), |slots| {
            let index = remap.used(slots, &interrupt)?;
            slots.unsettle(index);
            self.core.close_interrupt(remap.at(index));
            self.core.forget_interrupts(one(index))?;
            slots.settle(index);
            Ok(())
        })?
    }

    fn revoke(&self, stream: StreamId) -> Result<(), IommuError> {
        self.revoke_interrupts(Some(stream))
    }

    fn message(&self, interrupt: &Interrupt) -> Result<MsiMessage, InterruptError> {
        let remap = self.remap()?;
        let used = |slots: &mut Slots| remap.used(slots, interrupt);
        let index = remap.slots.with(self.turn(), used)??;
        Ok(vtd_message(index))
    }

    fn redirection(
        &self,
        interrupt: &Interrupt,
        polarity: Polarity,
    ) -> Result<RedirectionEntry, InterruptError> {
        let remap = self.remap()?;
        let used = |slots: &mut Slots| remap.used(slots, interrupt);
        let index = remap.slots.with(self.turn(), used)??;
        let target = interrupt.target();
        Ok(compose::vtd_redirection(index, &target, polarity))
    }
}

impl<P: UnitPlatform> Vtd<P> {
    /// Programs the fault event message, as [`IommuDomains`](portolan::iommu::IommuDomains) says.
    pub(crate) fn signal(&self, target: Option<InterruptTarget>) -> Result<(), IommuError> {
        self.program(reg::FECTL, target)
    }

    /// Makes the unit send a message to `target` whenever there is something for
    /// [`Vtd::next_page_request`], or no longer with `None`. The handler reads until there is
    /// nothing left, and so does the caller that has switched the message on: earlier requests may
    /// send none. No unit remaps the message.
    ///
    /// *Context.* Atomic, one caller at a time.
    ///
    /// # Errors
    /// [`IommuError::Unsupported`] without page requests, or if no message reaches `target`;
    /// [`IommuError::Gone`].
    pub fn signal_page_requests(&self, target: Option<InterruptTarget>) -> Result<(), IommuError> {
        if self.features().has.contains(VtdFeature::PAGE_REQUESTS) {
            self.program(reg::PECTL, target)
        } else {
            Err(IommuError::Unsupported)
        }
    }

    /// Programs the message whose control register is `control`, again after a loss of power.
    fn program(&self, control: usize, target: Option<InterruptTarget>) -> Result<(), IommuError> {
        self.write_message(control, target)?;
        let mut messages = self.messages.0.lock();
        messages.retain(|(of, _)| *of != control);
        messages.extend(target.map(|target| (control, target)));
        Ok(())
    }

    /// Programs the messages once more.
    pub(super) fn restore_messages(&self) -> Result<(), IommuError> {
        let messages = self.messages.0.lock().clone();
        messages.into_iter().try_for_each(|(of, target)| self.write_message(of, Some(target)))
    }

    fn write_message(
        &self,
        control: usize,
        target: Option<InterruptTarget>,
    ) -> Result<(), IommuError> {
        let regs = &self.core.control.regs;
        regs.write32(control, event::IM);
        // So that no message is sent with half of an address.
        regs.present32(control)?;
        let Some(target) = target else { return Ok(()) };
        let message = plain_message(&target, self.apic()).map_err(|_| IommuError::Unsupported)?;
        regs.write32(control + event::DATA, message.data);
        regs.write32(control + event::ADDRESS, message.address as u32);
        regs.write32(control + event::UPPER, (message.address >> 32) as u32);
        regs.write32(control, 0);
        Ok(())
    }
}

impl<P: UnitPlatform> VtdQueue<P> {
    /// Has the unit forget cached entries of the interrupt remapping table (6.5.2.7), and waits: for an
    /// embedder with a table of its own, which the driver neither reads nor sets. A mask that is wider
    /// than the unit takes means all entries.
    ///
    /// *Context.* Atomic.
    ///
    /// # Errors
    /// [`IommuError::Unsupported`] without interrupt remapping, or without the queue, beside which
    /// there is no other way; else if the unit did not complete.
    pub fn invalidate_interrupt_entries(&self, which: InterruptEntries) -> Result<(), IommuError> {
        let remaps = self.0.control.features.has.contains(VtdFeature::INTERRUPT_REMAPPING);
        match &self.0.way {
            Way::Ring(_) if remaps => self.0.run(&[&[Request::InterruptEntries(which)]]),
            Way::Ring(_) | Way::Direct(_) => Err(IommuError::Unsupported),
        }
    }
}
