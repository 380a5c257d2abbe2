//! Nothing of a debt comes back without the proof that it was settled.

use portolan::addr::IovaRange;
use portolan::inval::{Flushed, Gather};
use portolan::iommu::{Domain, DomainUnmapError};
use portolan::platform::TableMem;
use portolan::table::PageTable;
use portolan::table::format::Format;

/// Frees the table pages of a debt that waits.
fn reclaimed_early<F: Format, M: TableMem<F::Word>>(table: &PageTable<F, M>, owed: Gather) {
    let _ = table.reclaim(owed);
}

/// Says of an unmap that it was flushed.
fn flushed(domain: &dyn Domain, range: IovaRange) -> Result<Flushed, DomainUnmapError> {
    let mut owed = Gather::new();
    domain.unmap(range, &mut owed)
}

/// Makes a proof of nothing.
fn made() -> Flushed {
    Flushed(())
}

/// Uses a proof twice.
fn twice(proof: Flushed) -> [Flushed; 2] {
    [proof, proof]
}

fn main() {}
