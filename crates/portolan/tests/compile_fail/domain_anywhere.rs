//! A domain maps memory that has not been promised.

use portolan::addr::{Iova, PhysRange};
use portolan::inval::Gather;
use portolan::iommu::Domain;
use portolan::table::Access;

fn anywhere(domain: &dyn Domain, at: Iova, memory: PhysRange, owed: &mut Gather) {
    let _ = domain.map(at, memory, Access::READ_WRITE, owed);
}

fn main() {}
