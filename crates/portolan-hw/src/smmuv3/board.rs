//! Firmware's description of the board around a unit: reserved addresses, and streams whose devices
//! are at work already.
//!
//! Arm I/O Remapping Table (DEN0049), revision E.f, sections 3.1.1.7 (reserved memory) and 3.1.1.1
//! (ITS groups); or a device tree's `reserved-memory` with `iommu-addresses`.

use super::attach::passed_through;
use super::unit::Smmu;
use crate::reservations::Reservations;
use portolan::iommu::{AttachError, IommuError};
use portolan::platform::UnitPlatform;

impl<P: UnitPlatform> Smmu<P> {
    /// Addresses reserved for streams, and the reservations of
    /// [`Config::reserved`](super::Config::reserved) that were ignored.
    ///
    /// *Context.* Interrupt.
    pub fn reservations(&self) -> &Reservations {
        &self.config.reserved
    }

    /// Writes the entries of streams that are at work. The unit must be disabled. A stream that the
    /// unit does not have is passed over, even if firmware names it.
    pub(super) fn start(&self) -> Result<(), IommuError> {
        let machine = &*self.shared.machine;
        for of in &self.config.at_work {
            let place = match self.table.place(machine, of.stream) {
                Ok(place) => place,
                Err(AttachError::Iommu(error)) => return Err(error),
                Err(_) => continue,
            };
            let entry = passed_through(&self.shared.features).entry;
            place.fill(machine.tables(), &entry);
        }
        Ok(())
    }
}
