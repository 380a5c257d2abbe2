//! How far the devices of a space are trusted: as far as the least trusted of them, since all of them reach
//! what is mapped there for one.
//!
//! *Context.* Interrupt.

use core::sync::atomic::Ordering;

use super::constraints::{Constraints, Trust};
use super::error::DeviceError;
use super::policy::Policy;
use super::space::DmaSpace;
use crate::platform::{Cpus, SharedWord};

/// The trust of a space, which never changes once it is known.
pub(super) struct MembersTrust<P: Cpus>(P::Word);

const UNKNOWN: u64 = 0;
const TRUSTED: u64 = 1;
const UNTRUSTED: u64 = 2;

const fn code(trust: Trust) -> u64 {
    match trust {
        Trust::Trusted => TRUSTED,
        Trust::Untrusted => UNTRUSTED,
    }
}

const fn of(code: u64) -> Option<Trust> {
    match code {
        TRUSTED => Some(Trust::Trusted),
        UNTRUSTED => Some(Trust::Untrusted),
        _ => None,
    }
}

impl<P: Cpus> MembersTrust<P> {
    pub fn new(said: Option<Trust>) -> Self {
        Self(P::Word::new(said.map_or(UNKNOWN, code)))
    }

    /// What it is, if that is known.
    #[inline]
    pub fn get(&self) -> Option<Trust> {
        // It orders nothing: it says itself what it says.
        of(self.0.load(Ordering::Relaxed))
    }

    /// What it is; `first` if that was not known before, and is from now on.
    fn fix(&self, first: Trust) -> Trust {
        loop {
            if let Some(known) = self.get() {
                return known;
            }
            let fixed = self.0.compare_exchange_weak(
                UNKNOWN,
                code(first),
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
            if fixed.is_ok() {
                return first;
            }
        }
    }
}

impl<P: Cpus + Clone> DmaSpace<P> {
    /// How far its devices are trusted, if that is known yet: see
    /// [`SpaceOptions::trust`](super::SpaceOptions::trust).
    ///
    /// *Context.* Interrupt.
    pub fn trust(&self) -> Option<Trust> {
        self.members.get()
    }

    /// The limits by which memory is judged that a caller with `constraints` maps here.
    #[inline]
    pub(super) fn judged(&self, constraints: &Constraints) -> Constraints {
        let trust = match self.members.get() {
            Some(trust) => trust,
            None => self.members.fix(constraints.trust),
        };
        Constraints {
            trust: trust.least(constraints.trust),
            ..*constraints
        }
    }

    /// The limits of a device that joins. One that is trusted less than the others would reach what is
    /// mapped for them.
    pub(super) fn admit(&self, constraints: Constraints) -> Result<Constraints, DeviceError> {
        let untrusted = constraints.trust == Trust::Untrusted;
        if untrusted && self.policy() == Policy::Lazy {
            return Err(DeviceError::Untrusted);
        }
        match self.members.fix(constraints.trust) {
            Trust::Trusted if untrusted => Err(DeviceError::LessTrusted),
            trust => Ok(Constraints {
                trust,
                ..constraints
            }),
        }
    }
}
