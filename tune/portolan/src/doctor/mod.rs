//! Answers about a Linux machine: its IOMMU's mode and price, a device's group, peer-to-peer access, and faults.
//!
//! Each answer is made of [`Files`]: of this machine, or of another one.

pub mod files;

pub use files::{Files, KeptFile, Reading};
