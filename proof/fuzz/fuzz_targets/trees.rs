//! Device trees, and what they come to.
#![no_main]

#[allow(dead_code)]
#[path = "../bodies/firmware.rs"]
mod firmware;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| firmware::trees(bytes));
