//! Answers of a kernel to `portolan-linux`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| portolan_linux::vfio::answers::answers(bytes));
