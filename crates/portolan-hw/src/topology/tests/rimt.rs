//! RISC-V IOMMUs by the RIMT table.

use portolan::addr::{PciFunction, PciSegment, RequesterId};

use super::{Fake, Has, Is, is, survey as surveyed};
use crate::table_bytes::{reseal, rimt_bytes};
use crate::topology::{FaultInterrupt, Topology};

fn function(requester: RequesterId) -> PciFunction {
    PciFunction { segment: PciSegment::new(2), requester }
}

#[test]
fn units_root_complexes_and_devices_of_a_table() {
    let disk = function(RequesterId::of(0, 1, 0));
    let card = function(RequesterId::of(1, 0, 0));
    let fake = [disk, card]
        .into_iter()
        .fold(Fake::default(), |fake, at| fake.with(at, Is::Endpoint, None, Has::Nothing));
    let mut bytes = rimt_bytes();
    is(
        &surveyed(&bytes, &fake),
        "unit 0: RISC-V IOMMU, registers at 0x3010000..=0x3010fff
           serves 0002:00:01.3 to ff:1f.7, streams from 0xb on
           serves device 0 of the ACPI name space
         unit 1: RISC-V IOMMU, PCI function 0002:00:01.2
           serves 0002:00:00.0 to 00:01.1, streams from 0x100 on
         0002:00:01.0: unit 1, streams 0x108
         0002:01:00.0: unit 0, streams 0x100",
    );
    let topology = Topology::from_acpi([&bytes[..]]).unwrap();
    let Ok(FaultInterrupt::Global(wire)) = topology.fault_interrupt(0) else {
        panic!("{:?}", topology.fault_interrupt(0));
    };
    assert_eq!(wire.interrupt, 36);
    assert_eq!(topology.fault_interrupt(1), Ok(FaultInterrupt::Absent));
    // The second mapping refers to no unit.
    bytes[148 + 40 + 12] = 49;
    reseal(&mut bytes);
    let found = surveyed(&bytes, &Fake::default());
    assert_eq!(found.units()[0].claims.len(), 1);
    assert_eq!(found.remarks().len(), 1);
}
