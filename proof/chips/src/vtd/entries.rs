//! Root, context and PASID entries: words in, their meaning out. Section 9.

use portolan::addr::PhysAddr;

use super::VtdIdentification;
use super::faults::{FaultProcessing, VtdRefusal, reason};
use portolan_sim::decode::TableFormat;

const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// Meaning of a context entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ContextEntry {
    Legacy {
        domain: u16,
        through: Through,
    },
    Scalable {
        directory: PhysAddr,
        /// Exponent of the number of PASIDs.
        pasid_lg2: u32,
        /// PASID of requests without one.
        default: u32,
        /// Refusal of requests with a PASID of their own, if they are refused.
        refused: Option<VtdRefusal>,
        records: FaultProcessing,
        /// Rights of the device beyond plain accesses.
        remote: DeviceRights,
    },
}

/// Rights of a device beyond plain accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DeviceRights {
    pub translations: Lets,
    pub requests: Lets,
}

/// A right of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lets {
    Yes,
    No,
}

impl DeviceRights {
    pub const NOTHING: Self = Self { translations: Lets::No, requests: Lets::No };
}

/// Meaning of a PASID entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PasidEntry {
    pub domain: u16,
    pub through: Through,
    pub walk: Walk,
    pub records: FaultProcessing,
    pub marks: SecondMarks,
}

/// Accessed and dirty bits of a second stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SecondMarks {
    /// The unit sets them.
    Set,
    /// The unit ignores them.
    Ignored,
}

/// Snooping of the walks of a PASID entry's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Walk {
    Snoops,
    DoesNotSnoop,
}

/// A table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Table {
    pub format: TableFormat,
    pub root: PhysAddr,
}

/// Tables that accesses go through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Through {
    Nothing,
    Second(Table),
    First(Table),
    Both { first: Table, second: Table },
}

fn field(word: u64, low: u32, bits: u32) -> u64 {
    (word >> low) & ((1 << bits) - 1)
}

pub(super) fn records(fault_disable: u64) -> FaultProcessing {
    match fault_disable {
        0 => FaultProcessing::Faults,
        _ => FaultProcessing::Nothing,
    }
}

/// Address of the context table of a root entry of legacy mode.
pub(super) fn root(words: [u64; 2]) -> Result<PhysAddr, VtdRefusal> {
    if words[0] & 1 == 0 {
        return Err(VtdRefusal::recorded(reason::ROOT_ABSENT));
    }
    if words[0] & !ADDRESS & !1 != 0 || words[1] != 0 {
        return Err(VtdRefusal::recorded(reason::ROOT_RESERVED));
    }
    Ok(PhysAddr::new(words[0] & ADDRESS))
}

/// Address of the context table of one half of a root entry of scalable mode.
pub(super) fn scalable_root(word: u64) -> Result<PhysAddr, VtdRefusal> {
    if word & 1 == 0 {
        return Err(VtdRefusal::recorded(reason::SM_ROOT_ABSENT));
    }
    if word & !ADDRESS & !1 != 0 {
        return Err(VtdRefusal::recorded(reason::SM_ROOT_RESERVED));
    }
    Ok(PhysAddr::new(word & ADDRESS))
}

/// A second stage of the width that is encoded, if the unit has it.
fn second(width: u64, pointer: u64, id: &VtdIdentification) -> Option<Table> {
    let supported = id.cap(8, 5) >> width & 1 == 1;
    let format = TableFormat::vtd_second_stage(width as u8 + 2).ok()?;
    let root = PhysAddr::new(pointer & ADDRESS);
    supported.then_some(Table { format, root })
}

/// Decodes a context entry of legacy mode.
pub(super) fn context(words: [u64; 2], id: &VtdIdentification) -> Result<ContextEntry, VtdRefusal> {
    let [low, high] = words;
    let recorded = records(field(low, 1, 1));
    let refusal = |reason| VtdRefusal { reason, recorded };
    if low & 1 == 0 {
        return Err(refusal(reason::CONTEXT_ABSENT));
    }
    let domain = field(high, 8, 16) as u16;
    let domain_bits = 4 + 2 * id.cap(0, 3);
    let wide = u64::from(domain) >> domain_bits.min(16) != 0;
    if field(low, 4, 8) != 0 || field(high, 7, 1) != 0 || high >> 24 != 0 || wide {
        return Err(refusal(reason::CONTEXT_RESERVED));
    }
    let second = || second(field(high, 0, 3), low, id).ok_or(refusal(reason::CONTEXT_INVALID));
    let through = match field(low, 2, 2) {
        0 => Through::Second(second()?),
        1 if id.ecap(2, 1) == 1 => Through::Second(second()?),
        2 if id.ecap(6, 1) == 1 => Through::Nothing,
        _ => return Err(refusal(reason::CONTEXT_INVALID)),
    };
    Ok(ContextEntry::Legacy { domain, through })
}

/// Decodes a context entry of scalable mode.
pub(super) fn scalable_context(words: [u64; 4]) -> Result<ContextEntry, VtdRefusal> {
    let [low, high, ..] = words;
    let recorded = records(field(low, 1, 1));
    let refusal = |reason| VtdRefusal { reason, recorded };
    if low & 1 == 0 {
        return Err(refusal(reason::SM_CONTEXT_ABSENT));
    }
    if field(low, 5, 4) != 0 || high >> 21 != 0 || words[2] != 0 || words[3] != 0 {
        return Err(refusal(reason::SM_CONTEXT_RESERVED));
    }
    let refused = match field(low, 3, 1) {
        0 => Some(refusal(reason::SM_PASID_DISABLED)),
        _ => None,
    };
    Ok(ContextEntry::Scalable {
        directory: PhysAddr::new(low & ADDRESS),
        pasid_lg2: field(low, 9, 3) as u32 + 7 + 6,
        default: field(high, 0, 20) as u32,
        refused,
        records: recorded,
        remote: DeviceRights {
            translations: lets(field(low, 2, 1)),
            requests: lets(field(low, 4, 1)),
        },
    })
}

fn lets(flag: u64) -> Lets {
    match flag {
        0 => Lets::No,
        _ => Lets::Yes,
    }
}

/// Decodes a PASID entry.
pub(super) fn pasid(words: [u64; 8], id: &VtdIdentification) -> Result<PasidEntry, VtdRefusal> {
    let [low, high, third, ..] = words;
    let recorded = records(field(low, 1, 1));
    let refusal = |reason| VtdRefusal { reason, recorded };
    if low & 1 == 0 {
        return Err(refusal(reason::SM_PASID_ABSENT));
    }
    let invalid = refusal(reason::SM_PASID_INVALID);
    let five = match field(third, 2, 2) {
        0 => false,
        1 if id.cap(60, 1) == 1 => true,
        _ => return Err(invalid),
    };
    let levels = if five { 5 } else { 4 };
    let first = || -> Result<Table, VtdRefusal> {
        let format = TableFormat::vtd_first_stage(levels).map_err(|_| invalid)?;
        let root = PhysAddr::new(third & ADDRESS);
        Ok(Table { format, root })
    };
    let second = || second(field(low, 2, 3), low, id).ok_or(invalid);
    let (has_first, has_second) = (id.ecap(47, 1) == 1, id.ecap(46, 1) == 1);
    let through = match field(low, 6, 3) {
        1 if has_first => Through::First(first()?),
        2 if has_second => Through::Second(second()?),
        3 if id.ecap(26, 1) == 1 => Through::Both { first: first()?, second: second()? },
        4 if id.ecap(6, 1) == 1 => Through::Nothing,
        _ => return Err(invalid),
    };
    let snoops = field(high, 23, 1) == 1;
    if snoops && id.ecap(48, 1) == 0 {
        return Err(refusal(reason::SM_PASID_RESERVED));
    }
    let marks = match field(low, 9, 1) {
        0 => SecondMarks::Ignored,
        _ if id.ecap(45, 1) == 0 => return Err(refusal(reason::SM_PASID_RESERVED)),
        _ => SecondMarks::Set,
    };
    Ok(PasidEntry {
        marks,
        domain: field(high, 0, 16) as u16,
        through,
        walk: if snoops { Walk::Snoops } else { Walk::DoesNotSnoop },
        records: recorded,
    })
}
