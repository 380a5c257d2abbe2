//! A device that reads memory after its unmap: the fault in the guest's own log, explained with a recording.

use serde_json::Value;

use super::GuestRun;
use super::architecture::ARM;
use super::kernel::Kernel;
use super::machines::{Machine, PORTOLAN, Program, RECORD, Target, program};
use crate::demo::Release;

/// The device's driver, over VFIO.
pub(super) const STRAY: Program = Program {
    package: "portolan-linux",
    target: Target::Example("stray"),
    opt_level: "1",
    options: &[],
};

/// QEMU's `edu` behind VT-d, driven over VFIO.
pub const STRAYED: Machine = Machine {
    name: "strayed",
    step: "Linux guest: a fault of a device behind VT-d, explained",
    disks: &[],
    devices: &["-device", "intel-iommu,intremap=on", "-device", "edu,addr=5,dma_mask=0xffffffff"],
    ports: &[],
    kernel_arguments: "intel_iommu=on",
    modules: &["vfio-pci", "vfio_iommu_type1"],
    programs: &[PORTOLAN, program("explain-faults"), STRAY],
    applets: &[],
    runs: &["explain-faults 0000:00:05.0"],
    traced: &[],
    check: |ran| check(ran, &[("unit", "Intel VT-d"), ("device", "00:05.0"), ("tried", "read")]),
    ..RECORD
};

/// The same behind virtio-iommu, which remaps no interrupts.
pub const STRAYED_VIRTIO: Machine = Machine {
    name: "strayed-virtio",
    step: "Linux guest: the same behind virtio-iommu",
    devices: &["-device", "virtio-iommu-pci", "-device", "edu,addr=5,dma_mask=0xffffffff"],
    kernel_arguments: "vfio_iommu_type1.allow_unsafe_interrupts=1",
    modules: &["virtio-iommu", "vfio-pci", "vfio_iommu_type1"],
    // The endpoint's number is the requester's of PCI; QEMU does not report the kind of access.
    check: |ran| check(ran, &[("unit", "virtio-iommu virtio0"), ("device", "endpoint 40")]),
    ..STRAYED
};

/// The same behind AMD-Vi. Older releases of QEMU show none of its events; 11.1 has each event say that it is an
/// interrupt's, and leaves its address out, so that no mapping can be named.
pub const STRAYED_AMD: Machine = Machine {
    name: "strayed-amd",
    step: "Linux guest: portolan explain, a fault behind AMD-Vi",
    kernel: Kernel::NewestFull,
    release: Release::Eleven,
    devices: &[
        "-device",
        "amd-iommu,intremap=on,dma-remap=on",
        "-device",
        "edu,addr=5,dma_mask=0xffffffff",
    ],
    // The kernel finds no IOAPIC in QEMU's table, and remaps no interrupts.
    kernel_arguments: "vfio_iommu_type1.allow_unsafe_interrupts=1",
    check: |ran| {
        let told = [
            ("unit", "AMD-Vi"),
            ("device", "0000:00:05.0"),
            ("driver", "vfio-pci"),
            ("kind", "does not tell the reason"),
        ];
        says(&only_fault(ran)?, &told)
    },
    ..STRAYED
};

/// The same behind an SMMUv3, on AArch64.
pub const STRAYED_ARM: Machine = Machine {
    name: "strayed-arm",
    step: "Linux guest: portolan explain, a fault behind an SMMUv3",
    architecture: &ARM,
    kernel: Kernel::NewestArm,
    devices: &["-device", "edu,addr=5,dma_mask=0xffffffff"],
    kernel_arguments: "",
    check: |ran| check(ran, &[("unit", "SMMUv3"), ("device", "00:05.0"), ("tried", "read")]),
    ..STRAYED
};

/// Checks that the answer names the device, its request, the mapping and the unmap.
fn check(ran: &GuestRun, told: &[(&str, &str)]) -> Result<(), String> {
    let fault = only_fault(ran)?;
    says(&fault, told)?;
    says(
        &fault,
        &[
            ("driver", "vfio-pci"),
            ("belongs_to", "made by stray-"),
            ("belongs_to", "unmapped by stray-"),
            ("belongs_to", "after the unmap"),
        ],
    )?;
    let cause = fault["causes"][0]["why"].as_str().unwrap_or_default();
    match cause.contains("unmapped before") {
        true => Ok(()),
        false => Err(format!("the cause is another one: {cause:?}")),
    }
}

/// The fault in the answer that the guest printed.
fn only_fault(ran: &GuestRun) -> Result<Value, String> {
    let line = ran.console.lines().find_map(|line| line.trim_end().strip_prefix("faults: "));
    let answer: Value = serde_json::from_str(line.ok_or("the guest printed no answer")?)
        .map_err(|error| error.to_string())?;
    let faults = answer["faults"].as_array().map_or(&[][..], Vec::as_slice);
    match faults {
        [fault] => Ok(fault.clone()),
        _ => Err(format!("{} faults, where the device made one", faults.len())),
    }
}

/// Checks that the fields of a fault have their words.
fn says(fault: &Value, told: &[(&str, &str)]) -> Result<(), String> {
    let of = |key: &str| fault[key].as_str().unwrap_or_default();
    println!("{}: {}; {}", of("device"), of("kind"), of("belongs_to"));
    match told.iter().find(|(key, word)| !of(key).contains(word)) {
        Some((key, word)) => Err(format!("{key} does not say {word:?}: {:?}", of(key))),
        None => Ok(()),
    }
}
