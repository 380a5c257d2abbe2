//! Errors of letting a device in, with the interface in the state that it is left in.
//!
//! *Context.* Interrupt: everything here is a value.

use thiserror::Error;

use super::{EvidenceKind, InterfaceState, ManagerError};

/// Error of a step of letting a device in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AdmissionError {
    /// The security manager refused.
    #[error(transparent)]
    Manager(#[from] ManagerError),
    /// The interface is in another state than this step leaves it in: the host, or the device, changed it.
    #[error("the interface is in state {found:?}, and has to be in {wanted:?}")]
    State {
        /// State that the manager names.
        found: InterfaceState,
        /// State that the step leaves.
        wanted: InterfaceState,
    },
    /// There is more evidence than is read.
    #[error("the device's evidence ({kind:?}) has more than {most} bytes")]
    TooLong {
        /// Its kind.
        kind: EvidenceKind,
        /// Bytes at most.
        most: usize,
    },
    /// The manager says that it wrote more bytes than there was room for.
    #[error("the security manager names {said} bytes of evidence ({kind:?}) where {room} fit")]
    Impossible {
        /// Kind of evidence.
        kind: EvidenceKind,
        /// Bytes that it says.
        said: usize,
        /// Bytes that there was room for.
        room: usize,
    },
    /// No memory for the evidence.
    #[error("no memory for {bytes} bytes of evidence")]
    Memory {
        /// Bytes.
        bytes: usize,
    },
    /// The verifier does not approve of the evidence.
    #[error("the verifier does not approve of the device")]
    NotApproved,
    /// The interface had left the running state at an earlier look.
    #[error("the interface had left its running state before: stop it, and let it in again")]
    Ended,
}

/// Error of a step, and the interface as it was before.
#[derive(Debug)]
pub struct AdmissionRefused<I> {
    /// The reason.
    pub error: AdmissionError,
    /// The interface.
    pub interface: I,
}

impl<I> core::fmt::Display for AdmissionRefused<I> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.error.fmt(f)
    }
}

impl<I: core::fmt::Debug> core::error::Error for AdmissionRefused<I> {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        Some(&self.error)
    }
}
