//! Lists of capabilities in the configuration space of PCI functions.
//!
//! PCI Express Base Specification 6.0, sections 7.5.1.1 (status, capabilities pointer), 7.5.3.1 (head of
//! a capability) and 7.6.3 (head of an extended one). The rest of a capability is its reader's.

#[cfg(test)]
mod tests;

use crate::Bits32;
use crate::bits::{constants, fields};

constants! {
    STATUS: u16 = 0x04 => "Offset of the command register, with the status in the upper half.";
    HAS_CAPABILITIES: u32 = 1 << 20 => "Bit of that word: the function has capabilities.";
    CAPABILITIES: u16 = 0x34 => "Offset of the pointer to the first capability.";
    EXTENDED: u16 = 0x100 => "Offset of the first extended capability.";
}

/// Identifiers of capabilities in the first 256 bytes.
pub mod id {
    crate::bits::constants! {
        MSI: u16 = 0x05 => "Message-signalled interrupts.";
        VENDOR: u16 = 0x09 => "Its vendor's.";
        SECURE_DEVICE: u16 = 0x0f => "Secure device: AMD's IOMMU.";
        EXPRESS: u16 = 0x10 => "PCI Express.";
        MSIX: u16 = 0x11 => "Message-signalled interrupts by a table.";
    }
}

/// Identifiers of extended capabilities.
pub mod extended_id {
    crate::bits::constants! {
        ACS: u16 = 0x0d => "Access control services.";
        ATS: u16 = 0x0f => "Address translation services.";
        SRIOV: u16 = 0x10 => "Virtual functions.";
    }
}

/// Layout of one of the two lists.
#[derive(Clone, Copy, Debug)]
struct CapabilityList {
    /// Lowest offset of a capability.
    lowest: u16,
    /// Capabilities that the space has room for.
    most: u16,
    /// Identifier, in the first word of a capability.
    id: Bits32,
    /// Offset of the next capability in that word, whose two lowest bits do not count.
    next: Bits32,
}

fields! { Bits32;
    ID: 0, 8 => "Identifier of a capability.";
    NEXT: 8, 8 => "Offset of the next capability.";
    EXTENDED_ID: 0, 16 => "Identifier of an extended capability.";
    EXTENDED_NEXT: 20, 12 => "Offset of the next extended capability.";
}

const LIST: CapabilityList = CapabilityList { lowest: 0x40, most: 48, id: ID, next: NEXT };
const EXTENDED_LIST: CapabilityList =
    CapabilityList { lowest: EXTENDED, most: 480, id: EXTENDED_ID, next: EXTENDED_NEXT };

/// Place and first word of a capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capability {
    /// Identifier.
    pub id: u16,
    /// Offset in configuration space.
    pub at: u16,
    /// First word, identifier included.
    pub head: u32,
}

/// Capabilities of a function, in the order of the list.
///
/// A list that goes round ends after as many capabilities as the space has room for.
#[derive(Clone, Debug)]
pub struct Capabilities<R> {
    read: R,
    list: CapabilityList,
    at: u16,
    left: u16,
}

impl<R: FnMut(u16) -> Option<u32>> Capabilities<R> {
    /// Finds the first capability with the identifier `id`.
    pub fn first(mut self, id: u16) -> Option<Capability> {
        self.find(|found| found.id == id)
    }
}

impl<R: FnMut(u16) -> Option<u32>> Iterator for Capabilities<R> {
    type Item = Capability;

    fn next(&mut self) -> Option<Capability> {
        let (at, list) = (self.at, self.list);
        if at < list.lowest {
            return None;
        }
        self.left = self.left.checked_sub(1)?;
        // Where nothing answers, all bits are set; an empty list has a head of zeros.
        let head = (self.read)(at).filter(|head| *head != 0 && *head != u32::MAX)?;
        self.at = list.next.of(head) as u16 & !3;
        Some(Capability { id: list.id.of(head) as u16, at, head })
    }
}

/// Capabilities in the first 256 bytes. `read` gives the 32 bits at an offset; `None` ends the list.
pub fn capabilities<R: FnMut(u16) -> Option<u32>>(mut read: R) -> Capabilities<R> {
    let has = read(STATUS).is_some_and(|status| status & HAS_CAPABILITIES != 0);
    let first = if has { read(CAPABILITIES).unwrap_or(0) } else { 0 };
    Capabilities { read, list: LIST, at: first as u16 & 0xfc, left: LIST.most }
}

/// Extended capabilities, in the rest of 4 KiB; `read` likewise.
pub fn extended_capabilities<R: FnMut(u16) -> Option<u32>>(read: R) -> Capabilities<R> {
    Capabilities { read, list: EXTENDED_LIST, at: EXTENDED, left: EXTENDED_LIST.most }
}
