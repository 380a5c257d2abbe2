//! The machines on which the conformance scenarios run over the kernel's interfaces, and the checks of their
//! results.

use super::GuestRun;
use super::kernel::Kernel;
use super::machines::{Machine, Program, Target, VFIO};

/// The conformance scenarios over the kernel's interface.
pub const CHECK: Machine = Machine {
    name: "check-vfio",
    step: "Linux guest: the scenarios over VFIO",
    devices: &[
        "-device",
        "intel-iommu,intremap=on",
        "-device",
        "edu,dma_mask=0xffffffffffffffff,addr=4",
        "-device",
        "edu,dma_mask=0xffffffffffffffff,addr=5",
        "-device",
        "nvme,serial=1,drive=flash,addr=6",
        // Devices that are refused: a group of two functions, and a function behind no IOMMU.
        "-device",
        "pci-bridge,id=bridge,chassis_nr=1,addr=7",
        "-device",
        "edu,bus=bridge,addr=1",
        "-device",
        "nvme,serial=2,bus=bridge,addr=2",
        "-device",
        "pxb-pcie,id=aside,bus_nr=32,bypass_iommu=on,addr=8",
        "-device",
        "pcie-root-port,id=below,bus=aside",
        "-device",
        "edu,bus=below",
        // An edu takes 100 ms of the guest's time for each transfer. With instruction counting, that time passes at
        // once while the guest waits.
        "-icount",
        "shift=auto,sleep=off",
    ],
    programs: &[
        Program { target: Target::Binary("portolan-verify"), ..LEFT_OUT },
        LEFT_OUT,
        Program {
            package: "portolan-linux",
            target: Target::Example("refused"),
            opt_level: "0",
            options: &[],
        },
    ],
    runs: &[
        "portolan-verify check --bind --backend vfio:0000:00:04.0,0000:00:05.0,0000:00:06.0",
        "left-out vfio:0000:00:04.0,0000:00:05.0",
        "refused 0000:00:04.0 0000:01:01.0 0000:21:00.0",
    ],
    // Each access that is refused is a line of the kernel's otherwise.
    kernel_arguments: "intel_iommu=on loglevel=2",
    traced: &["vtd_inv_desc_iotlb_*"],
    check: |ran| scenarios(ran, &["vfio"]),
    ..VFIO
};

/// The same check over both interfaces.
pub const CHECK_OWN: Machine = Machine {
    name: "check-iommufd",
    step: "Linux guest: the scenarios over VFIO and iommufd",
    kernel: Kernel::Own,
    runs: &[
        "portolan-verify check --bind --backend vfio:0000:00:04.0,0000:00:05.0,0000:00:06.0",
        "portolan-verify check --backend iommufd:0000:00:04.0,0000:00:05.0,0000:00:06.0",
        "left-out iommufd:0000:00:04.0,0000:00:05.0",
    ],
    check: |ran| scenarios(ran, &["vfio", "iommufd"]),
    ..CHECK
};

/// Program without the drivers of units, which take minutes to build.
const LEFT_OUT: Program = Program {
    package: "portolan-verify",
    target: Target::Example("left-out"),
    opt_level: "0",
    options: &["--no-default-features"],
};

/// Scenarios that say nothing if they are skipped here, one for each thing that the kernel has to do.
const NEEDED: [&str; 10] = [
    "mapped-access-succeeds",
    "unmapped-access-faults",
    "read-only-refuses-writes",
    "stale-until-sync",
    "other-domain-stays-stale",
    "never-attached-is-blocked",
    "domain-to-domain",
    "ranges-are-whole",
    "random-operations",
    "random-disk-transfers",
];

/// Checks for each of `interfaces` that no scenario failed, that the required ones ran, and that each omission was
/// noticed.
fn scenarios(ran: &GuestRun, interfaces: &[&str]) -> Result<(), String> {
    let lines = || ran.console.lines().map(str::trim_end);
    for interface in interfaces {
        let mut of = lines().filter_map(|line| line.strip_prefix(interface)?.strip_prefix(':'));
        let total = of.find(|line| line.ends_with(" skipped") && line.contains(" 0 failed, "));
        let total =
            total.ok_or_else(|| format!("{interface}: the guest did not say that none failed"))?;
        println!("{interface}:{total}");
        for name in NEEDED {
            let passed = |line: &str| {
                let end = line.strip_prefix(interface)?.split_once("PASS  ");
                end.and_then(|(_, end)| end.split(' ').next()).map(|end| end == name)
            };
            if !lines().any(|line| passed(line) == Some(true)) {
                return Err(format!("{interface}: {name} did not pass"));
            }
        }
    }
    let noticed = lines().filter(|line| line.starts_with("left out: ")).count();
    let traced = ran.traced("vtd_inv_desc_iotlb_pages") + ran.traced("vtd_inv_desc_iotlb_domain");
    println!(
        "{noticed} times something was left out and noticed; {traced} invalidations in QEMU's trace"
    );
    Ok(())
}
