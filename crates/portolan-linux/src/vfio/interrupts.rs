//! Interrupts as eventfds, and the kernel's word that the device has to be given back.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::{Errno, read};
use vfio_bindings::bindings::vfio as sys;

use super::error::{Step, VfioError};
use crate::sys::{self as call, LineMask};

/// Way in which a device raises interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InterruptKind {
    /// Messages from the device's table (MSI-X).
    MsiX,
    /// Messages (MSI).
    Msi,
    /// Edges of one interrupt of a platform device; for levels there is [`Line`].
    Platform {
        /// Its number, as firmware's tables list them.
        number: u32,
    },
}

impl InterruptKind {
    pub(super) const fn index(self) -> u32 {
        match self {
            Self::MsiX => sys::VFIO_PCI_MSIX_IRQ_INDEX,
            Self::Msi => sys::VFIO_PCI_MSI_IRQ_INDEX,
            Self::Platform { number } => number,
        }
    }

    pub(super) const fn is_pci(self) -> bool {
        matches!(self, Self::MsiX | Self::Msi)
    }
}

/// Interrupts that a device signals to this process, from vector 0 on.
///
/// *Context.* Task.
///
/// *Drop.* The device raises them no more.
#[derive(Debug)]
pub struct Interrupts {
    device: Arc<OwnedFd>,
    index: u32,
    events: Vec<OwnedFd>,
}

impl Interrupts {
    pub(super) fn new(device: Arc<OwnedFd>, index: u32, count: u32) -> Result<Self, VfioError> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let events = (0..count).map(|_| eventfd(0, flags));
        let events: Result<Vec<OwnedFd>, Errno> = events.collect();
        let failed = VfioError::of(Step::Interrupts);
        let events = events.map_err(|error| failed(error.into()))?;
        let fds: Vec<BorrowedFd<'_>> = events.iter().map(|event| event.as_fd()).collect();
        call::signal_by(device.as_fd(), index, &fds).map_err(failed)?;
        Ok(Self { device, index, events })
    }

    /// The eventfds, in the order of the vectors: for an event loop of the caller's.
    pub fn events(&self) -> &[OwnedFd] {
        &self.events
    }

    /// Number of times that `vector` was raised since the last call; 0 if the device has no such vector.
    ///
    /// # Errors
    /// [`VfioError::System`].
    pub fn take(&self, vector: usize) -> Result<u64, VfioError> {
        let Some(event) = self.events.get(vector) else {
            return Ok(0);
        };
        let mut count = [0; 8];
        match read(event, &mut count) {
            Ok(_) => Ok(u64::from_ne_bytes(count)),
            Err(Errno::AGAIN) => Ok(0),
            Err(error) => Err(VfioError::of(Step::Interrupts)(error.into())),
        }
    }

    /// Waits until `vector` is raised, and not longer than `limit`; returns the number of times that it was.
    ///
    /// # Errors
    /// [`VfioError::System`].
    pub fn wait(&self, vector: usize, limit: Duration) -> Result<u64, VfioError> {
        let Some(event) = self.events.get(vector) else {
            return Ok(0);
        };
        let limit = Timespec::try_from(limit).ok();
        match poll(&mut [PollFd::new(event, PollFlags::IN)], limit.as_ref()) {
            Ok(_) | Err(Errno::INTR) => self.take(vector),
            Err(error) => Err(VfioError::of(Step::Interrupts)(error.into())),
        }
    }
}

impl Drop for Interrupts {
    fn drop(&mut self) {
        // A device that is gone raises none in any case.
        let _ = call::signal_by(self.device.as_fd(), self.index, &[]);
    }
}

/// An interrupt that is a level: INTx of a PCI function, or an interrupt of a platform device. The kernel masks it when
/// it is raised, so that a device whose cause stays raises it once: the driver ends the cause, and then unmasks it.
///
/// ```no_run
/// # use std::time::Duration;
/// # use portolan_linux::vfio::{VfioDevice, VfioError};
/// # fn serve(device: &VfioDevice, end_cause: impl Fn()) -> Result<(), VfioError> {
/// let line = device.intx()?;
/// while line.wait(Duration::from_secs(1))? {
///     end_cause();
///     line.unmask()?;
/// }
/// # Ok(())
/// # }
/// ```
///
/// *Context.* Task.
///
/// *Drop.* The device raises it no more.
#[derive(Debug)]
pub struct Line {
    pub(super) asked: Interrupts,
}

impl Line {
    /// The eventfd: for an event loop of the caller's.
    pub fn event(&self) -> Option<BorrowedFd<'_>> {
        self.asked.events.first().map(|event| event.as_fd())
    }

    /// Tells if it was raised since the last call; it is masked then.
    ///
    /// # Errors
    /// [`VfioError::System`].
    pub fn take(&self) -> Result<bool, VfioError> {
        Ok(self.asked.take(0)? > 0)
    }

    /// As [`Line::take`], after a wait of up to `limit`.
    ///
    /// # Errors
    /// [`VfioError::System`].
    pub fn wait(&self, limit: Duration) -> Result<bool, VfioError> {
        Ok(self.asked.wait(0, limit)? > 0)
    }

    /// Masks it: it is not raised until it is unmasked.
    ///
    /// # Errors
    /// [`VfioError::System`]; [`VfioError::Gone`].
    pub fn mask(&self) -> Result<(), VfioError> {
        self.set(LineMask::Masked)
    }

    /// Unmasks it. If its cause is still there, it is raised again at once.
    ///
    /// # Errors
    /// As [`Line::mask`].
    pub fn unmask(&self) -> Result<(), VfioError> {
        self.set(LineMask::Unmasked)
    }

    fn set(&self, mask: LineMask) -> Result<(), VfioError> {
        let Interrupts { device, index, .. } = &self.asked;
        call::mask(device.as_fd(), *index, mask).map_err(VfioError::of(Step::Interrupts))
    }
}

/// Says when the kernel wants the device back: it is being taken out, or unbound. Until every file and
/// mapping of it is closed, the kernel waits.
///
/// *Context.* Task.
#[derive(Debug)]
pub struct Removal {
    pub(super) asked: Interrupts,
}

impl Removal {
    /// Tells if it was asked for since the last call.
    ///
    /// # Errors
    /// [`VfioError::System`].
    pub fn is_wanted(&self) -> Result<bool, VfioError> {
        Ok(self.asked.take(0)? > 0)
    }

    /// As [`Removal::is_wanted`], after a wait of up to `limit`.
    ///
    /// # Errors
    /// [`VfioError::System`].
    pub fn wait(&self, limit: Duration) -> Result<bool, VfioError> {
        Ok(self.asked.wait(0, limit)? > 0)
    }
}
