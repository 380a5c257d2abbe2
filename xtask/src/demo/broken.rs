//! Machines with something broken on purpose. The kernel has to notice: one that does not would notice nothing else.

use super::guests::{Guest, VHOST, VHOST_ATS, VTD};
use super::{DemoRun, said};

/// A machine that has to fail.
pub struct Broken {
    /// Its name in commands.
    pub name: &'static str,
    /// Its name as a step of `cargo xtask test`.
    pub step: &'static str,
    /// The machine without the mistake.
    pub of: &'static Guest,
    /// More words for the process that serves the disk.
    pub daemon: &'static [&'static str],
    /// Features with which the kernel is built.
    pub features: &'static [&'static str],
    /// Starts of lines that the console must have, in this order.
    said: &'static [&'static str],
}

/// The exit code of a kernel that reports a failure.
pub const BAD: i32 = 35;

/// The kernel's message about data that the disk has written elsewhere.
const LOST: &str = "failed: the disk returned something else";

/// All of them.
pub const ALL: &[Broken] = &[
    Broken {
        name: "x86-vhost-forgetful",
        step: "demo x86-vhost-forgetful, which has to fail",
        of: &VHOST,
        daemon: &["--forget-invalidations"],
        features: &[],
        said: &["taken back: refused, NotMapped", LOST],
    },
    Broken {
        name: "x86-vhost-ats-untold",
        step: "demo x86-vhost-ats-untold, which has to fail",
        of: &VHOST_ATS,
        daemon: &[],
        features: &["untold-device-tlb"],
        said: &["the disk has a TLB that its unit is not told of", LOST],
    },
    Broken {
        name: "x86-vtd-mapped-packets",
        step: "demo x86-vtd-mapped-packets, which has to fail",
        of: &VTD,
        daemon: &[],
        features: &["map-each-packet"],
        said: &["failed: 1000 packets cost"],
    },
    Broken {
        name: "x86-vtd-mapped-pool",
        step: "demo x86-vtd-mapped-pool, which has to fail",
        of: &VTD,
        daemon: &[],
        features: &["pool-stays-mapped"],
        said: &["NIC, Coherent", "failed: a card wrote to a pool that has ended"],
    },
    Broken {
        name: "x86-vtd-unclean",
        step: "demo x86-vtd-unclean, which has to fail",
        of: &VTD,
        daemon: &[],
        features: &["unclean-tables"],
        said: &["a ring without snooping is seen by both", "failed: the unit at"],
    },
];

impl Broken {
    /// Checks that the machine failed in the expected way.
    pub(super) fn check(&self, ran: &DemoRun) -> Result<(), String> {
        match ran.status.code() {
            Some(BAD) => said(&ran.console, &[self.said]),
            Some(code) if code == self.of.code => Err("the kernel noticed nothing".to_owned()),
            _ => Err(format!("the machine ended with {}", ran.status)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::path::PathBuf;
    use std::process::ExitStatus;

    use super::*;

    #[test]
    fn a_kernel_that_notices_nothing_or_something_else_is_not_right() {
        let ran = |code: i32, console: &str| DemoRun {
            place: PathBuf::new(),
            status: ExitStatus::from_raw(code << 8),
            console: console.to_owned(),
            served: None,
        };
        for broken in ALL {
            let console = broken.said.join("\n");
            assert_eq!(broken.check(&ran(BAD, &console)), Ok(()));
            assert!(broken.check(&ran(broken.of.code, &console)).is_err());
            assert!(broken.check(&ran(124, &console)).is_err(), "stuck");
            assert!(broken.check(&ran(BAD, "failed: no memory")).is_err());
        }
    }
}
