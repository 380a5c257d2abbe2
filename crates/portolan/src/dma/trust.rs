//! The trust of a space's devices, as far as it is known.
//!
//! *Context.* Interrupt.

use core::sync::atomic::Ordering;

use super::constraints::Trust;
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

    /// The trust, if it is known.
    #[inline]
    pub fn get(&self) -> Option<Trust> {
        // It orders nothing: the value stands for itself.
        of(self.0.load(Ordering::Relaxed))
    }

    /// The trust; `first` if it was not known before, and is from now on.
    pub fn fix(&self, first: Trust) -> Trust {
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
