//! Records of copies, and the bytes of a copy before the device has written.

use super::copies::Copier;
use crate::dma::{CopyWhen, Direction, MapError, ToDevice, Trust};

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
fn a_copy_holds_the_buffer_before_the_device_has_written() {
    for trust in [Trust::Trusted, Trust::Untrusted] {
        for direction in [Direction::Bidirectional, Direction::FromDevice] {
            let copier = Copier::new();
            let device = copier.device(trust, CopyWhen::Always);
            copier.bytes.fill(0x1000, 0x100, 7);
            let buffer = copier.buffer(&[(0x1000, 0x100)]);
            let mapping = device.map(buffer, direction).ok().unwrap();
            let (pa, _) = copier.reach(mapping.iova().get()).unwrap();
            assert_eq!(copier.bytes.at(pa, 1), [7], "{trust:?} {direction:?}");
        }
    }
}
