//! The table of interrupt controllers and processors.
#![no_main]

#[path = "../bodies/interrupts.rs"]
mod interrupts;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| interrupts::madt(bytes));
