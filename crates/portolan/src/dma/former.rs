//! Mappings that a former kernel has left to this one, and the way of their memory back.
//!
//! A domain that is adopted has them in its tables. They are set aside in its space, and each goes to the driver of
//! the device that uses it, which ends it once the device is done.
//!
//! Not supported: mappings of streams that pass through, and of firmware's devices, which stay.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use super::device::Device;
use super::error::{Failed, UnmapError};
use super::flush_queue::Chosen;
use super::space::{DmaSpace, FormerError};
use crate::addr::{IovaRange, PhysRange};
use crate::inval::Gather;
use crate::platform::Cpus;

/// Mapping that a former kernel has left, in the hands of its device's driver.
///
/// ```no_run
/// # use portolan::addr::{IovaRange, PhysRange};
/// # use portolan::dma::Device;
/// # use portolan::platform::Platform;
/// /// A request that the former kernel has made is completed: its buffer is free.
/// fn completed<P: Platform>(disk: &Device<P>, buffer: IovaRange, free: impl Fn(PhysRange)) {
///     let former = disk.former_mapping(buffer).expect("the former kernel's");
///     former.unmap().expect("the unit answered").into_iter().for_each(free);
/// }
/// ```
///
/// *Drop.* Task, as it may be the last to have its space. Without [`FormerMapping::unmap`] the memory stays mapped, and
/// its addresses stay out of use, until the space ends.
#[must_use = "what is mapped stays reachable"]
pub struct FormerMapping<P: Cpus + Clone> {
    space: Arc<DmaSpace<P>>,
    range: IovaRange,
    memory: Vec<PhysRange>,
    state: FormerState,
    /// Debt of the unmap.
    owed: Gather,
}

/// State of a former kernel's mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FormerState {
    Mapped,
    /// It is unmapped, and the debt is not paid.
    Unmapped,
    /// No device reaches its memory by its addresses.
    Quiet,
}

impl<P: Cpus + Clone> Device<P> {
    /// Takes over what a former kernel has mapped at `range`, rounded outwards to whole pages, for devices of this
    /// space: each page once. The caller knows from that kernel that the device's driver had the mapping.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// See [`FormerError`]; the mapping stays where it is.
    pub fn former_mapping(&self, range: IovaRange) -> Result<FormerMapping<P>, FormerError> {
        let space = self.space().ok_or(FormerError::Untranslated)?.clone();
        let range = space.granules(range);
        let memory = space.take_former(range)?;
        let (state, owed) = (FormerState::Mapped, Gather::new());
        Ok(FormerMapping { space, range, memory, state, owed })
    }
}

impl<P: Cpus + Clone> FormerMapping<P> {
    /// The addresses, whole pages.
    ///
    /// *Context.* Interrupt.
    pub fn addresses(&self) -> IovaRange {
        self.range
    }

    /// The memory to which they lead, in order of addresses.
    ///
    /// *Context.* Interrupt.
    pub fn memory(&self) -> &[PhysRange] {
        &self.memory
    }

    /// Unmaps, and returns the memory once the unit and its devices have forgotten the addresses, under every policy:
    /// no device reaches it by them. What leads there by other addresses or in other spaces goes on doing so.
    ///
    /// *Context.* Atomic; the list of free addresses may take memory.
    ///
    /// # Errors
    /// With the mapping. If the hardware did not complete, it is unmapped, and the memory may still be reached: call
    /// again.
    pub fn unmap(mut self) -> Result<Vec<PhysRange>, Failed<Self, UnmapError>> {
        match self.end() {
            Ok(()) => Ok(core::mem::take(&mut self.memory)),
            Err(error) => Err(Failed { error, value: self }),
        }
    }

    fn end(&mut self) -> Result<(), UnmapError> {
        if self.state == FormerState::Mapped {
            self.space.domain.unmap(self.range, &mut self.owed)?;
            self.space.trace_unmap(self.range);
            self.state = FormerState::Unmapped;
        }
        let paid = self.space.pay_rarely(&mut self.owed, None);
        let flushed = paid.inspect_err(|&error| self.space.fail_by(error))?;
        self.state = FormerState::Quiet;
        self.space.forget_former(self.range);
        self.space.give_back_chosen(self.range, &flushed);
        Ok(())
    }
}

impl<P: Cpus + Clone> fmt::Debug for FormerMapping<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("FormerMapping");
        shown.field("range", &self.range).field("state", &self.state).finish_non_exhaustive()
    }
}

impl<P: Cpus + Clone> Drop for FormerMapping<P> {
    fn drop(&mut self) {
        if self.state == FormerState::Unmapped {
            self.space.forget_former(self.range);
            let owed = core::mem::take(&mut self.owed);
            self.space.hold_until_paid(self.range, owed, Chosen::Caller);
        }
    }
}
