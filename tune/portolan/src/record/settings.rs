//! Settings of the kernel's tracing that are changed for a time, and put back on every way out.
//!
//! When this is dropped, and on a panic, each file gets the value that it had, the last one changed first. Only a
//! `kill -9` leaves them: [`HOW_TO_RESTORE`] has the commands for that case.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::instance::write;

/// Commands that put back by hand the settings that a killed recorder left.
pub(super) const HOW_TO_RESTORE: &str = "cd /sys/kernel/tracing; echo nop > current_tracer; echo > set_ftrace_filter; \
     echo 0 > events/enable; echo 0 > options/funcgraph-args; echo 1 > tracing_on";

/// A file, and its content before.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Before {
    path: PathBuf,
    value: String,
}

/// The settings that were changed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Changed {
    before: Arc<Mutex<Vec<Before>>>,
}

impl Changed {
    /// Sets a file, which is put back to its present content later.
    pub(super) fn set(&self, path: &Path, value: &str) -> io::Result<()> {
        let now = fs::read_to_string(path)?;
        // A star says that something waits for the event, and is not to be set.
        self.remember(path, now.trim_end().trim_end_matches('*'));
        write(path, value)
    }

    /// Registers `value` to be written to a file at the end.
    pub(super) fn remember(&self, path: &Path, value: &str) {
        let mut before = self.before.lock().unwrap_or_else(PoisonError::into_inner);
        before.push(Before { path: path.to_owned(), value: value.to_owned() });
    }

    /// Puts back everything; the files that could not be, each with the reason.
    pub(super) fn restore(&self) -> Vec<String> {
        let mut before = self.before.lock().unwrap_or_else(PoisonError::into_inner);
        let mut failed = Vec::new();
        while let Some(Before { path, value }) = before.pop() {
            if let Err(error) = write(&path, &value) {
                failed.push(format!("{}: {error}", path.display()));
            }
        }
        failed
    }
}
