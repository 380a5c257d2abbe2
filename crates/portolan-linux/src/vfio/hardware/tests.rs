//! Descriptions of hardware, as the kernel lays them out.

use portolan::iommu::IommuError;

use super::*;
use crate::sys::iommufd::nested::{WORDS, describe};
use crate::sys::iommufd::selftest;
use crate::vfio::mock::{mock, mock_with_pasids};
use crate::vfio::nested::kinds::{VirtualCmdqv, sealed::Queues};

fn said(kind: u32, first: &[u64]) -> Described {
    let mut words = [0; WORDS];
    words[..first.len()].copy_from_slice(first);
    Described { kind, words, capabilities: 0, pasid_bits: 0 }
}

#[test]
fn registers_are_those_of_the_kind() {
    let of = |kind, first: &[u64]| Hardware::read(&said(kind, first)).registers;
    assert_eq!(of(0, &[7]), HardwareRegisters::None);
    let vtd = HardwareRegisters::Vtd { cap: 0xd2, ecap: 0xf0, no_read_only: true };
    assert_eq!(of(1, &[1, 0xd2, 0xf0]), vtd);
    let smmu = HardwareRegisters::Smmuv3 { idr: [1, 2, 3, 4, 5, 6], iidr: 7, aidr: 8 };
    assert_eq!(of(2, &[0, 2 << 32 | 1, 4 << 32 | 3, 6 << 32 | 5, 8 << 32 | 7]), smmu);
    assert_eq!(of(4, &[9, 8]), HardwareRegisters::Amd { efr: 9, efr2: 8 });
    // Flags, version, queues, streams, reserved.
    let bytes = [0, 0, 0, 0, 1, 7, 4, 0xff];
    let cmdqv = HardwareRegisters::Cmdqv { version: 1, queues_lg2: 7, streams_lg2: 4 };
    assert_eq!(of(3, &[u64::from_ne_bytes(bytes)]), cmdqv);
    assert_eq!(of(5, &[6]), HardwareRegisters::Other { kind: 5, first: 6 });
}

#[test]
fn features_are_single_bits() {
    let with = |capabilities| Hardware::read(&Described { capabilities, ..said(0, &[]) });
    let bits = |found: Hardware| {
        [found.dirty_tracking, found.pasid_execute, found.pasid_privileged, !found.ats]
    };
    for bit in 0..4 {
        let mut wanted = [false; 4];
        wanted[bit] = true;
        assert_eq!(bits(with(1 << bit)), wanted);
    }
    assert_eq!(bits(with(!0xf)), [false; 4]);
}

#[test]
fn kernel_describes_its_device() {
    let test = "kernel_describes_its_device";
    let (Some(plain), Some(with_pasids)) = (mock(test), mock_with_pasids(test)) else {
        return;
    };
    let first = u64::from(selftest::REGISTER) << 32;
    let registers = HardwareRegisters::Other { kind: selftest::HARDWARE, first };
    for (mock, pasid_bits) in [(plain, 0), (with_pasids, selftest::PASID_BITS)] {
        let fd = mock.iommufd.descriptor();
        for kind in [None, Some(selftest::HARDWARE)] {
            let found = Hardware::read(&describe(fd, mock.id, kind).unwrap());
            assert_eq!((found.registers, found.pasid_bits), (registers, pasid_bits));
            assert!(found.dirty_tracking);
        }
        // A part that it does not have, and an object that is no device.
        let refused = describe(fd, mock.id, Some(<VirtualCmdqv as Queues>::HARDWARE));
        assert_eq!(crate::calls::refused(&refused.unwrap_err()), IommuError::Unsupported);
        assert!(describe(fd, mock.home.id(), None).is_err());
    }
}
