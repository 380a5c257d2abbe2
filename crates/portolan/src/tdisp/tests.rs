//! The states of an interface on a model of a device, a security manager and a host that interferes.

use alloc::sync::Arc;
use alloc::vec::Vec;

use spin::Mutex;

use super::{
    AdmissionError, Evidence, EvidenceKind, InterfaceState, LockNonce, ManagerError, Running,
    SecurityManager, Unlocked,
};
use crate::addr::PciFunction;

/// Code of a request in a state that does not allow it (INVALID_INTERFACE_STATE).
const WRONG_STATE: u32 = 0x0104;
/// Code of a nonce that is not that of the lock (INVALID_NONCE).
const WRONG_NONCE: u32 = 0x0102;

/// Interference of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Interference {
    /// Resets the function: it is unlocked.
    Reset,
    /// Replaces the function's firmware, and locks it again.
    Relock,
    /// Changes a locked register: the interface is in error.
    Change,
}

/// Model of an interface and its manager.
#[derive(Debug)]
struct Interface {
    state: InterfaceState,
    /// Counts the locks: a nonce, and the firmware that the device had then.
    locks: u8,
    /// Manager calls until the host interferes.
    interference: Option<(u32, Interference)>,
    /// Answer to requests for evidence, instead of a few bytes.
    endless: bool,
    /// Bytes that the manager says it has read, instead of those that it has.
    said: Option<usize>,
    stops: u32,
}

/// The manager of a model.
#[derive(Debug)]
pub(crate) struct Manager(Mutex<Interface>);

pub(crate) const FUNCTION: PciFunction = PciFunction::of(3, 0, 0);

impl Manager {
    pub fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(Interface {
            state: InterfaceState::Unlocked,
            locks: 0,
            interference: None,
            endless: false,
            said: None,
            stops: 0,
        })))
    }

    fn interfere(&self, after: u32, interference: Interference) {
        self.0.lock().interference = Some((after, interference));
    }

    /// Resets the function behind the guest's back.
    pub fn reset(&self) {
        self.0.lock().state = InterfaceState::Unlocked;
    }

    /// Tells if an access to private memory passes.
    pub fn passes_private(&self) -> bool {
        self.0.lock().state == InterfaceState::Run
    }

    fn at_call(&self) -> spin::MutexGuard<'_, Interface> {
        let mut model = self.0.lock();
        match model.interference.take() {
            Some((0, Interference::Reset)) => model.state = InterfaceState::Unlocked,
            Some((0, Interference::Relock)) => {
                model.state = InterfaceState::Locked;
                model.locks += 1;
            }
            Some((0, Interference::Change)) if model.state != InterfaceState::Unlocked => {
                model.state = InterfaceState::Error;
            }
            Some((0, Interference::Change)) | None => {}
            Some((left, interference)) => model.interference = Some((left - 1, interference)),
        }
        model
    }
}

fn require(found: bool, code: u32) -> Result<(), ManagerError> {
    if found { Ok(()) } else { Err(ManagerError::Refused { code }) }
}

impl SecurityManager for Manager {
    fn lock(&self, _function: PciFunction) -> Result<LockNonce, ManagerError> {
        let mut model = self.at_call();
        require(model.state == InterfaceState::Unlocked, WRONG_STATE)?;
        model.state = InterfaceState::Locked;
        model.locks += 1;
        Ok(LockNonce::new([model.locks; 32]))
    }

    fn evidence(
        &self,
        _function: PciFunction,
        kind: EvidenceKind,
        offset: usize,
        into: &mut [u8],
    ) -> Result<usize, ManagerError> {
        let model = self.at_call();
        require(matches!(model.state, InterfaceState::Locked | InterfaceState::Run), WRONG_STATE)?;
        if let Some(said) = model.said {
            return Ok(said);
        }
        if model.endless {
            return Ok(into.len());
        }
        // More than one portion, each byte that of the firmware.
        let all: Vec<u8> = (0..5000).map(|_| model.locks ^ kind as u8).collect();
        let rest = all.get(offset..).unwrap_or_default();
        let bytes = rest.len().min(into.len());
        into[..bytes].copy_from_slice(&rest[..bytes]);
        Ok(bytes)
    }

    fn start(&self, _function: PciFunction, nonce: &LockNonce) -> Result<(), ManagerError> {
        let mut model = self.at_call();
        require(model.state == InterfaceState::Locked, WRONG_STATE)?;
        require(*nonce.bytes() == [model.locks; 32], WRONG_NONCE)?;
        model.state = InterfaceState::Run;
        Ok(())
    }

    fn stop(&self, _function: PciFunction) -> Result<(), ManagerError> {
        let mut model = self.at_call();
        model.state = InterfaceState::Unlocked;
        model.stops += 1;
        Ok(())
    }

    fn state(&self, _function: PciFunction) -> Result<InterfaceState, ManagerError> {
        Ok(self.at_call().state)
    }
}

/// Lets the model's device in.
pub(crate) fn let_in(manager: &Arc<Manager>) -> Result<Running<Manager>, AdmissionError> {
    let unlocked = Unlocked::new(manager.clone(), FUNCTION);
    let locked = unlocked.lock().map_err(|refused| refused.error)?;
    let measured = locked.measure().map_err(|refused| refused.error)?;
    let accepted = measured.accept(|_| true).map_err(|refused| refused.error)?;
    accepted.run().map_err(|refused| refused.error)
}

#[test]
fn a_device_is_let_in_step_by_step() {
    let manager = Manager::new();
    let locked = Unlocked::new(manager.clone(), FUNCTION).lock().unwrap();
    assert!(!manager.passes_private());
    let measured = locked.measure().unwrap();
    let Evidence { report, certificates, measurements } = measured.evidence();
    assert_eq!((report.len(), certificates.len(), measurements.len()), (5000, 5000, 5000));
    assert!(report.iter().all(|byte| *byte == 1));
    assert!(certificates.iter().all(|byte| *byte == 0) && measurements.iter().all(|b| *b == 3));
    let accepted = measured.accept(|evidence| evidence.report[0] == 1).unwrap();
    assert!(!manager.passes_private());
    let running = accepted.run().unwrap();
    assert!(running.is_running() && running.check().is_ok() && manager.passes_private());
    let unlocked = running.stop().unwrap();
    assert!(!manager.passes_private());
    assert_eq!(manager.0.lock().stops, 1);
    let refused = unlocked.lock().unwrap().measure().unwrap().accept(|_| false).unwrap_err();
    assert_eq!(refused.error, AdmissionError::NotApproved);
    // The interface comes back as it was.
    assert!(refused.interface.accept(|_| true).unwrap().run().is_ok());
}

#[test]
fn an_interface_that_is_dropped_is_stopped() {
    let manager = Manager::new();
    drop(Unlocked::new(manager.clone(), FUNCTION).lock().unwrap());
    assert_eq!(manager.0.lock().state, InterfaceState::Unlocked);
    let running = let_in(&manager).unwrap();
    let admission = running.admission().clone();
    drop(running);
    assert!(!admission.is_running());
    assert_eq!(manager.0.lock().state, InterfaceState::Unlocked);
    assert_eq!(manager.0.lock().stops, 2);
}

#[test]
fn a_host_that_interferes_at_any_call_gets_no_other_firmware_in() {
    for interference in [Interference::Reset, Interference::Relock, Interference::Change] {
        let mut refused = 0;
        for call in 0..40 {
            let manager = Manager::new();
            manager.interfere(call, interference);
            match let_in(&manager) {
                Ok(running) => {
                    let locks = manager.0.lock().locks;
                    let report = &running.evidence().report;
                    let known = report.iter().all(|byte| *byte == locks);
                    // After the start, only a look can tell.
                    let is_let_in = known && manager.passes_private();
                    assert!(is_let_in || running.check().is_err(), "{interference:?} at {call}");
                    assert_eq!(running.is_running(), is_let_in);
                }
                Err(error) => {
                    refused += 1;
                    assert!(!manager.passes_private(), "{interference:?} at {call}: {error}");
                    // The device can be let in once the host leaves it alone.
                    manager.0.lock().interference = None;
                    manager.stop(FUNCTION).unwrap();
                    let running = let_in(&manager).unwrap();
                    let locks = manager.0.lock().locks;
                    assert!(running.evidence().report.iter().all(|byte| *byte == locks));
                }
            }
        }
        assert!(refused >= 10, "{interference:?}: {refused}");
    }
}

#[test]
fn evidence_without_end_and_lengths_that_are_no_lengths_are_refused() {
    let manager = Manager::new();
    manager.0.lock().endless = true;
    let locked = Unlocked::new(manager.clone(), FUNCTION).lock().unwrap();
    let refused = locked.measure().unwrap_err();
    let kind = EvidenceKind::Report;
    assert_eq!(refused.error, AdmissionError::TooLong { kind, most: 1 << 20 });
    manager.0.lock().said = Some(4097);
    let refused = refused.interface.measure().unwrap_err();
    assert_eq!(refused.error, AdmissionError::Impossible { kind, said: 4097, room: 4096 });
    manager.0.lock().said = Some(0);
    let measured = refused.interface.measure().unwrap();
    assert!(measured.evidence().report.is_empty());
}

#[test]
fn an_interface_that_left_its_state_stays_out() {
    let manager = Manager::new();
    let running = let_in(&manager).unwrap();
    manager.reset();
    let (found, wanted) = (InterfaceState::Unlocked, InterfaceState::Run);
    assert_eq!(running.check(), Err(AdmissionError::State { found, wanted }));
    assert!(!running.is_running());
    // The host starts a device of its own meanwhile.
    manager.0.lock().state = InterfaceState::Run;
    assert_eq!(running.check(), Err(AdmissionError::Ended));
    assert!(!running.is_running());
}
