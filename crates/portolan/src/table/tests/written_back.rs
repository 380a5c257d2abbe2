//! Lines that are written back before a plan is carried out, and the message to the queue then.

use alloc::string::String;
use alloc::vec::Vec;
use core::sync::atomic::AtomicU64;
use spin::Mutex;

use super::kept::CAPS;
use crate::addr::{InvalTag, Iova, PageSize, PhysAddr, PhysRange};
use crate::inval::{Capabilities, Gather, InvalidationQueue, Quirks, Step, TablesLeft, Walker};
use crate::platform::{OutOfTableMemory, SlabTables, TableMem};
use crate::table::format::{Armv8Config, Armv8Stage1, DirtyTracking, SplitRule};
use crate::table::{Access, PageTable};

/// Bytes of a leaf table's reach.
const BLOCK: u64 = 0x20_0000;

/// Table memory and a queue that write down their calls, in order.
struct Noting {
    slab: SlabTables<AtomicU64>,
    log: Mutex<Vec<String>>,
}

impl Noting {
    fn new() -> Self {
        Self {
            slab: SlabTables::new(PhysAddr::new(1 << 31), PageSize::SIZE_4K, 64),
            log: Mutex::default(),
        }
    }

    fn note(&self, what: &str) {
        self.log.lock().push(what.into());
    }

    fn take(&self) -> Vec<String> {
        core::mem::take(&mut *self.log.lock())
    }
}

impl TableMem<AtomicU64> for &Noting {
    fn alloc(&self, size: PageSize) -> Result<PhysAddr, OutOfTableMemory> {
        self.slab.alloc(size)
    }

    fn free(&self, table: PhysAddr, size: PageSize) {
        self.slab.free(table, size);
    }

    fn table(&self, table: PhysAddr, size: PageSize) -> &[AtomicU64] {
        self.slab.table(table, size)
    }

    fn clean(&self, _: PhysRange) {
        self.note("line");
    }

    fn clean_barrier(&self) {
        self.note("barrier");
    }

    fn invalidate(&self, _: PhysRange) {}
}

impl InvalidationQueue for Noting {
    type Error = ();

    fn pay(&self, steps: &mut dyn Iterator<Item = Step>, _: TablesLeft) -> Result<(), ()> {
        self.note("asked");
        steps.for_each(|step| {
            self.note(match step {
                Step::Invalidate(_) => "command",
                Step::Sync => "sync",
                Step::FlushWriteBuffer => "flush",
            });
        });
        Ok(())
    }
}

/// Events of paying for a map of a page beside another one, in `leaves` leaf tables that are there,
/// and of paying for its unmap.
fn paid(walker: Walker, leaves: u64) -> [Vec<String>; 2] {
    let at = Noting::new();
    let format = Armv8Stage1::<12>::new(Armv8Config {
        input_lg2: 39,
        output_lg2: 40,
        split: SplitRule::BreakBeforeMake,
        dirty: DirtyTracking::Off,
    });
    let table = PageTable::new(format.unwrap(), &at).unwrap();
    let caps = Capabilities { walker, ..CAPS };
    let sync = |mut owed: Gather| {
        at.take();
        let quirks = Quirks::default();
        let quiet = table.sync(&at, InvalTag::new(1), &caps, &quirks, &mut owed);
        table.reclaim(quiet.unwrap()).expect("of this table");
        assert!(owed.is_empty());
        at.take()
    };
    let map = |page: u64| {
        let mut owed = Gather::new();
        for leaf in 0..leaves {
            let iova = Iova::new(leaf * 2 * BLOCK + page * 4096);
            let pa = PhysAddr::new(page << 20);
            let mapped = table.map(iova, pa, 4096, Access::READ, &mut owed);
            mapped.unwrap();
        }
        owed
    };
    sync(map(0));
    let mapped = sync(map(8));
    let mut owed = Gather::new();
    for leaf in 0..leaves {
        let page = Iova::new(leaf * 2 * BLOCK + 8 * 4096);
        let page = crate::addr::IovaRange::page(page, PageSize::SIZE_4K);
        table.unmap(page, &mut owed).unwrap();
    }
    [mapped, sync(owed)]
}

#[test]
fn lines_are_in_memory_before_the_queue_is_asked() {
    let [mapped, unmapped] = paid(Walker::NonCoherent, 1);
    assert_eq!(mapped, ["line", "barrier"]);
    assert_eq!(unmapped, ["line", "barrier", "asked", "command", "sync"]);
}

#[test]
fn nothing_is_written_back_for_a_walker_that_snoops() {
    let [mapped, unmapped] = paid(Walker::Coherent, 1);
    assert!(mapped.is_empty());
    assert_eq!(unmapped, ["asked", "command", "sync"]);
}

#[test]
fn lines_written_back_early_are_waited_for_with_the_others() {
    let [mapped, _] = paid(Walker::NonCoherent, 6);
    // Two of the six were written back while the debt was made, for want of room.
    assert_eq!(mapped, [&["line"; 4][..], &["barrier"]].concat());
}
