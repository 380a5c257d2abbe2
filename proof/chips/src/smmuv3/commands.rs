//! Commands: two words in, effects out. Section 4.
//!
//! Fields that the architecture reserves are ignored, as hardware may.

use portolan::addr::{Iova, IovaRange, PageSize, Pasid, PhysAddr, StreamId};
use portolan::iopf::{GroupId, ReplyName, ReplyTo, Response, StallTag};

use super::SmmuIdentification;
use super::requests::Resume;
use crate::asking::Forget;
use crate::stage::{Drops, Sizes};

/// Kinds of commands, by the architecture's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum CommandKind {
    PrefetchConfig,
    PrefetchAddr,
    CfgiSte,
    CfgiSteRange,
    CfgiCd,
    CfgiCdAll,
    CfgiVmsPidm,
    TlbiNhAll,
    TlbiNhAsid,
    TlbiNhVa,
    TlbiNhVaa,
    TlbiEl2All,
    TlbiEl2Asid,
    TlbiEl2Va,
    TlbiEl2Vaa,
    TlbiS12Vmall,
    TlbiS2Ipa,
    TlbiNsnhAll,
    AtcInv,
    PriResp,
    Resume,
    StallTerm,
    Sync,
}

/// Signal of a sync's completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signal {
    Nothing,
    Message { at: PhysAddr, data: u32 },
}

/// Entries that an invalidation drops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SmmuV3Invalidation {
    Stream { sid: u32, leaf_only: bool },
    Streams { first: u32, last: u32 },
    Descriptor { sid: u32, ssid: u32 },
    Descriptors { sid: u32 },
    Asid { vmid: u16, asid: u16 },
    Vmid1 { vmid: u16 },
    Va { vmid: u16, asid: u16, what: Span },
    Vaa { vmid: u16, what: Span },
    Vmid { vmid: u16 },
    Device(Forget),
    Ipa { vmid: u16, what: Span },
    Everything,
}

/// Addresses and levels of an invalidation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub range: IovaRange,
    pub drops: Drops,
}

/// Effect of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SmmuV3Effect {
    Nothing,
    Invalidate(SmmuV3Invalidation),
    Sync(Signal),
    Respond { to: ReplyTo, response: Response },
    Resume { to: ReplyTo, tag: u16, how: Resume },
}

/// Effect of a command; `None` if there is no such command here.
pub(super) fn decode(
    words: [u64; 2],
    id: &SmmuIdentification,
) -> Option<(CommandKind, SmmuV3Effect)> {
    use CommandKind as K;
    let [w0, w1] = words;
    let sid = (w0 >> 32) as u32;
    let ssid = (w0 >> 12 & 0xf_ffff) as u32;
    let vmid = (w0 >> 32) as u16;
    let asid = (w0 >> 48) as u16;
    let (stage1, stage2) = (id.has(0, 1), id.has(0, 0));
    let hypervisor = id.has(0, 9);
    let vmid = if stage2 { vmid } else { 0 };
    let vmid = if id.has(0, 18) { vmid } else { vmid & 0xff };
    let asid = if id.has(0, 12) { asid } else { asid & 0xff };
    let drop = |kind, what| Some((kind, SmmuV3Effect::Invalidate(what)));
    match w0 & 0xff {
        0x01 => Some((K::PrefetchConfig, SmmuV3Effect::Nothing)),
        0x02 => Some((K::PrefetchAddr, SmmuV3Effect::Nothing)),
        0x03 => {
            let leaf_only = w1 & 1 != 0;
            drop(K::CfgiSte, SmmuV3Invalidation::Stream { sid, leaf_only })
        }
        0x04 => {
            let lg2 = (w1 & 0x1f) + 1;
            let mask = ((1u64 << lg2) - 1) as u32;
            let (first, last) = (sid & !mask, sid | mask);
            drop(K::CfgiSteRange, SmmuV3Invalidation::Streams { first, last })
        }
        0x05 if stage1 => drop(K::CfgiCd, SmmuV3Invalidation::Descriptor { sid, ssid }),
        0x06 if stage1 => drop(K::CfgiCdAll, SmmuV3Invalidation::Descriptors { sid }),
        0x07 => Some((K::CfgiVmsPidm, SmmuV3Effect::Nothing)),
        0x10 if stage1 => drop(K::TlbiNhAll, SmmuV3Invalidation::Vmid1 { vmid }),
        0x11 if stage1 => drop(K::TlbiNhAsid, SmmuV3Invalidation::Asid { vmid, asid }),
        0x12 if stage1 => {
            let what = span(words, id)?;
            drop(K::TlbiNhVa, SmmuV3Invalidation::Va { vmid, asid, what })
        }
        0x13 if stage1 => {
            let what = span(words, id)?;
            drop(K::TlbiNhVaa, SmmuV3Invalidation::Vaa { vmid, what })
        }
        0x20 if hypervisor => Some((K::TlbiEl2All, SmmuV3Effect::Nothing)),
        0x21 if hypervisor => Some((K::TlbiEl2Asid, SmmuV3Effect::Nothing)),
        0x22 if hypervisor => Some((K::TlbiEl2Va, SmmuV3Effect::Nothing)),
        0x23 if hypervisor => Some((K::TlbiEl2Vaa, SmmuV3Effect::Nothing)),
        0x28 if stage2 => drop(K::TlbiS12Vmall, SmmuV3Invalidation::Vmid { vmid }),
        0x2a if stage2 => {
            let what = span(words, id)?;
            drop(K::TlbiS2Ipa, SmmuV3Invalidation::Ipa { vmid, what })
        }
        0x30 => drop(K::TlbiNsnhAll, SmmuV3Invalidation::Everything),
        0x40..=0x45 => devices(words, id),
        0x46 => Some((K::Sync, SmmuV3Effect::Sync(signal(words, id)?))),
        _ => None,
    }
}

/// Commands to devices, and for stalled accesses.
fn devices(words: [u64; 2], id: &SmmuIdentification) -> Option<(CommandKind, SmmuV3Effect)> {
    use CommandKind as K;
    let [w0, w1] = words;
    let sid = (w0 >> 32) as u32;
    let ssid = (w0 >> 12 & 0xf_ffff) as u32;
    match w0 & 0xff {
        0x40 if id.has(0, 10) => {
            let pasid = (w0 >> 11 & 1 == 1).then_some(ssid);
            // All pages from size 52 on.
            let lg2 = 12 + (w1 & 0x3f) as u32;
            let (start, last) = match lg2 {
                64.. => (0, u64::MAX),
                _ => (w1 >> lg2 << lg2, w1 | ((1 << lg2) - 1)),
            };
            let range = IovaRange::new(Iova::new(start), Iova::new(last))?;
            let stream = sid;
            let forget = Forget { stream, pasid, range };
            Some((K::AtcInv, SmmuV3Effect::Invalidate(SmmuV3Invalidation::Device(forget))))
        }
        0x41 if id.has(0, 16) => {
            let response = match w1 >> 12 & 3 {
                0 => Response::Failure,
                1 => Response::Invalid,
                2 => Response::Success,
                _ => return None,
            };
            let pasid = (w0 >> 11 & 1 == 1).then_some(Pasid::new(ssid));
            let name = ReplyName::Group(GroupId::new((w1 & 0x1ff) as u16));
            let to = reply_to(sid, pasid, name);
            Some((K::PriResp, SmmuV3Effect::Respond { to, response }))
        }
        // Without stalls, nothing can be resumed.
        0x44 | 0x45 if id.field(0, 24, 2) == 1 => None,
        0x44 => {
            let tag = w1 as u16;
            let how = match w0 >> 12 & 1 {
                1 => Resume::Retry,
                _ => Resume::End,
            };
            let to = reply_to(sid, None, ReplyName::Stall(StallTag::new(tag)));
            Some((K::Resume, SmmuV3Effect::Resume { to, tag, how }))
        }
        0x45 => Some((K::StallTerm, SmmuV3Effect::Nothing)),
        _ => None,
    }
}

fn reply_to(sid: u32, pasid: Option<Pasid>, name: ReplyName) -> ReplyTo {
    ReplyTo { stream: StreamId::new(sid), pasid, name }
}

/// Signal of a sync's completion. `None` for an undefined one.
fn signal([w0, w1]: [u64; 2], id: &SmmuIdentification) -> Option<Signal> {
    match w0 >> 12 & 3 {
        0 | 2 => Some(Signal::Nothing),
        1 => {
            let at = w1 & 0x000f_ffff_ffff_fffc;
            if at == 0 || !id.has(0, 13) {
                return Some(Signal::Nothing);
            }
            let at = PhysAddr::new(at);
            let data = (w0 >> 32) as u32;
            Some(Signal::Message { at, data })
        }
        _ => None,
    }
}

/// The addresses of a TLB invalidation by address. `None` if the fields contradict each other.
fn span(words: [u64; 2], id: &SmmuIdentification) -> Option<Span> {
    let [w0, w1] = words;
    let address = w1 & !0xfff;
    let granule = match w1 >> 10 & 3 {
        0 => None,
        1 => Some(PageSize::SIZE_4K),
        2 => Some(PageSize::SIZE_16K),
        _ => Some(PageSize::SIZE_64K),
    };
    // Without range invalidation the fields do not exist.
    let Some(granule) = granule.filter(|_| id.has(3, 10)) else {
        let range = IovaRange::page(Iova::new(address), PageSize::SIZE_4K);
        return Some(Span { range, drops: drops(w1, Sizes::ALL, Sizes::ALL) });
    };
    let level = w1 >> 8 & 3;
    let (number, scale) = (w0 >> 12 & 0x1f, w0 >> 20 & 0x1f);
    if number == 0 && scale == 0 && level == 0 {
        return None;
    }
    let pages = u128::from(number + 1) << scale;
    let start = address >> granule.lg2() << granule.lg2();
    let last = u128::from(start) + (pages << granule.lg2()) - 1;
    let last = u64::try_from(last).unwrap_or(u64::MAX);
    let range = IovaRange::new(Iova::new(start), Iova::new(last))?;
    // Entries of another granule or level than the command's need not go.
    let all = Sizes::of_granule(granule);
    let leaves = match level {
        0 => all,
        // Levels count from the root in the command.
        _ => {
            let up = 3 - level as u32;
            let size = PageSize::of_lg2(granule.lg2() + up * (granule.lg2() - 3));
            if Iova::new(start).is_aligned(size) {
                Sizes::one(size)
            } else {
                // Not where a leaf of that level could be.
                Sizes::NONE
            }
        }
    };
    Some(Span { range, drops: drops(w1, leaves, all) })
}

fn drops(w1: u64, leaves: Sizes, all: Sizes) -> Drops {
    let pointers = match w1 & 1 {
        0 => all,
        _ => Sizes::NONE,
    };
    Drops { leaves, pointers, ..Drops::ALL }
}
