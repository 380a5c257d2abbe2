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

/// Bits of word 0 about guest tables, or reserved.
const RESERVED: u64 = 1 << 63 | 0xff << 53 | 0x7c;
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
