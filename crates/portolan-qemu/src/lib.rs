//! QEMU's IOMMU models, driven from this process.
#![deny(unsafe_code)]

pub mod config;
pub mod dma;
pub mod edu;
pub mod fw_cfg;
pub mod guest_tables;
pub mod machine;
pub mod mmio;
pub mod pci;
mod process;
pub mod qtest;
pub mod ram;
pub mod trace;
