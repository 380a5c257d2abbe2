//! Requests to the unit: their descriptors, and their numbers by kind.
//!
//! Intel Virtualization Technology for Directed I/O (D51397), revision 4.1, sections 6.5.2 and
//! 7.6.1.
//!
//! *Context.* Interrupt: everything here is a value.

use super::features::{Features, VtdFeature};

use portolan::addr::PhysAddr;
use portolan::iommu::DeviceTlb;
use portolan::iopf::Response;
use portolan_spec::vtd::descriptor::{
    AM, DID, GRANULARITY, IH, PASID, TYPE, Words, context, device_tlb, iotlb, kind, pasid_cache,
    pasid_device_tlb, pasid_iotlb, response,
};
use portolan_spec::vtd::{Bits, descriptor as d};

/// A descriptor and the kind by which it is counted.
pub(super) type Counted = (CommandKind, Words);

/// Levels that changed: if only leaves did, walk caches may be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hint {
    LeavesOnly,
    AllLevels,
}

impl Hint {
    pub(super) const fn bit(self) -> u64 {
        match self {
            Self::LeavesOnly => 1,
            Self::AllLevels => 0,
        }
    }
}

/// Part of the context cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Contexts {
    All,
    Device { domain: u16, stream: u16 },
}

/// Part of the IOTLB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Iotlb {
    All,
    Domain {
        domain: u16,
    },
    /// `start` is aligned to `2^lg2_pages` pages.
    Pages {
        domain: u16,
        start: u64,
        lg2_pages: u8,
        hint: Hint,
    },
}

/// Pages of a PASID, or all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    All,
    Pages { start: u64, lg2_pages: u8, hint: Hint },
}

impl Extent {
    /// The same part, for callers that have no use for the hint.
    pub(super) fn without_hint(self) -> Self {
        match self {
            Self::All => Self::All,
            Self::Pages { start, lg2_pages, .. } => {
                Self::Pages { start, lg2_pages, hint: Hint::AllLevels }
            }
        }
    }
}

/// Work that is complete when a wait is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Drain {
    /// Everything that was submitted before.
    Nothing,
    /// That, and page requests and responses on their way (7.10).
    PageRequests,
}

/// Entries of the interrupt remapping table.
///
/// *Context.* Interrupt: a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InterruptEntries {
    /// Every translation.
    All,
    /// `2^lg2_count` entries, among them `index`; the first is a multiple of that number.
    Some {
        /// One of them.
        index: u16,
        /// Exponent of their number: the index mask.
        lg2_count: u8,
    },
}

/// One command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    Contexts(Contexts),
    Iotlb(Iotlb),
    PasidIotlb {
        domain: u16,
        pasid: u32,
        extent: Extent,
    },
    PasidCacheAll,
    PasidCache {
        domain: u16,
        pasid: u32,
    },
    /// `pasid`: of requests with one; the extent's hint is of no use to a device.
    DeviceTlb {
        stream: u16,
        device: DeviceTlb,
        pasid: Option<u32>,
        extent: Extent,
    },
    Response {
        stream: u16,
        pasid: Option<u32>,
        group: u16,
        response: Response,
    },
    InterruptEntries(InterruptEntries),
}

impl Request {
    /// The device whose TLB is asked to forget something.
    pub(super) fn asks(self) -> Option<u16> {
        match self {
            Self::DeviceTlb { stream, .. } => Some(stream),
            _ => None,
        }
    }

    /// Its descriptor.
    pub(super) fn counted(self, features: &Features) -> Counted {
        (self.kind(), self.words(features))
    }

    fn kind(self) -> CommandKind {
        match self {
            Self::Contexts(Contexts::All) => CommandKind::ContextGlobal,
            Self::Contexts(Contexts::Device { .. }) => CommandKind::ContextDevice,
            Self::Iotlb(Iotlb::All) => CommandKind::IotlbGlobal,
            Self::Iotlb(Iotlb::Domain { .. }) => CommandKind::IotlbDomain,
            Self::Iotlb(Iotlb::Pages { .. }) => CommandKind::IotlbPages,
            Self::PasidIotlb { .. } => CommandKind::PasidIotlb,
            Self::PasidCacheAll | Self::PasidCache { .. } => CommandKind::PasidCache,
            Self::DeviceTlb { .. } => CommandKind::DeviceTlb,
            Self::Response { .. } => CommandKind::Response,
            Self::InterruptEntries(_) => CommandKind::InterruptEntries,
        }
    }

    pub(super) fn words(self, features: &Features) -> Words {
        match self {
            Self::Contexts(what) => contexts(what),
            Self::Iotlb(what) => iotlb_words(what, features),
            Self::PasidIotlb { domain, pasid, extent } => {
                let low = TYPE.at(kind::PASID_IOTLB) | DID.at(domain.into());
                let low = low | PASID.at(pasid.into());
                match extent {
                    Extent::All => [low | GRANULARITY.at(pasid_iotlb::ALL), 0],
                    Extent::Pages { start, lg2_pages, hint } => {
                        let fields = AM.at(lg2_pages.into()) | IH.at(hint.bit());
                        [low | GRANULARITY.at(pasid_iotlb::PAGES), start | fields]
                    }
                }
            }
            Self::PasidCacheAll => {
                let low = TYPE.at(kind::PASID_CACHE);
                [low | GRANULARITY.at(pasid_cache::GLOBAL), 0]
            }
            Self::PasidCache { domain, pasid } => {
                let low = TYPE.at(kind::PASID_CACHE) | GRANULARITY.at(pasid_cache::PASID);
                [low | DID.at(domain.into()) | PASID.at(pasid.into()), 0]
            }
            Self::DeviceTlb { stream, device, pasid, extent } => {
                // Without throttling, the field of the physical function is reserved.
                let throttled = features.has.contains(VtdFeature::DEVICE_TLB_THROTTLE);
                let physical = if throttled { device.physical } else { 0 };
                let device = DeviceTlb { physical, ..device };
                device_words(stream, device, pasid, extent)
            }
            Self::Response { stream, pasid, group, response } => {
                response_words(stream, pasid, group, response)
            }
            Self::InterruptEntries(which) => interrupt_words(which, features),
        }
    }
}

fn contexts(what: Contexts) -> Words {
    let low = TYPE.at(kind::CONTEXT);
    match what {
        Contexts::All => [low | GRANULARITY.at(1), 0],
        Contexts::Device { domain, stream } => {
            let fields = DID.at(domain.into()) | context::SID.at(stream.into());
            [low | GRANULARITY.at(3) | fields, 0]
        }
    }
}

fn iotlb_words(what: Iotlb, features: &Features) -> Words {
    let drain = |flag, bits: Bits| bits.at(features.has.contains(flag).into());
    let low = TYPE.at(kind::IOTLB)
        | drain(VtdFeature::DRAIN_WRITES, iotlb::DW)
        | drain(VtdFeature::DRAIN_READS, iotlb::DR);
    match what {
        Iotlb::All => [low | GRANULARITY.at(1), 0],
        Iotlb::Domain { domain } => [low | GRANULARITY.at(2) | DID.at(domain.into()), 0],
        Iotlb::Pages { domain, start, lg2_pages, hint } => {
            let fields = AM.at(lg2_pages.into()) | IH.at(hint.bit());
            [low | GRANULARITY.at(3) | DID.at(domain.into()), start | fields]
        }
    }
}

/// Address and size as a device TLB takes them: below the lowest zero bit from 12 up all bits are
/// ones, and twice as many pages as that number are meant (10.3.1 of the PCI Express base
/// specification).
fn device_address(extent: Extent, size: u64) -> u64 {
    match extent {
        // Everything: all bits from 12 up but the top one.
        Extent::All => (u64::MAX >> 1) & !0xfff | size,
        Extent::Pages { start, lg2_pages, .. } => match lg2_pages {
            0 => start,
            51.. => device_address(Extent::All, size),
            lg2 => {
                let base = start >> (12 + lg2) << (12 + lg2);
                base | ((1 << (lg2 - 1)) - 1) << 12 | size
            }
        },
    }
}

fn device_words(stream: u16, device: DeviceTlb, pasid: Option<u32>, extent: Extent) -> Words {
    let depth = u64::from(device.depth % 32);
    let (low, high) = (u64::from(device.physical & 0xf), u64::from(device.physical >> 4));
    match pasid {
        None => {
            use device_tlb as f;
            let word = TYPE.at(kind::DEVICE_TLB) | f::SID.at(stream.into()) | f::DEPTH.at(depth);
            let physical = f::PFSID_LOW.at(low) | f::PFSID_HIGH.at(high);
            [word | physical, device_address(extent, f::SIZE)]
        }
        Some(pasid) => {
            use pasid_device_tlb as f;
            let word = TYPE.at(kind::PASID_DEVICE_TLB) | f::SID.at(stream.into());
            let word = word | f::DEPTH.at(depth) | PASID.at(pasid.into());
            let physical = f::PFSID_LOW.at(low) | f::PFSID_HIGH.at(high);
            [word | physical, device_address(extent, f::SIZE)]
        }
    }
}

fn response_words(stream: u16, pasid: Option<u32>, group: u16, response: Response) -> Words {
    let code = match response {
        Response::Success => 0,
        Response::Invalid => 1,
        Response::Failure => 15,
    };
    let word = TYPE.at(kind::RESPONSE) | response::RID.at(stream.into());
    let word = word | response::CODE.at(code);
    let pasid = pasid.map_or(0, |pasid| response::PASID_PRESENT.mask() | PASID.at(pasid.into()));
    let high = response::LAST.mask() | response::GROUP.at(group.into());
    [word | pasid, high]
}

/// Entries as an index and a mask, or all of them if the mask is wider than the unit's.
fn interrupt_words(which: InterruptEntries, features: &Features) -> Words {
    use d::interrupt as f;
    let low = TYPE.at(kind::INTERRUPT_ENTRIES);
    match which {
        InterruptEntries::Some { index, lg2_count } if lg2_count <= features.max_index_mask => {
            let first = u64::from(index) >> lg2_count << lg2_count;
            let fields = f::IM.at(lg2_count.into()) | f::IIDX.at(first);
            [low | f::SELECTIVE.mask() | fields, 0]
        }
        InterruptEntries::Some { .. } | InterruptEntries::All => [low, 0],
    }
}

/// A wait for which no caller waits.
pub(super) fn fence(spare: Option<PhysAddr>, drain: Drain) -> Words {
    wait_words(spare.map_or(0, PhysAddr::get), 0, drain)
}

/// A wait that writes `data` to `address` once everything before it is done.
pub(super) fn wait_words(address: u64, data: u32, drain: Drain) -> Words {
    let drain = match drain {
        Drain::Nothing => 0,
        Drain::PageRequests => d::wait::PD.mask(),
    };
    let word = TYPE.at(kind::WAIT) | d::wait::SW.mask() | d::wait::FN.mask() | drain;
    [word | d::wait::DATA.at(data.into()), address]
}

crate::chassis::counters! {
    /// A kind of command.
    CommandKind,
    /// Commands submitted since the unit was taken over, refused ones included.
    Counts {
        ContextGlobal = "cc_inv_dsc (global)" => "Context cache, global.";
        ContextDevice = "cc_inv_dsc (device)" => "Context cache, of a device.";
        IotlbGlobal = "iotlb_inv_dsc (global)" => "IOTLB, global.";
        IotlbDomain = "iotlb_inv_dsc (domain)" => "IOTLB, of a domain.";
        IotlbPages = "iotlb_inv_dsc (pages)" => "IOTLB, of pages.";
        PasidIotlb = "p_iotlb_inv_dsc" => "IOTLB of a PASID, all or pages.";
        PasidCache = "pc_inv_dsc" => "PASID cache.";
        DeviceTlb = "dev_tlb_inv_dsc" => "Device TLB, with or without PASID.";
        Wait = "inv_wait_dsc" => "Wait.";
        Response = "page_grp_resp_dsc" => "Page-group response.";
        InterruptEntries = "iec_inv_dsc" => "Interrupt entry cache.";
        WriteBuffer = "GCMD.WBF" => "Write-buffer flush.";
        Replaced = "inv_wait_dsc (replaced)" => "Descriptors put in place of refused ones.";
    }
}

/// A device TLB that may hold translations of a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Remote {
    pub(super) stream: u16,
    pub(super) pasid: Option<u32>,
    pub(super) device: DeviceTlb,
}

impl Remote {
    /// Requests that make the device forget `extent`.
    pub(super) fn forget(&self, extent: Extent) -> impl Iterator<Item = Request> + use<> {
        let request = Request::DeviceTlb {
            stream: self.stream,
            device: self.device,
            pasid: self.pasid,
            extent,
        };
        let times = if self.device.twice { 2 } else { 1 };
        core::iter::repeat_n(request, times)
    }
}
