//! Identifiers: tags of translations, as the core names them and as the unit does.
//!
//! *Context.* Interrupt: everything here is a value.

use portolan::addr::{Asid, InvalTag, Vmid};

/// Set in the identifier of a second-stage domain.
const SECOND_STAGE: u32 = 1 << 16;

/// Tag of a domain's translations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tag {
    /// First stage, under VMID 0, which belongs to the driver.
    Asid(Asid),
    /// Second stage.
    Vmid(Vmid),
}

impl Tag {
    /// The identifier that goes through plans.
    pub fn context(self) -> InvalTag {
        match self {
            Self::Asid(asid) => asid.into(),
            Self::Vmid(vmid) => InvalTag::new(SECOND_STAGE | u32::from(vmid.get())),
        }
    }

    /// Back from such an identifier; `None` if it is no such.
    pub fn of(context: InvalTag) -> Option<Self> {
        let raw = context.get();
        let low = (raw & 0xffff) as u16;
        match raw & !0xffff {
            0 => Some(Self::Asid(Asid::new(low))),
            SECOND_STAGE => Some(Self::Vmid(Vmid::new(low))),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        for tag in [Tag::Asid(Asid::new(0xffff)), Tag::Vmid(Vmid::new(7))] {
            assert_eq!(Tag::of(tag.context()), Some(tag));
        }
        assert_eq!(Tag::of(InvalTag::new(1 << 17)), None);
    }
}
