//! A platform's memory by physical address, made in safe code or got from its keeper.

use portolan::addr::{PageSize, PhysAddr};
use portolan::platform::{Platform, RawMemory, TableMem};
use portolan::table::{Format, PageTable};

fn raw<P: Platform>(platform: P) -> RawMemory<P> {
    RawMemory::new(platform)
}

fn for_copies<P: Platform>(platform: P) -> RawMemory<P> {
    RawMemory::for_copies(platform)
}

fn words<F: Format, M: TableMem<F::Word>>(table: &PageTable<F, M>, at: PhysAddr) -> &[F::Word] {
    table.memory().table(at, PageSize::SIZE_4K)
}

fn main() {}
