//! The machines on which Linux runs, what is run there, and what has to come of it.

use super::kernel::Kernel;
use super::{Ran, disk};
use crate::demo::Release;

/// One machine.
pub struct Machine {
    /// Its name in commands.
    pub name: &'static str,
    /// Its name as a step of `cargo xtask test`.
    pub step: &'static str,
    pub kernel: Kernel,
    /// Which releases of QEMU have the machine.
    pub release: Release,
    /// What it consists of beside CPUs, memory and console.
    pub devices: &'static [&'static str],
    /// Its disks: drives of QEMU's that `devices` name, of so many MiB, filled by `disk::before`.
    pub disks: &'static [(&'static str, usize)],
    /// Files of the host's that the guest has as `/dev/virtio-ports/NAME`.
    pub ports: &'static [&'static str],
    /// What the kernel is told.
    pub kernel_arguments: &'static str,
    /// Modules to be loaded; what they need comes with them.
    pub modules: &'static [&'static str],
    /// What is in the guest's `/bin`.
    pub programs: &'static [Program],
    /// What is run, one after the other: words of a command line, without quotes.
    pub runs: &'static [&'static str],
    /// QEMU's events to be traced.
    pub traced: &'static [&'static str],
    /// Looks at what happened, once all programs have ended well.
    pub check: fn(&Ran) -> Result<(), String>,
}

/// A program of this workspace.
pub struct Program {
    pub package: &'static str,
    pub target: Target,
    /// rustc's `opt-level`: 1, or 0 where that builds for too long and the guest's time does not count.
    pub opt_level: &'static str,
}

/// What cargo builds a program from.
pub enum Target {
    Binary(&'static str),
    #[expect(dead_code, reason = "no machine runs one yet")]
    Example(&'static str),
}

const READ_BLOCKS: Program = Program {
    package: "portolan-guest",
    target: Target::Binary("read-blocks"),
    opt_level: "1",
};

/// Two disks behind VT-d, read whole under the kernel's strict policy.
const DISKS: Machine = Machine {
    name: "disks",
    step: "Linux guest: disks behind VT-d",
    kernel: Kernel::Stock,
    release: Release::Any,
    devices: &[
        "-device",
        "intel-iommu,intremap=on",
        "-device",
        "nvme,serial=1,drive=flash",
        "-device",
        "virtio-blk-pci,drive=disk,disable-legacy=on,iommu_platform=on",
    ],
    disks: &[("flash", 4), ("disk", 4)],
    ports: &[],
    kernel_arguments: "intel_iommu=on iommu.strict=1",
    modules: &["virtio_blk"],
    programs: &[READ_BLOCKS],
    runs: &[
        "read-blocks /dev/nvme0n1 4096",
        "read-blocks /dev/vda 65536",
    ],
    traced: &["vtd_inv_desc_iotlb_pages"],
    check: strict_reads,
};

/// All machines.
pub const ALL: &[Machine] = &[
    DISKS,
    Machine {
        name: "disks-own",
        step: "Linux guest: the same, kernel with iommufd",
        kernel: Kernel::Own,
        ..DISKS
    },
];

/// Each request of either disk ends with an invalidation of its pages; what else the machine does adds some.
fn strict_reads(ran: &Ran) -> Result<(), String> {
    let (mut said, mut requests) = (ran.console.lines(), 0);
    for bytes in [4096, 65536] {
        let (all, sum) = (4 << 20, disk::sum(4));
        let count = all / bytes;
        let line = format!("read {all} bytes by {count} requests, sum {sum:#018x}");
        if !said.any(|said| said.trim_end() == line) {
            return Err(format!("the guest did not say {line:?}"));
        }
        requests += count;
    }
    for (name, mebibytes) in DISKS.disks {
        let image = ran.place.join(name).with_extension("img");
        let found = std::fs::read(image).map_err(|error| error.to_string())?;
        if found != disk::before(*mebibytes) {
            return Err(format!("{name} has changed"));
        }
    }
    let traced = ran.traced("vtd_inv_desc_iotlb_pages");
    println!("{requests} requests, {traced} invalidations of pages in QEMU's trace");
    match traced >= requests as u64 {
        true => Ok(()),
        false => Err("a strict kernel invalidates after each request".to_owned()),
    }
}
