//! Open requests of devices, and translations that they remember.
//!
//! Common to the units: a ledger of groups and stalls, and the translations that devices keep
//! themselves (PCI Express Address Translation Services).

use std::collections::{BTreeMap, BTreeSet};

use portolan::addr::{Iova, IovaRange, Pasid, PhysAddr, StreamId};
use portolan::iopf::{RawPageRequest, ReplyName, ReplyTo, RequestKind, Response};

use crate::inject::{DmaFault, Piece};
use portolan_sim::decode::AccessKind;
use portolan_sim::request::Request;

/// Outcome of a transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// Through: each piece with its place in memory.
    Done(Vec<Piece>),
    /// Refused.
    Refused(DmaFault),
    /// Stalled until an answer comes.
    Stalled(portolan::iopf::StallTag),
}

/// Requests of devices that have no answer yet.
#[derive(Debug, Default)]
pub(crate) struct Asking {
    /// Device and group, without address spaces: a device tells its groups apart by number.
    open: BTreeSet<(u32, ReplyName)>,
    told: Vec<(ReplyTo, Response)>,
    strays: u64,
}

impl Asking {
    /// A device asks.
    pub fn ask(&mut self, raw: &RawPageRequest) {
        let marker = raw.is_stop_marker() && matches!(raw.kind, RequestKind::Pri { .. });
        if !marker {
            self.open.insert((raw.stream.get(), raw.reply_to().name));
        }
    }

    /// Sends a response to a device.
    pub fn tell(&mut self, to: ReplyTo, response: Response) {
        if !self.open.remove(&(to.stream.get(), to.name)) {
            self.note_stray();
        }
        self.told.push((to, response));
    }

    /// Counts a response without a request.
    pub fn note_stray(&mut self) {
        self.strays += 1;
    }

    /// Resets a device: it has forgotten its requests.
    pub fn reset(&mut self, stream: StreamId) {
        self.open.retain(|(of, _)| *of != stream.get());
    }

    /// Takes the responses that devices got since the last call.
    pub fn take(&mut self) -> Vec<(ReplyTo, Response)> {
        std::mem::take(&mut self.told)
    }

    /// Requests without an answer.
    pub fn open(&self) -> Vec<(StreamId, ReplyName)> {
        let open = self.open.iter();
        open.map(|(stream, name)| (StreamId::new(*stream), *name)).collect()
    }

    /// Number of responses without a request, or to a request that had got one already.
    pub fn strays(&self) -> u64 {
        self.strays
    }
}

type Place = (u32, Option<u32>, u64, AccessDirection);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum AccessDirection {
    Read,
    Write,
}

fn place(of: Request) -> Place {
    let kind = match of.access {
        AccessKind::Read => AccessDirection::Read,
        AccessKind::Write => AccessDirection::Write,
    };
    let pasid = of.pasid.map(Pasid::get);
    (of.stream.get(), pasid, of.iova.get() >> 12, kind)
}

/// Translations that an invalidation makes a device forget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forget {
    pub stream: u32,
    /// PASID of the address space, or `None` for requests without one.
    pub pasid: Option<u32>,
    pub range: IovaRange,
}

/// The devices' own caches of translations, page by page.
#[derive(Debug, Default)]
pub(crate) struct DeviceTlbs(BTreeMap<Place, u64>);

impl DeviceTlbs {
    pub fn lookup(&self, of: Request) -> Option<PhysAddr> {
        let page = self.0.get(&place(of))?;
        Some(PhysAddr::new(page | of.iova.get() & 0xfff))
    }

    pub fn insert(&mut self, of: Request, pa: PhysAddr) {
        self.0.insert(place(of), pa.get() & !0xfff);
    }

    pub fn forget(&mut self, what: Forget) {
        let (first, last) = (what.range.start().get() >> 12, what.range.last().get() >> 12);
        self.0.retain(|(stream, pasid, page, _), _| {
            *stream != what.stream || *pasid != what.pasid || *page < first || *page > last
        });
    }

    /// Forgets all of a device.
    pub fn forget_device(&mut self, stream: u32) {
        self.0.retain(|(of, ..), _| *of != stream);
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }
}

/// The pages of an address whose low bits tell the size: the lowest clear bit from `from` up ends
/// the range.
pub(crate) fn encoded(address: u64, from: u32) -> IovaRange {
    let ones = (address >> from).trailing_ones();
    let lg2 = from + ones + 1;
    let (start, last) = match lg2 {
        64.. => (0, u64::MAX),
        _ => (address >> lg2 << lg2, address | ((1 << lg2) - 1)),
    };
    let range = IovaRange::new(Iova::new(start), Iova::new(last));
    range.unwrap_or(IovaRange::page(Iova::new(start), portolan::addr::PageSize::SIZE_4K))
}
