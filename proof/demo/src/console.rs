//! Lines of text for a person or program that watches.

use core::fmt::{self, Write};

use crate::arch;

pub struct Console;

impl Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.bytes().for_each(arch::put);
        Ok(())
    }
}

/// Writes a line to the console.
#[macro_export]
macro_rules! say {
    ($($of:tt)*) => {{
        use core::fmt::Write as _;
        let _ = writeln!($crate::console::Console, $($of)*);
    }};
}
