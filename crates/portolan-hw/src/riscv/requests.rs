//! Page requests of devices: read one at a time, and answered by group.
//!
//! RISC-V IOMMU Architecture Specification, version 1.0, sections "Page-Request-Queue", "PCIe ATS Page Request
//! handling" and "IOMMU PCIe ATS commands". Grouping, handling and the promise of one answer a group are
//! `portolan::iopf`'s. When requests are lost for want of room the unit answers those that need an answer
//! itself, without a PASID (`PRPR`).

use core::sync::atomic::Ordering;

use portolan::addr::{Iova, Pasid, StreamId};
use portolan::iommu::IommuError;
use portolan::iopf::{
    GroupId, Permissions, Place, RawPageRequest, ReplyName, ReplyTo, RequestKind, Responder,
    Response,
};
use portolan::platform::UnitPlatform;

use super::command;
use super::directory::Directory;
use super::records::Next;
use super::unit::RiscvIommu;
use crate::chassis::PageRequestEvent;
use portolan_spec::riscv::fault::WORDS;
use portolan_spec::riscv::request as layout;

fn decode([who, what, ..]: [u64; WORDS]) -> RawPageRequest {
    let mut wants = Permissions::empty();
    wants.set(Permissions::READ, layout::READ.of(what) == 1);
    wants.set(Permissions::WRITE, layout::WRITE.of(what) == 1);
    wants.set(Permissions::EXECUTE, layout::EXEC.of(who) == 1);
    wants.set(Permissions::PRIVILEGED, layout::PRIV.of(who) == 1);
    let pasid = Pasid::new(layout::PID.of(who) as u32);
    let group = GroupId::new(layout::GROUP.of(what) as u16);
    let place = match layout::LAST.of(what) {
        0 => Place::More,
        _ => Place::Last,
    };
    RawPageRequest {
        stream: StreamId::new(layout::DID.of(who) as u32),
        pasid: (layout::PV.of(who) == 1).then_some(pasid),
        iova: Iova::new(layout::PAGE.of(what) << 12),
        wants,
        kind: RequestKind::Pri { group, place },
    }
}

impl<P: UnitPlatform> RiscvIommu<P> {
    /// The oldest page request, if any. Requests also count as lost where a stream has been moved that had
    /// some under way: while its context does not count, the unit answers them.
    ///
    /// *Context.* Interrupt.
    ///
    /// # Errors
    /// [`IommuError::Unsupported`] without a queue
    /// ([`Config::requests_lg2`](super::Config::requests_lg2)); if the unit is gone or a register
    /// makes no sense.
    pub fn next_page_request(&self) -> Result<Option<PageRequestEvent>, IommuError> {
        let shared = &self.shared;
        let requests = shared.requests.as_ref().ok_or(IommuError::Unsupported)?;
        Ok(match requests.next(&shared.control)? {
            Next::Record(words) => Some(PageRequestEvent::Request(decode(words))),
            Next::Lost => Some(PageRequestEvent::Lost),
            Next::Nothing => {
                let cut = shared.requests_cut.swap(false, Ordering::Relaxed);
                cut.then_some(PageRequestEvent::Lost)
            }
        })
    }
}

impl<P: UnitPlatform> Responder for RiscvIommu<P> {
    type Error = IommuError;

    /// *Context.* Atomic. Sends a command and waits until the unit has taken it;
    /// [`IommuError::Unsupported`] without a queue of page requests, for a stall, which this
    /// architecture has not, and for a request that no device of the unit's can have sent.
    fn respond(&self, to: ReplyTo, response: Response) -> Result<(), IommuError> {
        let ReplyName::Group(group) = to.name else {
            return Err(IommuError::Unsupported);
        };
        let lg2 = self.streams_lg2();
        let known = Directory::has(lg2, to.stream).is_some() && self.shared.requests.is_some();
        let fits = to.pasid.is_none_or(|pasid| pasid.get() >> 20 == 0) && group.get() < 512;
        if !known || !fits {
            return Err(IommuError::Unsupported);
        }
        let (stream, pasid) = (to.stream, to.pasid);
        let to = command::Target { stream, pasid, lg2 };
        let answer = command::respond(to, group.get(), response);
        self.shared.run([answer].into_iter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_by_hand() {
        // Device 0x123456 in address space 0xabcde, to execute and privileged, reads; the last of group 0x155.
        let words = [0x1234_5607_abcd_e000, 0x4000_0000 | 0x155 << 3 | 0b101, 0, 0];
        let wants = Permissions::READ | Permissions::EXECUTE | Permissions::PRIVILEGED;
        let (group, place) = (GroupId::new(0x155), Place::Last);
        let wanted = RawPageRequest {
            stream: StreamId::new(0x12_3456),
            pasid: Some(Pasid::new(0xa_bcde)),
            iova: Iova::new(0x4000_0000),
            wants,
            kind: RequestKind::Pri { group, place },
        };
        assert_eq!(decode(words), wanted);
        // Each bit of a record stands for what it stands for, or for nothing.
        for bit in 0..128 {
            let mut words = [0; WORDS];
            words[bit / 64] = 1 << (bit % 64);
            let found = decode(words);
            let marked = found != decode([0; WORDS]);
            // Without `PV` the address space is not looked at, and the record has reserved bits.
            let silent = matches!(bit, 0..=31 | 35..=39);
            assert_eq!(marked, !silent, "{bit}");
        }
    }
}
