//! QEMU's IOMMU models, driven from this process.
#![deny(unsafe_code)]

pub mod guest_tables;
pub mod qtest;
pub mod ram;
