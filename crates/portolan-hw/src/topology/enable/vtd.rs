//! Units of VT-d, by DMAR.
//!
//! *Context.* Task.

use portolan::addr::PciSegment;
use portolan::iommu::IommuError;
use portolan::platform::{Mmio, Platform};
use portolan_tables::describe::UnitDescription;

use super::super::chipset::{isochronous, own_functions};
use super::super::join::memory_of;
use super::super::{ConfigSpace, FirmwareMemory};
use super::former::{FormerState, NamedUnit, by_record};
use super::{Enabling, Outcome, window_of};
use crate::vtd::{Config, Features, INTEL, Mode, PciIdentity, Quirks, Vtd, VtdFeature};

/// Offset of the class in configuration space.
const CLASS: u16 = 8;

impl<P: Platform> Enabling<'_, '_, P> {
    pub(super) fn vtd(&self, number: usize, unit: &UnitDescription, address_lg2: u32) -> Outcome {
        let read: ConfigSpace<'_> = &|of, at| self.platform.pci_config(of, at);
        let segment = unit.segment.unwrap_or_default();
        let mut config = Config {
            output_lg2: address_lg2,
            chip: quirks(read, segment),
            interrupts: self.options.interrupts,
            combining: self.options.combining,
            reserved: self.believed(),
            ..Config::default()
        };
        if self.options.reserved == FirmwareMemory::Reached {
            // What makes no sense is left out, and counted there.
            let _ = config.reserved.read(memory_of(&self.topology.description, read, segment));
        }
        self.add_to(number, &mut config.reserved);
        let window = window_of(unit.place)?;
        let named = NamedUnit { number, kind: unit.kind, window };
        let former = self.of_former(named, |parts, state, claims| {
            let mut config = config.clone();
            config.mode = mode(&parts.registers)?;
            let (registers, clock) = (parts.registers, parts.clock);
            let memory = parts.memory.below(config.output_lg2);
            match state {
                FormerState::Recorded(state) => {
                    Vtd::adopt(registers, memory, clock, config, state, claims).map(by_record)
                }
                FormerState::Crashed(keep, former) => {
                    Ok(Vtd::take_over(registers, memory, clock, config, keep, former)?)
                }
            }
        });
        if let Some(unit) = former {
            return Ok(unit);
        }
        self.at(window, |registers, memory, clock| {
            config.mode = mode(&registers)?;
            Vtd::enable(registers, memory.below(config.output_lg2), clock, config)
        })
    }
}

/// Mode in which a unit is used: first-stage tables are the hardware's own under a hypervisor, too.
fn mode(registers: &impl Mmio) -> Result<Mode, IommuError> {
    let first = VtdFeature::SCALABLE | VtdFeature::FIRST | VtdFeature::CACHING_MODE;
    Ok(match Features::read(registers)?.has.contains(first) {
        true => Mode::Scalable,
        false => Mode::Legacy,
    })
}

/// Quirks of the machine's units, by its own PCI devices; `word` reads their configuration space.
pub(in crate::topology) fn quirks(word: ConfigSpace<'_>, segment: PciSegment) -> Quirks {
    let of_function = |(function, device)| {
        let base_class = (word(function, CLASS)? >> 24) as u8;
        Some(Quirks::of(PciIdentity { vendor: INTEL, device, base_class }))
    };
    let of_functions = own_functions(word, segment).filter_map(of_function);
    let mut quirks = of_functions.fold(Quirks::empty(), Quirks::union);
    let hangs = isochronous(word, segment).is_some_and(|(_, entries)| entries == 0);
    quirks.set(Quirks::AZALIA_UNTRANSLATED, hangs);
    quirks
}

#[cfg(test)]
mod tests {
    use super::*;
    use portolan::addr::{PciFunction, RequesterId};

    #[test]
    fn a_display_controller_of_bus_0_keeps_translation_on_and_nothing_else_of_its_number_does() {
        let of = |segment, requester, identity, class| {
            let at = PciFunction { segment: PciSegment::new(segment), requester };
            let word = |function, offset| match offset {
                0x0 if function == at => Some(identity),
                0x8 if function == at => Some(class),
                _ => None,
            };
            quirks(&word, PciSegment::new(1))
        };
        let last = RequesterId::of(0, 31, 7);
        let display = 0x0300_0001;
        assert_eq!(of(1, last, 0x9a49_8086, display), Quirks::KEEP_TRANSLATION);
        let others = [
            of(1, last, 0x9a49_1022, display),
            of(1, last, 0x9a49_8086, 0x0003_0003),
            of(0, last, 0x9a49_8086, display),
            of(1, RequesterId::of(1, 0, 0), 0x9a49_8086, display),
        ];
        assert_eq!(others, [Quirks::empty(); 4]);
    }
}
