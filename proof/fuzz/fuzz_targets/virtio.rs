//! Answers of a virtio-iommu to its driver.
#![no_main]

#[path = "../bodies/devices.rs"]
mod devices;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| devices::virtio(bytes));
