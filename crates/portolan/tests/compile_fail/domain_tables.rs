//! The tables of a domain are mapped in behind its back.

use portolan::addr::{Iova, PhysAddr};
use portolan::inval::Gather;
use portolan::iommu::{PagedDomain, TagPool};
use portolan::platform::TableMem;
use portolan::table::{Access, Format};

fn behind<F: Format, M: TableMem<F::Word>, Q: TagPool>(
    domain: &PagedDomain<F, M, Q>,
    owed: &mut Gather,
) {
    let (at, memory) = (Iova::new(0), PhysAddr::new(0));
    let _ = domain.table().map(at, memory, 4096, Access::READ_WRITE, owed);
}

fn main() {}
