//! Trust in the devices of a space: that in the least trusted of them, since all of them reach the
//! mappings of each.
//!
//! *Context.* Interrupt.

use super::constraints::{Constraints, Trust};
use super::error::DeviceError;
use super::policy::Policy;
use super::space::DmaSpace;
use crate::platform::Cpus;

impl<P: Cpus + Clone> DmaSpace<P> {
    /// Trust in its devices, if it is known yet: see
    /// [`SpaceOptions::trust`](super::SpaceOptions::trust).
    ///
    /// *Context.* Interrupt.
    #[inline]
    pub fn trust(&self) -> Option<Trust> {
        self.members.get()
    }

    /// The limits by which memory is judged that a caller with `constraints` maps here.
    pub(super) fn judged(&self, constraints: &Constraints) -> Constraints {
        let trust = match self.members.get() {
            Some(trust) => trust,
            None => self.members.fix(constraints.trust),
        };
        Constraints { trust: trust.least(constraints.trust), ..*constraints }
    }

    /// The limits of a device that joins. One that is trusted less than the others would reach
    /// their mappings.
    pub(super) fn admit(&self, constraints: Constraints) -> Result<Constraints, DeviceError> {
        let untrusted = constraints.trust == Trust::Untrusted;
        if untrusted && self.policy() == Policy::Lazy {
            return Err(DeviceError::Untrusted);
        }
        match self.members.fix(constraints.trust) {
            Trust::Trusted if untrusted => Err(DeviceError::LessTrusted),
            trust => Ok(Constraints { trust, ..constraints }),
        }
    }
}
