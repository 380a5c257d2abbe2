//! Answers about a Linux machine: its IOMMU's mode and what it costs, a device's group, peer-to-peer access, and faults.
//!
//! Each answer is made of [`Files`]: of this machine, or of another one.

pub mod files;

pub use files::{Entry, Files, Reading};
