//! Interrupt remapping, as the library asks for it: entries of MSI page tables, given out and taken back.
//!
//! RISC-V IOMMU Architecture Specification, version 1.0, sections "Changing MSI page table entry" and
//! "Caching in-memory data structures": an entry that does not count is not kept, so that one that begins
//! to count takes no command; units keep entries by the tag of the second stage. Interrupts that are pending in
//! memory-resident interrupt files are in [`filed`](super::filed).
//!
//! The number of an interrupt is the device's own word: a unit checks the file into which it writes, and
//! not the value. So a device may raise any interrupt in the files that entries of its own lead to. Not
//! supported: interrupt files of guests.

use super::command::{self, Attachment, RiscvTag};
use super::features::Messages;
use super::messages::MessageTable;
use super::tables::{Directory, Streams};
use super::unit::RiscvIommu;
use crate::chassis::book::Left;
use alloc::vec::Vec;
use portolan::addr::{Iova, IovaRange, PageSize, StreamId};
use portolan::iommu::{
    AttachError, Delivery, Destination, Interrupt, InterruptError, InterruptPlace, InterruptSource,
    InterruptTarget, IommuError, MsiMessage, Polarity, Posting, RedirectionEntry, RemapInterrupts,
    Trigger,
};
use portolan::platform::UnitPlatform;
use portolan_spec::riscv::message::{MODE, TRANSLATED, V};
use portolan_spec::riscv::page_of;

/// MessageTable of a source's entries, and its tag.
pub(super) type At<'s> = (&'s mut MessageTable, RiscvTag);

/// The table of `stream` and the tag by which the unit keeps its entries.
fn used(streams: &mut Streams, stream: u32) -> Result<At<'_>, InterruptError> {
    let at = streams.attachment((stream, 0)).and_then(|at| at.to);
    let messages = streams.state.messages.as_mut();
    let table = messages.and_then(|messages| messages.known(stream));
    match (table, at) {
        (Some(table), Some(tag @ RiscvTag::Second(_))) => Ok((table, tag)),
        _ => Err(InterruptError::NotInUse),
    }
}

/// The page of the file of the target's hart.
pub(super) fn page(
    config: &Messages,
    target: &InterruptTarget,
    output_lg2: u32,
) -> Result<u64, InterruptError> {
    let no_such = InterruptError::Destination(target.destination);
    let Destination::Physical(hart) = target.destination else {
        return Err(no_such);
    };
    let known = u32::from(target.vector.get()) <= config.files.identities;
    if target.delivery != Delivery::Fixed || target.trigger != Trigger::Edge || !known {
        return Err(InterruptError::Target);
    }
    let page = config.files.page(hart).ok_or(no_such)?.get();
    if page >> output_lg2 == 0 && page & 0xfff == 0 { Ok(page) } else { Err(no_such) }
}

impl<P: UnitPlatform> RiscvIommu<P> {
    /// The stream of a source: the unit tells devices apart, and nothing else.
    pub(super) fn sender(&self, source: InterruptSource) -> Result<u32, InterruptError> {
        let stream = match source {
            InterruptSource::Requester(of) => Directory::has(self.streams_lg2(), of.stream()),
            InterruptSource::Device(_) | InterruptSource::Buses { .. } => None,
        };
        stream.ok_or(InterruptError::Source(source))
    }

    pub(super) fn entry(&self, target: &InterruptTarget) -> Result<u64, InterruptError> {
        let config = self.interrupts_config().ok_or(IommuError::Unsupported)?;
        let page = page(config, target, self.features().output_lg2)?;
        Ok(V | MODE.at(TRANSLATED) | page_of(page))
    }

    /// Lets a stream that is blocked reach its table, and nothing else. The result is to be dropped
    /// without the turn.
    fn open_table(
        &self,
        streams: &mut Streams,
        stream: u32,
    ) -> Result<Left<Option<RiscvTag>>, InterruptError> {
        if streams.state.processes.contains_key(&stream) {
            return Err(InterruptError::Target);
        }
        match streams.attachment((stream, 0)).map(|at| at.to) {
            Some(Some(RiscvTag::Second(_))) => return Ok(Left::new_const()),
            // Its writes are not translated, or not by a stage that has message tables.
            Some(_) => return Err(InterruptError::Target),
            None => {}
        }
        let messages = streams.state.messages.as_mut().ok_or(IommuError::Unsupported)?;
        let tag = messages.tag();
        let words = messages.without_domain(&self.shared.control.mem)?;
        let new = Attachment::without_domain(Some(tag));
        let moved = self.move_to(streams, (stream, 0), &words, Some(new));
        moved.map_err(|error| match error {
            AttachError::Iommu(error) => error.into(),
            _ => InterruptError::Target,
        })
    }

    /// Has the unit forget entry `index` of `table`.
    pub(super) fn forget_entry(
        &self,
        table: &MessageTable,
        tag: RiscvTag,
        index: u16,
    ) -> Result<(), IommuError> {
        let has = self.features().has;
        let at = table.address(index);
        self.shared.run([command::page(has, tag, at)].into_iter())?;
        let range = IovaRange::page(Iova::new(at), PageSize::SIZE_4K);
        self.shared.ask_all(tag, Some(range))
    }

    /// Has the unit and devices forget all that is tagged so.
    fn forget_all(&self, tag: RiscvTag) -> Result<(), IommuError> {
        self.shared.run([command::context(tag)].into_iter())?;
        self.shared.ask_all(tag, None)
    }

    /// A free entry of the stream, once all that are closed have been forgotten if need be.
    fn take(
        &self,
        streams: &mut Streams,
        stream: u32,
        source: InterruptSource,
        target: InterruptTarget,
    ) -> Result<Interrupt, InterruptError> {
        let word = self.entry(&target)?;
        // A stream without room in the window has none.
        let (table, tag) = used(streams, stream).map_err(|_| InterruptError::Full)?;
        let (index, serial) = match table.slots().take(source, target) {
            Some(taken) => taken,
            None => {
                self.forget_all(tag)?;
                table.slots().settle_all();
                table.slots().take(source, target).ok_or(InterruptError::Full)?
            }
        };
        table.set(&self.shared.control.mem, index, word);
        let place = InterruptPlace { table: table.at(), index, serial };
        Ok(Interrupt::given_out(place, source, target))
    }

    /// Works on the entry of an interrupt that is in use.
    pub(super) fn with_used<T>(
        &self,
        interrupt: &Interrupt,
        work: impl FnOnce(At<'_>, u16) -> Result<T, InterruptError>,
    ) -> Result<T, InterruptError> {
        let stream = self.sender(interrupt.source())?;
        self.book.with(self.turn(), |streams| {
            let (table, tag) = used(streams, stream)?;
            let index = table.used(interrupt)?;
            work((table, tag), index)
        })?
    }
}

impl<P: UnitPlatform> RemapInterrupts for RiscvIommu<P> {
    /// A stream that is blocked reaches its messages from then on, and nothing else. One that passes
    /// through, or has first-stage tables, can have none ([`InterruptError::Target`]), and as long as
    /// one has some it cannot be moved there.
    fn allocate(
        &self,
        source: InterruptSource,
        target: InterruptTarget,
    ) -> Result<Interrupt, InterruptError> {
        let stream = self.sender(source)?;
        self.entry(&target)?;
        let (left, taken) = self.book.with(self.turn(), |streams| {
            let left = self.open_table(streams, stream)?;
            let taken = self.take(streams, stream, source, target);
            Ok::<_, InterruptError>((left, taken))
        })??;
        // Domains wait for the hardware when they are dropped: without the turn.
        drop(left);
        taken
    }

    fn adopted_interrupts(
        &self,
        source: InterruptSource,
    ) -> Result<Vec<Interrupt>, InterruptError> {
        let stream = self.sender(source)?;
        Ok(self.book.with(self.turn(), |streams| {
            let messages = streams.state.messages.as_mut();
            let table = messages.and_then(|messages| messages.known(stream));
            let given = table.map(|table| {
                let at = table.at();
                table.slots().give_out(at, source)
            });
            given.unwrap_or_default()
        })?)
    }

    /// The number of the interrupt, which the device writes, stays: it is another hart that is
    /// interrupted ([`InterruptError::Target`] for another number).
    fn retarget(
        &self,
        interrupt: &mut Interrupt,
        target: InterruptTarget,
    ) -> Result<(), InterruptError> {
        if target.vector != interrupt.target().vector {
            return Err(InterruptError::Target);
        }
        let word = self.entry(&target)?;
        self.with_used(interrupt, |(table, tag), index| {
            table.set(&self.shared.control.mem, index, word);
            table.slots().redirect(index, target);
            Ok(self.forget_entry(table, tag, index)?)
        })?;
        interrupt.retargeted(target);
        Ok(())
    }

    /// Into a memory-resident interrupt file. Its identity there is the number that the device writes.
    fn post(&self, interrupt: &mut Interrupt, to: Posting) -> Result<(), InterruptError> {
        match to {
            Posting::File(to) => self.post_to_file(interrupt, &to),
            Posting::Descriptor(_) | Posting::Apic(_) => Err(InterruptError::Unposted),
        }
    }

    fn free(&self, interrupt: Interrupt) -> Result<(), InterruptError> {
        self.with_used(&interrupt, |(table, tag), index| {
            table.slots().unsettle(index);
            table.set(&self.shared.control.mem, index, 0);
            self.forget_entry(table, tag, index)?;
            table.slots().settle(index);
            Ok(())
        })
    }

    fn revoke(&self, stream: StreamId) -> Result<(), IommuError> {
        let Some(stream) = Directory::has(self.streams_lg2(), stream) else {
            return Ok(());
        };
        self.book.with(self.turn(), |streams| {
            let Ok((table, tag)) = used(streams, stream) else {
                return Ok(());
            };
            if table.close(&self.shared.control.mem) {
                self.forget_all(tag)?;
                table.slots().settle_all();
            }
            Ok(())
        })?
    }

    fn message(&self, interrupt: &Interrupt) -> Result<MsiMessage, InterruptError> {
        let target = interrupt.target();
        self.with_used(interrupt, |(table, _), index| Ok(table.message(index, &target)))
    }

    /// There are no I/O APICs: [`InterruptError::Target`].
    fn redirection(
        &self,
        _interrupt: &Interrupt,
        _polarity: Polarity,
    ) -> Result<RedirectionEntry, InterruptError> {
        Err(InterruptError::Target)
    }
}
