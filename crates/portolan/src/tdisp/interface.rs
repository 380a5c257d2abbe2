//! The states of an interface as types, and the flag that a device's mappings look at.
//!
//! *Context.* Task, but where a function says otherwise.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};

use super::{
    AdmissionError, AdmissionRefused, EvidenceKind, InterfaceState, LockNonce, SecurityManager,
};
use crate::addr::PciFunction;

/// Bytes at most of each kind of evidence: certificates have up to 64 KiB, a report up to 64 KiB by its length field.
const MOST_EVIDENCE: usize = 1 << 20;

/// Bytes that are asked for at once.
const PORTION: usize = 4096;

/// Interface of a device, and its security manager.
struct Interface<M: SecurityManager> {
    manager: Arc<M>,
    function: PciFunction,
}

impl<M: SecurityManager> Interface<M> {
    /// Checks that the interface is in the state that a step leaves.
    fn check(&self, wanted: InterfaceState) -> Result<(), AdmissionError> {
        match self.manager.state(self.function)? {
            found if found == wanted => Ok(()),
            found => Err(AdmissionError::State { found, wanted }),
        }
    }

    fn read(&self, kind: EvidenceKind) -> Result<Vec<u8>, AdmissionError> {
        let mut all: Vec<u8> = Vec::new();
        loop {
            let offset = all.len();
            if offset > MOST_EVIDENCE {
                return Err(AdmissionError::TooLong { kind, most: MOST_EVIDENCE });
            }
            let reserved = all.try_reserve(PORTION);
            reserved.map_err(|_| AdmissionError::Memory { bytes: offset + PORTION })?;
            all.resize(offset + PORTION, 0);
            let room = all.get_mut(offset..).unwrap_or_default();
            let said = self.manager.evidence(self.function, kind, offset, room)?;
            if said > PORTION {
                return Err(AdmissionError::Impossible { kind, said, room: PORTION });
            }
            all.truncate(offset + said);
            if said == 0 {
                return Ok(all);
            }
        }
    }
}

impl<M: SecurityManager> fmt::Debug for Interface<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interface").field("function", &self.function).finish_non_exhaustive()
    }
}

/// Gives an interface back with the error of a step.
const fn refused<I>(error: AdmissionError, interface: I) -> AdmissionRefused<I> {
    AdmissionRefused { error, interface }
}

/// Interface that the host may configure.
///
/// ```no_run
/// # use portolan::addr::PciFunction;
/// # use portolan::dma::Device;
/// # use portolan::platform::Platform;
/// # use portolan::tdisp::{AdmissionError, Evidence, Running, SecurityManager, Unlocked};
/// # use std::sync::Arc;
/// /// Lets a card in, if the guest's owner knows its firmware.
/// fn let_in<M: SecurityManager, P: Platform>(
///     manager: Arc<M>, function: PciFunction, card: Device<P>, known: impl FnOnce(&Evidence) -> bool,
/// ) -> Result<(Running<M>, Device<P>), AdmissionError> {
///     let locked = Unlocked::new(manager, function).lock().map_err(|refused| refused.error)?;
///     let measured = locked.measure().map_err(|refused| refused.error)?;
///     let accepted = measured.accept(known).map_err(|refused| refused.error)?;
///     let running = accepted.run().map_err(|refused| refused.error)?;
///     let card = card.let_in(&running);
///     Ok((running, card))
/// }
/// ```
#[derive(Debug)]
pub struct Unlocked<M: SecurityManager>(Interface<M>);

impl<M: SecurityManager> Unlocked<M> {
    /// The interface of `function`.
    pub const fn new(manager: Arc<M>, function: PciFunction) -> Self {
        Self(Interface { manager, function })
    }

    /// Locks the interface. The driver has finished what it does to the function's configuration space.
    ///
    /// # Errors
    /// See [`AdmissionError`].
    pub fn lock(self) -> Result<Locked<M>, AdmissionRefused<Self>> {
        match self.0.manager.lock(self.0.function) {
            Ok(nonce) => Ok(Locked(InterfaceLock { interface: self.0, nonce, is_stopped: false })),
            Err(error) => Err(refused(error.into(), self)),
        }
    }
}

/// Lock of an interface, until it is stopped.
#[derive(Debug)]
struct InterfaceLock<M: SecurityManager> {
    interface: Interface<M>,
    nonce: LockNonce,
    is_stopped: bool,
}

impl<M: SecurityManager> InterfaceLock<M> {
    fn stop(&mut self) -> Result<Unlocked<M>, AdmissionError> {
        let Interface { manager, function } = &self.interface;
        manager.stop(*function)?;
        self.is_stopped = true;
        Ok(Unlocked::new(manager.clone(), *function))
    }
}

impl<M: SecurityManager> Drop for InterfaceLock<M> {
    fn drop(&mut self) {
        if !self.is_stopped {
            // No caller is left to tell; a locked interface reaches nothing private.
            let _ = self.stop();
        }
    }
}

/// Interface whose configuration is fixed. Dropping it stops it.
#[derive(Debug)]
pub struct Locked<M: SecurityManager>(InterfaceLock<M>);

/// What is known about a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evidence {
    /// The device interface report; its layout is in `portolan_spec::tdisp`.
    pub report: Vec<u8>,
    /// Certificates, as the device's security manager gave them (SPDM's chain).
    pub certificates: Vec<u8>,
    /// Measurements, signed by the last certificate (SPDM's MEASUREMENTS).
    pub measurements: Vec<u8>,
}

impl<M: SecurityManager> Locked<M> {
    /// Reads the device's evidence. If the host unlocks the interface meanwhile, or locks it again, it is refused by
    /// its nonce when it is to run.
    ///
    /// # Errors
    /// See [`AdmissionError`].
    pub fn measure(self) -> Result<Measured<M>, AdmissionRefused<Self>> {
        let interface = &self.0.interface;
        let evidence = interface.read(EvidenceKind::Report).and_then(|report| {
            let certificates = interface.read(EvidenceKind::Certificates)?;
            let measurements = interface.read(EvidenceKind::Measurements)?;
            Ok(Evidence { report, certificates, measurements })
        });
        match evidence {
            Ok(evidence) => Ok(Measured { lock: self.0, evidence }),
            Err(error) => Err(refused(error, self)),
        }
    }

    /// Stops the interface.
    ///
    /// # Errors
    /// The manager's; the interface stays locked.
    pub fn stop(mut self) -> Result<Unlocked<M>, AdmissionRefused<Self>> {
        self.0.stop().map_err(|error| refused(error, self))
    }
}

/// Locked interface whose evidence is known.
#[derive(Debug)]
pub struct Measured<M: SecurityManager> {
    lock: InterfaceLock<M>,
    evidence: Evidence,
}

impl<M: SecurityManager> Measured<M> {
    /// The evidence.
    pub const fn evidence(&self) -> &Evidence {
        &self.evidence
    }

    /// Accepts the interface, if `approves` says so.
    ///
    /// # Errors
    /// [`AdmissionError::NotApproved`].
    pub fn accept(
        self,
        approves: impl FnOnce(&Evidence) -> bool,
    ) -> Result<Accepted<M>, AdmissionRefused<Self>> {
        match approves(&self.evidence) {
            true => Ok(Accepted(self)),
            false => Err(refused(AdmissionError::NotApproved, self)),
        }
    }
}

/// Interface that the guest wants to let in.
#[derive(Debug)]
pub struct Accepted<M: SecurityManager>(Measured<M>);

impl<M: SecurityManager> Accepted<M> {
    /// Starts the interface.
    ///
    /// # Errors
    /// See [`AdmissionError`]: the manager refuses a nonce that is not that of the lock.
    pub fn run(self) -> Result<Running<M>, AdmissionRefused<Self>> {
        let InterfaceLock { interface, nonce, .. } = &self.0.lock;
        let started = interface.manager.start(interface.function, nonce);
        let started = started.map_err(AdmissionError::from);
        match started.and_then(|()| interface.check(InterfaceState::Run)) {
            Ok(()) => {
                let admission = Arc::new(Admission(AtomicBool::new(true)));
                Ok(Running { measured: self.0, admission })
            }
            Err(error) => Err(refused(error, self)),
        }
    }
}

/// Flag of a running interface, which mappings look at.
#[derive(Debug)]
pub(crate) struct Admission(AtomicBool);

impl Admission {
    /// Tells if the interface runs, as far as the guest knows.
    #[inline]
    pub fn is_running(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Interface that reaches private memory. Dropping it stops it.
#[derive(Debug)]
pub struct Running<M: SecurityManager> {
    measured: Measured<M>,
    admission: Arc<Admission>,
}

impl<M: SecurityManager> Running<M> {
    /// The evidence by which it was let in.
    pub const fn evidence(&self) -> &Evidence {
        self.measured.evidence()
    }

    /// Tells if the interface runs, as of the last look.
    ///
    /// *Context.* Interrupt.
    pub fn is_running(&self) -> bool {
        self.admission.is_running()
    }

    /// Looks at the interface's state, and ends its maps unless it runs: at a notification of the security manager, or
    /// of the link.
    ///
    /// # Errors
    /// See [`AdmissionError`]. After any of them, maps are refused for good: [`Running::stop`] the interface, and let
    /// it in again.
    pub fn check(&self) -> Result<(), AdmissionError> {
        let checked = self.measured.lock.interface.check(InterfaceState::Run);
        match checked {
            Ok(()) if !self.is_running() => Err(AdmissionError::Ended),
            Ok(()) => Ok(()),
            Err(error) => {
                self.admission.0.store(false, Ordering::Relaxed);
                Err(error)
            }
        }
    }

    /// Stops the interface: maps are refused from the beginning of the call on, and no access to private memory passes
    /// when it returns. Buffers that are mapped stay so, and are unmapped as ever.
    ///
    /// # Errors
    /// The manager's. The interface may run on, with maps refused.
    pub fn stop(mut self) -> Result<Unlocked<M>, AdmissionRefused<Self>> {
        self.admission.0.store(false, Ordering::Relaxed);
        self.measured.lock.stop().map_err(|error| refused(error, self))
    }

    pub(crate) const fn admission(&self) -> &Arc<Admission> {
        &self.admission
    }
}

impl<M: SecurityManager> Drop for Running<M> {
    fn drop(&mut self) {
        self.admission.0.store(false, Ordering::Relaxed);
    }
}
