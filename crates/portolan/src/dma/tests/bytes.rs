//! The CPU's access to a buffer that is mapped.

use alloc::sync::Arc;
use core::cell::Cell;

use super::buffers::{Bytes, Pages};
use super::rig::{Rig, device_of};
use crate::addr::{PhysAddr, PhysRange};
use crate::dma::{AccessError, Bidirectional, Constraints, FromDevice, MapError, Policy, ToDevice};

#[test]
fn bytes_are_copied_wherever_they_begin_and_end() {
    let rig = Rig::policy(Policy::Strict);
    let device = device_of(&rig, 1, Constraints::trusted());
    let mut expected: [u8; 64] = core::array::from_fn(|at| at as u8);
    let buffer = Bytes::boxed(0x5000, expected);
    let mut mapping = device.map(buffer, Bidirectional).ok().unwrap();
    for at in 0..64 {
        for bytes in 0..=64 - at {
            let mut got = [0xee; 64];
            mapping.read(at as u64, &mut got[..bytes]).unwrap();
            assert_eq!(got[..bytes], expected[at..at + bytes]);
            assert_eq!(got[bytes..], [0xee; 64][bytes..]);
            let new: [u8; 64] = core::array::from_fn(|byte| (byte * 7 + at + bytes) as u8);
            mapping.write(at as u64, &new[..bytes]).unwrap();
            expected[at..at + bytes].copy_from_slice(&new[..bytes]);
        }
    }
    let buffer = mapping.unmap().ok().unwrap();
    assert_eq!(buffer.bytes.map(Cell::into_inner), expected);
}

#[test]
fn bytes_outside_of_the_buffer_are_refused() {
    let rig = Rig::policy(Policy::Strict);
    let device = device_of(&rig, 1, Constraints::trusted());
    let buffer = Bytes::boxed(0x5000, [1; 16]);
    let mut mapping = device.map(buffer, Bidirectional).ok().unwrap();
    let mut two = [0; 2];
    for at in [15, 16, 17, u64::MAX] {
        let outside = Err(AccessError::OutOfBounds { at, bytes: 2, length: 16 });
        assert_eq!(mapping.read(at, &mut two), outside);
        assert_eq!(mapping.write(at, &two), outside);
        assert_eq!(mapping.sync_part_for_cpu(at, 2), outside);
        assert_eq!(mapping.sync_part_for_device(at, 2), outside);
    }
    assert_eq!(mapping.read(14, &mut two), Ok(()));
    assert_eq!((mapping.read(16, &mut []), two), (Ok(()), [1; 2]));
    let _ = mapping.unmap();
}

#[test]
fn shared_memory_is_never_written() {
    let rig = Rig::policy(Policy::Strict);
    let device = device_of(&rig, 1, Constraints::trusted());
    let shared: Arc<[u8]> = Arc::new([3; 8]);
    let buffer = || Bytes {
        bytes: shared.clone(),
        at: PhysRange::from_len(PhysAddr::new(0x5000), 8).unwrap(),
    };
    let refused = device.map(buffer(), FromDevice).err().unwrap();
    assert_eq!(refused.error, MapError::ReadOnly);
    assert!(refused.value.into_buffer().is_ok());
    let refused = device.map(buffer(), Bidirectional).err().unwrap();
    assert_eq!(refused.error, MapError::ReadOnly);
    let mut mapping = device.map(buffer(), ToDevice).ok().unwrap();
    assert_eq!(mapping.write(0, &[1]), Err(AccessError::ReadOnly));
    let mut got = [0; 8];
    mapping.read(0, &mut got).unwrap();
    assert_eq!(got, [3; 8]);
    assert!(mapping.unmap().is_ok());
}

#[test]
fn a_buffer_without_a_view_says_so() {
    let rig = Rig::policy(Policy::Strict);
    let device = device_of(&rig, 1, Constraints::trusted());
    let buffer = Pages::new(&Arc::default(), &[(0x5000, 0x1000)]);
    let mut mapping = device.map(buffer, Bidirectional).ok().unwrap();
    assert_eq!(mapping.read(0, &mut [0]), Err(AccessError::NoView));
    assert_eq!(mapping.write(0, &[0]), Err(AccessError::NoView));
    assert!(mapping.unmap().is_ok());
}
