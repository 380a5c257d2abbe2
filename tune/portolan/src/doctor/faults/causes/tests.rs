//! Rules that no public thread stands for: each fails without its rule.

use super::super::tests::{kept, with};
use super::super::{Fault, Files};

const PCI: &str = "sys/bus/pci/devices";

fn one(log: &str, files: &Files) -> Fault {
    let answers = with(log, files);
    answers.faults.first().cloned().unwrap_or_else(|| panic!("no fault in {log}"))
}

fn vtd(what: &str, device: &str, address: &str, reason: &str) -> String {
    format!(
        "[  100.000000] DMAR: [DMA {what} NO_PASID] Request device [{device}] fault addr {address} \
         [fault reason {reason}] x\n"
    )
}

#[test]
fn the_window_of_interrupt_messages_is_told() {
    let fault = one(&vtd("Write", "01:00.0", "0xfee00000", "0x05"), &kept(&[]));
    assert!(fault.belongs_to.contains("interrupt messages"));
    assert!(fault.causes[0].why.contains("interrupt message"));
}

#[test]
fn another_devices_registers_are_told_by_log_and_by_files() {
    let line = vtd("Read", "01:00.0", "0xc1001000", "0x06");
    for resource in
        ["reg 0x10: [mem 0xc1000000-0xc1ffffff 64bit]", "BAR 0 [mem 0xc1000000-0xc1ffffff]"]
    {
        let log = format!("[    0.5] pci 0000:02:00.0: {resource}\n{line}");
        let fault = one(&log, &kept(&[]));
        assert!(fault.belongs_to.contains("0000:02:00.0"), "{resource}: {}", fault.belongs_to);
        assert!(fault.causes[0].why.contains("peer to peer"));
    }
    let resource = "0x00000000c1000000 0x00000000c1ffffff 0x0000000000140204\n";
    let files = kept(&[(&format!("{PCI}/0000:02:00.0/resource"), resource)]);
    assert!(one(&line, &files).belongs_to.contains("0000:02:00.0"));
    // Ports are no memory.
    let ports = resource.replace("0140204", "0040101");
    let files = kept(&[(&format!("{PCI}/0000:02:00.0/resource"), &ports)]);
    assert!(!one(&line, &files).belongs_to.contains("0000:02:00.0"));
}

#[test]
fn a_reserved_region_of_the_group_or_of_the_log_is_told() {
    let line = vtd("Read", "00:14.0", "0x7a001000", "0x06");
    let device = format!("{PCI}/0000:00:14.0");
    let files = kept(&[
        (&format!("{device}/iommu_group"), "-> ../../../kernel/iommu_groups/5"),
        (&format!("{device}/driver"), "-> ../../../bus/pci/drivers/vfio-pci"),
        (
            "sys/kernel/iommu_groups/5/reserved_regions",
            "0x000000007a000000 0x000000007affffff direct\n",
        ),
    ]);
    let fault = one(&line, &files);
    assert!(
        fault.belongs_to.contains("firmware wants this device to reach"),
        "{}",
        fault.belongs_to
    );
    assert_eq!(fault.driver.as_deref(), Some("vfio-pci"));
    assert!(fault.causes.iter().any(|cause| cause.why.contains("Firmware works with the device")));
    let log = format!("DMAR: RMRR base: 0x0000007a000000 end: 0x0000007affffff\n{line}");
    assert!(one(&log, &kept(&[])).belongs_to.contains("RMRR"));
}

#[test]
fn an_address_beyond_the_width_is_told() {
    let log =
        format!("DMAR: Host address width 39\n{}", vtd("Read", "01:00.0", "0x8000000000", "0x06"));
    let fault = one(&log, &kept(&[]));
    assert!(fault.belongs_to.contains("39 bits"), "{}", fault.belongs_to);
    assert!(fault.causes[0].why.contains("beyond what this IOMMU translates"));
    // By the reason alone.
    let fault = one(&vtd("Read", "01:00.0", "0x8000000000", "0x04"), &kept(&[]));
    assert!(fault.belongs_to.contains("wider"));
}

#[test]
fn an_address_just_above_4_gib_looks_physical_of_a_hosts_device_and_the_largest_do_not() {
    let of = |address: &str, before: &str| {
        let fault =
            one(&format!("{before}{}", vtd("Read", "01:00.0", address, "0x06")), &kept(&[]));
        fault.belongs_to.contains("physical address")
    };
    assert!(of("0x134b53000", ""));
    assert!(!of("0xfffffffff000", ""));
    assert!(!of("0x134b53000", "[   90.0] vfio-pci 0000:01:00.0: enabling device\n"));
    // The machine's memory is known, and the address is none of it.
    let map = "BIOS-e820: [mem 0x0000000000100000-0x0000000079ffffff] usable\n";
    assert!(!of("0x134b53000", map));
}

#[test]
fn low_memory_and_memory_of_firmware_are_told() {
    let fault = one(&vtd("Write", "01:00.0", "0x8c000", "0x05"), &kept(&[]));
    assert!(fault.belongs_to.contains("first MiB") && fault.causes[0].why.contains("low memory"));
    let map = "[    0.0] BIOS-e820: [mem 0x0000000079000000-0x000000007fffffff] reserved\n";
    let fault = one(&format!("{map}{}", vtd("Read", "01:00.0", "0x7a001000", "0x06")), &kept(&[]));
    assert!(fault.belongs_to.contains("firmware keeps"));
}

#[test]
fn a_crash_kernel_is_told() {
    let log = format!(
        "[    0.0] Command line: root=/dev/sda1 elfcorehdr=0x2b000000\n{}",
        vtd("Write", "01:00.0", "0xffa00000", "0x02")
    );
    assert!(one(&log, &kept(&[])).causes[0].why.contains("one that crashed"));
}

#[test]
fn an_unknown_function_beside_a_known_one_is_told_and_a_known_model_by_name() {
    let of = |vendor: &str, device: &str| {
        let folder = format!("{PCI}/0000:08:00.0");
        kept(&[(&format!("{folder}/vendor"), vendor), (&format!("{folder}/device"), device)])
    };
    let line = vtd("Write", "08:00.1", "0xfff00000", "0x02");
    let known = one(&line, &of("0x1b4b\n", "0x9230\n"));
    assert!(known.causes[0].why.contains("has a quirk for this model"), "{:#?}", known.causes);
    let unknown = one(&line, &of("0x1b4b\n", "0x0001\n"));
    assert!(unknown.causes[0].why.contains("knows none for this one"));
    // A function that is there is itself.
    let itself = one(&vtd("Write", "08:00.0", "0xfff00000", "0x02"), &of("0x1b4b\n", "0x9230\n"));
    assert!(!itself.causes[0].why.contains("as another function"));
}

#[test]
fn a_driver_that_had_begun_is_not_firmware() {
    let line = "[    3.000000] DMAR: [DMA Read NO_PASID] Request device [00:02.0] fault addr 0x7cd80000 \
                [fault reason 0x06] x\n";
    let early = one(line, &kept(&[]));
    assert!(early.causes[0].why.contains("picture that firmware drew"));
    let log = format!("[    1.000000] i915 0000:00:02.0: [drm] found\n{line}");
    let late = one(&log, &kept(&[]));
    assert!(
        late.causes.iter().all(|cause| !cause.why.contains("firmware drew")),
        "{:#?}",
        late.causes
    );
}

#[test]
fn broken_tables_and_refused_commands_are_the_kernels() {
    let fault = one(&vtd("Read", "01:00.0", "0xffa00000", "0x0c"), &kept(&[]));
    assert!(fault.causes[0].why.contains("kernel's own tables"));
    let line = "AMD-Vi: Event logged [INVALID_DEVICE_REQUEST device=0000:01:00.0 pasid=0x00000 \
                address=0x80001000 flags=0x0a00]";
    let request = one(line, &kept(&[]));
    assert_eq!(request.device, "0000:01:00.0");
    assert!(request.causes[0].act.as_ref().is_some_and(|act| act.contains("pci=noats")));
    let line = "AMD-Vi: Event logged [COMMAND_HARDWARE_ERROR address=0x100010000 flags=0x0000]";
    let fault = one(line, &kept(&[]));
    assert_eq!((fault.device.as_str(), fault.address.as_deref()), ("the IOMMU itself", None));
    assert!(fault.causes[0].why.contains("queue of commands"));
}

#[test]
fn a_guests_device_and_its_interrupts_are_told() {
    let log = |line: &str| format!("[   90.0] vfio-pci 0000:01:00.0: enabling device\n{line}");
    let fault = one(&log(&vtd("Write", "01:00.0", "0x12345000", "0x05")), &kept(&[]));
    assert!(fault.causes[0].why.contains("belongs to a guest"));
    let line =
        "DMAR: [INTR-REMAP] Request device [01:00.0] fault index 0x0 [fault reason 0x25] Blocked";
    assert!(one(&log(line), &kept(&[])).causes[0].why.contains("A guest wrote"));
}
