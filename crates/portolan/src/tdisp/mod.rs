//! Devices that a confidential guest lets in: locked, measured, accepted, running.
//!
//! A device of such a guest reaches memory that the host sees, and nothing private, until the guest has let its
//! interface in. The order is that of TDISP (PCI Express Base Specification 6.3, chapter 11), which the guest asks its
//! platform's TEE security manager for ([`SecurityManager`]):
//!
//! 1. [`Unlocked::lock`]: the device's configuration can't change any more without an error. The device gives a nonce.
//! 2. [`Locked::measure`]: the guest reads the device's report, certificates and measurements.
//! 3. [`Measured::accept`]: a verifier of the embedder approves of them, or does not.
//! 4. [`Accepted::run`]: the device starts, if it is still locked under that nonce: an interface that was unlocked and
//!    locked again in between is refused.
//!
//! Each state is a type, so no step can be left out. A driver's [`Device`](crate::dma::Device) takes a [`Running`]
//! interface by [`Device::let_in`](crate::dma::Device::let_in): from then on it reaches private buffers in place, and
//! shared ones as before, each as its [`Buffer::host_visibility`](crate::dma::Buffer::host_visibility) says. Once the
//! interface has left the state (the host reset it, its link lost its keys), maps for it are refused: a private buffer
//! that is copied to shared memory then would be shown to the host.
//!
//! Not supported: IDE key management and SPDM sessions, which the security manager keeps to itself; changes of a
//! region's attribute while the interface runs; the layouts of evidence, which `portolan_spec::tdisp` has. No machine
//! with such a device was at hand: the states are tested on a model.
//!
//! *Context.* Task: a security manager talks to the device. [`Running::is_running`] is for interrupts as well.

mod error;
mod interface;

use thiserror::Error;

use crate::addr::PciFunction;

pub use error::{AdmissionError, AdmissionRefused};
pub(crate) use interface::Admission;
pub use interface::{Accepted, Evidence, Locked, Measured, Running, Unlocked};

/// State of an interface (TDI_STATE).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InterfaceState {
    /// CONFIG_UNLOCKED: any configuration, no private memory.
    Unlocked,
    /// CONFIG_LOCKED: a fixed configuration, no private memory.
    Locked,
    /// RUN: a fixed configuration, and private memory.
    Run,
    /// ERROR: no private memory until the interface is stopped.
    Error,
}

/// Number that a device gives when it is locked, and wants when it is started.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct LockNonce([u8; 32]);

impl LockNonce {
    /// The nonce from its bytes.
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    pub const fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl core::fmt::Debug for LockNonce {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        // It opens the interface.
        f.write_str("LockNonce")
    }
}

/// Kind of evidence about a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EvidenceKind {
    /// The device interface report (DEVICE_INTERFACE_REPORT).
    Report,
    /// The chain of certificates of the device's security manager.
    Certificates,
    /// The measurements of its firmware and its configuration.
    Measurements,
}

/// Refusal of a security manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ManagerError {
    /// The manager, or the device, answered with an error of this code.
    #[error("the security manager refuses with code {code:#x}")]
    Refused {
        /// Its code.
        code: u32,
    },
    /// The device did not answer in the manager's time.
    #[error("the device did not answer the security manager")]
    NoAnswer,
}

/// TEE security manager of a platform: the TDX module, SEV firmware, Arm's realm manager.
///
/// *Implementer's duties.* Answers come from the trusted manager, and not from the host. A call returns after a bounded
/// time. One that is wrong lets a device see private memory, and breaks no memory safety: the device reaches what is
/// mapped for it alone.
///
/// *Context.* Task, all methods.
pub trait SecurityManager: Send + Sync {
    /// Locks the interface (LOCK_INTERFACE_REQUEST).
    ///
    /// # Errors
    /// See [`ManagerError`].
    fn lock(&self, function: PciFunction) -> Result<LockNonce, ManagerError>;

    /// Reads evidence of a locked interface from byte `offset` on into `into`, and returns the number of bytes read:
    /// none after the last.
    ///
    /// # Errors
    /// See [`ManagerError`].
    fn evidence(
        &self,
        function: PciFunction,
        kind: EvidenceKind,
        offset: usize,
        into: &mut [u8],
    ) -> Result<usize, ManagerError>;

    /// Starts the interface that was locked with `nonce` (START_INTERFACE_REQUEST), and lets its accesses to the
    /// guest's private memory pass.
    ///
    /// # Errors
    /// See [`ManagerError`].
    fn start(&self, function: PciFunction, nonce: &LockNonce) -> Result<(), ManagerError>;

    /// Stops the interface, from any state, and unlocks it (STOP_INTERFACE_REQUEST). No access to private memory
    /// passes any more when it returns.
    ///
    /// # Errors
    /// See [`ManagerError`].
    fn stop(&self, function: PciFunction) -> Result<(), ManagerError>;

    /// State of the interface (GET_DEVICE_INTERFACE_STATE).
    ///
    /// # Errors
    /// See [`ManagerError`].
    fn state(&self, function: PciFunction) -> Result<InterfaceState, ManagerError>;
}

#[cfg(test)]
pub(crate) mod tests;
