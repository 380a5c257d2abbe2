//! A queue on disk between the kernel's buffers and the file: pages go in as fast as they are read, and come out at
//! the writer's pace.
//!
//! The file has no name, so nothing is left of it even if the recorder is killed; it is emptied whenever all pages in
//! it were taken.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::error::RecordError;

/// Bytes that an emptied file may keep.
const KEPT: u64 = 64 << 20;

/// The queue.
pub(super) struct Spool {
    /// Output file next to which the queue's file is.
    output: PathBuf,
    state: Mutex<SpoolState>,
    more: Condvar,
}

struct SpoolState {
    file: File,
    written: u64,
    taken: u64,
    ended: bool,
}

impl Spool {
    /// Makes a queue next to `output`, or in the folder for temporary files if that is not a file.
    pub(super) fn beside(output: &Path) -> Result<Self, RecordError> {
        let is_file =
            output != Path::new("-") && fs::metadata(output).map_or(true, |m| m.is_file());
        let path = if is_file {
            let mut name = output.as_os_str().to_owned();
            name.push(".pages");
            name.into()
        } else {
            std::env::temp_dir().join(format!("portolan-{}.pages", std::process::id()))
        };
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(true);
        let opened = options.open(&path);
        let nameless = opened.and_then(|file| fs::remove_file(&path).map(|()| file));
        let file =
            nameless.map_err(|error| RecordError::Spool { path: output.to_owned(), error })?;
        Ok(Self {
            output: output.to_owned(),
            state: Mutex::new(SpoolState { file, written: 0, taken: 0, ended: false }),
            more: Condvar::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, SpoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts `bytes` in.
    pub(super) fn put(&self, bytes: &[u8]) -> Result<(), RecordError> {
        let mut state = self.lock();
        let put = state.file.write_all_at(bytes, state.written);
        put.map_err(|error| RecordError::Spool { path: self.output.clone(), error })?;
        state.written += bytes.len() as u64;
        self.more.notify_one();
        Ok(())
    }

    /// Marks the end of the pages.
    pub(super) fn end(&self) {
        self.lock().ended = true;
        self.more.notify_one();
    }

    /// Bytes that wait.
    pub(super) fn waiting(&self) -> u64 {
        let state = self.lock();
        state.written - state.taken
    }

    /// Fills `into` with the next bytes, waiting for at least one; returns 0 at the end.
    fn next(&self, into: &mut [u8]) -> io::Result<usize> {
        let mut state = self.lock();
        while state.taken == state.written && !state.ended {
            let woken = self.more.wait(state);
            state = woken.unwrap_or_else(PoisonError::into_inner);
        }
        let there = usize::try_from(state.written - state.taken).unwrap_or(usize::MAX);
        let count = there.min(into.len());
        state.file.read_exact_at(&mut into[..count], state.taken)?;
        state.taken += count as u64;
        if state.taken == state.written {
            if state.written > KEPT {
                state.file.set_len(0)?;
            }
            (state.taken, state.written) = (0, 0);
        }
        Ok(count)
    }
}

impl io::Read for &Spool {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.next(into)
    }
}
