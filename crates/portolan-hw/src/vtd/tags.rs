//! Tags of translations: an identifier with its stage, and everything under it.
//!
//! Intel Virtualization Technology for Directed I/O (D51397), revision 4.1, section 6.2. A domain identifier tags
//! translations of either stage.
//!
//! *Context.* Interrupt: everything here is a value.

use super::command::Remote;
use crate::chassis::entry::At;
use alloc::vec::Vec;
use portolan::addr::InvalTag;
use portolan::iommu::Stage;
use portolan::table::format::DirtyTracking;

/// PASID entry that names an identifier, by stream and PASID.
#[derive(Clone, Copy, Debug)]
pub(super) struct NamingEntry {
    pub(super) key: (u16, u32),
    pub(super) at: At,
}

/// PASIDs, devices, entries and nested domains under an identifier.
#[derive(Clone, Debug, Default)]
pub(super) struct TagUsers {
    /// PASIDs under which a first stage is cached, once for each attachment, in order.
    pub(super) pasids: Vec<u32>,
    /// Device TLBs.
    pub(super) remotes: Vec<Remote>,
    /// First stages nested in a second one.
    pub(super) nested: Vec<u16>,
    /// PASID entries that name it, once for each attachment.
    pub(super) entries: Vec<NamingEntry>,
    /// Marks of a second stage's written pages.
    pub(super) marks: DirtyTracking,
}

/// Bit of a context identifier that says first stage; below it the domain identifier.
const FIRST: u32 = 1 << 16;

/// The identifier of the domain `domain` of `stage`.
pub(super) fn context_id(domain: u16, stage: Stage) -> InvalTag {
    let flag = match stage {
        Stage::First => FIRST,
        Stage::Second => 0,
    };
    InvalTag::new(u32::from(domain) | flag)
}

/// The domain identifier and the stage in a context identifier.
pub(super) fn split_id(context: InvalTag) -> (u16, Stage) {
    let stage = match context.get() & FIRST {
        0 => Stage::Second,
        _ => Stage::First,
    };
    (context.get() as u16, stage)
}
