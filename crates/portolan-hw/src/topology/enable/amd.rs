//! Units of AMD-Vi, by IVRS.
//!
//! *Context.* Task.

use portolan::platform::Platform;
use portolan_tables::describe::{AmdSettings, UnitDescription};

use super::super::{EnableError, FirmwareMemory};
use super::former::{FormerState, NamedUnit, by_record};
use super::{Enabling, Outcome, window_of};
use crate::amd::{AmdVi, Capability, Config};

impl<P: Platform> Enabling<'_, '_, P> {
    pub(super) fn amd(
        &self,
        number: usize,
        unit: &UnitDescription,
        settings: &AmdSettings,
    ) -> Outcome {
        let window = window_of(unit.place)?;
        if !settings.host_tables {
            return Err(EnableError::NoHostTables { window });
        }
        let mut capability = capability(self.platform, settings)?;
        capability.physical_lg2 = narrower(capability.physical_lg2, settings.physical_lg2);
        capability.virtual_lg2 = narrower(capability.virtual_lg2, settings.virtual_lg2);
        let mut config = Config {
            interrupts: self.options.interrupts,
            combining: self.options.combining,
            reserved: self.believed(),
            ..Config::default()
        };
        // What makes no sense is left out, and counted there.
        let _ = config.honour(&settings.orders);
        if self.options.reserved == FirmwareMemory::Refused {
            config.reserved = self.believed();
        }
        self.add_to(number, &mut config.reserved);
        let named = NamedUnit { number, kind: unit.kind, window };
        let former = self.of_former(named, |parts, state, claims| {
            let lg2 = capability.physical_lg2.unwrap_or(u64::BITS);
            let (registers, memory) = (parts.registers, parts.memory.below(lg2));
            let (clock, config) = (parts.clock, config.clone());
            match state {
                FormerState::Recorded(state) => {
                    AmdVi::adopt(registers, memory, clock, capability, config, state, claims)
                        .map(by_record)
                }
                FormerState::Crashed(keep, former) => Ok(AmdVi::take_over(
                    registers, memory, clock, capability, config, keep, former,
                )?),
            }
        });
        if let Some(unit) = former {
            return Ok(unit);
        }
        self.at(window, |registers, memory, clock| {
            let memory = match capability.physical_lg2 {
                Some(lg2) => memory.below(lg2),
                None => memory,
            };
            AmdVi::enable(registers, memory, clock, capability, config)
        })
    }
}

/// The capability block of a unit of AMD's, in the configuration space of its own PCI function.
fn capability(platform: &impl Platform, settings: &AmdSettings) -> Result<Capability, EnableError> {
    let function = settings.function;
    let word = |number: u16| {
        let offset = settings.capability.checked_add(4 * number)?;
        platform.pci_config(function, offset)
    };
    // An absent function reads as all ones.
    let words = [0, 1, 2, 3, 4].map(|number| word(number).unwrap_or(u32::MAX));
    let parsed = Capability::parse(words);
    parsed.map_err(|error| EnableError::NoCapability { function, header: error.header })
}

/// The narrower of two widths that may both be unknown.
fn narrower(one: Option<u32>, other: Option<u32>) -> Option<u32> {
    one.into_iter().chain(other).min()
}
