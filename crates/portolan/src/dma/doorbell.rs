//! Pages of registers that take messages.
//!
//! An Arm IOMMU translates writes of messages: the page with the registers that take them has to be
//! mapped, or no interrupt of the device arrives. On x86 the hardware takes such writes out before it
//! translates, and [`Device::map_doorbell`] says that nothing has to be done.

use super::device::{Device, DeviceTranslation};
use super::error::MapError;
use super::policy::Constraints;
use super::space::DmaSpace;
use crate::addr::{Iova, IovaRange, PageSize, PhysAddr, PhysRange, StreamId};
use crate::iommu::ReservedKind;
use crate::platform::contract::Doorbell;
use crate::platform::{Cpus, Lock};
use crate::table::Access;

impl<P: Cpus + Clone> Device<P> {
    /// Maps `doorbell`, and returns the address to which the device has to write to ring it: it
    /// goes into the address of its messages instead of the physical one.
    ///
    /// For a translated device, the page around the doorbell is mapped for writes as a device's
    /// registers; where the table format has no way to withhold reads, for reads too. All devices
    /// of the space share it, and it stays mapped until the space is gone. A doorbell that lies
    /// where the unit takes messages untranslated
    /// ([`ReservedKind::Interrupts`]) is not mapped, nor is
    /// one for a device that is passed through: the physical address serves.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// See [`MapError`].
    pub fn map_doorbell(&self, doorbell: Doorbell) -> Result<Iova, MapError> {
        let (at, limit) = (doorbell.at(), self.constraints().dma_mask);
        match (self.translation, self.space()) {
            (DeviceTranslation::Space(_), Some(space)) => {
                space.map_doorbell(self.stream(), at, self.constraints())
            }
            (DeviceTranslation::Identity(_), _) if at.get() <= limit.get() => {
                Ok(Iova::new(at.get()))
            }
            (DeviceTranslation::Identity(_), _) => {
                let piece = PhysRange::page(at, PageSize::of_lg2(0));
                Err(MapError::AboveLimit { piece, limit })
            }
            (DeviceTranslation::Blocked | DeviceTranslation::Space(_), _) => Err(MapError::Blocked),
        }
    }
}

impl<P: Cpus + Clone> DmaSpace<P> {
    fn map_doorbell(
        &self,
        stream: StreamId,
        at: PhysAddr,
        constraints: &Constraints,
    ) -> Result<Iova, MapError> {
        if let Some(error) = self.failure() {
            return Err(MapError::Broken(error));
        }
        if self.takes_messages(stream, Iova::new(at.get())) {
            return Ok(Iova::new(at.get()));
        }
        let page = PhysRange::page(at, self.granule());
        let inside = at.get() - page.start().get();
        let limit = constraints.dma_mask;
        let there = self.regions.with(|known| {
            let mut doorbells = known.doorbells.iter();
            doorbells
                .find(|(of, mapped)| *of == page && mapped.last() <= limit)
                .map(|(_, mapped)| *mapped)
        });
        // Two callers at once may map it twice, and each has a page of its own then.
        let mapped = match there {
            Some(mapped) => mapped,
            None => self.map_registers(page, constraints)?,
        };
        Ok(Iova::new(mapped.start().get() + inside))
    }

    /// Tells if the unit takes writes of `stream` to `at` for messages, untranslated.
    fn takes_messages(&self, stream: StreamId, at: Iova) -> bool {
        let mut takes = false;
        self.bound.unit().reserved(stream, &mut |region| {
            takes |= region.kind == ReservedKind::Interrupts && region.range.contains(at);
        });
        takes
    }

    fn map_registers(
        &self,
        page: PhysRange,
        constraints: &Constraints,
    ) -> Result<IovaRange, MapError> {
        let constraints = Constraints { align: self.granule(), ..*constraints };
        let (mapped, _) =
            self.place_kept(page, Access::WRITE.union(Access::DEVICE), &constraints)?;
        // Without memory to remember it, it is not shared.
        let _ = self.note((page, mapped), |known| &mut known.doorbells);
        Ok(mapped)
    }
}
