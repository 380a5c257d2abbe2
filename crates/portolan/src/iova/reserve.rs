//! Records and magazines in reserve, for allocations that may take no heap memory.
//!
//! Such an allocation takes a range only if there is room for its record. Callers that may take
//! heap memory make room ([`IovaSpace::replenish`]); a flag says that there is little left, so that
//! no caller takes a lock to find out. Blocks that come back where there is no magazine for them
//! ask for one in the same way: a CPU whose handlers alone allocate would go to the ranges each
//! time otherwise. So does a CPU without a cache of its own, whose handlers use the first CPU's until then.

use super::IovaError;
use super::class::Kind;
use super::ledger::Ledger;
use super::ranges::RangeAllocator;
use super::shortage::{CACHES, Heap, RECORDS, bit};
use super::space::{Home, IovaSpace};
use super::tree::Room;
use crate::platform::{Cpus, Lock};

impl<P: Cpus> IovaSpace<P> {
    /// Tells if [`IovaSpace::replenish`] has something to do.
    ///
    /// *Context.* Interrupt.
    #[inline]
    pub fn is_short(&self) -> bool {
        self.shortage.0.any()
    }

    /// Fills the reserve from which [`IovaSpace::try_alloc`] takes records.
    ///
    /// *Context.* Atomic: takes heap memory.
    ///
    /// # Errors
    /// [`IovaError::Memory`], and the reserve stays as small as it was.
    pub fn replenish(&self) -> Result<(), IovaError> {
        if !self.is_short() {
            return Ok(());
        }
        let short = self.shortage.0.take();
        if short & CACHES != 0 {
            self.caches.make_wanted(|| Some(Home::new()));
        }
        for kind in Kind::all().filter(|kind| short & bit(*kind) != 0) {
            self.add_magazines(kind);
        }
        self.make_records().inspect_err(|_| self.shortage.0.add(RECORDS))
    }

    /// Adds a magazine, and as many more as the blocks that are out may fill.
    fn add_magazines(&self, kind: Kind) {
        let mut wanted = true;
        while wanted {
            let made = self.made(kind);
            if made.is_none() {
                return;
            }
            self.keep(kind, made);
            wanted = self.depot(kind, |depot| depot.wants_empty());
        }
    }

    /// Makes room for records, outside of the locks.
    fn make_records(&self) -> Result<(), IovaError> {
        let reserve = usize::from(self.options.reserve);
        while let Some(lack) = self.ranges(|ranges| ranges.lack(reserve)) {
            let room = lack.allocate().map_err(|_| IovaError::Memory)?;
            drop(self.ranges(|ranges| ranges.adopt(room)));
        }
        let Some(ledger) = &self.ledger else {
            return Ok(());
        };
        while let Some(lack) = ledger.with(|ledger| ledger.lack(reserve)) {
            let room = lack.allocate().map_err(|_| IovaError::Memory)?;
            drop(ledger.with(|ledger| ledger.adopt(room)));
        }
        Ok(())
    }

    /// Says so if less than half of the reserve is left.
    pub(super) fn watch(&self, heap: Heap, ranges: &RangeAllocator) {
        if heap == Heap::Spare && ranges.lack(self.half_reserve()).is_some() {
            self.shortage.0.add(RECORDS);
        }
    }

    /// The same of the ledger.
    pub(super) fn watch_ledger(&self, ledger: &P::Lock<Ledger>) {
        let half = self.half_reserve();
        if ledger.with(|ledger| ledger.lack(half)).is_some() {
            self.shortage.0.add(RECORDS);
        }
    }

    fn half_reserve(&self) -> usize {
        usize::from(self.options.reserve / 2)
    }

    /// There is no room, and none may be made here.
    pub(super) fn run_short(&self) -> Option<Room> {
        self.shortage.0.add(RECORDS);
        None
    }

    /// A block came back for which there is no magazine.
    pub(super) fn miss_magazine(&self, kind: Kind) {
        self.shortage.0.add(bit(kind));
    }
}
