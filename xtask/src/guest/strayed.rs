//! A device that reads memory after its unmap: the fault in the guest's own log, explained with a recording.

use serde_json::Value;

use super::GuestRun;
use super::machines::{Machine, PORTOLAN, Program, RECORD, Target, program};

/// QEMU's `edu` behind VT-d, driven over VFIO.
pub const STRAYED: Machine = Machine {
    name: "strayed",
    step: "Linux guest: a fault of a device behind VT-d, explained",
    disks: &[],
    devices: &["-device", "intel-iommu,intremap=on", "-device", "edu,addr=5,dma_mask=0xffffffff"],
    ports: &[],
    kernel_arguments: "intel_iommu=on",
    modules: &["vfio-pci", "vfio_iommu_type1"],
    programs: &[
        PORTOLAN,
        program("explain-faults"),
        Program {
            package: "portolan-linux",
            target: Target::Example("stray"),
            opt_level: "1",
            options: &[],
        },
    ],
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

/// The answer names the device, its request, the mapping and the unmap.
fn check(ran: &GuestRun, told: &[(&str, &str)]) -> Result<(), String> {
    let line = ran.console.lines().find_map(|line| line.trim_end().strip_prefix("faults: "));
    let answer: Value = serde_json::from_str(line.ok_or("the guest printed no answer")?)
        .map_err(|error| error.to_string())?;
    let faults = answer["faults"].as_array().map_or(&[][..], Vec::as_slice);
    let [fault] = faults else {
        return Err(format!("{} faults, where the device made one", faults.len()));
    };
    let of = |key: &str| fault[key].as_str().unwrap_or_default();
    println!("{}: {}; {}", of("device"), of("kind"), of("belongs_to"));
    let wanted = [
        ("driver", "vfio-pci"),
        ("belongs_to", "made by stray-"),
        ("belongs_to", "unmapped by stray-"),
        ("belongs_to", "after the unmap"),
    ];
    if let Some((key, word)) =
        told.iter().chain(&wanted).find(|(key, word)| !of(key).contains(word))
    {
        return Err(format!("{key} does not say {word:?}: {:?}", of(key)));
    }
    let cause = fault["causes"][0]["why"].as_str().unwrap_or_default();
    match cause.contains("unmapped before") {
        true => Ok(()),
        false => Err(format!("the cause is another one: {cause:?}")),
    }
}
