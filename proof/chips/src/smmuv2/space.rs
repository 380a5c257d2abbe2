//! Address spaces of cached translations.

use portolan::addr::InvalTag;

/// Address space of translations: VMID and ASID, or only the VMID of a stage 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Space {
    One { vmid: u16, asid: u16 },
    Two { vmid: u16 },
}

impl Space {
    pub(super) fn vmid(self) -> u16 {
        match self {
            Self::One { vmid, .. } | Self::Two { vmid } => vmid,
        }
    }
}

/// The tag of an address space in caches.
pub(super) fn space_context(space: Space) -> InvalTag {
    InvalTag::new(match space {
        Space::One { vmid, asid } => (u32::from(vmid) & 0xff) << 16 | u32::from(asid),
        Space::Two { vmid } => 1 << 31 | u32::from(vmid),
    })
}

/// The tag of global translations in all first stages of a VMID.
pub(super) fn global_context(vmid: u16) -> InvalTag {
    InvalTag::new(1 << 30 | u32::from(vmid))
}
