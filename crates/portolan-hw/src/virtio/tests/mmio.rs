//! Memory that is a device's registers.

use super::*;

#[test]
fn registers_of_devices_are_mapped_only_where_the_device_can() {
    for offered in [true, false] {
        let fake = Fake::new();
        if !offered {
            // VIRTIO_IOMMU_F_MMIO.
            fake.state().features &= !(1 << 5);
        }
        let unit = start(&fake);
        let domain = unit.domain().unwrap();
        unit.attach(A, &domain).unwrap();
        let (pa, mut owed) = (PhysAddr::new(0x9000), Gather::new());
        let mapped = domain.map(Iova::new(0), pa, 4096, RW | Access::DEVICE, &mut owed);
        domain.sync(&mut owed).unwrap();
        let refused = matches!(mapped, Err(DomainError::Map(MapError::Access(_))));
        assert_eq!(refused, !offered, "{mapped:?}");
        // Bit 2 of a mapping's flags: registers of a device.
        let reached = fake.state().reach(8, 0, 1 << 2);
        assert_eq!(reached, offered.then_some(0x9000));
    }
}
