//! Firmware's services.
//!
//! RISC-V Supervisor Binary Interface Specification, version 2.0: chapters 3 (calls), 9 (hart state
//! management), 10 (system reset) and 12 (debug console); 5.2 (the older console, where that is missing).

use core::arch::asm;

use crate::Outcome;

/// Extensions, and their functions that are called.
const CONSOLE: usize = 0x4442_434e;
const WRITE_BYTE: usize = 2;
const OLD_CONSOLE: usize = 1;
const HARTS: usize = 0x48_534d;
const START: usize = 0;
const RESET: usize = 0x5352_5354;
const SHUT_DOWN: usize = 0;

/// Asks for a service; the error, or 0.
fn call(extension: usize, function: usize, [a, b, c]: [usize; 3]) -> isize {
    let error;
    // SAFETY: none of the services below touches memory of ours, and they change two registers.
    unsafe {
        asm!("ecall", in("a7") extension, in("a6") function,
            inlateout("a0") a => error, inlateout("a1") b => _, in("a2") c);
    }
    error
}

/// Writes a byte to the console.
pub fn put(byte: u8) {
    let byte = [byte.into(), 0, 0];
    if call(CONSOLE, WRITE_BYTE, byte) != 0 {
        call(OLD_CONSOLE, 0, byte);
    }
}

/// Starts the hart at `entry`.
pub fn start(hart: usize, entry: usize) -> Outcome<()> {
    match call(HARTS, START, [hart, entry, 0]) {
        0 => Ok(()),
        _ => Err("firmware does not start a hart".into()),
    }
}

/// Shuts the machine down.
pub fn shut_down() {
    call(RESET, SHUT_DOWN, [0; 3]);
}
