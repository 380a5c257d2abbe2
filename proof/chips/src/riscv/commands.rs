//! Commands: words in, effects out. Section "Command-Queue", and the extensions.

use portolan::addr::{Iova, IovaRange, PageSize, Pasid, PhysAddr, StreamId};
use portolan::iopf::{GroupId, ReplyName, ReplyTo, Response};

use super::RiscvIdentification;
use crate::asking::{Forget, encoded};
use crate::stage::Drops;

/// Kinds of commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CommandKind {
    /// IOTINVAL.VMA.
    InvalVma,
    /// IOTINVAL.GVMA.
    InvalGvma,
    /// IOFENCE.C.
    Fence,
    /// IODIR.INVAL_DDT.
    InvalDdt,
    /// IODIR.INVAL_PDT.
    InvalPdt,
    /// ATS.INVAL.
    AtsInval,
    /// ATS.PRGR.
    AtsPrgr,
}

/// Entries that an invalidation drops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RiscvInvalidation {
    /// Context of a device, or all contexts and the directory entries that lead to them.
    Contexts(Option<u32>),
    /// The process context of an address space of a device.
    Process(u32, u32),
    /// Translations of a first stage without a second.
    First(StageTranslations),
    /// Translations of a second stage.
    Second(StageTranslations),
    /// Translations that a device keeps.
    Device(Forget),
    /// Nothing: entries of first stages over a second stage, which this unit does not cache.
    Nothing,
}

/// Some translations of one stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageTranslations {
    /// Tag, or `None` for all.
    pub tag: Option<u32>,
    /// Addresses, or `None` for all.
    pub range: Option<IovaRange>,
    pub drops: Drops,
}

/// Effect of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RiscvEffect {
    Invalidate(RiscvInvalidation),
    Fence {
        /// Address and value to store, if any.
        store: Option<(PhysAddr, u32)>,
        order: Order,
    },
    /// A response to a device.
    Respond(ReplyTo, Response),
}

/// Accesses of devices that are ordered before a fence: reads and writes, or fewer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Both,
    Less,
}

fn field(word: u64, low: u32, bits: u32) -> u64 {
    (word >> low) & ((1 << bits) - 1)
}

fn bit(word: u64, at: u32) -> bool {
    word >> at & 1 == 1
}

/// ATS: PID, PV, DSV, RID, DSEG.
const DEVICE: u64 = 0xfffff << 12 | 3 << 32 | 0xff_ffff << 40;

/// The bits of both words that a command may set.
fn fields(opcode: u64, function: u64, id: &RiscvIdentification) -> Option<[u64; 2]> {
    let named = 0x3ff;
    let (pages, range) = (((1 << 52) - 1) << 10, 1 << 9);
    let range = if id.has_ranges() { range } else { 0 };
    let above = if id.has_non_leaf() { 1 << 34 } else { 0 };
    let (first, second) = (1 << 10 | 0xfffff << 12, 1 << 33 | 0xffff << 44);
    Some(match (opcode, function) {
        (1, 0) => [named | first | 1 << 32 | second | above, pages | range],
        // PSCV may not be set; PSCID is not looked at then.
        (1, 1) => [named | first | second | above, pages | range],
        // WSI is reserved: nothing here raises wires for commands.
        (2, 0) => [named | 0x3400 | 0xffff_ffff << 32, (1 << 62) - 1],
        (3, 0) => [named | 1 << 33 | 0xff_ffff << 40, 0],
        // Global invalidations are not modelled.
        (4, 0) if id.has_ats() => [named | DEVICE, u64::MAX << 11],
        (4, 1) if id.has_ats() => [named | DEVICE, 0xf1ff << 32],
        (3, 1) => [named | 0xfffff << 12 | 1 << 33 | 0xff_ffff << 40, 0],
        _ => return None,
    })
}

/// Effect of a command; nothing if it is illegal or the unit does not have it. `widest` is the highest number of a
/// device that the directory's mode resolves.
pub(super) fn decode(
    words: [u64; 2],
    id: &RiscvIdentification,
    widest: u32,
) -> Option<(CommandKind, RiscvEffect)> {
    let [low, high] = words;
    let (opcode, function) = (field(low, 0, 7), field(low, 7, 3));
    let [first, second] = fields(opcode, function, id)?;
    if low & !first != 0 || high & !second != 0 {
        return None;
    }
    let (kind, effect) = match (opcode, function) {
        (1, 0) => (CommandKind::InvalVma, RiscvEffect::Invalidate(vma(low, high))),
        (1, _) => (CommandKind::InvalGvma, RiscvEffect::Invalidate(gvma(low, high))),
        (2, _) => (CommandKind::Fence, fence(low, high)),
        (4, 0) => {
            let (stream, pasid) = device(low);
            let range = if bit(high, 11) {
                encoded(high, 12)
            } else {
                IovaRange::page(Iova::new(high & !0xfff), PageSize::SIZE_4K)
            };
            let (stream, pasid) = (stream.get(), pasid.map(Pasid::get));
            let what = RiscvInvalidation::Device(Forget { stream, pasid, range });
            (CommandKind::AtsInval, RiscvEffect::Invalidate(what))
        }
        (4, _) => {
            let (stream, pasid) = device(low);
            let name = ReplyName::Group(GroupId::new(field(high, 32, 9) as u16));
            let response = match field(high, 44, 4) {
                0 => Response::Success,
                1 => Response::Invalid,
                15 => Response::Failure,
                _ => return None,
            };
            let to = ReplyTo { stream, pasid, name };
            (CommandKind::AtsPrgr, RiscvEffect::Respond(to, response))
        }
        _ => {
            let device = bit(low, 33).then(|| field(low, 40, 24) as u32);
            if device.is_some_and(|device| device > widest) {
                return None;
            }
            if function == 1 {
                let pasid = field(low, 12, 20) as u32;
                let width = [20, 17, 8].into_iter().zip([3, 2, 1]);
                let width = width
                    .filter(|(_, levels)| id.has_processes(*levels))
                    .map(|(lg2, _)| lg2)
                    .max()?;
                if pasid >> width != 0 {
                    return None;
                }
                let what = RiscvInvalidation::Process(device?, pasid);
                return Some((CommandKind::InvalPdt, RiscvEffect::Invalidate(what)));
            }
            let what = RiscvInvalidation::Contexts(device);
            (CommandKind::InvalDdt, RiscvEffect::Invalidate(what))
        }
    };
    Some((kind, effect))
}

/// Device of an ATS command, and the address space in it.
fn device(low: u64) -> (StreamId, Option<Pasid>) {
    let segment = if bit(low, 33) { field(low, 56, 8) } else { 0 };
    let stream = StreamId::new((segment << 16 | field(low, 40, 16)) as u32);
    let pasid = bit(low, 32).then(|| Pasid::new(field(low, 12, 20) as u32));
    (stream, pasid)
}

fn vma(low: u64, high: u64) -> RiscvInvalidation {
    if bit(low, 33) {
        RiscvInvalidation::Nothing
    } else {
        let tag = bit(low, 32).then(|| field(low, 12, 20) as u32);
        RiscvInvalidation::First(translations(tag, low, high))
    }
}

fn gvma(low: u64, high: u64) -> RiscvInvalidation {
    let tag = bit(low, 33).then(|| field(low, 44, 16) as u32);
    // Without GV, AV and its fields are not looked at.
    let low = if tag.is_some() { low } else { 0 };
    RiscvInvalidation::Second(translations(tag, low, high))
}

fn translations(tag: Option<u32>, low: u64, high: u64) -> StageTranslations {
    let page = field(high, 10, 52) << 12;
    let range = bit(low, 10).then(|| {
        if bit(high, 9) {
            encoded(page, 12)
        } else {
            IovaRange::page(Iova::new(page), PageSize::SIZE_4K)
        }
    });
    // An address names leaves, and entries above them where that is asked for.
    let drops = if range.is_some() && !bit(low, 34) { Drops::LEAVES } else { Drops::ALL };
    StageTranslations { tag, range, drops }
}

fn fence(low: u64, high: u64) -> RiscvEffect {
    let at = PhysAddr::new(high << 2);
    let store = bit(low, 10).then_some((at, (low >> 32) as u32));
    let order = match field(low, 12, 2) {
        3 => Order::Both,
        _ => Order::Less,
    };
    RiscvEffect::Fence { store, order }
}
