//! QEMU's IOMMU models, driven from this process.
#![deny(unsafe_code)]

pub mod qtest;
