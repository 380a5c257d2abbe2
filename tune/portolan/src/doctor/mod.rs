//! Answers about a Linux machine: its IOMMU's mode and price, a device's group, peer-to-peer access, and faults.
//!
//! Each answer is made of a [`Subject`]: the files and the kernel's log of this machine, or of another one. It consists
//! of [`Finding`]s.

pub mod between;
pub mod collect;
pub mod device;
pub mod faults;
pub mod finding;
mod kernel_config;
pub mod log;
pub mod machine;
pub mod pci;
pub mod subject;
#[cfg(test)]
mod tests;

pub use crate::files::{Files, KeptFile, Reading};
pub use finding::{Finding, Verdict, outcome};
pub use log::Log;
pub use subject::Subject;
