//! Page requests of devices: read raw, one at a time, and answered by group.
//!
//! Intel Virtualization Technology for Directed I/O (D51397), revision 4.1, sections 7.4 to 7.7 and
//! 11.4.11. Private data is handed on as it is. Grouping, handling and the
//! promise of one answer a group are `portolan::iopf`'s.

use portolan::addr::{Iova, PageSize, Pasid, StreamId};
use portolan::iommu::IommuError;
use portolan::iopf::{
    GroupId, Permissions, Place, RawPageRequest, ReplyName, ReplyTo, RequestKind, Responder,
    Response,
};
use portolan::platform::{Mmio, TableMem, UnitPlatform, Word};

use super::features::Has;
use super::page_queue::place;
use super::request::Request;
use super::structures::Mode;
use super::unit::Vtd;
use crate::chassis::Present;
use portolan_spec::vtd::record::{REQUEST_LG2, REQUEST_WORDS, request};
use portolan_spec::vtd::reg::{self, prs, queue};

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
        if !scalable || !control.features.has.contains(Has::PAGE_REQUESTS) || lg2_pages > 7 {
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
            match value >= size.bytes() || value % (1 << REQUEST_LG2) != 0 {
                true => Err(IommuError::Nonsense { offset, value }),
                false => Ok(value),
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
        Ok(Some(decode(words)))
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

fn decode(words: [u64; REQUEST_WORDS]) -> PageEvent {
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
