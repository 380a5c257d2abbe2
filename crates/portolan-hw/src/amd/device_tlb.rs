//! Devices with translations of their own (ATS), the commands that make them forget, and their page
//! requests.
//!
//! AMD I/O Virtualization Technology (IOMMU) Specification (48882), revision 3.10, sections 2.2.2.1 (I,
//! PPR), 2.4.4 (INVALIDATE_IOTLB_PAGES), 2.4.7 (COMPLETE_PPR_REQUEST), 2.5.9 (IOTLB_INV_TIMEOUT) and 2.6
//! (page requests). The unit lets a device's answer through, as its accesses by translations of its own,
//! only while the entry of its stream says so (I). So a device forgets while its entry is closed and still
//! says so: the unit answers it with nothing then. A stream that passes through gives its device no
//! translations.
//!
//! Page requests are read one at a time, and answered by group. Grouping, handling and the promise of
//! one answer a group are `portolan::iopf`'s. When requests are lost for want of room the unit answers
//! those that need an answer itself, where it can (PPRAutoRspEn).
//!
//! Not supported: the unit's interrupt for page requests.

use super::command::{self, AmdAtc, AmdKept};
use super::features::{AmdFeature, Offers};
use super::guest::all_of;
use super::log::{Logging, Oldest, Record};
use super::tables::{Attachment, EntryCommands, Memory, Streams, failed};
use super::unit::AmdVi;
use crate::chassis::PageRequestEvent;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use portolan::addr::{Iova, Pasid, StreamId};
use portolan::iommu::{AttachError, DeviceTlb, Iommu as _, IommuError};
use portolan::iopf::{
    GroupId, Permissions, Place, RawPageRequest, ReplyName, ReplyTo, RequestKind, Responder,
    Response,
};
use portolan::platform::{AllMemory, Nanos, UnitPlatform};
use portolan_spec::amd::entry::{DEVICE_TLB, REQUESTS};
use portolan_spec::amd::reg::control;
use portolan_spec::amd::request as layout;
use portolan_tables::ivrs::Ats;

/// Greatest number of invalidations that a device takes at a time.
const MOST_DEPTH: u8 = 32;

/// Longest times that a unit waits for a device's answer, with their codes.
const LIMITS: [(u64, u64); 4] = [(1000, 4), (100, 3), (10, 2), (1, 1)];

/// The code of the longest one of which the driver's own limit is twice as long: it sees the unit go on then.
fn limit_code(limit: Nanos) -> u64 {
    let fits = |&(millis, _): &(u64, u64)| Nanos::from_millis(2 * millis) <= limit;
    LIMITS.into_iter().find(fits).map_or(1, |(_, code)| code)
}

impl AmdAtc {
    pub(super) fn new(stream: u16, tlb: DeviceTlb) -> Self {
        Self { stream, physical: tlb.physical, depth: tlb.depth.clamp(1, MOST_DEPTH) }
    }

    /// The device as other drivers name it.
    pub(super) fn tlb(self) -> DeviceTlb {
        DeviceTlb { depth: self.depth, physical: self.physical, twice: false }
    }
}

impl<P: UnitPlatform> AmdVi<P> {
    /// As [`IommuDomains::use_device_tlb`](portolan::iommu::IommuDomains::use_device_tlb). The device may then
    /// send page requests as well, if there is a log for them ([`Config::requests_lg2`](super::Config::requests_lg2)).
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// [`IommuError::Unsupported`] if the unit has no part for them, or no entry for the stream, if firmware
    /// says that the stream has none, or if the device has to be asked twice, as those that have to are parts
    /// of Intel's processors.
    pub fn use_device_tlb(
        &self,
        stream: StreamId,
        tlb: DeviceTlb,
        _all: AllMemory,
    ) -> Result<(), IommuError> {
        let offered = self.features().capability.offers.contains(Offers::DEVICE_TLB);
        let stream = self.table.has(stream).filter(|_| offered && !tlb.twice);
        let stream = stream.filter(|stream| self.may_translate(*stream));
        let stream = stream.ok_or(IommuError::Unsupported)?;
        let atc = AmdAtc::new(stream, tlb);
        self.limit_devices()?;
        self.book.with(self.turn(), |streams| {
            streams.state.remotes.entry(stream).or_insert(atc);
        })
    }

    /// Has the unit wait for devices' answers no longer than the driver waits for the unit.
    pub(super) fn limit_devices(&self) -> Result<(), IommuError> {
        let unit = &self.shared.control;
        let limit = control::DEVICE_TLB_LIMIT.at(limit_code(unit.limit));
        unit.switch(!control::DEVICE_TLB_LIMIT.mask(), limit)
    }

    /// Tells if firmware lets the device of `stream` have translations.
    fn may_translate(&self, stream: u16) -> bool {
        let named = |of: &&super::StreamSettings| {
            (of.streams.first().get()..=of.streams.last().get()).contains(&stream)
        };
        let last = self.config.streams.iter().rev().find(named);
        last.is_none_or(|of| of.settings.ats == Ats::Allowed)
    }

    /// `memory` for a stream whose device `told` may keep translations by it, if there is one.
    pub(super) fn memory_for(&self, memory: Memory, told: Option<AmdAtc>) -> Memory {
        if told.is_none() {
            return memory;
        }
        let [word, domain] = memory;
        let asks = self.shared.logs.requests.is_some();
        let each = self.features().has.contains(AmdFeature::REQUESTS_BY_ENTRY);
        let requests = if asks && each { REQUESTS } else { 0 };
        [word | requests, domain | DEVICE_TLB]
    }

    /// Makes the device of a blocked stream forget the remains of a failed move.
    pub(super) fn settle_device(&self, kept: AmdKept) -> Result<(), IommuError> {
        let stream = kept.atc.stream;
        self.table.let_translate(&self.shared.control.mem, stream);
        let entry = [command::device_entry(stream), command::fence()];
        self.shared.run(&mut entry.into_iter())?;
        self.shared.ask_one(kept)
    }

    /// Blocks the streams of devices that may keep translations, and their PASIDs.
    pub(super) fn silence_devices(&self) -> Result<(), IommuError> {
        let (streams, pasids) = self.book.with(self.turn(), |streams| {
            let remotes: Vec<u16> = streams.state.remotes.keys().copied().collect();
            let pasids = streams.state.guests.named().into_iter();
            let pasids: Vec<_> = pasids.filter(|(of, _)| remotes.contains(of)).collect();
            (remotes, pasids)
        })?;
        for (stream, pasid) in pasids {
            failed(self.block_pasid_of(StreamId::new(stream.into()), pasid))?;
        }
        streams.into_iter().try_for_each(|of| failed(self.block(StreamId::new(of.into()))))
    }

    /// Takes devices and guests' tables out of those that the domains of `left` tell the unit of.
    pub(super) fn discharge<'l>(&self, left: impl IntoIterator<Item = &'l Attachment>) {
        for place in left.into_iter().map(|left| left.to) {
            if let Some(below) = place.below {
                self.shared.nested.remove(below.context, place.domain);
            }
            if let Some((context, kept)) = place.kept() {
                self.shared.atcs.remove(context, kept);
            }
        }
    }

    /// Blocks a stream and its interrupts without asking the device for anything: for one that was removed by
    /// surprise, or does not answer any more. Once this is done, nothing is under way through its domains, and
    /// no caller asks the device again. The unit refuses accesses by translations that it still has. If it
    /// comes back, it has to be declared again ([`AmdVi::use_device_tlb`]), and is told to forget everything
    /// before its stream leads anywhere.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// As [`Iommu::block`](portolan::iommu::Iommu::block); to be tried again.
    pub fn device_gone(&self, stream: StreamId) -> Result<(), AttachError> {
        let no_such = AttachError::NoSuchStream { stream };
        let index = self.table.has(stream).ok_or(no_such)?;
        let left = self.book.with(self.turn(), |streams| {
            let left = self.cut(streams, index)?;
            self.discharge(left.iter().map(|(_, left)| left));
            Ok::<_, IommuError>((left, self.cut_pasids(streams, index)?))
        })?;
        // Domains wait for the hardware when they are dropped: without the turn.
        drop(left?);
        Ok(self.revoke_interrupts(Some(stream))?)
    }

    /// Blocks a stream as [`AmdVi::device_gone`] does; returns its attachments.
    fn cut(
        &self,
        streams: &mut Streams,
        stream: u16,
    ) -> Result<Vec<(u16, Attachment)>, IommuError> {
        // From here on no caller waits for the device.
        streams.state.remotes.remove(&stream);
        self.shared.atcs.remove_all(|kept| kept.atc.stream == stream);
        if streams.not_blocked(stream..=stream).next().is_none() {
            return Ok(Vec::new());
        }
        streams.unsettle(stream..=stream);
        streams.state.guests.pasids.unsettle(all_of(stream));
        self.table.change(&self.shared, stream, None, &EntryCommands::NONE)?;
        // What the stream had may be tagged by any domain.
        self.shared.forget_everything()?;
        self.shared.requests_cut.store(true, Ordering::Relaxed);
        Ok(streams.settled(stream..=stream))
    }
}

fn decode([who, page]: Record) -> RawPageRequest {
    let mut wants = Permissions::empty();
    let named = layout::PASID_VALID.of(who) == 1;
    wants.set(Permissions::READ, layout::READ.of(who) == 1);
    wants.set(Permissions::WRITE, layout::WRITE.of(who) == 1);
    wants.set(Permissions::EXECUTE, layout::EXECUTE.of(who) == 1);
    wants.set(Permissions::PRIVILEGED, named && layout::USER.of(who) == 0);
    let pasid = layout::PASID_HIGH.of(who) << 16 | layout::PASID_LOW.of(who);
    let group = GroupId::new(layout::GROUP.of(who) as u16);
    let place = match layout::LAST.of(who) {
        0 => Place::More,
        _ => Place::Last,
    };
    RawPageRequest {
        stream: StreamId::new(layout::DEVICE.of(who) as u32),
        pasid: named.then_some(Pasid::new(pasid as u32)),
        iova: Iova::new(page & !0xfff),
        wants,
        kind: RequestKind::Pri { group, place },
    }
}

impl<P: UnitPlatform> AmdVi<P> {
    /// The oldest page request, if any. Requests also count as lost where a stream has been moved that had
    /// some under way: while its entry is closed, the unit answers them.
    ///
    /// *Context.* Interrupt.
    ///
    /// # Errors
    /// [`IommuError::Unsupported`] without a log
    /// ([`Config::requests_lg2`](super::Config::requests_lg2)); if the unit is gone or a register
    /// makes no sense.
    pub fn next_page_request(&self) -> Result<Option<PageRequestEvent>, IommuError> {
        let shared = &self.shared;
        let log = shared.logs.requests.as_ref().ok_or(IommuError::Unsupported)?;
        log.acknowledge(&shared.control);
        Ok(match log.take(&shared.control, |_| {})? {
            // One that was never written has no sender to whom anything could be said.
            Oldest::Record([0, _]) => Some(PageRequestEvent::Lost),
            Oldest::Record(record) => Some(PageRequestEvent::Request(decode(record))),
            Oldest::Unwritten => None,
            Oldest::Nothing => {
                let stopped = log.restart(&shared.control)? == Logging::TurnedOn;
                let cut = shared.requests_cut.swap(false, Ordering::Relaxed);
                (stopped || cut).then_some(PageRequestEvent::Lost)
            }
        })
    }
}

impl<P: UnitPlatform> Responder for AmdVi<P> {
    type Error = IommuError;

    /// *Context.* Atomic. Sends a command and waits until the unit has taken it;
    /// [`IommuError::Unsupported`] without a log of page requests, for a stall, which this
    /// architecture has not, and for a request that no device of the unit's can have sent.
    fn respond(&self, to: ReplyTo, response: Response) -> Result<(), IommuError> {
        let ReplyName::Group(group) = to.name else {
            return Err(IommuError::Unsupported);
        };
        let stream = self.table.has(to.stream).filter(|_| self.shared.logs.requests.is_some());
        let fits = to.pasid.is_none_or(|pasid| pasid.get() >> 20 == 0) && group.get() < 512;
        let stream = stream.filter(|_| fits).ok_or(IommuError::Unsupported)?;
        let answer = command::respond(stream, to.pasid, group.get(), response);
        self.shared.run([answer].into_iter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Device 0x0108 in address space 0xabcde, a user's write, the last of group 0x155.
    #[test]
    fn requests_by_hand() {
        let words = [0x1160_2b55_bcde_0108, 0x4000_0fff];
        let wanted = RawPageRequest {
            stream: StreamId::new(0x0108),
            pasid: Some(Pasid::new(0xa_bcde)),
            iova: Iova::new(0x4000_0000),
            wants: Permissions::WRITE,
            kind: RequestKind::Pri { group: GroupId::new(0x155), place: Place::Last },
        };
        assert_eq!(decode(words), wanted);
        // Without an address space there is no privilege.
        let plain = decode([0x1006_0001_0000_0030, 0x5000]);
        assert_eq!((plain.pasid, plain.stream), (None, StreamId::new(0x30)));
        assert_eq!(plain.wants, Permissions::READ | Permissions::EXECUTE);
    }

    #[test]
    fn the_unit_gives_up_before_the_driver_does() {
        let code = |millis| limit_code(Nanos::from_millis(millis));
        assert_eq!([1, 5, 20, 1000, 2000, 60_000].map(code), [1, 1, 2, 3, 4, 4]);
    }
}
