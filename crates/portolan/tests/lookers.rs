//! Table pages come back although there is always a CPU that looks.
#![allow(missing_docs)]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use portolan::addr::{InvalTag, Iova, PageSize, PhysAddr};
use portolan::inval::{Capabilities, Gather, InvalidationQueue, Quirks, Step, TablesLeft};
use portolan::platform::SlabTables;
use portolan::table::format::{VtdLevels, VtdSecondStage};
use portolan::table::{Access, PageTable};

struct Prompt;

impl InvalidationQueue for Prompt {
    type Error = ();

    fn pay(&self, steps: &mut dyn Iterator<Item = Step>, _: TablesLeft) -> Result<(), ()> {
        steps.for_each(drop);
        Ok(())
    }
}

/// As many pages would be parked if a walk that is under way kept them all.
const ROUNDS: u64 = 40_000;

#[test]
fn pages_come_back_while_others_look() {
    let memory = SlabTables::<AtomicU64>::new(PhysAddr::new(1 << 40), PageSize::SIZE_4K, 20_000);
    let format = VtdSecondStage::new(VtdLevels::Four, 46);
    let table = PageTable::new(format, memory).unwrap();
    let done = AtomicBool::new(false);
    let (mut most, mut refused) = (0, 0);
    thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    for page in 0..64u64 {
                        let _ = table.translate(Iova::new(page << 21));
                    }
                }
            });
        }
        let caps = Capabilities::new(PageSize::SIZE_4K);
        let quirks = Quirks::default();
        for round in 0..ROUNDS {
            let at = Iova::new((round % 64) << 21);
            let mut owed = Gather::new();
            let pa = PhysAddr::new(0x1000);
            match table.map(at, pa, 0x1000, Access::READ, &mut owed) {
                Ok(range) => {
                    table.unmap(range, &mut owed).unwrap();
                    if let Some(empty) = table.next_empty_table(Iova::new(0)) {
                        table.prune(empty, &mut owed).unwrap();
                    }
                }
                Err(_) => refused += 1,
            }
            let quiet = table.sync(&Prompt, InvalTag::new(1), &caps, &quirks, &mut owed);
            table.reclaim(quiet.unwrap()).unwrap();
            most = most.max(table.pages());
        }
        done.store(true, Ordering::Relaxed);
    });
    println!("at most {most} table pages for one mapping at a time, {refused} maps refused");
    assert!(most <= 1000 && refused == 0, "{most} pages, {refused} maps refused");
}
