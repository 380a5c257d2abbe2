//! No heap memory is taken or freed under a lock of the virtio-iommu driver, and none at all by
//! functions that take mappings back.
#![allow(missing_docs)]

#[path = "../../portolan/tests/support/promised.rs"]
mod promised;
#[path = "../../portolan/tests/support/watched_heap.rs"]
mod watched_heap;

use portolan::addr::{Iova, IovaRange, PhysAddr, StreamId};
use portolan::inval::Gather;
use portolan::iommu::{Attach, Domain, Iommu, IommuError};
use portolan::table::Access;
use portolan_hw::virtio::{Config, Transport, Viommu};
use promised::promised;
use watched_heap::{Machine, held, uses};

/// A device that takes everything, and a caller that may not hold a lock.
struct Willing;

impl Transport for Willing {
    fn features(&self) -> u64 {
        1 << 2
    }

    fn config32(&self, _: usize) -> Result<u32, IommuError> {
        Ok(0)
    }

    fn config64(&self, _: usize) -> Result<u64, IommuError> {
        Ok(0x1000)
    }

    fn set_config8(&self, _: usize, value: u8) -> Result<u8, IommuError> {
        Ok(value)
    }

    fn request(&self, _: &[u8], answer: &mut [u8]) -> Result<(), IommuError> {
        assert_eq!(held(), 0, "a request under a lock");
        answer.fill(0);
        Ok(())
    }

    fn next_fault(&self) -> Result<Option<([u8; 24], usize)>, IommuError> {
        Ok(None)
    }
}

#[test]
fn mappings_come_and_go_with_no_heap_under_locks() {
    let unit = Viommu::start(Willing, Machine, Config::default()).unwrap();
    let domain = unit.domain().unwrap();
    unit.attach(StreamId::new(8), &domain).unwrap();
    let page = |n: u64| IovaRange::from_len(Iova::new(n << 13), 4096).unwrap();
    uses("making it");
    for round in 0..3 {
        let mut owed = Gather::new();
        for n in 0..500 {
            let (iova, pa) = (page(n).start(), PhysAddr::new(n << 12));
            domain.map(iova, promised(pa, 4096), Access::READ, &mut owed).unwrap();
        }
        let used = uses("mapping");
        assert!(used > 0 || round > 0, "records are kept for the next ones");
        assert!(used == 0 || round == 0, "round {round}: {used}");
        domain.sync(&mut owed).unwrap();
        for n in 0..500 {
            domain.unmap(page(n), &mut owed).unwrap();
        }
        domain.sync(&mut owed).unwrap();
        assert_eq!(uses("taking back"), 0, "round {round}");
    }
    unit.block(StreamId::new(8)).unwrap();
    drop((domain, unit));
    uses("dropping it");
}
