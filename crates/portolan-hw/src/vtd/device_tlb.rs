//! Devices with translations of their own: their declaration, their page requests, and devices that
//! are gone.
//!
//! Intel Virtualization Technology for Directed I/O (D51397), revision 4.1, sections 7.4 to 7.7 and
//! 11.4.11 (page requests), 6.5.2.10 (a device that does not complete an invalidation) and 6.5.3. Page
//! requests are read raw, one at a time, and answered by group. Private data is handed on as it is.
//! Grouping, handling and the promise of one answer a group are `portolan::iopf`'s.

use super::command::Request;
use super::control::Way;
use super::faults::place;
use super::features::{Mode, VtdFeature};
use super::tables::{
    ABSENT, Attachment, EntryRequests, InheritedTranslation, Key, Streams, change,
};
use super::unit::{DeviceTlbUse, History, Vtd};
use crate::chassis::entry::At;
use crate::chassis::{Present, with_room};
use alloc::vec::Vec;
use portolan::addr::{Iova, PageSize, Pasid, StreamId};
use portolan::iommu::{AttachError, DeviceTlb, IommuError};
use portolan::iopf::{
    GroupId, Permissions, Place, RawPageRequest, ReplyName, ReplyTo, RequestKind, Responder,
    Response,
};
use portolan::platform::{AllMemory, Mmio, TableMem, UnitPlatform, Word};

use portolan_spec::vtd::record::{REQUEST_LG2, REQUEST_WORDS, request};
use portolan_spec::vtd::reg::{self, prs, queue};

impl<P: UnitPlatform> Vtd<P> {
    /// Declares that `stream` has a TLB of its own, to be used from its next attachment on: nothing
    /// checks addresses that its device has translated, to which `_all` gives leave.
    ///
    /// # Errors
    /// [`IommuError::Unsupported`] if the unit has no part for them.
    pub fn use_device_tlb(
        &self,
        stream: StreamId,
        device: DeviceTlb,
        _all: AllMemory,
    ) -> Result<(), IommuError> {
        let stream = u16::try_from(stream.get()).map_err(|_| IommuError::Unsupported)?;
        let queued = matches!(self.core.way, Way::Ring(_));
        if !queued || !self.features().has.contains(VtdFeature::DEVICE_TLB) {
            return Err(IommuError::Unsupported);
        }
        with_room(
            &self.known,
            |known| known.devices.list(),
            |known| {
                let unknown = self.root.inherited() == InheritedTranslation::Translation;
                let history = if unknown || known.gone.get(stream).is_some() {
                    History::Unknown
                } else {
                    History::Nothing
                };
                let tlb = device;
                known.devices.insert(stream, DeviceTlbUse { tlb, history });
            },
        );
        Ok(())
    }
}

/// Event of the page-request queue.
///
/// *Context.* Interrupt: a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageEvent {
    /// A request.
    Request {
        /// Request of the device.
        request: RawPageRequest,
        /// Private data of the device.
        private: [u64; 2],
    },
    /// A descriptor that is no page request.
    Unknown {
        /// Its first word.
        word: u64,
    },
    /// Requests were lost; the unit answered them itself.
    Lost,
}

impl<P: UnitPlatform> Vtd<P> {
    /// Sets up a page-request queue of `2^lg2_pages` pages (7 at most), to be read with
    /// [`Vtd::next_page_request`]. Devices whose TLB is used may send requests from their next
    /// attachment on.
    ///
    /// # Errors
    /// [`IommuError::Unsupported`] outside scalable mode, without page requests, or if there is a
    /// queue already; [`IommuError::Memory`].
    pub fn read_page_requests(&self, lg2_pages: u32) -> Result<(), IommuError> {
        let control = &self.core.control;
        let scalable = self.config.mode == Mode::Scalable;
        if !scalable || !control.features.has.contains(VtdFeature::PAGE_REQUESTS) || lg2_pages > 7 {
            return Err(IommuError::Unsupported);
        }
        let size = PageSize::of_lg2(12 + lg2_pages);
        let base = self.core.mem.alloc(size)?;
        let address = base.get() | queue::SIZE.at(lg2_pages.into());
        if !self.requests.address.publish_first(address) {
            self.core.mem.free(base, size);
            return Err(IommuError::Unsupported);
        }
        control.regs.write64(reg::PQH, 0);
        control.regs.write64(reg::PQT, 0);
        control.regs.write64(reg::PQA, address);
        control.regs.write32(reg::PRS, prs::PPR | prs::PRO);
        Ok(())
    }

    /// Tells if there is a queue.
    pub(super) fn page_requests_are_read(&self) -> bool {
        self.requests.address.get() != 0
    }

    /// The oldest request. For one caller at a time.
    ///
    /// *Context.* Interrupt.
    ///
    /// # Errors
    /// [`IommuError::Unsupported`] without a queue, [`IommuError::Gone`], or
    /// [`IommuError::Nonsense`] if the tail is outside it.
    pub fn next_page_request(&self) -> Result<Option<PageEvent>, IommuError> {
        let address = self.requests.address.get();
        if address == 0 {
            return Err(IommuError::Unsupported);
        }
        let regs = &self.core.control.regs;
        let (base, size) = place(address);
        let index = |offset| {
            let value = queue::OFFSET.of(regs.present64(offset)?);
            if value >= size.bytes() || value % (1 << REQUEST_LG2) != 0 {
                Err(IommuError::Nonsense { offset, value })
            } else {
                Ok(value)
            }
        };
        let (head, mut tail) = (index(reg::PQH)?, index(reg::PQT)?);
        if head == tail {
            // What comes from now on interrupts again, and what came before is seen.
            regs.write32(reg::PRS, prs::PPR);
            tail = index(reg::PQT)?;
        }
        if head == tail {
            let status = regs.read32(reg::PRS);
            if status & prs::PRO == 0 {
                return Ok(None);
            }
            // Only with room again does the unit take what comes.
            regs.write32(reg::PRS, prs::PRO);
            return Ok(Some(PageEvent::Lost));
        }
        let mut words = [0; REQUEST_WORDS];
        let table = self.core.mem.table(base, size);
        let slot = table.iter().skip(head as usize / 8);
        for (value, word) in words.iter_mut().zip(slot) {
            *value = Word::load(word);
        }
        let next = (head + (1 << REQUEST_LG2)) & (size.bytes() - 1);
        regs.write64(reg::PQH, next);
        Ok(Some(decode_request(words)))
    }
}

impl<P: UnitPlatform> Responder for Vtd<P> {
    type Error = IommuError;

    /// *Context.* Atomic. Sends a descriptor and waits until the unit has taken it; [`IommuError::Unsupported`]
    /// without a queue of page requests, and for a stall, which this architecture has not.
    fn respond(&self, to: ReplyTo, response: Response) -> Result<(), IommuError> {
        let ReplyName::Group(group) = to.name else {
            return Err(IommuError::Unsupported);
        };
        if !self.page_requests_are_read() {
            return Err(IommuError::Unsupported);
        }
        let stream = u16::try_from(to.stream.get()).map_err(|_| IommuError::Unsupported)?;
        let response = Request::Response {
            stream,
            pasid: to.pasid.map(Pasid::get),
            group: group.get(),
            response,
        };
        self.core.run(&[&[response]])
    }
}

fn decode_request(words: [u64; REQUEST_WORDS]) -> PageEvent {
    let [who, what, first, second] = words;
    if request::TYPE.of(who) != 1 {
        return PageEvent::Unknown { word: who };
    }
    let mut wants = Permissions::empty();
    wants.set(Permissions::READ, request::READ.of(what) == 1);
    wants.set(Permissions::WRITE, request::WRITE.of(what) == 1);
    wants.set(Permissions::EXECUTE, request::EXECUTE.of(who) == 1);
    wants.set(Permissions::PRIVILEGED, request::PRIVILEGED.of(who) == 1);
    let named = request::PASID_PRESENT.of(who) == 1;
    let group = GroupId::new(request::GROUP.of(what) as u16);
    let place = match request::LAST.of(what) {
        0 => Place::More,
        _ => Place::Last,
    };
    let request = RawPageRequest {
        stream: StreamId::new(request::RID.of(who) as u32),
        pasid: named.then(|| Pasid::new(request::PASID.of(who) as u32)),
        iova: Iova::new(what & !0xfff),
        wants,
        kind: RequestKind::Pri { group, place },
    };
    let private = [first, second];
    PageEvent::Request { request, private }
}

impl<P: UnitPlatform> Vtd<P> {
    /// Blocks `stream`, all its PASIDs and its interrupts too, without asking the device for
    /// anything: for one that was removed by surprise, or no longer completes invalidations of its
    /// TLB. Returns once nothing is under way through its domains, which may then be dropped, and
    /// from then on their invalidations no longer ask it.
    ///
    /// No promise about the device is needed: its TLB may still hold translations, but the unit
    /// refuses translated requests of a stream without an entry (3.9). If it comes back, its TLB
    /// has to be declared again ([`Vtd::use_device_tlb`]), and is told to forget everything before
    /// its stream is attached.
    ///
    /// # Errors
    /// As [`Iommu::block`](portolan::iommu::Iommu::block); to be tried again.
    pub fn device_gone(&self, stream: StreamId) -> Result<(), AttachError> {
        let sid = u16::try_from(stream.get()).map_err(|_| AttachError::NoSuchStream { stream })?;
        with_room(&self.known, |known| known.gone.list(), |known| known.gone.insert(sid, ()));
        let leave = |streams: &mut Streams| self.leave_behind(streams, sid);
        let left = self.book.with(self.turn(), leave)?;
        left.map(drop)?;
        Ok(self.revoke_interrupts(Some(stream))?)
    }

    /// Blocks a stream as [`Vtd::device_gone`] does; returns its attachments.
    fn leave_behind(
        &self,
        streams: &mut Streams,
        stream: u16,
    ) -> Result<Vec<(Key, Attachment)>, IommuError> {
        // From here on nothing asks the device again because the stream is moved.
        self.known.lock().devices.remove(stream);
        let all = (stream, 0)..=(stream, u32::MAX);
        let keys: Vec<Key> = streams.not_blocked(all.clone()).collect();
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let tables = &mut streams.state;
        self.clear(tables.context(&self.core, stream)?)?;
        if self.config.mode == Mode::Scalable {
            for (_, pasid) in keys {
                self.clear(tables.pasid(&self.core, stream, pasid)?)?;
            }
        }
        // Until the unit has forgotten it, the hardware may still reach all of it.
        tables.stale.insert(stream);
        streams.unsettle(all.clone());
        // Everything, as what the stream had may be tagged by any domain.
        self.forget_everything()?;
        streams.state.stale.remove(&stream);
        let left = streams.settled(all);
        for ((_, pasid), attachment) in &left {
            self.forget_note(attachment.to, *pasid);
        }
        Ok(left)
    }

    fn clear(&self, at: At) -> Result<(), IommuError> {
        change(&self.core, at, &ABSENT, EntryRequests::NOTHING)
    }
}
