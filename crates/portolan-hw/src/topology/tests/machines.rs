//! Tables of machines and hypervisors, put together from published dumps, and the topology that a
//! person read out of the dump's fields.
//!
//! The dumps name few functions. Trees here have those, and others that such a machine has; which
//! buses are behind a port is made up where the dump does not say it.

extern crate std;

use std::vec;
use std::vec::Vec;

use super::build::{
    at, atsr, bridge, dmar, drhd, endpoint, is, ivhd, ivrs, rhsa, rmrr, scope, survey, words,
};
use crate::table_bytes::table;
use crate::topology::pci::tests::{Fake, Has, Is};

/// Microsoft Surface Laptop Studio, Intel of the eleventh generation:
/// <https://github.com/linux-surface/acpidumps>, `surface_laptop_studio_1/dmar.dsl`. Graphics and both
/// ports of Thunderbolt have units of their own.
#[test]
fn surface_laptop_studio() {
    let table = dmar(
        0x26,
        5,
        &[
            drhd(0, 0xfed9_0000, &[endpoint(0, 2, 0)]),
            drhd(0, 0xfed8_4000, &[bridge(0, 7, 0)]),
            drhd(0, 0xfed8_5000, &[bridge(0, 7, 1)]),
            drhd(1, 0xfed9_1000, &[scope(3, 2, 0, 0x1e, 7), scope(4, 0, 0, 0x1e, 6)]),
            rmrr(0x8380_0000, 0x87bf_ffff, &[endpoint(0, 2, 0)]),
        ],
    );
    let fake = Fake::default()
        .with(at(0, 2, 0), Is::Endpoint, None, Has::Nothing)
        .with(at(0, 7, 0), Is::RootPort, Some((1, 0x2b)), Has::On)
        .several()
        .with(at(0, 7, 1), Is::RootPort, Some((0x2c, 0x56)), Has::On)
        .with(at(0, 0x14, 0), Is::Conventional, None, Has::Nothing)
        .with(at(0x2c, 0, 0), Is::Upstream, Some((0x2d, 0x56)), Has::Nothing)
        .with(at(0x2d, 2, 0), Is::Downstream, Some((0x2e, 0x2e)), Has::Nothing)
        .with(at(0x2e, 0, 0), Is::Endpoint, None, Has::Nothing);
    is(
        &survey(&table, &fake),
        "unit 0: VT-d, registers at 0xfed90000..=0xfed90fff
           serves 0000:00:02.0
           reserves 0xfee00000..=0xfeefffff (Interrupts) of streams 0x0..=0xffffffff
           reserves 0x83800000..=0x87bfffff (Direct(Access(READ | WRITE))) of streams 0x10..=0x10
         unit 1: VT-d, registers at 0xfed84000..=0xfed84fff
           serves 0000:00:07.0 and what is behind it
           reserves 0xfee00000..=0xfeefffff (Interrupts) of streams 0x0..=0xffffffff
         unit 2: VT-d, registers at 0xfed85000..=0xfed85fff
           serves 0000:00:07.1 and what is behind it
           reserves 0xfee00000..=0xfeefffff (Interrupts) of streams 0x0..=0xffffffff
         unit 3: VT-d, registers at 0xfed91000..=0xfed91fff
           serves all functions of segment 0000 that no other unit names
           serves I/O APIC 2, whose messages carry 00:1e.7
           serves timer 0, whose messages carry 00:1e.6
           reserves 0xfee00000..=0xfeefffff (Interrupts) of streams 0x0..=0xffffffff
         0000:00:02.0: unit 0, streams 0x10
         0000:00:07.0: unit 1, streams 0x38
         0000:00:07.1: unit 2, streams 0x39
         0000:00:14.0: unit 3, streams 0xa0
         0000:2c:00.0: unit 2, streams 0x2c00
         0000:2d:02.0: unit 2, streams 0x2d10
         0000:2e:00.0: unit 2, streams 0x2e00, with 0000:2d:02.0",
    );
}

/// ASRock X99 Extreme4, Xeon of the fifth generation; the owner left the reserved memory out:
/// <https://github.com/seijit/OpenCore-EFI-for-ASRock-X99-Extreme4-Broadwell-EP>,
/// `EFI/OC/ACPI/DMAR-ASROCKX99EX4.dsl`. Audio has a unit of its own; ports that pass requests for
/// translations on, and the memory near a unit, say nothing of the devices of a unit.
#[test]
fn asrock_x99() {
    let ports = [bridge(0, 1, 0), bridge(0, 3, 0)];
    let table = dmar(
        0x2d,
        3,
        &[
            drhd(0, 0xfbff_d000, &[endpoint(0, 0x1b, 0)]),
            drhd(
                1,
                0xfbff_c000,
                &[scope(3, 1, 0xf0, 0x1f, 7), scope(3, 2, 0, 5, 4), scope(4, 0, 0xf0, 0xf, 0)],
            ),
            atsr(&ports),
            rhsa(0xfbff_c000, 0),
        ],
    );
    let fake = Fake::default()
        .with(at(0, 1, 0), Is::RootPort, Some((1, 1)), Has::On)
        .with(at(0, 3, 0), Is::RootPort, Some((3, 3)), Has::Just(0))
        .with(at(0, 0x1b, 0), Is::Endpoint, None, Has::Nothing)
        .with(at(0, 0x1c, 0), Is::RootPort, Some((4, 5)), Has::Nothing)
        .with(at(3, 0, 0), Is::Endpoint, None, Has::Nothing)
        .several()
        .with(at(3, 0, 1), Is::Endpoint, None, Has::Nothing)
        .with(at(4, 0, 0), Is::ToPci, Some((5, 5)), Has::Nothing)
        .with(at(5, 1, 0), Is::Conventional, None, Has::Nothing);
    is(
        &survey(&table, &fake),
        "unit 0: VT-d, registers at 0xfbffd000..=0xfbffdfff
           serves 0000:00:1b.0
           reserves 0xfee00000..=0xfeefffff (Interrupts) of streams 0x0..=0xffffffff
         unit 1: VT-d, registers at 0xfbffc000..=0xfbffcfff
           serves all functions of segment 0000 that no other unit names
           serves I/O APIC 1, whose messages carry f0:1f.7
           serves I/O APIC 2, whose messages carry 00:05.4
           serves timer 0, whose messages carry f0:0f.0
           reserves 0xfee00000..=0xfeefffff (Interrupts) of streams 0x0..=0xffffffff
         0000:00:01.0: unit 1, streams 0x8
         0000:00:03.0: unit 1, streams 0x18
         0000:00:1b.0: unit 0, streams 0xd8
         0000:00:1c.0: unit 1, streams 0xe0
         0000:03:00.0: unit 1, streams 0x300, with 0000:00:03.0
         0000:03:00.1: unit 1, streams 0x301, with 0000:00:03.0
         0000:04:00.0: unit 1, streams 0x400, with 0000:00:1c.0
         0000:05:01.0: unit 1, streams 0x508 0x500, with 0000:00:1c.0",
    );
}

/// A server with two Xeons of the first scalable generation, of whose units the published table has
/// those of the second socket but one (a test of Fuchsia's reader of tables, taken from
/// `/sys/firmware/acpi/tables/DMAR` in 2020). The controller whose memory is reserved is one of the
/// first socket, so no unit of the table serves it.
#[test]
fn half_of_a_server() {
    let engines = (0..8).map(|function| endpoint(0x80, 4, function));
    let first: Vec<Vec<u8>> = core::iter::once(scope(3, 0xf, 0x80, 5, 4))
        .chain(engines)
        .chain([bridge(0x80, 0, 0)])
        .collect();
    let ports =
        |buses: &[u8]| atsr(&buses.iter().map(|bus| bridge(*bus, 0, 0)).collect::<Vec<_>>());
    let table = dmar(
        0x2d,
        1,
        &[
            drhd(0, 0xd37f_c000, &first),
            drhd(0, 0xe0ff_c000, &[scope(3, 0x10, 0x85, 5, 4), bridge(0x85, 0, 0)]),
            drhd(0, 0xee7f_c000, &[scope(3, 0x11, 0xae, 5, 4), bridge(0xae, 0, 0)]),
            rmrr(0x7546_0000, 0x7547_0fff, &[endpoint(0, 0x14, 0)]),
            ports(&[0x17, 0x3a, 0x5d]),
            ports(&[0x80, 0x85, 0xae, 0xd7]),
            rhsa(0x9d7f_c000, 0),
            rhsa(0xaaff_c000, 0),
        ],
    );
    assert_eq!(table.len(), 0x160);
    let fake = Fake::default()
        .with(at(0, 0x14, 0), Is::Conventional, None, Has::Nothing)
        .with(at(0x80, 4, 0), Is::Endpoint, None, Has::Nothing)
        .several()
        .with(at(0x80, 4, 1), Is::Endpoint, None, Has::Nothing)
        .with(at(0x85, 0, 0), Is::RootPort, Some((0x86, 0x87)), Has::On)
        .with(at(0x87, 0, 0), Is::Endpoint, None, Has::Nothing);
    let found = survey(&table, &fake);
    let units: Vec<usize> = found.units().iter().map(|unit| unit.claims.len()).collect();
    assert_eq!(units, [10, 2, 2]);
    let served: Vec<_> = found.served().iter().map(|one| one.unit).collect();
    assert_eq!(served, [None, Some(0), Some(0), Some(1), Some(1)]);
    // Nothing but interrupts: the memory is of a controller that no unit serves.
    assert!(found.units().iter().all(|unit| unit.reserved.iter().count() == 1));
    let groups = |function| found.groups().first(found.tree(), function);
    assert_eq!(groups(at(0x80, 4, 1)), at(0x80, 4, 0));
    assert_eq!(groups(at(0x87, 0, 0)), at(0x87, 0, 0));
}

/// ASUS ROG Zephyrus G15 (GA503RM), AMD of the sixth Ryzen generation:
/// <https://github.com/mshcherbyna99/asus-ga503rm-acpi-dump-decompiled>, `ivrs.dsl`. The unit is
/// listed three times; devices without a place of their own (0xff00 to 0xffff) access memory as
/// 00:14.5.
#[test]
fn asus_ga503rm() {
    let all = [3, 3, 0, 0, 4, 0xfe, 0xff, 0];
    let alias = [0x43, 0, 0xff, 0, 0, 0xa5, 0, 0, 4, 0xff, 0xff, 0];
    let padding = [0; 4];
    let timer = [0x48, 0, 0, 0, 0, 0xa0, 0, 2];
    let apics = [[0x48, 0, 0, 0xd7, 0x21, 0xa0, 0, 1], [0x48, 0, 0, 0, 0x22, 1, 0, 1]];
    let entries = [&all[..], &alias, &padding, &timer, &apics[0], &apics[1]].concat();
    let named = |number: u8| {
        let mut entry = vec![0xf0, 0xa5, 0, 0x40];
        entry.extend(b"AMDI0020\0\0\0\0\0\0\0\0\x02\x09\\_SB.FUR");
        entry.push(number);
        entry
    };
    let devices: Vec<u8> = [b'0', b'1', b'2', b'3'].into_iter().flat_map(named).collect();
    let base = 0xfd40_0000;
    let table = ivrs(
        0x0020_3043,
        &[
            ivhd(0x10, 0xb0, base, 0x8004_8f6e, core::slice::from_ref(&entries)),
            ivhd(0x11, 0xb0, base, 0x0004_0200, core::slice::from_ref(&entries)),
            ivhd(0x40, 0xb0, base, 0x0004_0200, &[entries, devices]),
        ],
    );
    assert_eq!(table.len(), 0x1a4);
    let fake = Fake::default()
        .with(at(0, 2, 0), Is::Conventional, None, Has::Nothing)
        .several()
        .with(at(0, 2, 1), Is::RootPort, Some((1, 1)), Has::On)
        .with(at(1, 0, 0), Is::Endpoint, None, Has::Nothing);
    let found = survey(&table, &fake);
    is(
        &found,
        "unit 0: AMD-Vi, registers at 0xfd400000..=0xfd403fff
           serves 0000:00:00.3 to ff:1f.6, streams from 0x3 on
           serves 0000:ff:00.0 to ff:1f.7, which carry 00:14.5
           serves timer 0, whose messages carry 00:14.0
           serves I/O APIC 33, whose messages carry 00:14.0
           serves I/O APIC 34, whose messages carry 00:00.1
           serves ACPI device AMDI0020 \\_SB.FUR0, stream 0xa5
           serves ACPI device AMDI0020 \\_SB.FUR1, stream 0xa5
           serves ACPI device AMDI0020 \\_SB.FUR2, stream 0xa5
           serves ACPI device AMDI0020 \\_SB.FUR3, stream 0xa5
           reserves 0xfee00000..=0xfeefffff (Interrupts) of streams 0x0..=0xffffffff
           reserves 0xfd00000000..=0xffffffffff (Unusable) of streams 0x0..=0xffffffff
         0000:00:02.0: unit 0, streams 0x10
         0000:00:02.1: unit 0, streams 0x11
         0000:01:00.0: unit 0, streams 0x100",
    );
}

/// QEMU's board `virt` with `iommu=smmuv3` and without an interrupt translation service, from a
/// commit's message (qemu-devel, 2025, "Update IORT.its_off"): the root complex has two mappings, of
/// which the first leads through the SMMU.
#[test]
fn qemu_virt() {
    let mut body = words(&[2, 48, 0]);
    // SMMUv3: 88 bytes of which the last 20 are a mapping, to where the service would be.
    body.extend([4, 88, 0, 4]);
    body.extend(words(&[0, 1, 0x44, 0x0905_0000, 0, 1, 0, 0, 0, 0]));
    body.extend(words(&[0x6a, 0x6b, 0x6d, 0x6c, 0, 0]));
    body.extend(words(&[0, 0xffff, 0, 48, 0]));
    // The root complex.
    body.extend([2, 76, 0, 3]);
    body.extend(words(&[1, 2, 0x24, 1, 0x0300_0000, 0, 0, 0x40]));
    body.extend(words(&[0, 0xff, 0, 48, 0]));
    body.extend(words(&[0x100, 0xfeff, 0x100, 48, 0]));
    let table = table(*b"IORT", &body);
    assert_eq!(table.len(), 0xd4);
    let fake = Fake::default().with(at(0, 1, 0), Is::Conventional, None, Has::Nothing).with(
        at(1, 0, 0),
        Is::Conventional,
        None,
        Has::Nothing,
    );
    is(
        &survey(&table, &fake),
        "unit 0: SMMUv3, registers at 0x9050000..=0x906ffff
           serves 0000:00:00.0 to 00:1f.7, streams from 0x0 on
           serves 0000:01:00.0 to ff:1f.7, streams from 0x100 on
         0000:00:01.0: unit 0, streams 0x8
         0000:01:00.0: unit 0, streams 0x100",
    );
}

/// QEMU's q35 with a virtio-iommu and three expander bridges, of which one bypasses it, from a
/// commit's message (qemu-devel, 2021, "tests/acpi: add expected blobs for VIOT test on q35 machine").
#[test]
fn qemu_q35_with_expanders() {
    let node = |endpoint: u32, first: u16| {
        let mut node = vec![1, 0, 24, 0];
        node.extend(endpoint.to_le_bytes());
        node.extend([0; 4]);
        node.extend(first.to_le_bytes());
        node.extend((first + 0xff).to_le_bytes());
        node.extend([48, 0, 0, 0, 0, 0, 0, 0]);
        node
    };
    let mut body = vec![3, 0, 48, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    body.extend([3, 0, 16, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    body.extend(node(0x3000, 0x3000));
    body.extend(node(0x1000, 0x1000));
    let table = table(*b"VIOT", &body);
    assert_eq!(table.len(), 0x70);
    let fake = Fake::default()
        .with(at(0, 2, 0), Is::Endpoint, None, Has::Nothing)
        .with(at(0x10, 0, 0), Is::RootPort, Some((0x11, 0x11)), Has::On)
        .with(at(0x20, 0, 0), Is::Conventional, None, Has::Nothing)
        .with(at(0x30, 1, 0), Is::Conventional, None, Has::Nothing);
    is(
        &survey(&table, &fake),
        "unit 0: virtio-iommu, PCI function 0000:00:02.0
           serves 0000:30:00.0 to 30:1f.7, streams from 0x3000 on
           serves 0000:10:00.0 to 10:1f.7, streams from 0x1000 on
         0000:00:02.0: no unit
         0000:10:00.0: unit 0, streams 0x1000
         0000:20:00.0: no unit
         0000:30:01.0: unit 0, streams 0x3008",
    );
}
