//! Starting a machine, or saying why not.

use std::io::Write;

use portolan_qemu::machine::{Builder, Machine};

/// The machine; `None`, with a line that says so, where QEMU is missing.
pub fn start(builder: &Builder) -> Option<Machine> {
    match builder.start() {
        Ok(machine) => Some(machine),
        Err(error) => {
            let reason = error.skip().unwrap_or_else(|| panic!("{error}"));
            // Not by a macro, whose lines are kept back when a test passes.
            let _ = writeln!(std::io::stderr(), "SKIP: {reason}");
            None
        }
    }
}
