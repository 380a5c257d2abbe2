//! Units of a description, each enabled by its driver. A unit whose driver is not compiled in is refused
//! ([`EnableError::NoDriver`]).
//!
//! *Context.* Task.

#[cfg(feature = "amd")]
mod amd;
pub(super) mod former;
#[cfg(feature = "riscv")]
mod riscv;
#[cfg(feature = "smmuv2")]
mod smmuv2;
#[cfg(feature = "smmuv3")]
mod smmuv3;
#[cfg(feature = "virtio")]
mod virtio;
#[cfg(feature = "vtd")]
pub(super) mod vtd;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::Cell;

use portolan::addr::{PageSize, PhysAddr, PhysRange};
use portolan::iommu::{IommuDomains, IommuError};
use portolan::platform::{Platform, RawMemory};
use portolan_tables::describe::{UnitDescription, UnitKind, UnitSettings};
use portolan_tables::viot::Viommu;

use super::survey::{Place, Survey, SurveyedUnit};
use super::{EnableError, FirmwareMemory, Options, Topology};
use crate::promise::{self, TrustedDescription};
use crate::reservations::{Reservations, Reserved};
use former::Former;

/// Arguments with which units are enabled.
pub(super) struct Enabling<'p, 'r, P> {
    pub platform: &'p P,
    pub options: Options,
    pub description: TrustedDescription,
    pub topology: &'p Topology,
    pub survey: &'p Survey,
    /// Context banks of the SMMUs of version 2 so far.
    pub banks: Cell<u16>,
    /// The record of a former kernel, if the units come from one.
    pub former: Option<&'p Former<'r>>,
}

/// A unit that is enabled.
pub(super) type Enabled = Arc<dyn IommuDomains>;

/// A unit of the table, or why it was not enabled.
pub(super) type Outcome = Result<Enabled, EnableError>;

impl<P: Platform> Enabling<'_, '_, P> {
    /// All units, each enabled by its driver, or by `virtio`. A unit in whose place the survey shows
    /// another is not enabled.
    pub(super) fn all(
        &self,
        virtio: impl Fn(Viommu) -> Outcome,
    ) -> Result<Vec<Outcome>, EnableError> {
        let mut outcomes = Vec::new();
        for (number, unit) in self.topology.description.units.iter().enumerate() {
            outcomes.try_reserve(1).map_err(|_| EnableError::Memory)?;
            let shared = self.survey.in_place_of(number);
            outcomes.push(match (&unit.settings, shared) {
                (UnitSettings::Damaged(error), _) => Err((*error).into()),
                (_, Some(shared)) => Err(shared),
                (UnitSettings::Virtio(place), None) => virtio(*place),
                #[cfg(feature = "vtd")]
                (UnitSettings::Vtd { address_lg2 }, None) => self.vtd(number, unit, *address_lg2),
                #[cfg(feature = "amd")]
                (UnitSettings::AmdVi(settings), None) => self.amd(number, unit, settings),
                #[cfg(feature = "smmuv2")]
                (UnitSettings::Smmu(smmu, maker), None) => self.smmu(number, unit, smmu, *maker),
                #[cfg(feature = "smmuv3")]
                (UnitSettings::SmmuV3(settings), None) => self.smmu_v3(number, unit, settings),
                #[cfg(feature = "riscv")]
                (UnitSettings::Riscv(settings), None) => self.riscv(number, unit, settings),
                _ => Err(EnableError::NoDriver { kind: unit.kind }),
            });
        }
        Ok(outcomes)
    }

    /// Memory that firmware reserves for the unit's streams, as far as the options let devices reach it.
    fn reserved(&self, unit: &UnitDescription) -> Reservations {
        let mut reserved = self.believed();
        if self.options.reserved == FirmwareMemory::Reached {
            // What makes no sense is left out, and counted there.
            let _ = reserved.read(unit.reserved.iter().copied());
        }
        reserved
    }

    fn believed(&self) -> Reservations {
        let mut reserved = Reservations::default();
        reserved.believe(self.description);
        reserved
    }

    /// Adds the embedder's reservations for streams of a unit.
    fn add_to(&self, number: usize, reserved: &mut Reservations) {
        let added: &[Reserved] = self.survey.added(number);
        let _ = reserved.read(added.iter().copied().map(Ok));
    }

    /// The unit whose registers are at `window`, enabled by `enable` of its driver.
    fn at<U: IommuDomains + 'static>(
        &self,
        window: PhysRange,
        enable: impl FnOnce(P::Registers, RawMemory<P>, P) -> Result<U, IommuError>,
    ) -> Outcome {
        let platform = self.platform;
        let registers = promise::registers_of_unit(platform, window, self.description);
        let registers = registers.ok_or(EnableError::NoRegisters { window })?;
        let unit = enable(registers, promise::for_driver(platform), platform.clone());
        let unit = unit.map_err(|error| EnableError::Iommu { window, error })?;
        Ok(Arc::new(unit))
    }

    /// Switches the unit on, where firmware says that it is not on of itself.
    fn powered(&self, unit: &UnitDescription, window: PhysRange) -> Result<(), EnableError> {
        if unit.needs_power && !self.platform.power_on(window) {
            return Err(EnableError::NoPower { window });
        }
        Ok(())
    }
}

/// Drivers, and whether they are compiled in.
const DRIVERS: [(UnitKind, bool); 6] = [
    (UnitKind::Vtd, cfg!(feature = "vtd")),
    (UnitKind::AmdVi, cfg!(feature = "amd")),
    (UnitKind::Smmu, cfg!(feature = "smmuv2")),
    (UnitKind::SmmuV3, cfg!(feature = "smmuv3")),
    (UnitKind::Riscv, cfg!(feature = "riscv")),
    (UnitKind::Virtio, cfg!(feature = "virtio")),
];

impl SurveyedUnit {
    /// Tells if the unit's driver is compiled in: it is a feature of this crate. Without it the unit is not enabled
    /// ([`EnableError::NoDriver`]).
    ///
    /// *Context.* Interrupt.
    pub fn has_driver(&self) -> bool {
        DRIVERS.contains(&(self.kind, true))
    }
}

/// The registers of a unit.
fn window_of(place: Place) -> Result<PhysRange, EnableError> {
    match place {
        Place::Registers(window) => Ok(window),
        Place::Nowhere(base) => Err(no_registers(base)),
        Place::Function(function) => Err(EnableError::NoWindow { function }),
        _ => Err(no_registers(PhysAddr::new(0))),
    }
}

/// Error of a unit that is said to have its registers from `base` on, where none can be.
pub(super) fn no_registers(base: PhysAddr) -> EnableError {
    let window = PhysRange::page(base, PageSize::of_lg2(0));
    EnableError::NoRegisters { window }
}

/// Width of the numbers of streams up to `last`.
fn lg2_of(last: u32) -> u32 {
    u32::BITS - last.leading_zeros()
}
