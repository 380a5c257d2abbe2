//! Page tables and their invalidation alone: for a hypervisor that has a queue and a platform of its own.
//!
//! `cargo run -p portolan --example tables` maps 32 MiB, unmaps a part, and prints the invalidations that
//! this owes hardware of two kinds.
#![allow(missing_docs)]

use std::error::Error;

use portolan::addr::{InvalTag, Iova, IovaRange, PageSize, PhysAddr};
use portolan::inval::{
    Capabilities, Gather, InvalidationQueue, Quirks, RangeForm, Step, TablesLeft, plan,
};
use portolan::platform::HostTables;
use portolan::table::format::{Armv8Config, Armv8Stage1, DirtyTracking, SplitRule};
use portolan::table::{Access, PageTable};

/// The identifier that tags the table's translations in the hardware.
const ASID: InvalTag = InvalTag::new(7);

/// An SMMUv3 that can invalidate ranges.
const SMMU: Capabilities = Capabilities {
    range: RangeForm::NumScale { max_num: 32, max_scale: 31 },
    ..Capabilities::new(PageSize::SIZE_4K)
};

/// Prints the commands that it would write to the hardware, and completes at once.
struct Printing;

impl InvalidationQueue for Printing {
    type Error = core::convert::Infallible;

    fn pay(&self, steps: &mut dyn Iterator<Item = Step>, _: TablesLeft) -> Result<(), Self::Error> {
        steps.for_each(|step| println!("  {step:?}"));
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let format = Armv8Stage1::<12>::new(Armv8Config {
        input_lg2: 48,
        output_lg2: 48,
        split: SplitRule::BreakBeforeMake,
        dirty: DirtyTracking::Off,
    })?;
    let table = PageTable::new(format, HostTables::new(PageSize::SIZE_4K, 64))?;
    let access = Access::READ | Access::WRITE;

    // Each operation adds to the debt; nothing is flushed yet.
    let mut owed = Gather::new();
    let (at, memory) = (Iova::new(0x4000_0000), PhysAddr::new(0x8000_0000));
    let mapped = table.map(at, memory, 32 << 20, access, &mut owed)?;
    let found = table.translate(mapped.start()).ok_or("nothing is mapped")?;
    println!("{mapped:?} -> {} in pages of {} KiB", found.pa, found.size.bytes() >> 10);
    let two = IovaRange::from_len(at, 4 << 20).ok_or("no such range")?;
    table.unmap(two, &mut owed)?;

    // The same debt on hardware with range commands, and on hardware with commands of one page.
    let pages = Capabilities { range: RangeForm::Absent, ..SMMU };
    let quirks = Quirks::default();
    for (name, caps) in [("by page", &pages), ("by range", &SMMU)] {
        let counts = plan(ASID, caps, &quirks, &owed).counts();
        println!("{name}: {counts:?}");
    }

    // Paying it proves that the hardware forgot; only then table pages come back.
    println!("paid:");
    let quiet = table.sync(&Printing, ASID, &SMMU, &quirks, &mut owed);
    let quiet = quiet.map_err(|error| format!("{error:?}"))?;
    table.reclaim(quiet).map_err(|wrong| wrong.error)?;
    println!("table pages: {}", table.pages());
    Ok(())
}
