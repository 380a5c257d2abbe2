//! Claims of a description, and naive lookups of a device in a table's bytes: both name the same unit's stream.

use portolan::addr::{PciFunction, PciSegment, RequesterId, StreamId};
use portolan_tables::iort::Iort;
use portolan_tables::ivrs::Ivrs;
use portolan_tables::rimt::Rimt;
use portolan_tables::viot::Viot;

use crate::table_bytes::{iort_bytes, ivrs_bytes, rimt_bytes, viot_bytes};
use crate::table_lookup::{iort_stream, ivrs_device, rimt_stream, viot_endpoint};
use crate::topology::Topology;
use crate::topology::pci::PciOverrides;

/// Asserts that each function of four segments has the stream that `looked_up` gives, or an error as that does.
fn agree(bytes: &[u8], looked_up: impl Fn(PciFunction) -> Result<Option<StreamId>, ()>) {
    let topology = Topology::from_acpi([bytes]).unwrap();
    let survey = topology.survey(PciOverrides::KNOWN, |_, _| None);
    let mut served = 0;
    for segment in (0..4).chain([9]).map(PciSegment::new) {
        for requester in (0..=u16::MAX).map(RequesterId::new) {
            let function = PciFunction { segment, requester };
            let found = topology.find(&survey, &|_, _| None, function);
            let stream = found.map(|found| found.map(|(_, stream)| stream)).map_err(drop);
            assert_eq!(stream, looked_up(function), "{function}");
            served += usize::from(stream.is_ok_and(|stream| stream.is_some()));
        }
    }
    assert!(served > 0);
}

#[test]
fn claims_name_the_streams_that_the_tables_name() {
    let bytes = iort_bytes();
    let iort = Iort::parse(&bytes).unwrap();
    agree(&bytes, |of| {
        let found = iort_stream(&iort, of.segment, of.requester).map_err(drop)?;
        Ok(found.map(|found| found.stream))
    });
    let bytes = ivrs_bytes();
    let ivrs = Ivrs::parse(&bytes).unwrap();
    agree(&bytes, |of| {
        let found = ivrs_device(&ivrs, of.segment, of.requester).map_err(drop)?;
        Ok(found.map(|(_, device)| device.alias.unwrap_or(of.requester).stream()))
    });
    let bytes = viot_bytes();
    let viot = Viot::parse(&bytes).unwrap();
    agree(&bytes, |of| {
        let found = viot_endpoint(&viot, of.segment, of.requester).map_err(drop)?;
        Ok(found.map(|(_, stream)| stream))
    });
    let bytes = rimt_bytes();
    let rimt = Rimt::parse(&bytes).unwrap();
    agree(&bytes, |of| Ok(rimt_stream(&rimt, of).map_err(drop)?.map(|(_, stream)| stream)));
}
