//! Addresses that devices reach with any attachment, and those that reach no memory.
//!
//! Intel Virtualization Technology for Directed I/O (D51397), revision 4.1, sections 8.4 (memory
//! that firmware lists for a device) and 3.13 (interrupt messages).

use portolan::addr::StreamId;
use portolan::iommu::{AttachError, Domain};
use portolan::platform::UnitPlatform;

use super::quirks::Quirks;
use super::unit::Vtd;
use crate::reservations::Reservations;

/// The graphics of a chipset or a processor: device 2 of the first bus.
const GRAPHICS: StreamId = StreamId::new(0x10);
/// The sound controller of a chipset: device 27 of the first bus.
const AZALIA: StreamId = StreamId::new(0xd8);

impl<P: UnitPlatform> Vtd<P> {
    /// Tells if `stream` may not be attached, as it does not work translated.
    pub(super) fn is_untranslated(&self, stream: StreamId) -> bool {
        let quirk = match stream {
            GRAPHICS => Quirks::GRAPHICS_UNTRANSLATED,
            AZALIA => Quirks::AZALIA_UNTRANSLATED,
            _ => return false,
        };
        self.config.chip.contains(quirk)
    }

    /// Addresses reserved for streams, and the reservations of
    /// [`Config::reserved`](super::Config::reserved) that were ignored.
    ///
    /// *Context.* Interrupt.
    pub fn reservations(&self) -> &Reservations {
        &self.config.reserved
    }

    /// Maps the memory that `stream` reaches at its own addresses into `domain`, unless it is there
    /// already.
    pub(super) fn hold_reserved(
        &self,
        stream: StreamId,
        domain: &impl Domain,
    ) -> Result<(), AttachError> {
        self.config.reserved.map_into(stream, domain)
    }
}
