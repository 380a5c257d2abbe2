//! Invalidation requests: descriptors and register commands in, effects out. Sections 6.5.1, 6.5.2, 11.4.5 and
//! 11.4.8.

use portolan::addr::{Iova, IovaRange, PageSize, Pasid, PhysAddr, StreamId};
use portolan::iopf::{GroupId, ReplyName, ReplyTo, Response};

use super::VtdIdentification;
use crate::asking::{Forget, encoded};
use crate::stage::Drops;
use portolan_sim::iommu::Names;

/// Kinds of descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DescriptorKind {
    /// Context cache.
    ContextCache,
    /// Translations of domains.
    Iotlb,
    /// A device's own translations.
    DeviceTlb,
    /// Interrupt entries.
    InterruptEntries,
    /// A wait.
    Wait,
    /// Translations of a PASID.
    PasidIotlb,
    /// PASID entries.
    PasidCache,
    /// A device's own translations of a PASID.
    PasidDeviceTlb,
    /// The answer to page requests.
    PageResponse,
}

/// Entries that an invalidation drops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VtdInvalidation {
    Contexts,
    ContextsOf {
        domain: u16,
    },
    /// Contexts of the sources that agree with `source` outside of `mask`.
    Context {
        domain: u16,
        source: u16,
        mask: u16,
    },
    Pasids,
    PasidsOf {
        domain: u16,
    },
    Pasid {
        domain: u16,
        pasid: u32,
    },
    Device(Forget),
    /// Interrupt entries by index.
    Interrupts {
        first: u16,
        last: u16,
    },
    Translations,
    TranslationsOf {
        domain: u16,
    },
    Pages {
        domain: u16,
        range: IovaRange,
        drops: Drops,
    },
    FirstStage {
        domain: u16,
        pasid: u32,
    },
    FirstStagePages {
        domain: u16,
        pasid: u32,
        range: IovaRange,
        drops: Drops,
    },
}

/// Effect of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VtdEffect {
    Invalidate(VtdInvalidation),
    Respond {
        to: ReplyTo,
        response: Response,
    },
    /// A wait, with the status to write if there is one.
    Wait {
        status: Option<(PhysAddr, u32)>,
        interrupt: WaitInterrupt,
        fence: Fence,
    },
}

/// Interrupt at the end of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitInterrupt {
    Wanted,
    NotWanted,
}

/// Fence of a wait: with it, requests behind the wait begin only once the wait is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fence {
    Yes,
    No,
}

/// `IQERCD.IQEI`: why a descriptor was refused.
pub(super) mod error {
    pub const TAIL: u8 = 1;
    pub const UNREADABLE: u8 = 2;
    pub const TYPE: u8 = 3;
    pub const RESERVED: u8 = 4;
    pub const WIDTH: u8 = 5;
}

fn field(word: u64, low: u32, bits: u32) -> u64 {
    (word >> low) & ((1 << bits) - 1)
}

fn function_mask(encoding: u64) -> u16 {
    [0, 0b100, 0b110, 0b111][(encoding & 3) as usize]
}

/// Decodes the pages of an address with mask, and the depth, from a descriptor's second word or the address register.
/// The mask must cover the whole page that is to be dropped.
fn pages(word: u64, id: &VtdIdentification) -> Option<(IovaRange, Drops)> {
    let mask = field(word, 0, 6);
    if mask > id.cap(48, 6) {
        return None;
    }
    let low = (1u64 << (12 + mask).min(63)) - 1;
    let start = word & !low;
    let range = IovaRange::new(Iova::new(start), Iova::new(start | low))?;
    let drops = match field(word, 6, 1) {
        1 => Drops::LEAVES,
        _ => Drops::ALL,
    };
    let names = Names::WholePage;
    Some((range, Drops { names, ..drops }))
}

/// Effect of a descriptor.
pub(super) fn descriptor(
    words: [u64; 4],
    id: &VtdIdentification,
) -> Result<(DescriptorKind, VtdEffect), u8> {
    use DescriptorKind as K;
    let [low, high, ..] = words;
    if words[2] != 0 || words[3] != 0 {
        return Err(error::RESERVED);
    }
    let domain = field(low, 16, 16) as u16;
    let pasid = field(low, 32, 20) as u32;
    let granularity = field(low, 4, 2);
    let scalable = id.ecap(43, 1) == 1;
    let drop = |kind, what| Ok((kind, VtdEffect::Invalidate(what)));
    match field(low, 0, 4) | field(low, 9, 3) << 4 {
        1 => {
            let source = field(low, 32, 16) as u16;
            let mask = function_mask(field(low, 48, 2));
            let what = contexts(granularity, domain, source, mask).ok_or(error::RESERVED)?;
            drop(K::ContextCache, what)
        }
        2 => {
            let what = translations(granularity, domain, high, id).ok_or(error::RESERVED)?;
            drop(K::Iotlb, what)
        }
        4 if id.ecap(3, 1) == 1 => {
            let what = interrupts(low, high, id).ok_or(error::RESERVED)?;
            drop(K::InterruptEntries, what)
        }
        5 => Ok((K::Wait, wait(low, high))),
        6 if scalable => {
            let what = match granularity {
                2 => VtdInvalidation::FirstStage { domain, pasid },
                3 => {
                    let (range, drops) = pages(high, id).ok_or(error::RESERVED)?;
                    VtdInvalidation::FirstStagePages { domain, pasid, range, drops }
                }
                _ => return Err(error::RESERVED),
            };
            drop(K::PasidIotlb, what)
        }
        7 if scalable => {
            let what = match granularity {
                0 => VtdInvalidation::PasidsOf { domain },
                1 => VtdInvalidation::Pasid { domain, pasid },
                3 => VtdInvalidation::Pasids,
                _ => return Err(error::RESERVED),
            };
            drop(K::PasidCache, what)
        }
        3 | 8 | 9 => device(low, high, id),
        _ => Err(error::TYPE),
    }
}

/// The entries that a descriptor names, their number given by its mask.
fn interrupts(low: u64, high: u64, id: &VtdIdentification) -> Option<VtdInvalidation> {
    let (first, last) = (0, u16::MAX);
    let mask = field(low, 27, 5);
    let reserved = field(low, 5, 4) | field(low, 12, 15) | low >> 48 | high;
    if reserved != 0 {
        return None;
    }
    if field(low, 4, 1) == 0 {
        return Some(VtdInvalidation::Interrupts { first, last });
    }
    if mask > id.ecap(20, 4) {
        return None;
    }
    let others = ((1u32 << mask) - 1) as u16;
    let index = field(low, 32, 16) as u16;
    Some(VtdInvalidation::Interrupts { first: index & !others, last: index | others })
}

/// Effect of a wait descriptor.
fn wait(low: u64, high: u64) -> VtdEffect {
    let at = PhysAddr::new(high & !3);
    let data = (low >> 32) as u32;
    VtdEffect::Wait {
        status: (field(low, 5, 1) == 1).then_some((at, data)),
        interrupt: match field(low, 4, 1) {
            1 => WaitInterrupt::Wanted,
            _ => WaitInterrupt::NotWanted,
        },
        fence: match field(low, 6, 1) {
            1 => Fence::Yes,
            _ => Fence::No,
        },
    }
}

/// Effect of a descriptor to a device.
fn device(low: u64, high: u64, id: &VtdIdentification) -> Result<(DescriptorKind, VtdEffect), u8> {
    use DescriptorKind as K;
    let pasid = field(low, 32, 20) as u32;
    let scalable = id.ecap(43, 1) == 1;
    match field(low, 0, 4) | field(low, 9, 3) << 4 {
        3 if id.ecap(2, 1) == 1 => {
            let forget = Forget {
                stream: field(low, 32, 16) as u32,
                pasid: None,
                range: device_pages(high, 0),
            };
            Ok((K::DeviceTlb, VtdEffect::Invalidate(VtdInvalidation::Device(forget))))
        }
        8 if scalable && id.ecap(2, 1) == 1 => {
            let forget = Forget {
                stream: field(low, 16, 16) as u32,
                pasid: Some(pasid),
                range: device_pages(high, 11),
            };
            Ok((K::PasidDeviceTlb, VtdEffect::Invalidate(VtdInvalidation::Device(forget))))
        }
        9 if id.ecap(29, 1) == 1 => {
            let response = match field(low, 12, 4) {
                0 => Response::Success,
                1 => Response::Invalid,
                15 => Response::Failure,
                _ => return Err(error::RESERVED),
            };
            let named = field(low, 4, 1) == 1;
            let to = ReplyTo {
                stream: StreamId::new(field(low, 16, 16) as u32),
                pasid: named.then_some(Pasid::new(pasid)),
                name: ReplyName::Group(GroupId::new(field(high, 3, 9) as u16)),
            };
            Ok((K::PageResponse, VtdEffect::Respond { to, response }))
        }
        _ => Err(error::TYPE),
    }
}

/// The pages of a device TLB's invalidation; bit `size` says that there are several.
fn device_pages(word: u64, size: u32) -> IovaRange {
    match field(word, size, 1) {
        1 => encoded(word & !0xfff, 12),
        _ => IovaRange::page(Iova::new(word & !0xfff), PageSize::SIZE_4K),
    }
}

fn contexts(granularity: u64, domain: u16, source: u16, mask: u16) -> Option<VtdInvalidation> {
    match granularity {
        1 => Some(VtdInvalidation::Contexts),
        2 => Some(VtdInvalidation::ContextsOf { domain }),
        3 => Some(VtdInvalidation::Context { domain, source, mask }),
        _ => None,
    }
}

fn translations(
    granularity: u64,
    domain: u16,
    address: u64,
    id: &VtdIdentification,
) -> Option<VtdInvalidation> {
    match granularity {
        1 => Some(VtdInvalidation::Translations),
        2 => Some(VtdInvalidation::TranslationsOf { domain }),
        // A unit that does not have it does more.
        3 if id.cap(39, 1) == 0 => Some(VtdInvalidation::TranslationsOf { domain }),
        3 => {
            let (range, drops) = pages(address, id)?;
            Some(VtdInvalidation::Pages { domain, range, drops })
        }
        _ => None,
    }
}

/// Effect of the context command register.
pub(super) fn context_command(value: u64) -> Option<VtdInvalidation> {
    let mask = function_mask(field(value, 32, 2));
    contexts(field(value, 61, 2), value as u16, field(value, 16, 16) as u16, mask)
}

/// Effect of the two IOTLB registers.
pub(super) fn iotlb_command(
    value: u64,
    address: u64,
    id: &VtdIdentification,
) -> Option<VtdInvalidation> {
    translations(field(value, 60, 2), field(value, 32, 16) as u16, address, id)
}
