//! SMMUs of version 2 by IORT, and laptops with Qualcomm's among them.

use portolan::addr::{Iova, PhysAddr, PhysRange, StreamId};
use portolan::iommu::IommuError;
use portolan_chips::chips::LS1088A;
use portolan_chips::smmuv2::{SmmuV2Registers, SmmuV2Setup};
use portolan_hw::topology::pci::PciOverrides;
use portolan_hw::topology::{EnableError, Iommus, Options, Topology};
use portolan_sim::decode::AccessKind;

use super::machine::{
    DEVICE, DISPLAY, FRAMES, Kernel, Machine, REGISTERS, described, iort_of_old_smmu, old_smmu,
};
use super::{driver, opened};

/// Makers of tables: Qualcomm itself, and another.
const QUALCOMM: [u8; 14] = *b"QCOM  QCOMEDK2";
const OTHER: [u8; 14] = *b"NXP   LX2160  ";
const MMU_500: u32 = 3;
/// Bytes of registers of an MMU-500.
const BYTES: u64 = 0x80_0000;

fn reach(machine: &Machine<SmmuV2Registers>, stream: u32, at: u64) -> Option<u64> {
    let (stream, at) = (StreamId::new(stream), Iova::new(at));
    let found = machine.unit.dma(stream, at, AccessKind::Write, 8).ok()?;
    found.first().map(|piece| piece.pa.get())
}

#[test]
fn a_disk_behind_an_smmu_of_version_2_of_iort_does_dma() {
    for model in [1, MMU_500] {
        let setup =
            SmmuV2Setup { identification: LS1088A.identification, ..SmmuV2Setup::default() };
        let machine = old_smmu(&setup);
        let iommus = opened(machine.kernel(), &iort_of_old_smmu(OTHER, BYTES, model));
        let device = iommus.trusted_device(DEVICE).expect("a device");
        let stream = DEVICE.requester.get().into();
        driver(&device, |at| reach(&machine, stream, at.get()));
        // A display that the table names goes on until its driver comes, others reach nothing.
        let display = DISPLAY.requester.get().into();
        assert_eq!(reach(&machine, display, FRAMES), Some(FRAMES));
        assert_eq!(reach(&machine, stream + 8, FRAMES), None);
        let opened = iommus.trusted_device(DISPLAY).expect("a device");
        assert_eq!(reach(&machine, display, FRAMES), Some(FRAMES));
        assert_eq!(reach(&machine, display, FRAMES + 0x1000), None);
        drop(opened);
        drop(device);
        assert_eq!(machine.unit.violations(), []);
    }
}

fn laptop(maker: [u8; 14]) -> (Machine<SmmuV2Registers>, Iommus<Kernel>) {
    let machine = old_smmu(&SmmuV2Setup::qualcomm(0));
    let iommus = opened(machine.kernel(), &iort_of_old_smmu(maker, BYTES, MMU_500));
    (machine, iommus)
}

/// Streams that firmware handed over were cut: the laptop reset itself. Writes of "bypass" come out as faults there.
#[test]
fn a_laptop_s_display_goes_on_while_its_smmu_is_enabled_by_iort() {
    let (machine, iommus) = laptop(QUALCOMM);
    // The display's streams, by one register with a mask.
    assert_eq!(reach(&machine, 0x880, 0x5000), Some(0x5000));
    assert_eq!(reach(&machine, 0x882, 0x5000), Some(0x5000));
    assert_eq!(reach(&machine, 0x881, 0x5000), None);
    let device = iommus.trusted_device(DEVICE).expect("a device");
    let stream = DEVICE.requester.get().into();
    driver(&device, |at| reach(&machine, stream, at.get()));
}

#[test]
fn a_unit_with_more_registers_than_the_table_says_is_refused() {
    let window = PhysRange::from_len(PhysAddr::new(REGISTERS), 0x4000).expect("a range");
    let machine = old_smmu(&SmmuV2Setup::default());
    let table = iort_of_old_smmu(OTHER, 0x4000, MMU_500);
    let topology = Topology::from_acpi([&table[..]]).expect("a table");
    let enabled = topology.enable(machine.kernel(), Options::default(), described());
    match enabled.err() {
        Some(EnableError::Iommu { window: at, error: IommuError::Nonsense { .. } }) => {
            assert_eq!(at, window);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_smmu_of_a_model_that_no_document_has_is_refused_before_it_is_touched() {
    let window = PhysRange::from_len(PhysAddr::new(REGISTERS), BYTES).expect("a range");
    let table = iort_of_old_smmu(OTHER, BYTES, 6);
    let topology = Topology::from_acpi([&table[..]]).expect("a table");
    let survey = topology.survey(PciOverrides::KNOWN, |_, _| None);
    let machine = old_smmu(&SmmuV2Setup::default());
    let enabled = topology.enable(machine.kernel(), Options::default(), described());
    let refused = Some(EnableError::UnknownModel { window, model: 6 });
    assert_eq!([survey.refused(0), enabled.err()], [refused; 2]);
}
