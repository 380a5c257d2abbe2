//! The Debian packages that some steps need.

use std::process::{Command, Stdio};

/// A package, a program that shows its presence, and the steps that need it.
pub struct Package {
    /// Debian's name.
    pub name: &'static str,
    /// A program in it.
    pub program: &'static str,
    /// Steps that cannot run without it.
    pub needed_for: &'static str,
}

/// All of them.
pub const PACKAGES: &[Package] = &[
    Package { name: "z3", program: "z3", needed_for: "the proof of the protocol" },
    Package { name: "valgrind", program: "valgrind", needed_for: "instruction counts" },
    Package {
        name: "qemu-system-x86",
        program: "qemu-system-x86_64",
        needed_for: "VT-d, virtio-iommu and AMD-Vi on QEMU",
    },
    Package {
        name: "qemu-system-arm",
        program: "qemu-system-aarch64",
        needed_for: "SMMUv3 on QEMU",
    },
    // Fonts come with it: fontconfig-config depends on some.
    Package { name: "chromium", program: "chromium", needed_for: "reports in a browser" },
    Package {
        name: "python3-distributed",
        program: "dask-scheduler",
        needed_for: "the recipe for a fleet under Dask",
    },
    Package {
        name: "parallel",
        program: "parallel",
        needed_for: "the recipe for a fleet under GNU parallel",
    },
];

/// Tells if `program` can be started.
pub fn present(program: &str) -> bool {
    Command::new(program)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Installs the missing packages if that is allowed; returns those that are still missing.
pub fn provide() -> Vec<&'static Package> {
    let missing = || PACKAGES.iter().filter(|package| !present(package.program));
    if missing().next().is_some() && may_install() {
        let quiet = |arguments: &[&str]| {
            let mut command = Command::new("apt-get");
            command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive").stdout(Stdio::null());
            command.status().is_ok_and(|status| status.success())
        };
        quiet(&["update", "-qq"]);
        let mut arguments = vec!["install", "-y", "-qq", "--no-install-recommends"];
        arguments.extend(missing().map(|package| package.name));
        quiet(&arguments);
    }
    missing().collect()
}

fn may_install() -> bool {
    let id = Command::new("id").arg("-u").output();
    id.is_ok_and(|output| output.stdout.trim_ascii() == b"0") && present("apt-get")
}
