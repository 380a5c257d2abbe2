//! A guest's disk in a separate process, behind VT-d, with and without a TLB (ATS).
//!
//! The process, the example `vhost-user-blk`, keeps every translation until it is invalidated. Linux copies half of
//! the disk to the other half under its strict policy and under its lazy one. Its own trace, QEMU's and the process
//! have to agree on the invalidations, and the lazy policy has to need fewer.

use super::machines::{DISKS, Machine, program};
use super::{GuestRun, disk};
use crate::demo::{Release, SOCKET};

/// Size of the disk in MiB.
pub(super) const MEBIBYTES: usize = 4;
const BYTES: usize = 4096;
/// Number of requests that both policies have to make.
const REQUESTS: u64 = (MEBIBYTES << 20) as u64 / BYTES as u64;

/// Invalidations of the disk's translations: the kernel's name of them, and QEMU's event for each.
pub(super) struct InvalidationKind {
    ours: &'static str,
    event: &'static str,
}

/// Invalidations of pages in the unit. They are passed on to a disk without a TLB, which asks the unit.
pub(super) const PAGES: InvalidationKind =
    InvalidationKind { ours: "iotlb_inv (pages)", event: "vtd_inv_desc_iotlb_pages" };
pub(super) const DOMAIN: InvalidationKind =
    InvalidationKind { ours: "iotlb_inv (domain)", event: "vtd_inv_desc_iotlb_domain" };
pub(super) const DEVICE_TLB: InvalidationKind =
    InvalidationKind { ours: "dev_tlb_inv", event: "desc type device high" };

/// The machine's memory is shared with the process that serves the disk, the device `$disk`.
macro_rules! served_disk {
    ($unit:literal $(, $more:literal)*; $disk:literal) => {
        &[
            "-object", "memory-backend-memfd,id=ram,size=512M,share=on",
            "-machine", "memory-backend=ram",
            "-device", $unit,
            $("-device", $more,)*
            "-chardev", SOCKET,
            "-device",
            concat!(
                "vhost-user-blk-pci,chardev=disk,num-queues=2,disable-legacy=on,iommu_platform=on,romfile=",
                $disk
            ),
        ]
    };
}

/// A disk that another process serves, half of which is copied to the other half.
pub const STRICT: Machine = Machine {
    name: "vhost-strict",
    step: "Linux guest: a vhost-user disk, strict",
    devices: served_disk!("intel-iommu,intremap=on"; ""),
    disks: &[("disk", MEBIBYTES)],
    kernel_arguments: "intel_iommu=on iommu.strict=1 trace_event=intel_iommu:qi_submit trace_buf_size=8M",
    programs: &[program("copy-blocks"), program("count-commands")],
    runs: &["copy-blocks /dev/vda 4096", "count-commands"],
    traced: &["vtd_inv_desc*"],
    check: |ran| strict(ran, &PAGES),
    ..DISKS
};

/// The same under the kernel's lazy policy.
pub const LAZY: Machine = Machine {
    name: "vhost-lazy",
    step: "Linux guest: a vhost-user disk, lazy",
    // 7.2 does not pass on that a whole domain is invalidated, and the guest crashes.
    release: Release::Ten,
    kernel_arguments: "intel_iommu=on iommu.strict=0 trace_event=intel_iommu:qi_submit trace_buf_size=8M",
    check: |ran| lazy(ran, &DOMAIN),
    ..STRICT
};

/// The same with a disk that has a TLB.
pub const STRICT_ATS: Machine = Machine {
    name: "vhost-strict-ats",
    step: "Linux guest: a vhost-user disk with ATS, strict",
    devices: served_disk!(
        "intel-iommu,intremap=on,device-iotlb=on", "pcie-root-port,id=root,chassis=1,slot=1";
        ",bus=root,ats=on"
    ),
    check: |ran| strict(ran, &DEVICE_TLB),
    ..STRICT
};

pub const LAZY_ATS: Machine = Machine {
    name: "vhost-lazy-ats",
    step: "Linux guest: a vhost-user disk with ATS, lazy",
    kernel_arguments: LAZY.kernel_arguments,
    check: |ran| lazy(ran, &DEVICE_TLB),
    ..STRICT_ATS
};

/// A strict kernel invalidates the buffer of each request, piece by piece.
pub(super) fn strict(ran: &GuestRun, kind: &InvalidationKind) -> Result<(), String> {
    if copied(ran, kind, 1)? >= REQUESTS {
        Ok(())
    } else {
        Err("a strict kernel invalidates after each request".to_owned())
    }
}

/// Checks a lazy kernel. It invalidates everything at once when enough was unmapped or 10 ms have passed, for many
/// requests together. The disk receives two messages: for the addresses below those of interrupts, and for those
/// above.
pub(super) fn lazy(ran: &GuestRun, kind: &InvalidationKind) -> Result<(), String> {
    if copied(ran, kind, 2)? < REQUESTS {
        Ok(())
    } else {
        Err("a lazy kernel invalidates for many requests together".to_owned())
    }
}

/// Looks at the disk, and compares the counts. Returns the number of the kernel's invalidations; the process that
/// serves the disk got so many `messages` for each.
fn copied(ran: &GuestRun, kind: &InvalidationKind, messages: u64) -> Result<u64, String> {
    let half = (MEBIBYTES << 20) / 2;
    let line = format!("copied {half} bytes by {REQUESTS} requests");
    if !ran.console.lines().any(|said| said.trim_end() == line) {
        return Err(format!("the guest did not say {line:?}"));
    }
    let found = std::fs::read(ran.place.join("disk.img")).map_err(|error| error.to_string())?;
    let before = disk::before(MEBIBYTES);
    if found != [&before[..half]; 2].concat() {
        return Err("the disk does not have its first half twice".to_owned());
    }
    let (kernel, traced) = (counted(&ran.console, kind.ours), ran.traced(kind.event));
    let counts = ran.served.as_ref().ok_or("no program served the disk")?;
    counts.check(&ran.trace, &format!("{kernel} {}", kind.ours))?;
    if (traced, counts.invalidations) != (kernel, kernel * messages) {
        return Err(format!("QEMU traced {traced} {}", kind.event));
    }
    println!("{REQUESTS} requests, {kernel} invalidations");
    Ok(kernel)
}

/// The kernel's count of `kind`.
fn counted(console: &str, kind: &str) -> u64 {
    let lines = console.lines();
    let told = lines
        .filter_map(|line| line.strip_prefix("commands: ")?.trim_end().split_once(' '))
        .filter(|(_, of)| *of == kind);
    told.filter_map(|(number, _)| number.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::counted;

    #[test]
    fn the_kernels_count_is_by_kind() {
        let console = "commands: 22 iec_inv\r\ncommands: 7 iotlb_inv (pages)\r\n";
        assert_eq!(counted(console, "iotlb_inv (pages)"), 7);
        assert_eq!(counted(console, "iotlb_inv (domain)"), 0);
    }
}
