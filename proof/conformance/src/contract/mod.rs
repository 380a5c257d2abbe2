//! The contract of a table: the same questions to every format, at every level that can hold a leaf,
//! for every way to split a block and to keep dirty state.
//!
//! Each [`Check`] is one promise of `portolan::table`. After every step the whole table is audited
//! against the oracle, through the library's cursor and through the independent decoder.

mod cut;
mod dirty;
mod ground;
mod list;
mod look;
mod owed;
mod quiet;
mod refuse;
mod starve;

use portolan::table::format::{DirtyTracking, Format, SplitRule};
use portolan_sim::decode::TableFormat;

use self::ground::Ground;
use crate::format::{FormatName, Visitor};
use crate::memory::CheckedTables;
use crate::subject::any_capabilities;

/// Pages of table memory: more than any check needs.
const MEMORY_PAGES: u32 = 64;

/// A promise of the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// One leaf of each size translates from its first byte to its last, and nothing around it.
    Translate,
    /// Each access alone and combined: the device has that access, or there is a typed error.
    Access,
    /// Lists: neighbours merge, and the largest pages that fit are used.
    LargestPages,
    /// Lists: consecutive device addresses, for all lengths of pieces and across tables.
    Contiguous,
    /// Unmaps of a whole block and of a part of it.
    Cut,
    /// Unmaps of a range with a hole.
    Hole,
    /// Maps that must be refused.
    RefuseMap,
    /// Unmaps and splits that must be refused.
    RefuseUnmap,
    /// Each allocation fails once.
    Starve,
    /// Dirty state, or a typed error.
    Dirty,
    /// Table pages come back after they are quiet, not before.
    Quiet,
    /// Invalidations that a map and an unmap owe.
    Owed,
}

/// Holds `format` to `check`, for every way to split and to keep dirty state that it knows.
///
/// # Panics
/// If the library breaks the promise.
pub fn hold(format: FormatName, check: Check) {
    let splits: &[SplitRule] = if format.may_need_break() {
        &[SplitRule::Direct, SplitRule::BreakBeforeMake]
    } else {
        &[SplitRule::Direct]
    };
    for &split in splits {
        for dirty in [DirtyTracking::Off, DirtyTracking::Hardware] {
            println!("{format}: {check:?}, {split:?}, dirty state {dirty:?}");
            format.visit(split, dirty, Held { format, check });
        }
    }
}

struct Held {
    format: FormatName,
    check: Check,
}

impl Visitor for Held {
    type Output = ();

    fn visit<F: Format>(self, format: F, model: TableFormat) {
        let caps = any_capabilities(F::GRANULE);
        let memory = CheckedTables::new(&format, &caps, MEMORY_PAGES);
        let mut ground = Ground::new(self.format, format, model, &memory);
        match self.check {
            Check::Translate => ground.translate(),
            Check::Access => ground.access(),
            Check::LargestPages => ground.largest_pages(),
            Check::Contiguous => ground.contiguous(),
            Check::Cut => ground.cut(),
            Check::Hole => ground.hole(),
            Check::RefuseMap => ground.refuse_map(),
            Check::RefuseUnmap => ground.refuse_unmap(),
            Check::Starve => ground.starve(),
            Check::Dirty => ground.dirty(),
            Check::Quiet => ground.quiet(),
            Check::Owed => ground.owed(),
        }
        ground.subject.clear();
        drop(ground);
        assert_eq!(memory.live(), 0, "table pages outlive the table");
        assert_eq!(memory.wrong_frees(), 0, "table pages are freed twice");
    }
}
