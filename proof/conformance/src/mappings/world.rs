//! Memory, the owners of its blocks, and the accesses that devices may make.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use portolan::addr::{Iova, PhysAddr, PhysRange};

use crate::promise::Lent;

pub(super) const PAGE: u64 = 4096;
/// Pages of the longest buffer.
pub(super) const LONGEST: u64 = 9;
/// First address of memory.
const MEMORY: u64 = 1 << 40;

/// Owner of a block of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Driver,
    /// A mapping, or a deferred buffer.
    Device,
}

/// Owner of each block, and the block of each device page.
#[derive(Debug)]
struct BlockLedger {
    /// Blocks that are not in use; the block that was freed first is taken first.
    free: std::collections::VecDeque<u64>,
    owners: Vec<Owner>,
    /// The page that was mapped last at each device page, and if it still is.
    mapped: BTreeMap<u64, (u64, Mapped)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mapped {
    Now,
    /// Until its unmap began, at this time in nanoseconds.
    Before(u64),
}

/// All blocks of memory.
#[derive(Debug)]
pub(super) struct BlockWorld {
    ledger: Mutex<BlockLedger>,
}

/// Memory that a device reached by an address that is not its own any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockReached {
    /// Memory that a mapping has which is at that address.
    Another,
    /// The memory that it was mapped to last, which a mapping or a deferred buffer still has.
    Waiting,
    /// The memory that it was mapped to last, which its driver has back; its unmap began at this time in nanoseconds.
    Exposed(u64),
    /// Memory that was never mapped there last.
    Strange,
}

/// A buffer: it goes back to the world when it is dropped.
pub(super) type Block = Lent<Numbered>;

/// Number of the block in its world.
#[derive(Debug)]
pub(crate) struct Numbered {
    world: Arc<BlockWorld>,
    number: u64,
}

impl Drop for Numbered {
    fn drop(&mut self) {
        self.world.dropped(self.number);
    }
}

impl BlockWorld {
    /// `blocks` blocks.
    pub(super) fn new(blocks: u64) -> Arc<Self> {
        let ledger = BlockLedger {
            free: (0..blocks).collect(),
            owners: vec![Owner::Driver; blocks as usize],
            mapped: BTreeMap::new(),
        };
        Arc::new(Self { ledger: Mutex::new(ledger) })
    }

    fn ledger(&self) -> MutexGuard<'_, BlockLedger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A block of `pages` pages, to be handed to a device at once.
    pub(super) fn block(self: &Arc<Self>, offset: u64, bytes: u64) -> Option<Block> {
        let mut ledger = self.ledger();
        let number = ledger.free.pop_front()?;
        ledger.owners[number as usize] = Owner::Device;
        let start = MEMORY + number * LONGEST * PAGE + offset;
        let range = PhysRange::from_len(PhysAddr::new(start), bytes)?;
        let world = self.clone();
        Some(Lent { range, owner: Numbered { world, number } })
    }

    /// Notes that `memory` can be reached at `iova`.
    pub(super) fn map(&self, iova: Iova, memory: PhysRange) {
        let mut ledger = self.ledger();
        for (device, page) in pages(iova, memory) {
            ledger.mapped.insert(device, (page, Mapped::Now));
        }
    }

    /// Notes that it is about to be unmapped, at `now_ns`.
    pub(super) fn unmap(&self, iova: Iova, memory: PhysRange, now_ns: u64) {
        let mut ledger = self.ledger();
        for (device, page) in pages(iova, memory) {
            ledger.mapped.insert(device, (page, Mapped::Before(now_ns)));
        }
    }

    /// Notes that `memory` is its driver's again.
    pub(super) fn back(&self, block: &Block) {
        self.ledger().owners[block.owner.number as usize] = Owner::Driver;
    }

    /// Judges an access of a device that reached `pa` by `iova`.
    pub(super) fn judge(&self, iova: Iova, pa: PhysAddr) -> BlockReached {
        let ledger = self.ledger();
        let page = pa.get() / PAGE;
        let owner = pa.get().checked_sub(MEMORY).map(|above| {
            let number = above / (LONGEST * PAGE);
            ledger.owners.get(number as usize).copied()
        });
        match (ledger.mapped.get(&(iova.get() / PAGE)), owner.flatten()) {
            (Some(&(last, Mapped::Now)), _) if last == page => BlockReached::Another,
            (Some(&(last, Mapped::Before(since_ns))), Some(owner)) if last == page => match owner {
                Owner::Device => BlockReached::Waiting,
                Owner::Driver => BlockReached::Exposed(since_ns),
            },
            _ => BlockReached::Strange,
        }
    }

    /// The buffer of `number` was dropped.
    pub(super) fn dropped(&self, number: u64) {
        let mut ledger = self.ledger();
        ledger.owners[number as usize] = Owner::Driver;
        ledger.free.push_back(number);
    }

    /// Blocks that are not free.
    pub(super) fn out(&self) -> usize {
        let ledger = self.ledger();
        ledger.owners.len() - ledger.free.len()
    }
}

/// Device pages and the pages of memory behind them.
fn pages(iova: Iova, memory: PhysRange) -> impl Iterator<Item = (u64, u64)> {
    let (device, page) = (iova.get() / PAGE, memory.start().get() / PAGE);
    let count = memory.last().get() / PAGE - page + 1;
    (0..count).map(move |i| (device + i, page + i))
}
