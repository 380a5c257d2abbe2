//! Moving PASIDs of streams, and streams to guest tables.
//!
//! AMD I/O Virtualization Technology (IOMMU) Specification (48882), revision 3.10, sections 2.2.2.1, 2.2.6 and 2.4.3.
//! A stream whose entry leads to a GCR3 table has no host tables. So a PASID is attached to a stream that is blocked,
//! passes through or has guest tables, and not beside a domain with host tables.
//!
//! A device that keeps translations has those of accesses without a PASID, and those of each PASID: once the unit has
//! forgotten, it is told by PASID. Accesses without a PASID and those of PASID 0 go through the same tables, and a
//! device keeps the two apart.
//!
//! Not supported: guest tables of four and of five levels behind one stream.

use super::command::{self, GuestUse};
use super::guest::{
    AmdGuestDomain, DEFAULT, ForeignAmdGuestDomain, GuestAttachment, GuestKey, GuestMove,
    GuestPlace, GuestTable, WithoutPasid, all_of,
};
use super::queue::{AmdQueue, AmdShared, PASS};
use super::tables::{AmdPlace, Attachment, Streams};
use super::unit::AmdVi;
use crate::chassis::book::Hold;
use alloc::sync::Arc;
use alloc::vec::Vec;
use arrayvec::ArrayVec;
use core::sync::atomic::AtomicU64;
use portolan::addr::{InvalTag, Pasid, StreamId};
use portolan::iommu::{Attach, AttachError, IommuError, PagedDomain};
use portolan::platform::{ForeignTables, TableMem, UnitPlatform};
use portolan::table::PageTable;
use portolan::table::format::{AmdV2, AmdV2Levels, DirtyTracking};
use portolan_spec::amd::ADDRESS;
use portolan_spec::amd::entry::GUEST_DEFAULT;
use portolan_spec::amd::guest::V;

/// Most attachments of a kind that a move leaves: each of its parts leaves three.
const MOST_LEFT: usize = 6;

/// Attachments that a move leaves, to be let go of without the turn.
#[derive(Debug, Default)]
pub(super) struct LeftPlaces {
    pub(super) streams: ArrayVec<Attachment, MOST_LEFT>,
    pub(super) pasids: ArrayVec<GuestAttachment, MOST_LEFT>,
}

/// Destination of a PASID.
pub(super) struct GuestTarget {
    context: InvalTag,
    root: u64,
    deep: AmdV2Levels,
    domain: Hold,
}

impl<P: UnitPlatform> AmdVi<P> {
    /// An empty domain with guest tables (version 2, the x86-64 layout), for streams and for PASIDs.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// [`IommuError::Unsupported`] if the unit walks no such tables, or not so many levels;
    /// [`IommuError::OutOfContexts`], [`IommuError::Memory`].
    pub fn guest_domain(&self, levels: AmdV2Levels) -> Result<AmdGuestDomain<P>, IommuError> {
        let format = self.guest_format(levels, self.config.dirty)?;
        self.guest_over(PageTable::new(format, self.shared.control.mem.clone())?)
    }

    /// A domain over the tables of a process, which its kernel built and keeps: those at which CR3 of its CPUs
    /// points, with so many levels, for a PASID of a device that shares them (SVA). The kernel forwards its
    /// invalidations ([`PagedDomain::invalidate`]).
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// As [`AmdVi::guest_domain`], but for memory.
    pub fn foreign_guest_domain(
        &self,
        levels: AmdV2Levels,
        tables: ForeignTables,
    ) -> Result<ForeignAmdGuestDomain<P>, IommuError> {
        // Their owner reads the marks.
        let format = self.guest_format(levels, DirtyTracking::Off)?;
        self.guest_over(PageTable::foreign(format, tables))
    }

    pub(super) fn guest_format(
        &self,
        levels: AmdV2Levels,
        dirty: DirtyTracking,
    ) -> Result<AmdV2, IommuError> {
        let guests = self.features().guests.ok_or(IommuError::Unsupported)?;
        if !guests.walks(levels) {
            return Err(IommuError::Unsupported);
        }
        let output_lg2 = self.features().output_lg2(&self.config);
        Ok(AmdV2 { levels, output_lg2, dirty })
    }

    fn guest_over<T: TableMem<AtomicU64>>(
        &self,
        table: PageTable<AmdV2, T>,
    ) -> Result<PagedDomain<AmdV2, T, AmdQueue<P>>, IommuError> {
        let name = self.shared.guest_ids.take().ok_or(IommuError::OutOfContexts)?;
        let (context, caps) = (command::guest_context(name), self.capabilities());
        let domain = PagedDomain::new(table, context, caps, self.config.quirks, self.queue());
        Ok(domain.shadowed(self.features().shadowing()))
    }

    /// A PASID that GCR3 tables have room for, other than that of accesses without one.
    pub(super) fn checked(&self, pasid: Pasid) -> Result<u32, AttachError> {
        let guests = self.features().guests.ok_or(AttachError::NoPasids)?;
        let fits = pasid.get() >> guests.width(self.config.pasid_bits) == 0;
        if fits && pasid.get() != DEFAULT { Ok(pasid.get()) } else { Err(AttachError::Mismatch) }
    }

    /// Moves a PASID of a stream to guest tables, or to nowhere.
    fn go_guest(
        &self,
        stream: StreamId,
        pasid: u32,
        target: Option<&GuestTarget>,
    ) -> Result<(), AttachError> {
        let no_such = AttachError::NoSuchStream { stream };
        let stream = self.table.has(stream).ok_or(no_such)?;
        let mut left = LeftPlaces::default();
        let moved = self.book.with(self.turn(), |streams| {
            if let Some(target) = target {
                self.open_guests(streams, (stream, pasid), target.deep, &mut left)?;
            }
            self.move_pasid(streams, (stream, pasid), target, &mut left)
        });
        self.let_go(left);
        moved?
    }

    /// Lets go of attachments. Domains wait for the hardware when they are dropped: without the turn.
    pub(super) fn let_go(&self, left: LeftPlaces) {
        self.discharge(&left.streams);
        left.pasids.iter().for_each(|left| self.shared.leave_guest(left.to));
    }

    /// Has the entry of a stream lead to its GCR3 table, for guest tables of `deep` levels.
    fn open_guests(
        &self,
        streams: &mut Streams,
        (stream, pasid): GuestKey,
        deep: AmdV2Levels,
        left: &mut LeftPlaces,
    ) -> Result<(), AttachError> {
        let now = streams.attachment(stream).map(|now| now.to);
        let nested = now.is_some_and(|now| now.below.is_some());
        let now = now.map(|now| now.domain);
        let others = streams.state.guests.has_pasids(stream);
        let table = self.guest_table(streams, stream)?;
        let leads = now == Some(table.id);
        if leads && table.deep == deep {
            // Accesses without a PASID have none yet: they are blocked by it.
            return match pasid {
                DEFAULT => self.set_without(streams, stream, WithoutPasid::Default),
                _ => Ok(()),
            };
        }
        let host = now.is_some_and(|now| now != PASS && now != table.id);
        if pasid != DEFAULT && (host || leads) || leads && others {
            return Err(AttachError::Mismatch);
        }
        table.without = match now {
            Some(PASS) if pasid != DEFAULT => WithoutPasid::Pass,
            _ => WithoutPasid::Default,
        };
        if leads {
            self.move_pasid(streams, (stream, DEFAULT), None, left)?;
        }
        if leads || nested {
            left.streams.extend(self.move_stream(streams, stream, None, None)?);
        }
        let table = self.guest_table(streams, stream)?;
        table.deep = deep;
        let (memory, id) = (table.memory(), table.id);
        // The field counts in entries that lead to a GCR3 table, which this one does not.
        self.table.set_guest_paging(&self.shared.control.mem, stream, deep);
        let new = Attachment::without_domain(AmdPlace::of(id));
        left.streams.extend(self.move_stream(streams, stream, Some(memory), Some(new))?);
        Ok(())
    }

    /// The GCR3 table of a stream, made if there is none.
    fn guest_table<'s>(
        &self,
        streams: &'s mut Streams,
        stream: u16,
    ) -> Result<&'s mut GuestTable, IommuError> {
        let tables = &mut streams.state.guests.tables;
        match tables.entry(stream) {
            alloc::collections::btree_map::Entry::Occupied(there) => Ok(there.into_mut()),
            alloc::collections::btree_map::Entry::Vacant(place) => {
                let guests = self.features().guests.ok_or(IommuError::Unsupported)?;
                let (bits, id) = (guests.width(self.config.pasid_bits), self.shared.take_id()?);
                let table = GuestTable::new(&self.shared.control.mem, id, bits);
                let table = table.inspect_err(|_| self.shared.ids.give_back(id.into()))?;
                Ok(place.insert(table))
            }
        }
    }

    /// Changes the treatment of accesses without a PASID, whose PASID leads nowhere. The other PASIDs of the stream go
    /// on: it is one bit of one word. The device forgets what it keeps of such accesses.
    fn set_without(
        &self,
        streams: &mut Streams,
        stream: u16,
        without: WithoutPasid,
    ) -> Result<(), AttachError> {
        let (at, mem) = (self.table.at(stream), &self.shared.control.mem);
        let kept = streams.attachment(stream).and_then(|now| now.to.kept());
        let table = self.guest_table(streams, stream)?;
        let set = |table: &mut GuestTable, without: WithoutPasid| {
            table.without = without;
            at.write(mem, 0, at.read(mem)[0] & !GUEST_DEFAULT | without.bit());
        };
        set(table, without);
        let forgotten = self.shared.run([command::device_entry(stream)].into_iter());
        let forgotten =
            forgotten.and_then(|()| kept.map_or(Ok(()), |(_, kept)| self.shared.ask_one(kept)));
        Ok(forgotten.inspect_err(|_| set(table, WithoutPasid::Default))?)
    }

    /// Moves a PASID of a stream whose entry leads to its GCR3 table, if it has one.
    pub(super) fn move_pasid(
        &self,
        streams: &mut Streams,
        (stream, pasid): GuestKey,
        target: Option<&GuestTarget>,
        left: &mut LeftPlaces,
    ) -> Result<(), AttachError> {
        let told = streams.attachment(stream).and_then(|now| now.to.told);
        let guests = &mut streams.state.guests;
        let Some(table) = guests.tables.get_mut(&stream) else { return Ok(()) };
        let shared = &self.shared;
        let tagged = GuestUse { domain: table.id, pasid };
        let at = table.entry(&shared.control.mem, pasid)?;
        let new = target.map(|target| GuestAttachment {
            to: GuestPlace::new(target.context, tagged, told),
            domain: Some(target.domain.clone()),
        });
        let root = target.map_or(0, |target| target.root & ADDRESS | V);
        let settle = |(): &mut (), unsettled: &[GuestAttachment]| {
            shared.forget_guest(tagged)?;
            let asked = unsettled.iter().find_map(|left| left.to.kept);
            asked.map_or(Ok(()), |kept| self.settle_device(kept))
        };
        let change = |(): &mut (), old: Option<&_>, new: Option<&GuestAttachment>| {
            if let Some(new) = new {
                // Before the unit or the device can learn anything: the domain's invalidations reach both from now on.
                shared.enter_guest(new.to);
            }
            GuestMove { tagged, old, new }.change(shared, at, root)
        };
        left.pasids.extend(guests.pasids.go((stream, pasid), new, settle, change)?);
        Ok(())
    }

    /// Prepares a stream with guest tables for a move of its accesses without a PASID elsewhere. Tells if that is all
    /// of it, as other PASIDs keep the entry.
    pub(super) fn leave_guests(
        &self,
        streams: &mut Streams,
        stream: u16,
        new: Option<&Attachment>,
        left: &mut LeftPlaces,
    ) -> Result<bool, AttachError> {
        let others = streams.state.guests.has_pasids(stream);
        if others && new.is_some_and(|new| new.to.domain != PASS) {
            return Err(AttachError::Mismatch);
        }
        self.move_pasid(streams, (stream, DEFAULT), None, left)?;
        if others {
            let without = new.map_or(WithoutPasid::Default, |_| WithoutPasid::Pass);
            self.set_without(streams, stream, without)?;
        }
        Ok(others)
    }

    /// Takes all PASIDs of a stream out of its GCR3 table, once its entry blocks and everything is forgotten.
    pub(super) fn cut_pasids(
        &self,
        streams: &mut Streams,
        stream: u16,
    ) -> Result<Vec<GuestAttachment>, IommuError> {
        let guests = &mut streams.state.guests;
        let keys: Vec<GuestKey> = guests.pasids.not_blocked(all_of(stream)).collect();
        for (_, pasid) in keys {
            if let Some(table) = guests.tables.get_mut(&stream) {
                let at = table.entry(&self.shared.control.mem, pasid)?;
                at.write(&self.shared.control.mem, 0, 0);
            }
        }
        let settled = guests.pasids.settled(all_of(stream)).into_iter().map(|(_, left)| left);
        Ok(settled.inspect(|left| self.shared.leave_guest(left.to)).collect())
    }

    /// Blocks a PASID.
    pub(super) fn block_pasid_of(&self, stream: StreamId, pasid: u32) -> Result<(), AttachError> {
        self.go_guest(stream, pasid, None)
    }

    /// Tells if accesses of a stream with `pasid`, or with none, lead to tables, as far as is known: a caller that
    /// moves streams meanwhile is not waited for.
    pub(super) fn leads_somewhere(&self, stream: u16, pasid: Option<Pasid>) -> bool {
        let known = self.book.try_with(|streams| {
            let guests = &streams.state.guests;
            let table = guests.tables.get(&stream)?;
            let leads = streams.attachment(stream)?.to.domain == table.id;
            let key = (stream, pasid.map_or(DEFAULT, Pasid::get));
            Some(!leads || guests.pasids.attachment(key).is_some())
        });
        known.flatten().unwrap_or(true)
    }

    fn attach_guest<T: TableMem<AtomicU64> + 'static>(
        &self,
        stream: StreamId,
        pasid: u32,
        domain: &Arc<PagedDomain<AmdV2, T, AmdQueue<P>>>,
    ) -> Result<(), AttachError> {
        if !Arc::ptr_eq(&domain.queue().0, &self.shared) {
            return Err(AttachError::Mismatch);
        }
        let target = GuestTarget {
            context: domain.context(),
            root: domain.table().root().get(),
            deep: domain.table().format().levels,
            domain: Hold(domain.clone()),
        };
        self.go_guest(stream, pasid, Some(&target))
    }
}

impl<T, P> Attach<PagedDomain<AmdV2, T, AmdQueue<P>>> for AmdVi<P>
where
    T: TableMem<AtomicU64> + 'static,
    P: UnitPlatform,
{
    fn attach(
        &self,
        stream: StreamId,
        domain: &Arc<PagedDomain<AmdV2, T, AmdQueue<P>>>,
    ) -> Result<(), AttachError> {
        self.attach_guest(stream, DEFAULT, domain)
    }

    fn attach_pasid(
        &self,
        stream: StreamId,
        pasid: Pasid,
        domain: &Arc<PagedDomain<AmdV2, T, AmdQueue<P>>>,
    ) -> Result<(), AttachError> {
        self.attach_guest(stream, self.checked(pasid)?, domain)
    }
}

impl<P: UnitPlatform> AmdShared<P> {
    /// Has the invalidations of a domain reach what is kept of a PASID.
    pub(super) fn enter_guest(&self, place: GuestPlace) {
        self.guests.add(place.context, place.tagged);
        place.kept.into_iter().for_each(|kept| self.atcs.add(place.context, kept));
    }

    /// Undoes [`AmdShared::enter_guest`], once nothing is kept.
    fn leave_guest(&self, place: GuestPlace) {
        self.guests.remove(place.context, place.tagged);
        place.kept.into_iter().for_each(|kept| self.atcs.remove(place.context, kept));
    }

    /// Forgets all that the unit keeps of a PASID, and waits.
    pub(super) fn forget_guest(&self, tagged: GuestUse) -> Result<(), IommuError> {
        self.run([command::guest_all(tagged)].into_iter())
    }
}
