//! Lines of both caches, and flushes of them.

use portolan::addr::{InvalTag, IovaRange, PageSize, PhysAddr};

use super::State;
use portolan_sim::cache::{Key, Reach};
use portolan_sim::decode::Permissions;

/// Entries of the longest line of the PTC.
pub(super) const ENTRIES: usize = 16;

/// A quarter of a line of the TLB: the place of its page, if it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    Page {
        pa: PhysAddr,
        permissions: Permissions,
    },
    Absent,
    /// The entry could not be read.
    Unreadable,
}

/// A line of the TLB. The manual does not tell how it caches a section; here it is one line, which only a flush of
/// the whole section drops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    pub born: u64,
    pub size: PageSize,
    pub slots: [Slot; 4],
}

/// A line of the PTC, as memory held it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    pub born: u64,
    pub entries: [Option<u32>; ENTRIES],
}

/// Lines that a flush drops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flush {
    /// Lines of the TLB, of one address space or of all.
    Tlb { asid: Option<u32>, range: Option<IovaRange> },
    /// Lines of the PTC: one, or all.
    Ptc { line: Option<IovaRange> },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cleaned {
    NotYet,
    Done,
}

/// Drops the lines that were cached until `then`.
pub(super) fn forget(state: &mut State, flush: Flush, then: u64) {
    let old = |_, line: &Line| line.born <= then;
    match flush {
        Flush::Ptc { line: None } => state.own.ptc.drop_where(Reach::All, old, |_, _| {}),
        Flush::Ptc { line: Some(range) } => {
            let reach = Reach::Range(InvalTag::default(), range);
            state.own.ptc.drop_where(reach, old, |_, _| {});
        }
        Flush::Tlb { asid, range } => {
            let reach = match (asid.map(InvalTag::new), range) {
                (Some(asid), Some(range)) => Reach::Range(asid, range),
                (Some(asid), None) => Reach::Context(asid),
                (None, _) => Reach::All,
            };
            let whole = |key: Key| range.is_none_or(|range| range.covers(key.range()));
            let which = |key, group: &Group| group.born <= then && whole(key);
            state.own.tlb.drop_where(reach, which, |_, _| {});
        }
    }
}
