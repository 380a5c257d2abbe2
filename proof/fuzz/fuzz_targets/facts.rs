//! A machine's facts, in the line that a recording begins with.
#![no_main]

#[allow(dead_code)]
#[path = "../bodies/files.rs"]
mod files;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| files::facts(bytes));
