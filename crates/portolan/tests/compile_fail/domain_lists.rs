//! A domain maps a list of memory that has not been promised, and promised memory twice.

use portolan::addr::{Iova, PhysRange};
use portolan::inval::Gather;
use portolan::iommu::Domain;
use portolan::platform::DmaMemory;
use portolan::table::Access;

fn anywhere(domain: &dyn Domain, at: Iova, pieces: &[PhysRange], owed: &mut Gather) {
    let _ = domain.map_sg(at, pieces, Access::READ_WRITE, owed);
}

fn twice(memory: &DmaMemory) -> [DmaMemory; 2] {
    [memory.clone(), memory.clone()]
}

fn main() {}
