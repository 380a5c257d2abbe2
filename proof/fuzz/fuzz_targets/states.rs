//! Saved states of a virtio-iommu.
#![no_main]

#[allow(dead_code)]
#[path = "../bodies/guests.rs"]
mod guests;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| guests::states(bytes));
