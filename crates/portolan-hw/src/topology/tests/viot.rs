//! virtio-iommu devices by the VIOT table.

use portolan::addr::{PciFunction, PciSegment, RequesterId, StreamId};

use crate::table_bytes::{table, viot_bytes};
use crate::topology::Topology;
use crate::topology::pci::PciOverrides;

#[test]
fn a_function_is_served_by_the_unit_that_its_range_names() {
    let of = |table: &[u8], segment, id| {
        let function =
            PciFunction { segment: PciSegment::new(segment), requester: RequesterId::new(id) };
        let topology = Topology::from_acpi([table]).unwrap();
        let survey = topology.survey(PciOverrides::KNOWN, |_, _| None);
        topology.find(&survey, &|_, _| None, function)
    };
    let bytes = viot_bytes();
    let first = |endpoint| Ok(Some((0, StreamId::new(endpoint))));
    assert_eq!(of(&bytes, 2, 0x123), first(0x1023));
    assert_eq!(of(&bytes, 3, 0x1ff), first(0x1_10ff));
    assert_eq!(of(&bytes, 0, 0x123), Ok(None));
    // The range names the second unit, or a node that is none.
    for (named, found) in [(64, Some((1, StreamId::new(0x1023)))), (84, None)] {
        let mut body = bytes[36..].to_vec();
        body[84 - 36 + 16] = named;
        let changed = table(*b"VIOT", &body);
        assert_eq!(of(&changed, 2, 0x123), Ok(found), "{named}");
    }
}
