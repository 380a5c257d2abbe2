//! Machines start, show their devices, answer, and end.

mod support;

use std::path::Path;
use std::time::Duration;

use portolan::addr::{Iova, PageSize};
use portolan::platform::Mmio;
use portolan_qemu::config::{Architecture, Device, Iommu, Vtd, VtdFeature, VtdWidth};
use portolan_qemu::edu::{self, Edu, EduError};
use portolan_qemu::fw_cfg::{self, ACPI_TABLES};
use portolan_qemu::machine::{self, Builder, Machine, StartError};
use portolan_qemu::pci::FunctionId;
use portolan_qemu::qtest::{IrqLevel, QtestError};
use portolan_qemu::trace::{VtdDescriptor, VtdInvalidation};
use portolan_spec::pci::extended_id;

use support::start;

/// Tells if a process exists and has not ended.
fn alive(id: u32) -> bool {
    Path::new(&format!("/proc/{id}")).exists()
}

/// Checks that the device's writes arrive at their addresses, with zeros in the high half of the word.
fn edu_writes(machine: &Machine) {
    let edu = Edu::find(&machine.pci().unwrap()).unwrap();
    assert_eq!(edu.identification().unwrap() & 0xff, 0xed);
    let page = machine.tables().alloc(PageSize::SIZE_4K).unwrap();
    machine.ram().fill(page, 4096, 0xaa).unwrap();
    let at = page.checked_add(0x124).unwrap();
    for value in [0xbeef, 0, 0x1234] {
        edu.dma_write32(Iova::new(at.get()), value).unwrap();
        assert_eq!(machine.ram().read32(at), Ok(value.into()));
    }
    let after = at.checked_add(4).unwrap();
    assert_eq!(machine.ram().read32(after), Ok(0xaaaa_aaaa));
    let iova = Iova::new(at.get() + 1);
    assert_eq!(edu.dma_write32(iova, 0), Err(EduError::Unaligned { iova }));
    machine.tables().free(page, PageSize::SIZE_4K);
}

#[test]
fn edu_writes_to_ram_without_iommu() {
    for architecture in Architecture::ALL {
        let builder = Builder::new(architecture).device(Device::edu());
        let Some(machine) = start(&builder) else {
            continue;
        };
        edu_writes(&machine);
        assert_eq!(machine.tables().live(), 0);
    }
}

#[test]
fn a_device_behind_a_port_is_found_and_reached() {
    for architecture in Architecture::ALL {
        let builder = Builder::new(architecture)
            .device(Device::edu().behind_port())
            .device(Device::virtio_blk(1 << 20).behind_port().with_ats());
        let Some(machine) = start(&builder) else {
            continue;
        };
        edu_writes(&machine);
        let pci = machine.pci().unwrap();
        let edu = Edu::find(&pci).unwrap();
        assert_eq!(edu.function().stream().get(), 0x0100);
        let disk = pci.at(FunctionId::new(2, 0, 0)).unwrap();
        assert!(disk.extended_capability(extended_id::ATS).is_ok());
        assert!(edu.function().extended_capability(extended_id::ATS).is_err());
    }
}

#[test]
fn registers_of_each_iommu_answer() {
    let vtd = |width| Iommu::Vtd(Vtd::new(width).with(VtdFeature::CachingMode));
    // CAP of VT-d: ND, CM and SAGAW; SMMUv3: IDR1; AMD-Vi: extended features.
    let cases = [
        (Architecture::X86, vtd(VtdWidth::Bits39), 0x8, 0x1f87, 0x0286),
        (Architecture::X86, vtd(VtdWidth::Bits48), 0x8, 0x1f87, 0x0686),
        (Architecture::Aarch64, Iommu::Smmuv3, 0x0, 0x2, 0x2),
    ];
    for (architecture, iommu, offset, mask, value) in cases {
        let builder = Builder::new(architecture).iommu(iommu);
        let Some(machine) = start(&builder) else {
            continue;
        };
        let registers = machine.iommu_registers().unwrap();
        assert_eq!(registers.read32(offset) & mask, value, "{:?}", machine.iommu());
    }
}

#[test]
fn trace_counts_descriptors() {
    let iommu = Iommu::Vtd(Vtd::new(VtdWidth::Bits48));
    let builder = Builder::new(Architecture::X86).iommu(iommu);
    let Some(machine) = start(&builder) else {
        return;
    };
    let registers = machine.iommu_registers().unwrap();
    let queue = machine.tables().alloc(PageSize::SIZE_4K).unwrap();
    let words = machine.ram().words64(queue, 512).unwrap();
    let put = |at: usize, value| words[at].store(value, std::sync::atomic::Ordering::Release);
    // Global IOTLB invalidation, then a wait that writes 7 behind the descriptors.
    put(0, 0x12);
    put(2, 0x7_0000_0025);
    put(3, queue.get() + 0x800);
    registers.write64(0x90, queue.get());
    registers.write32(0x18, 1 << 26);
    let mark = machine.trace().mark().unwrap();
    registers.write64(0x88, 2 << 4);
    assert_eq!(machine.ram().read32(queue.checked_add(0x800).unwrap()), Ok(7));
    let counts = machine.trace().counts_since(mark).unwrap();
    assert_eq!(counts.vtd_descriptors(), 2);
    assert_eq!(counts.vtd(VtdDescriptor::Iotlb), 1);
    assert_eq!(counts.vtd(VtdDescriptor::Wait), 1);
    assert_eq!(counts.vtd_invalidation(VtdInvalidation::IotlbGlobal), 1);
    assert_eq!(counts.vtd_invalidation(VtdInvalidation::WaitWrite), 1);
    assert_eq!(counts.vtd(VtdDescriptor::ContextCache), 0);
}

#[test]
fn firmware_files_are_read() {
    let vtd = Iommu::Vtd(Vtd::new(VtdWidth::Bits48));
    let cases = [
        (Architecture::X86, vtd, b"DMAR"),
        (Architecture::X86, Iommu::Virtio, b"VIOT"),
        (Architecture::X86, Iommu::Amd, b"IVRS"),
        (Architecture::Aarch64, Iommu::Smmuv3, b"IORT"),
        (Architecture::Aarch64, Iommu::Virtio, b"VIOT"),
    ];
    for (architecture, iommu, signature) in cases {
        let Some(machine) = start(&Builder::new(architecture).iommu(iommu)) else {
            continue;
        };
        machine.pci().unwrap();
        let tables = fw_cfg::read(&machine, ACPI_TABLES).unwrap();
        let name = String::from_utf8_lossy(signature);
        let table = fw_cfg::acpi_table(&tables, *signature).unwrap_or_else(|| panic!("no {name}"));
        assert_eq!(table.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte)), 0);
        println!("{architecture:?}: {} bytes of tables, {name} {}", tables.len(), table.len());
        assert!(fw_cfg::acpi_table(&tables, *b"MCFG").is_some());
        assert_eq!(fw_cfg::read(&machine, "none"), Err(fw_cfg::FwCfgError::Absent));
        assert_eq!(machine.tables().live(), 0);
    }
}

#[test]
fn qemu_ends_with_the_machine() {
    let Some(machine) = start(&Builder::new(Architecture::X86)) else {
        return;
    };
    let id = machine.process_id();
    assert!(alive(id));
    drop(machine);
    assert!(!alive(id));
}

#[test]
fn qemu_outlives_the_thread_that_asked_for_it() {
    let builder = Builder::new(Architecture::X86);
    let started = std::thread::spawn(move || start(&builder)).join().unwrap();
    let Some(machine) = started else { return };
    assert!(machine.qtest().read32(0x10_0000).is_ok());
}

#[test]
fn a_killed_qemu_is_an_error() {
    let iommu = Iommu::Vtd(Vtd::new(VtdWidth::Bits48));
    let builder = Builder::new(Architecture::X86).iommu(iommu).device(Device::edu());
    let Some(machine) = start(&builder) else {
        return;
    };
    let edu = Edu::find(&machine.pci().unwrap()).unwrap();
    let registers = machine.iommu_registers().unwrap();
    machine.kill();
    let gone = Err(EduError::Qtest(QtestError::Gone));
    assert_eq!(edu.dma_write32(Iova::new(0x10_0000), 1), gone);
    assert_eq!(machine.qtest().failed(), Some(QtestError::Gone));
    assert_eq!(registers.read64(0x8), u64::MAX);
    registers.write32(0x18, 1);
    assert!(machine.pci().is_err());
    // This side's memory is still there.
    assert!(machine.ram().write32(machine.ram().base(), 1).is_ok());
    assert!(machine.trace().counts().is_ok());
}

#[test]
fn a_stopped_qemu_is_an_error_within_the_limit() {
    let limit = Duration::from_millis(300);
    let builder = Builder::new(Architecture::X86).answer_limit(limit);
    let Some(machine) = start(&builder) else {
        return;
    };
    let id = rustix::process::Pid::from_raw(i32::try_from(machine.process_id()).unwrap()).unwrap();
    rustix::process::kill_process(id, rustix::process::Signal::STOP).unwrap();
    assert_eq!(machine.qtest().read32(0), Err(QtestError::TimedOut { limit }));
    assert_eq!(machine.qtest().read32(0), Err(QtestError::TimedOut { limit }));
}

#[test]
fn what_qemu_says_is_in_the_error() {
    let builder = Builder::new(Architecture::X86).argument("-device").argument("no-such-device");
    match builder.start() {
        Err(StartError::NoAnswer { error: QtestError::Gone, message }) => {
            assert!(message.contains("no-such-device"), "{message}");
        }
        Err(error) => assert!(error.skip().is_some(), "{error}"),
        Ok(_) => panic!("started with a device that does not exist"),
    }
}

#[test]
fn disks_are_read_and_written_from_outside() {
    let builder = Builder::new(Architecture::X86).device(Device::nvme(1 << 20));
    let Some(machine) = start(&builder) else {
        return;
    };
    let disk = &machine.disks()[0];
    disk.write(512, b"text").unwrap();
    let mut text = [0; 4];
    disk.read(512, &mut text).unwrap();
    assert_eq!((&text, disk.bytes()), (b"text", 1 << 20));
    assert!(disk.write(disk.bytes() - 1, b"xx").is_err());
    assert!(disk.read(disk.bytes(), &mut text).is_err());
}

/// Runs the descriptors of 256 bits each, and a wait for each to be finished.
fn run_wide(machine: &Machine, descriptors: &[u64]) {
    let registers = machine.iommu_registers().unwrap();
    let queue = machine.tables().alloc(PageSize::SIZE_4K).unwrap();
    for (at, descriptor) in (0..).zip(descriptors) {
        let at = queue.checked_add(32 * at).unwrap();
        machine.ram().write64(at, *descriptor).unwrap();
    }
    // Root table pointer with scalable mode, then the queue with wide descriptors.
    registers.write64(0x20, queue.get() | 1 << 10);
    registers.write32(0x18, 1 << 30);
    registers.write64(0x90, queue.get() | 1 << 11);
    registers.write32(0x18, 1 << 26);
    registers.write64(0x88, (descriptors.len() as u64) << 5);
    assert_eq!(registers.read64(0x80), registers.read64(0x88), "the queue is not empty");
}

#[test]
fn first_level_has_its_own_descriptors() {
    let iommu = Iommu::Vtd(Vtd::new(VtdWidth::Bits48).with(VtdFeature::FirstLevel));
    let Some(machine) = start(&Builder::new(Architecture::X86).iommu(iommu)) else {
        return;
    };
    // ECAP.FLTS, and not ECAP.SLTS.
    let ecap = machine.iommu_registers().unwrap().read64(0x10);
    assert_eq!(ecap >> 46 & 3, 0b10, "{ecap:#x}");
    // PASID cache, all; IOTLB of PASID 5 in domain 1.
    run_wide(&machine, &[0x37, 0x5_0001_0026]);
    let counts = machine.trace().counts().unwrap();
    assert_eq!(counts.vtd(VtdDescriptor::PasidIotlb), 1, "{counts:?}");
    // The PASID cache's are not traced.
    assert_eq!(counts.vtd_descriptors(), 1, "{counts:?}");
}

/// Reads the fault record of VT-d: address, source, and whether it is valid.
fn vtd_fault(machine: &Machine) -> (u64, u64, bool) {
    let registers = machine.iommu_registers().unwrap();
    let (address, rest) = (registers.read64(0x220), registers.read64(0x228));
    (address, rest & 0xffff, rest >> 63 == 1)
}

#[test]
fn translation_blocks_what_is_not_mapped() {
    let iommu = Iommu::Vtd(Vtd::new(VtdWidth::Bits48));
    let builder = Builder::new(Architecture::X86).iommu(iommu).device(Device::edu());
    let Some(machine) = start(&builder) else {
        return;
    };
    let edu = Edu::find(&machine.pci().unwrap()).unwrap();
    let registers = machine.iommu_registers().unwrap();
    let [root, target] = [(); 2].map(|()| machine.tables().alloc(PageSize::SIZE_4K).unwrap());
    edu.dma_write32(Iova::new(target.get()), 1).unwrap();
    assert_eq!(machine.ram().read32(target), Ok(1));
    // An empty root table, taken over, and translation on.
    registers.write64(0x20, root.get());
    registers.write32(0x18, 1 << 30);
    registers.write32(0x18, 1 << 31);
    assert_eq!(registers.read32(0x1c) >> 30, 3);
    edu.dma_write32(Iova::new(target.get()), 2).unwrap();
    assert_eq!(machine.ram().read32(target), Ok(1));
    let source = edu.function().stream().get().into();
    assert_eq!(vtd_fault(&machine), (target.get(), source, true));
    assert!(machine.trace().counts().unwrap().of("vtd_dmar_fault") > 0);
}

#[test]
fn versions_are_told() {
    for architecture in Architecture::ALL {
        match machine::version(architecture) {
            Ok(version) => assert!(version.major >= 7, "{version:?}"),
            Err(error) => assert!(error.skip().is_some(), "{error}"),
        }
    }
}

#[test]
fn interrupts_are_intercepted() {
    let builder = Builder::new(Architecture::X86).device(Device::edu());
    let Some(machine) = start(&builder) else {
        return;
    };
    machine.qtest().irq_intercept_in("ioapic").unwrap();
    let pci = machine.pci().unwrap();
    let function = pci.first(edu::ID.0, edu::ID.1).unwrap();
    function.enable().unwrap();
    // Without MSI the device uses its pin.
    let registers = function.bar(0).unwrap();
    registers.write32(0x60, 1);
    let raised = machine.qtest().take_irqs();
    registers.write32(0x64, 1);
    let lowered = machine.qtest().take_irqs();
    let levels = [&raised, &lowered].map(|irqs| irqs.events.front().map(|event| event.level));
    assert_eq!(levels, [Some(IrqLevel::Raised), Some(IrqLevel::Lowered)]);
}
