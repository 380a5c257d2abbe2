//! Device table entries: words in, their meaning out. Section 2.2.2.1.

use portolan::addr::PhysAddr;

use super::AmdIdentification;
use super::events::AmdRefusal;
use crate::stage::LeafMarks;
use portolan_sim::decode::{Permissions, TableFormat, TableRoot};

/// Meaning of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// Pass-through (V is 0).
    Passes,
    /// No translation (TV is 0): the translation fields are ignored.
    Ends,
    Translates {
        domain: u16,
        /// Table of the domain; `None` passes addresses through.
        table: Option<TableRoot>,
        permissions: Permissions,
        /// Guest tables, which are above those of the domain.
        guest: Option<GuestRoots>,
        /// Bits that the unit sets in leaves.
        marks: Option<LeafMarks>,
        /// Permission of the device to keep translations.
        remote: IotlbPermission,
        /// Permission of the device to send page requests: DTE's `PPR`, where the unit looks at it.
        requests: RequestPermission,
        /// `Yes` if the exclusion range is the device's.
        excluded: Excluded,
    },
}

/// Tables that an entry of a device leads to.
#[derive(Clone, Copy, Debug)]
pub(super) struct HostTable {
    pub domain: u16,
    pub table: TableRoot,
    pub permissions: Permissions,
    pub marks: Option<LeafMarks>,
}

/// GCR3 table of an entry (2.2.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GuestRoots {
    pub root: PhysAddr,
    /// Levels of the GCR3 table.
    pub levels: u32,
    /// Format of the tables that it leads to.
    pub format: TableFormat,
    /// PASID of accesses without one (GIoV); none if guest tables do not concern them.
    pub default: Option<u32>,
}

/// Permission of a device to keep translations: DTE's `I`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IotlbPermission {
    Given,
    Refused,
}

/// Permission of a device to send page requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestPermission {
    Given,
    Refused,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Excluded {
    Yes,
    No,
}

/// Reserved bits of word 0, `GPRP` with them.
const RESERVED: u64 = 1 << 63 | 1 << 53 | 0x7c;
/// Bits of word 0 about guest tables.
const GUEST_FIELDS: u64 = 0x7f << 54;
/// `GV`.
const GUEST: u64 = 1 << 55;
/// Accessed and dirty bits of leaves (2.2.3).
const ACCESSED: LeafMarks = LeafMarks { accessed: 1 << 5, dirty: 0 };
const BOTH: LeafMarks = LeafMarks { dirty: 1 << 6, ..ACCESSED };
/// `PPR`, which is reserved where the unit does not look at it.
const REQUESTS: u64 = 1 << 52;
/// Longest interrupt table that an entry can name, as an exponent of entries.
const MOST_INTERRUPTS: u64 = 11;

fn field(word: u64, low: u32, bits: u32) -> u64 {
    (word >> low) & ((1 << bits) - 1)
}

/// The GCR3 table of an entry, if it has one.
fn guest_roots(words: [u64; 4], id: &AmdIdentification) -> Result<Option<GuestRoots>, AmdRefusal> {
    let [low, second, third, _] = words;
    if low & GUEST_FIELDS != 0 && !id.has_guests() {
        return Err(AmdRefusal::Malformed);
    }
    if low & GUEST == 0 {
        return Ok(None);
    }
    let (levels, deep) = (field(low, 56, 2) + 1, 4 + field(third, 54, 2));
    let default = field(low, 54, 1) == 1;
    let wide = levels > id.guest_root_levels() || deep > id.guest_levels();
    if wide || default && !id.has_guest_default() {
        return Err(AmdRefusal::Malformed);
    }
    let format = TableFormat::vtd_first_stage(deep as u8).map_err(|_| AmdRefusal::Malformed)?;
    let root = field(low, 58, 3) << 12 | field(second, 16, 16) << 15 | field(second, 43, 21) << 31;
    let root = PhysAddr::new(root);
    Ok(Some(GuestRoots { root, levels: levels as u32, format, default: default.then_some(0) }))
}

/// Decodes the words of an entry.
pub(super) fn decode(words: [u64; 4], id: &AmdIdentification) -> Result<Entry, AmdRefusal> {
    let [low, second, third, _] = words;
    let malformed = Err(AmdRefusal::Malformed);
    if low & 1 == 0 {
        return Ok(Entry::Passes);
    }
    if third & 1 == 1 && field(third, 1, 4) > MOST_INTERRUPTS {
        return malformed;
    }
    if low & 2 == 0 {
        return Ok(Entry::Ends);
    }
    let levels = field(low, 9, 3);
    let by_entry = id.looks_at_requests();
    let unknown = low & REQUESTS != 0 && !by_entry;
    if low & RESERVED != 0 || unknown || levels > id.levels() {
        return malformed;
    }
    let marks = match field(low, 7, 2) {
        0 => None,
        _ if !id.has_marks() => return malformed,
        1 => Some(ACCESSED),
        3 => Some(BOTH),
        _ => return malformed,
    };
    let root = PhysAddr::new(low & 0x000f_ffff_ffff_f000);
    let table = match levels {
        0 => None,
        _ => match TableFormat::amd_v1(levels as u8) {
            Ok(format) => Some(TableRoot { root, format }),
            Err(_) => return malformed,
        },
    };
    let reads = match field(low, 61, 1) {
        1 => Permissions::READ,
        _ => Permissions::NONE,
    };
    let writes = match field(low, 62, 1) {
        1 => Permissions::WRITE,
        _ => Permissions::NONE,
    };
    Ok(Entry::Translates {
        domain: second as u16,
        guest: guest_roots(words, id)?,
        table,
        permissions: reads.or(writes),
        marks,
        remote: if field(second, 32, 1) == 1 && id.has_device_tlbs() {
            IotlbPermission::Given
        } else {
            IotlbPermission::Refused
        },
        requests: if low & REQUESTS != 0 || !by_entry {
            RequestPermission::Given
        } else {
            RequestPermission::Refused
        },
        excluded: match field(second, 39, 1) {
            1 => Excluded::Yes,
            _ => Excluded::No,
        },
    })
}
