//! Loads in guests with the kernels and the programs that people have: the recording, the kernel's counts and the
//! commands that QEMU got have to agree.
//!
//! Two kernels (Debian's stable release's and the newest of its backports), four policies (strict, lazy, passthrough,
//! no IOMMU), seven loads (`make-load`), three recorders (`portolan record`, `trace-cmd`, `perf`). Each machine is one
//! boot. Those of the gate record each load by one recorder; those of [`LONG`](super::LONG) by each of them.

mod check;
mod run;

use super::kernel::Kernel;
use super::machines::{DISKS, Machine, PORTOLAN, program};
use crate::demo::Release;
use check::{Policy, check};
use run::Unit;

/// An emulated VT-d unit; disks without contents; a network whose other side sends back the bytes that it gets;
/// ports, which do without the IOMMU.
macro_rules! devices {
    ($($more:literal),*) => {
        &[
            "-device",
            "intel-iommu,intremap=on",
            // So much that there is a huge page whole.
            "-m",
            "1024",
            "-drive",
            "if=none,id=flash,driver=null-co,size=64M,read-zeroes=on",
            "-device",
            "nvme,serial=1,drive=flash",
            "-drive",
            "if=none,id=second,driver=null-co,size=64M,read-zeroes=on",
            "-device",
            "nvme,serial=2,drive=second",
            "-drive",
            "if=none,id=third,driver=null-co,size=64M,read-zeroes=on",
            "-device",
            "nvme,serial=3,drive=third",
            "-netdev",
            "user,id=net,restrict=on,guestfwd=tcp:10.0.2.100:7-cmd:cat",
            "-device",
            "virtio-net-pci,netdev=net,disable-legacy=on,iommu_platform=on,romfile=",
            "-device",
            "virtio-serial-pci",
            "-chardev",
            "file,id=recordings,path=recordings.tar",
            "-device",
            "virtserialport,chardev=recordings,name=recordings",
            "-chardev",
            "null,id=mark",
            "-device",
            "virtserialport,chardev=mark,name=mark",
            $($more),*
        ]
    };
}
const DEVICES: &[&str] = devices!();
/// Devices with one clock, the instructions', for timers and load. Otherwise timers are late on a busy host.
const ON_ONE_CLOCK: &[&str] = devices!("-icount", "shift=2");
/// Arguments of a kernel: those of its IOMMU; all memory may be huge pages; it sends nothing by itself; all CPUs have
/// one clock, as they have here, because events of two CPUs otherwise change places; and no tests of its ciphers,
/// which take a CPU for some 10 s after the start (7.3), when a machine at work has none.
macro_rules! told {
    ($iommu:literal) => {
        concat!(
            $iommu,
            " transparent_hugepage=always ipv6.disable=1 tsc=reliable cryptomgr.notests=1"
        )
    };
}
const STRICT: &str = told!("intel_iommu=on iommu.strict=1");
const LAZY: &str = told!("intel_iommu=on iommu.strict=0");
const PASSTHROUGH: &str = told!("intel_iommu=on iommu=pt");
const NONE: &str = told!("intel_iommu=off");

/// Assignment of loads to recorders, in three ways, so that each load meets each recorder on each kernel.
const FIRST: &[&str] =
    &["record-loads pages:portolan lists:trace-cmd mixed:perf huge:portolan disks:trace-cmd \
     network:portolan bursts:portolan"];
const SECOND: &[&str] =
    &["record-loads pages:trace-cmd lists:perf mixed:portolan huge:trace-cmd disks:portolan \
     network:trace-cmd bursts:portolan"];
const THIRD: &[&str] =
    &["record-loads pages:portolan lists:portolan mixed:trace-cmd huge:portolan disks:portolan \
     network:trace-cmd bursts:trace-cmd"];
/// Each load by each recorder.
const ALL: &[&str] = &[
    "record-loads pages:portolan pages:trace-cmd pages:perf lists:portolan lists:trace-cmd lists:perf \
     mixed:portolan mixed:trace-cmd mixed:perf huge:portolan huge:trace-cmd huge:perf \
     disks:portolan disks:trace-cmd disks:perf network:portolan network:trace-cmd network:perf \
     bursts:portolan bursts:trace-cmd bursts:perf",
];

/// The newest kernel, strict.
pub const NEWEST_STRICT: Machine = Machine {
    name: "newest-strict",
    step: "Linux guest: loads, newest, strict",
    kernel: Kernel::Newest,
    limit: "900",
    release: Release::Ten,
    devices: DEVICES,
    disks: &[],
    kernel_arguments: STRICT,
    modules: &["virtio_net"],
    programs: &[program("make-load"), program("record-loads"), PORTOLAN],
    applets: &["ip", "tar"],
    tools: true,
    runs: FIRST,
    traced: &["vtd_inv_desc_iotlb_*", "virtio_serial_handle_control_message"],
    check: |ran| check(ran, Unit::VtD, Policy::Strict),
    ..DISKS
};

/// The newest kernel, lazy.
pub const NEWEST_LAZY: Machine = Machine {
    name: "newest-lazy",
    step: "Linux guest: loads, newest, lazy",
    devices: ON_ONE_CLOCK,
    kernel_arguments: LAZY,
    runs: SECOND,
    check: |ran| check(ran, Unit::VtD, Policy::Lazy),
    ..NEWEST_STRICT
};

/// The newest kernel, without translation.
pub const NEWEST_PASSTHROUGH: Machine = Machine {
    name: "newest-passthrough",
    step: "Linux guest: loads, newest, passthrough",
    kernel_arguments: PASSTHROUGH,
    runs: THIRD,
    check: |ran| check(ran, Unit::VtD, Policy::Passthrough),
    ..NEWEST_STRICT
};

/// The newest kernel, without using the unit.
pub const NEWEST_NONE: Machine = Machine {
    name: "newest-none",
    step: "Linux guest: loads, newest, no IOMMU",
    kernel_arguments: NONE,
    runs: THIRD,
    check: |ran| check(ran, Unit::VtD, Policy::None),
    ..NEWEST_STRICT
};

/// The stable release's kernel, strict.
pub const STABLE_STRICT: Machine = Machine {
    name: "stable-strict",
    step: "Linux guest: loads, stable, strict",
    kernel: Kernel::Stock,
    runs: SECOND,
    ..NEWEST_STRICT
};

/// The stable kernel, lazy.
pub const STABLE_LAZY: Machine = Machine {
    name: "stable-lazy",
    step: "Linux guest: loads, stable, lazy",
    kernel: Kernel::Stock,
    runs: FIRST,
    ..NEWEST_LAZY
};

/// The stable kernel, without translation.
pub const STABLE_PASSTHROUGH: Machine = Machine {
    name: "stable-passthrough",
    step: "Linux guest: loads, stable, passthrough",
    kernel: Kernel::Stock,
    ..NEWEST_PASSTHROUGH
};

/// The stable kernel, without using the unit.
pub const STABLE_NONE: Machine = Machine {
    name: "stable-none",
    step: "Linux guest: loads, stable, no IOMMU",
    kernel: Kernel::Stock,
    ..NEWEST_NONE
};

/// The newest kernel behind AMD-Vi, which the kernel for virtual machines has no driver for. Linux is strict there:
/// it sees that a hypervisor plays the unit.
pub const AMD: Machine = Machine {
    name: "amd-strict",
    step: "Linux guest: loads, AMD-Vi, strict",
    kernel: Kernel::NewestFull,
    devices: &[
        "-device",
        "amd-iommu,pt=off,intremap=on",
        "-drive",
        "if=none,id=flash,driver=null-co,size=64M,read-zeroes=on",
        "-device",
        "nvme,serial=1,drive=flash",
        "-device",
        "virtio-serial-pci",
        "-chardev",
        "file,id=recordings,path=recordings.tar",
        "-device",
        "virtserialport,chardev=recordings,name=recordings",
        "-chardev",
        "null,id=mark",
        "-device",
        "virtserialport,chardev=mark,name=mark",
    ],
    kernel_arguments: told!("iommu.strict=1"),
    modules: &["nvme", "virtio_console", "virtio_pci"],
    runs: &["record-loads pages:portolan lists:trace-cmd mixed:portolan"],
    traced: &[
        "amdvi_pages_inval",
        "amdvi_all_inval",
        "amdvi_completion_wait",
        "virtio_serial_handle_control_message",
    ],
    check: |ran| check(ran, Unit::AmdVi, Policy::Strict),
    ..NEWEST_STRICT
};

/// Defines the machine that records each load by each recorder.
macro_rules! whole {
    ($($name:ident: $of:ident, $word:literal, $step:literal;)*) => {
        $(
            #[doc = concat!("`", $word, "`, each load by each recorder.")]
            pub const $name: Machine = Machine {
                name: $word,
                step: $step,
                limit: "1800",
                runs: ALL,
                ..$of
            };
        )*
    };
}

whole! {
    NEWEST_STRICT_ALL: NEWEST_STRICT, "newest-strict-all", "Linux guest: all loads, newest, strict";
    NEWEST_LAZY_ALL: NEWEST_LAZY, "newest-lazy-all", "Linux guest: all loads, newest, lazy";
    NEWEST_PASSTHROUGH_ALL: NEWEST_PASSTHROUGH, "newest-passthrough-all",
        "Linux guest: all loads, newest, passthrough";
    NEWEST_NONE_ALL: NEWEST_NONE, "newest-none-all", "Linux guest: all loads, newest, no IOMMU";
    STABLE_STRICT_ALL: STABLE_STRICT, "stable-strict-all", "Linux guest: all loads, stable, strict";
    STABLE_LAZY_ALL: STABLE_LAZY, "stable-lazy-all", "Linux guest: all loads, stable, lazy";
    STABLE_PASSTHROUGH_ALL: STABLE_PASSTHROUGH, "stable-passthrough-all",
        "Linux guest: all loads, stable, passthrough";
    STABLE_NONE_ALL: STABLE_NONE, "stable-none-all", "Linux guest: all loads, stable, no IOMMU";
}
