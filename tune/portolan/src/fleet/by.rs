//! Facts of traces by which they are grouped: the names that the command line takes.

use serde::Serialize;

/// A fact that traces have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum GroupKey {
    /// The kernel's release.
    Kernel,
    /// The drivers of the devices; costs are those of traces that hold devices of no other driver.
    Driver,
    /// The policy that the kernel had.
    Policy,
    /// The machine profile.
    Machine,
}

impl GroupKey {
    /// Its name.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Driver => "driver",
            Self::Policy => "policy",
            Self::Machine => "machine",
        }
    }
}
