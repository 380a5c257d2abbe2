//! Entries of page tables on the cache lines that they share with their neighbours.
//!
//! An entry's line is found by its address, so table memory has to begin with a line, as that of
//! [`SlabTables`](portolan::platform::SlabTables) does. A CPU that has the line pays nothing, because the price of an
//! entry covers that; one that lacks it waits for the transfer.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use portolan::addr::{PageSize, PageSizes, PhysAddr};
use portolan::platform::Word;
use portolan::table::format::{DirtyTracking, Entry, Format, SplitRule};
use portolan::table::{Access, TableAccessError};

use super::line::{Line, LineAccess};
use super::scheduler;
use crate::tables::LINE;

thread_local! {
    /// Lines of table memory that this thread's run has touched, by their number.
    static LINES: RefCell<HashMap<usize, Line>> = RefCell::default();
}

/// Forgets all lines: a run begins, and no CPU has any.
pub(super) fn forget_lines() {
    LINES.with_borrow_mut(HashMap::clear);
}

/// A table entry of 64 bits. Other CPUs may run at every access.
#[derive(Debug)]
#[repr(transparent)]
pub struct VirtualEntry(AtomicU64);

impl VirtualEntry {
    fn touch(&self, access: LineAccess) {
        scheduler::point();
        let line = std::ptr::from_ref(self).addr() >> LINE.lg2();
        scheduler::with(|core| {
            LINES.with_borrow_mut(|lines| lines.entry(line).or_default().touch(core, access, 0));
        });
    }
}

impl Word for VirtualEntry {
    const LG2_BYTES: u32 = <AtomicU64 as Word>::LG2_BYTES;

    fn new(raw: u64) -> Self {
        Self(AtomicU64::new(raw))
    }

    fn load(&self) -> u64 {
        self.touch(LineAccess::Read);
        self.0.load(Ordering::Acquire)
    }

    fn store(&self, raw: u64) {
        self.touch(LineAccess::Write);
        self.0.store(raw, Ordering::Release);
    }

    fn compare_exchange(&self, old: u64, new: u64) -> Result<u64, u64> {
        self.touch(LineAccess::Write);
        self.0.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire)
    }
}

/// The format `F` with entries that CPUs share in virtual time.
#[derive(Clone, Copy, Debug)]
pub struct SharedTables<F>(pub F);

impl<F: Format<Word = AtomicU64>> Format for SharedTables<F> {
    type Word = VirtualEntry;
    const GRANULE: PageSize = F::GRANULE;
    const INDEX_LG2: u32 = F::INDEX_LG2;
    const ROOT: PageSize = F::ROOT;
    const FILLED: u64 = F::FILLED;
    const CLUSTER_LG2: u32 = F::CLUSTER_LG2;
    const LEAF_STEP: u64 = F::LEAF_STEP;

    fn levels(&self) -> u32 {
        self.0.levels()
    }

    fn input_lg2(&self) -> u32 {
        self.0.input_lg2()
    }

    fn output_lg2(&self) -> u32 {
        self.0.output_lg2()
    }

    fn page_sizes(&self) -> PageSizes {
        self.0.page_sizes()
    }

    fn split_rule(&self) -> SplitRule {
        self.0.split_rule()
    }

    fn dirty_tracking(&self) -> DirtyTracking {
        self.0.dirty_tracking()
    }

    fn template(&self, access: Access, level: u32) -> Result<u64, TableAccessError> {
        self.0.template(access, level)
    }

    fn leaf(template: u64, pa: PhysAddr) -> u64 {
        F::leaf(template, pa)
    }

    fn table(pa: PhysAddr, level: u32) -> u64 {
        F::table(pa, level)
    }

    fn demote(raw: u64, level: u32) -> u64 {
        F::demote(raw, level)
    }

    fn broken(pa: PhysAddr) -> u64 {
        F::broken(pa)
    }

    fn classify(raw: u64, level: u32) -> Entry {
        F::classify(raw, level)
    }

    fn access(&self, raw: u64, level: u32) -> Access {
        self.0.access(raw, level)
    }

    fn table_access(&self, raw: u64, level: u32) -> Access {
        self.0.table_access(raw, level)
    }

    fn is_reserved(&self, raw: u64, level: u32) -> bool {
        self.0.is_reserved(raw, level)
    }

    fn is_dirty(&self, raw: u64) -> bool {
        self.0.is_dirty(raw)
    }

    fn cleaned(&self, raw: u64) -> u64 {
        self.0.cleaned(raw)
    }

    fn leaf_lg2(raw: u64, level: u32) -> u32 {
        F::leaf_lg2(raw, level)
    }

    fn joined(first: u64, lg2: u32) -> Option<u64> {
        F::joined(first, lg2)
    }

    fn parted(raw: u64, level: u32, part: u64) -> u64 {
        F::parted(raw, level, part)
    }

    fn link(pa: PhysAddr) -> u64 {
        F::link(pa)
    }

    fn unlink(raw: u64) -> PhysAddr {
        F::unlink(raw)
    }
}
