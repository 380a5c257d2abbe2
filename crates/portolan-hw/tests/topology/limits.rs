//! Limits that no table format has, but machines do: they bind domains and addresses by themselves.

use portolan::addr::{Iova, IovaRange, PciFunction, StreamId};
use portolan::dma::Direction;
use portolan::iova::AddressOrder;
use portolan_chips::smmuv3::SmmuIdentification;
use portolan_chips::vtd::VtdIdentification;
use portolan_hw::topology::{DeviceOptions, OpenError};
use portolan_sim::decode::AccessKind;

use super::machine::{DEVICE, IORT, Machine, PciWords, REGISTERS, dmar, smmu, vtd};
use super::{driver, opened, packet};

/// Offset of the root complex's memory address size limit in [`IORT`], and that of its mapping's output base.
const LIMIT: usize = 116 + 32;
const OUTPUT: usize = 116 + 40 + 8;

/// [`IORT`] with one byte changed.
fn iort(at: usize, value: u8) -> Vec<u8> {
    let mut table = IORT.bytes();
    table[9] = table[9].wrapping_add(table[at]).wrapping_sub(value);
    table[at] = value;
    table
}

/// MGAW of 39 bits and a SAGAW of four levels alone: Intel's client chips from Skylake on.
#[test]
fn a_disk_behind_a_client_chip_of_intel_does_dma_at_any_address_that_it_is_given() {
    let mut identification = VtdIdentification::default();
    identification.cap = identification.cap & !(0x3f << 16 | 0x1f << 8) | 38 << 16 | 0b100 << 8;
    for order in [AddressOrder::LowFirst, AddressOrder::HighFirst] {
        let machine = vtd(identification);
        let iommus = opened(machine.kernel(), &dmar(REGISTERS));
        let mut options = DeviceOptions::trusted();
        options.space.iova.order = order;
        let device = iommus.device_with(DEVICE, &options).expect("a device");
        driver(&device, |at| {
            assert_eq!(at.get() >> 32 == 0, order == AddressOrder::LowFirst);
            let (stream, unit) = (DEVICE.requester.stream(), &machine.unit);
            let found = unit.dma(stream, None, at, AccessKind::Write, 8).ok()?;
            found.first().map(|piece| piece.pa.get())
        });
    }
}

/// Streams of 24 bits, and a root complex whose streams begin at 0x1_0000: segment 1 of laptops with SC8280XP
/// or X1E80100, and PCIe 2 of HiSilicon's D05.
#[test]
fn a_disk_whose_stream_has_more_than_16_bits_does_dma() {
    let mut identification = SmmuIdentification::default();
    identification.idr[1] = identification.idr[1] & !0x3f | 24;
    let machine = smmu(identification);
    let iommus = opened(machine.kernel(), &iort(OUTPUT + 2, 1));
    let device = iommus.trusted_device(DEVICE).expect("a device");
    let stream = StreamId::new(0x1_0000 + u32::from(DEVICE.requester.get()));
    driver(&device, |at| {
        let found = machine.unit.dma(stream, None, at, AccessKind::Write, 8);
        found.ok()?.first().map(|piece| piece.pa.get())
    });
}

/// A root complex that passes 36 or 40 bits on, as those of published tables of laptops do.
#[test]
fn no_address_is_above_what_iort_says_a_root_complex_passes_on() {
    for bits in [36, 40, 64, 70] {
        let machine = smmu(SmmuIdentification::default());
        let iommus = opened(machine.kernel(), &iort(LIMIT, bits));
        let mut options = DeviceOptions::trusted();
        options.space.iova.order = AddressOrder::HighFirst;
        let device = iommus.device_with(DEVICE, &options).expect("a device");
        let rx = device.map(packet(), Direction::FromDevice).expect("mapped");
        // In the last run of a leaf table, which is fetched at once.
        let highest: u64 = (1 << bits.min(48)) - 1;
        assert_eq!(rx.iova().get() >> 21, highest >> 21, "{bits}");
    }
}

/// Published tables say so of some components: Linux calls it a firmware bug, and does not serve them.
#[test]
fn a_device_of_which_no_address_gets_past_its_root_complex_is_refused() {
    let function = DEVICE;
    let none = Some(OpenError::NoAddress { function });
    let iommus = opened(smmu(SmmuIdentification::default()).kernel(), &iort(LIMIT, 0));
    assert_eq!(iommus.trusted_device(DEVICE).err(), none);
    // Nor one whose driver wants addresses where none get through.
    let iommus = opened(smmu(SmmuIdentification::default()).kernel(), &iort(LIMIT, 32));
    let mut options = DeviceOptions::trusted();
    let high = IovaRange::from_len(Iova::new(1 << 32), 1 << 30);
    options.space.window = high.expect("a range");
    assert_eq!(iommus.device_with(DEVICE, &options).err(), none);
}

/// Of the bridge 0:1.0, which is numbered and passes memory from 0xc000_0000 to 0xffff_ffff downwards.
const BRIDGE: PciFunction = PciFunction::of(0, 1, 0);
const WINDOW: PciWords = &[
    (BRIDGE, 0x0, 0x1234_8086),
    (BRIDGE, 0x4, 0b110),
    (BRIDGE, 0x8, 0x0604_0000),
    (BRIDGE, 0xc, 1 << 16),
    (BRIDGE, 0x18, 0x0001_0100),
    (BRIDGE, 0x20, 0xfff0_c000),
    (BRIDGE, 0x24, 0x0000_fff0),
];

/// Low addresses are where bridges lead to other devices: a write there goes to one of them.
#[test]
fn no_address_is_in_the_window_of_a_bridge() {
    let machine = Machine { config: WINDOW, ..vtd(VtdIdentification::default()) };
    let iommus = opened(machine.kernel(), &dmar(REGISTERS));
    let device = iommus.trusted_device(DEVICE).expect("a device");
    let rx = device.map(packet(), Direction::FromDevice).expect("mapped");
    assert_eq!(rx.iova().get() >> 21, 0xbfff_ffff >> 21);
}
