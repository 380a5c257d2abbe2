//! Records of copies, and what a copy holds before the device has written.

use super::copies::Copier;
use crate::addr::StreamId;
use crate::bounce::Fill;
use crate::dma::{Constraints, CopyWhen, Copying, Device, Direction, MapError, ToDevice, Trust};

#[test]
fn a_handler_makes_as_many_copies_as_there_are_records_for() {
    let copier = Copier::new();
    let device = copier.device(Trust::Trusted, CopyWhen::Always);
    let one = || copier.buffer(&[(0x1000, 0x100)]);
    let three = || copier.buffer(&[(0x1000, 0x100), (0x2000, 0x100), (0x3000, 0x100)]);
    let mapping = device.try_map(one(), ToDevice).ok().unwrap();
    mapping.unmap().ok().unwrap();
    let refused = device.try_map(three(), ToDevice).err().unwrap();
    assert_eq!(refused.error, MapError::WouldWait);
    assert_eq!(copier.used(), 0);
    // A task makes room, which stays.
    for _ in 0..2 {
        let mapping = device.map(three(), ToDevice).ok().unwrap();
        mapping.unmap().ok().unwrap();
        let mapping = device.try_map(three(), ToDevice).ok().unwrap();
        mapping.unmap().ok().unwrap();
    }
    assert_eq!(copier.used(), 0);
}

#[test]
fn only_for_a_trusted_device_that_reads_nothing_may_a_copy_be_left_as_it_is() {
    for (trust, reads, copied) in [
        (Trust::Trusted, false, false),
        (Trust::Trusted, true, true),
        (Trust::Untrusted, false, true),
    ] {
        let copier = Copier::new();
        let constraints = Constraints {
            trust,
            ..Constraints::default()
        };
        let space = copier.rig.space.clone();
        let device = Device::translated(space, StreamId::new(9), constraints).unwrap();
        let device = device.with_copies(Copying {
            fill: Fill::Nothing,
            ..copier.copying(CopyWhen::Always)
        });
        copier.bytes.fill(0x1000, 0x100, 7);
        let buffer = copier.buffer(&[(0x1000, 0x100)]);
        let direction = match reads {
            true => Direction::Bidirectional,
            false => Direction::FromDevice,
        };
        let mapping = device.map(buffer, direction).ok().unwrap();
        let (pa, _) = copier.reach(mapping.iova().get()).unwrap();
        let byte = copier.bytes.at(pa, 1)[0];
        assert_eq!(byte, if copied { 7 } else { 0xee }, "{trust:?} {reads}");
    }
}
