//! A machine whose unit and devices do not snoop: rings lie in memory that CPUs do not cache, and buffers are written
//! back.

use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use portolan::addr::{Iova, PhysAddr};
use portolan::dma::{Coherency, Constraints, Device, SharedData};
use portolan_sim::decode::{AccessKind, WalkMemory};

use crate::machine::{DEVICE, Machine, REGISTERS, dmar, vtd_without_snooping};
use crate::opened;
use portolan_chips::vtd::VtdRegisters;

#[repr(C)]
struct Descriptor {
    address: AtomicU64,
    bytes: AtomicU32,
    flags: AtomicU16,
    status: AtomicU16,
}

// SAFETY: its fields are atomics.
unsafe impl SharedData for Descriptor {}

/// Memory that a device reaches at `at`.
fn reach(machine: &Machine<VtdRegisters>, at: Iova, access: AccessKind) -> PhysAddr {
    let stream = DEVICE.requester.stream();
    let pieces = machine.unit.dma(stream, None, at, access, 8).expect("it is mapped");
    pieces[0].pa
}

#[test]
fn a_ring_of_a_device_that_does_not_snoop_is_seen_at_once_by_both() {
    let machine = vtd_without_snooping();
    let iommus = opened(machine.kernel(), &dmar(REGISTERS));
    let device = iommus.trusted_device(DEVICE).expect("it is opened");
    let space = device.space().expect("it is translated").clone();
    drop(device);
    let mut limits = Constraints::trusted();
    limits.coherency = Coherency::NotCoherent;
    let device =
        Device::translated(space, DEVICE.requester.stream(), limits).expect("it is opened");
    let ring = device.coherent_of::<Descriptor>(16).expect("the platform has uncached memory");
    let entry = &ring.items()[3];
    entry.address.store(0x1234_5000, Ordering::Relaxed);
    entry.bytes.store(1518, Ordering::Relaxed);
    entry.flags.store(1, Ordering::Release);
    // The device reads past the caches, in which the lines of tables have been written back.
    let at = ring.iova_of(3).expect("an entry");
    let found = reach(&machine, at, AccessKind::Read);
    let [low, high] = [0, 8].map(|offset| {
        let at = found.checked_add(offset).expect("inside");
        machine.memory.read_u64(at).expect("memory")
    });
    assert_eq!((low, high), (0x1234_5000, 1 << 32 | 1518));
    let found = reach(&machine, at, AccessKind::Write).checked_add(14).expect("inside");
    machine.memory.write(found, &7u16.to_le_bytes()).expect("memory");
    assert_eq!(entry.status.load(Ordering::Acquire), 7);
    drop(ring);
    assert_eq!(machine.unit.violations(), []);
}
