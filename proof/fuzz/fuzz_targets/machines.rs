//! A machine's profile.
#![no_main]

#[allow(dead_code)]
#[path = "../bodies/files.rs"]
mod files;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| files::machines(bytes));
