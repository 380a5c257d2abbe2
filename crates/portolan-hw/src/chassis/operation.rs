//! Operation of a unit: it carries out what it is told, or is suspended, or is off.
//!
//! A unit that is off reaches none of its tables and keeps no copy of them, so that nothing is owed to
//! it: an invalidation is done at once. This is so from the moment at which its streams are
//! blocked and its copies are forgotten ([`Operation::suspend`]); and as everything is forgotten once more
//! before a stream is let through ([`Operation::resume`]), it does not matter if it lost its power.
//!
//! *Context.* Interrupt, but for the functions that carry out what a driver gives them, which waits for the
//! unit (atomic) or takes memory (task).

use alloc::vec::Vec;
use core::sync::atomic::AtomicU64;

use portolan::inval::Walker;
use portolan::iommu::IommuError;
use portolan::platform::TableMem;

use super::Published;
use super::entry::At;
use crate::turn::Admission;

/// States of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum OperationState {
    /// It carries commands out.
    Running = 0,
    /// It reaches no table, and nothing is owed to it.
    Off = 1,
    /// It takes no commands, and may reach its tables.
    Stopped = 2,
}

use OperationState::{Off, Running, Stopped};

/// The state of a unit, and the ways between states. Changes are for one caller at a time.
#[derive(Debug)]
pub(crate) struct Operation(Published);

impl Default for Operation {
    /// Of a unit that is about to be started.
    fn default() -> Self {
        Self(Published::new(Stopped as u64))
    }
}

impl Operation {
    pub(crate) fn set(&self, state: OperationState) {
        self.0.publish(state as u64);
    }

    /// Tells if the unit reaches no table.
    pub(crate) fn is_off(&self) -> bool {
        self.0.get() == Off as u64
    }

    fn is_running(&self) -> bool {
        self.0.get() == Running as u64
    }

    /// Checks that the unit takes commands.
    ///
    /// # Errors
    /// [`IommuError::Stopped`].
    #[inline]
    pub(crate) fn running(&self) -> Result<(), IommuError> {
        if self.is_running() { Ok(()) } else { Err(IommuError::Stopped) }
    }

    /// The outcome of an invalidation, which nothing is owed once the unit is off: it may have been
    /// turned off in between.
    #[inline]
    pub(crate) fn paid(&self, outcome: Result<(), IommuError>) -> Result<(), IommuError> {
        match outcome {
            Err(_) if self.is_off() => Ok(()),
            outcome => outcome,
        }
    }

    /// From a unit that runs to one that is off. `shut` has it reach and keep nothing, with commands if
    /// need be; `drain` waits for those of others, to which none are added by then.
    ///
    /// # Errors
    /// Those of the two: the unit is stopped then.
    pub(crate) fn suspend(
        &self,
        shut: impl FnOnce() -> Result<(), IommuError>,
        drain: impl FnOnce() -> Result<(), IommuError>,
    ) -> Result<(), IommuError> {
        if self.is_off() {
            return Ok(());
        }
        self.set(Running);
        let done = shut().and_then(|()| {
            self.set(Off);
            drain()
        });
        done.inspect_err(|_| self.set(Stopped))
    }

    /// From a unit that is off or stopped, and that may have lost its power, to one that runs. `start`
    /// gives it its registers, has it take commands (and says so: [`Operation::set`]), forget everything
    /// and translate by tables that let nothing through; `open` lets `streams` through.
    ///
    /// # Errors
    /// Those of the two: the unit is as it was, or stopped.
    pub(crate) fn resume<S>(
        &self,
        streams: &mut S,
        start: impl FnOnce(&mut S) -> Result<(), IommuError>,
        open: impl FnOnce(&mut S) -> Result<(), IommuError>,
    ) -> Result<(), IommuError> {
        if self.is_running() {
            return Ok(());
        }
        let before = if self.is_off() { Off } else { Stopped };
        start(streams).inspect_err(|_| self.set(before))?;
        self.set(Running);
        open(streams).inspect_err(|_| self.set(Stopped))
    }
}

impl Admission for Operation {
    fn running(&self) -> Result<(), IommuError> {
        self.running()
    }
}

/// Entries of a table that lead somewhere and were closed, each with the word that it is opened by.
#[derive(Debug, Default)]
pub(crate) struct Shut(Vec<(At, u64)>);

impl Shut {
    /// Closes the entry `at` by `closed` in its first word, unless it is closed already.
    pub(crate) fn close(
        &mut self,
        mem: &impl TableMem<AtomicU64>,
        walker: Walker,
        at: At,
        closed: u64,
    ) {
        let open = at.read(mem)[0];
        if open != closed {
            self.0.push((at, open));
            at.write(mem, 0, closed);
            at.publish(mem, walker);
        }
    }

    /// Opens the entries that were closed.
    pub(crate) fn open(&mut self, mem: &impl TableMem<AtomicU64>, walker: Walker) {
        for (at, open) in self.0.drain(..) {
            at.write(mem, 0, open);
            at.publish(mem, walker);
        }
    }
}
