//! Attachments of streams, and the words of their device contexts.
//!
//! RISC-V IOMMU Architecture Specification, version 1.0, section "Device-context fields".
//!
//! *Context.* Interrupt: everything here is a value.

use portolan::addr::{InvalTag, PhysAddr};

use crate::chassis::book;
use crate::chassis::entry::{WORDS, Words};
use portolan_spec::riscv::context::{
    ATTRIBUTES, CONTROL, FIRST, GSCID, MODE, PSCID, ROOT, SECOND, THREE_LEVELS, V,
};

/// Tag of the translations of a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Tag {
    /// A first stage without a second: its PSCID.
    First(u32),
    /// A second stage without a first: its GSCID.
    Second(u32),
}

/// Bit of a context's name that says that it is a second stage's: identifiers are of 20 bits at most.
const OF_SECOND: u32 = 1 << 31;

impl Tag {
    /// Of the domain that is named so.
    pub(super) fn of(context: InvalTag) -> Self {
        match context.get() & OF_SECOND {
            0 => Self::First(context.get()),
            _ => Self::Second(context.get() & !OF_SECOND),
        }
    }

    /// Name of the domain.
    pub(super) fn context(self) -> InvalTag {
        InvalTag::new(match self {
            Self::First(id) => id,
            Self::Second(id) => id | OF_SECOND,
        })
    }
}

/// An attachment, by its tag: nothing where accesses pass through.
pub(super) type Attachment = book::Attachment<Option<Tag>>;

/// The context of a stream that is nowhere.
pub(super) const NOWHERE: Words = [0; WORDS];

/// The context of a stream that passes through: neither stage has tables.
pub(super) const PASSING: Words = {
    let mut words = NOWHERE;
    words[CONTROL] = V;
    words
};

/// The context of a stream that tables of `levels` levels from `root` translate, whose translations are
/// tagged by `tag`.
pub(super) fn translated(tag: Tag, root: PhysAddr, levels: u32) -> Words {
    let mode = THREE_LEVELS + u64::from(levels.saturating_sub(3));
    let tables = MODE.at(mode) | ROOT.at(root.get() >> 12);
    let mut words = PASSING;
    match tag {
        Tag::First(id) => {
            words[FIRST] = tables;
            words[ATTRIBUTES] = PSCID.at(id.into());
        }
        Tag::Second(id) => words[SECOND] = tables | GSCID.at(id.into()),
    }
    words
}

/// A process context that means the same as the context `words` of a whole stream; `None` of a
/// second stage, which is that of all of a stream's address spaces or of none.
pub(super) fn process(words: &Words) -> Option<Words> {
    let mut process = NOWHERE;
    process[0] = words[CONTROL] & V | words[ATTRIBUTES];
    process[1] = words[FIRST];
    (words[SECOND] == 0).then_some(process)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_by_hand() {
        let root = PhysAddr::new(0x12_3456_7000);
        let first = translated(Tag::First(0xf_edcb), root, 4);
        let wanted = [1, 0, 0xfedc_b000, 0x9000_0000_0123_4567, 0, 0, 0, 0];
        assert_eq!(first, wanted);
        let second = translated(Tag::Second(0xfedc), root, 3);
        let wanted = [1, 0x8fed_c000_0123_4567, 0, 0, 0, 0, 0, 0];
        assert_eq!(second, wanted);
        assert_eq!(translated(Tag::First(1), root, 5)[3] >> 60, 10);
        assert_eq!(PASSING, [1, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn a_tag_is_told_by_its_name() {
        for tag in [Tag::First(1), Tag::First(0xf_ffff), Tag::Second(0xffff)] {
            assert_eq!(Tag::of(tag.context()), tag);
        }
    }
}
