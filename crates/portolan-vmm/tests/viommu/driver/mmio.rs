//! Memory that is a device's registers.

use super::*;
use crate::promised::promised;

#[test]
fn registers_of_devices_are_mapped_only_where_the_device_can() {
    for offered in [true, false] {
        let link = Link::new();
        if !offered {
            // VIRTIO_IOMMU_F_MMIO.
            link.state().features &= !(1 << 5);
        }
        let unit = start(&link);
        let domain = unit.domain().unwrap();
        unit.attach(A, &domain).unwrap();
        let (pa, mut owed) = (PhysAddr::new(0x9000), Gather::new());
        let mapped = domain.map(Iova::new(0), promised(pa, 4096), RW | Access::DEVICE, &mut owed);
        let refused = matches!(mapped, Err(DomainError::Map(TableMapError::Access(_))));
        assert_eq!(refused, !offered, "{mapped:?}");
        // Bit 2 of a mapping's flags: registers of a device. The device says that it has no such mappings.
        assert_eq!(domain.sync(&mut owed).is_err(), offered);
        let asked = link.state().seen.get(1).map(|request| request[32]);
        assert_eq!(asked, offered.then_some(7));
    }
}
