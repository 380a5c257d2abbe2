//! Commands: words in, effects out. Section 2.4.

use portolan::addr::{Iova, IovaRange, PageSize, Pasid, PhysAddr, StreamId};
use portolan::iopf::{GroupId, ReplyName, ReplyTo, Response};

use super::AmdIdentification;
use crate::asking::{Forget, encoded};
use crate::stage::Drops;
use portolan_sim::iommu::Names;

/// Kinds of commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CommandKind {
    /// COMPLETION_WAIT (2.4.1).
    CompletionWait,
    /// INVALIDATE_DEVTAB_ENTRY (2.4.2).
    InvalidateDevtabEntry,
    /// INVALIDATE_IOMMU_PAGES (2.4.3).
    InvalidateIommuPages,
    /// INVALIDATE_IOTLB_PAGES (2.4.4).
    InvalidateIotlbPages,
    /// INVALIDATE_INTERRUPT_TABLE (2.4.5).
    InvalidateInterruptTable,
    /// PREFETCH_IOMMU_PAGES (2.4.6).
    PrefetchIommuPages,
    /// COMPLETE_PPR_REQUEST (2.4.7).
    CompletePprRequest,
    /// INVALIDATE_IOMMU_ALL (2.4.8).
    InvalidateIommuAll,
}

/// Entries that an invalidation drops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AmdInvalidation {
    Entry {
        device: u16,
    },
    Pages {
        domain: u16,
        /// PASID whose guest tables they are of; none for those of the host.
        pasid: Option<u32>,
        range: IovaRange,
        drops: Drops,
    },
    Device(Forget),
    /// The interrupt table of a device.
    Interrupts {
        device: u16,
    },
    Everything,
}

/// Effect of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AmdEffect {
    Nothing,
    Invalidate(AmdInvalidation),
    Respond {
        to: ReplyTo,
        response: Response,
    },
    Wait {
        /// Address and value to store, if any.
        store: Option<(PhysAddr, u64)>,
        interrupt: CompletionInterrupt,
        flush: CompletionFlush,
    },
}

/// Interrupt at the end of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CompletionInterrupt {
    Wanted,
    NotWanted,
}

/// Flush of a wait: with it, commands behind the wait begin only once everything in front is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CompletionFlush {
    Yes,
    No,
}

fn field(word: u64, low: u32, bits: u32) -> u64 {
    (word >> low) & ((1 << bits) - 1)
}

/// The bits of both words that a command may set, its opcode apart.
fn fields(opcode: u64) -> [u64; 2] {
    let device = 0xffff;
    let pages = !0xfff | 1;
    match opcode {
        1 => [0x000f_ffff_ffff_ffff, u64::MAX],
        2 | 5 => [device, 0],
        3 => [0xffff << 32 | 0xf_ffff, pages | 6],
        4 => [0x0fff_ffff_ffff_ffff, pages | 4],
        6 => [0x0000_ffff_ff00_ffff, pages | 1 << 4],
        7 => [0xf_ffff << 32 | device, 0xf << 44 | 0x3ff << 32 | 1 << 2],
        _ => [0, 0],
    }
}

/// Effect of a command; nothing if it is illegal.
pub(super) fn decode(words: [u64; 2], id: &AmdIdentification) -> Option<(CommandKind, AmdEffect)> {
    use CommandKind as K;
    let [low, high] = words;
    let opcode = low >> 60;
    let [first, second] = fields(opcode);
    if low << 4 >> 4 & !first != 0 || high & !second != 0 {
        return None;
    }
    let device = low as u16;
    let drop = |kind, what| Some((kind, AmdEffect::Invalidate(what)));
    match opcode {
        1 => Some((K::CompletionWait, wait(low, high))),
        2 => drop(K::InvalidateDevtabEntry, AmdInvalidation::Entry { device }),
        3 => {
            let drops = match field(high, 1, 1) {
                0 => Drops::LEAVES,
                _ => Drops::ALL,
            };
            let names = Names::WholePage;
            let guest = field(high, 2, 1) == 1;
            if guest && !id.has_guests() || !guest && low & 0xf_ffff != 0 {
                return None;
            }
            let what = AmdInvalidation::Pages {
                domain: field(low, 32, 16) as u16,
                pasid: guest.then_some(field(low, 0, 20) as u32),
                range: pages(high),
                drops: Drops { names, ..drops },
            };
            drop(K::InvalidateIommuPages, what)
        }
        4 if id.has_device_tlbs() => {
            let guest = field(high, 2, 1) == 1;
            let pasid = field(low, 48, 8) | field(low, 16, 8) << 8 | field(low, 56, 4) << 16;
            if guest && !id.has_guests() || !guest && pasid != 0 {
                return None;
            }
            let what = AmdInvalidation::Device(Forget {
                stream: device.into(),
                pasid: guest.then_some(pasid as u32),
                range: pages(high),
            });
            drop(K::InvalidateIotlbPages, what)
        }
        5 => drop(K::InvalidateInterruptTable, AmdInvalidation::Interrupts { device }),
        6 if id.prefetches() => Some((K::PrefetchIommuPages, AmdEffect::Nothing)),
        7 if id.has_page_requests() => Some((K::CompletePprRequest, response(low, high)?)),
        8 if id.invalidates_all() => drop(K::InvalidateIommuAll, AmdInvalidation::Everything),
        _ => None,
    }
}

/// Effect of COMPLETION_WAIT.
fn wait(low: u64, high: u64) -> AmdEffect {
    let at = PhysAddr::new(low & 0x000f_ffff_ffff_fff8);
    AmdEffect::Wait {
        store: (field(low, 0, 1) == 1).then_some((at, high)),
        interrupt: match field(low, 1, 1) {
            1 => CompletionInterrupt::Wanted,
            _ => CompletionInterrupt::NotWanted,
        },
        flush: match field(low, 2, 1) {
            1 => CompletionFlush::Yes,
            _ => CompletionFlush::No,
        },
    }
}

/// Effect of COMPLETE_PPR_REQUEST.
fn response(low: u64, high: u64) -> Option<AmdEffect> {
    let response = match field(high, 44, 4) {
        0 => Response::Success,
        1 => Response::Invalid,
        15 => Response::Failure,
        _ => return None,
    };
    let named = field(high, 2, 1) == 1;
    let to = ReplyTo {
        stream: StreamId::new(low as u16 as u32),
        pasid: named.then_some(Pasid::new(field(low, 32, 20) as u32)),
        name: ReplyName::Group(GroupId::new(field(high, 32, 9) as u16)),
    };
    Some(AmdEffect::Respond { to, response })
}

/// The pages of an address; bit 0 tells that they are more than one, and the lowest clear bit from 12 up their
/// number.
fn pages(word: u64) -> IovaRange {
    let address = word & !0xfff;
    match field(word, 0, 1) {
        1 => encoded(address, 12),
        _ => IovaRange::page(Iova::new(address), PageSize::SIZE_4K),
    }
}
