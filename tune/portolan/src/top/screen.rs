//! Output of intervals: a table that is drawn again on a terminal, tables one after the other, or lines of JSON.

use std::ops::ControlFlow;

use anyhow::Result;
use portolan_cli::display;

use super::{TopInterval, text};

/// The destination.
pub(super) struct Screen {
    json: bool,
    wide: bool,
    /// Lines of the table that the next one replaces.
    drawn: usize,
}

impl Screen {
    /// A destination to which nothing was sent.
    pub(super) fn new(json: bool, wide: bool) -> Self {
        Self { json, wide, drawn: 0 }
    }

    /// Shows `interval`; breaks off where the reader has gone away.
    pub(super) fn show(&mut self, interval: &TopInterval) -> Result<ControlFlow<()>> {
        if self.json {
            return portolan_cli::print_json_line(interval);
        }
        if self.wide {
            return portolan_cli::print_over(&text::text(interval, usize::MAX, usize::MAX), 0);
        }
        let columns = display::width_of_output();
        match display::lines_of_output() {
            Some(lines) => {
                let table = text::text(interval, columns, lines.saturating_sub(1));
                let replaced = std::mem::replace(&mut self.drawn, table.lines().count());
                portolan_cli::print_over(&table, replaced)
            }
            None => {
                portolan_cli::print_over(&(text::text(interval, columns, usize::MAX) + "\n"), 0)
            }
        }
    }
}
