//! Units of VT-d by the DMAR table.

use super::{
    Description, Note, Place, RemappingOffer, TableKind, UnitDescription, UnitKind, UnitSettings,
};
use crate::TableError;
use crate::claim::Claim;
use crate::dmar::{Dmar, Drhd, MemoryBlock, PathScope, Serves, Structure};

/// Flags of the table: interrupts can be remapped; identifiers of 32 bits are not wanted; firmware wants DMA
/// to be remapped from the start.
const REMAPS: u8 = 1;
const NO_X2APIC: u8 = 1 << 1;
const OPT_IN: u8 = 1 << 2;

pub(super) fn describe(bytes: &[u8]) -> Result<Description, TableError> {
    let table = Dmar::parse(bytes)?;
    let mut found = Description::new(TableKind::Dmar);
    found.remapping = match (table.flags() & REMAPS, table.flags() & NO_X2APIC) {
        (0, _) => RemappingOffer::None,
        (_, 0) => RemappingOffer::X2Apic,
        _ => RemappingOffer::XApic,
    };
    found.wants_protection = table.flags() & OPT_IN != 0;
    for structure in table.structures() {
        match structure {
            Ok(Structure::Drhd(unit)) => found.add_remapping_unit(&table, &unit),
            Ok(Structure::Reserved(block)) => {
                found.memory.push(Ok(MemoryBlock::of(&block, table.address_lg2())));
            }
            Ok(_) => {}
            // It may have been a unit, or memory.
            Err(error) => {
                found.damage(error);
                found.units.push(UnitDescription::damaged(UnitKind::Vtd, error));
                found.memory.push(Err(error));
            }
        }
    }
    Ok(found)
}

impl Description {
    fn add_remapping_unit(&mut self, table: &Dmar<'_>, unit: &Drhd<'_>) {
        let place = Place::of(unit.registers.start(), unit.registers.len_minus_one() + 1);
        let settings = UnitSettings::Vtd { address_lg2: table.address_lg2() };
        let mut described = UnitDescription::new(UnitKind::Vtd, place, settings);
        described.segment = Some(unit.segment);
        let number = self.units.len();
        self.units.push(described);
        if unit.serves == Serves::Remaining {
            self.claim(number, Claim::Remaining(unit.segment));
        }
        for scope in unit.scopes {
            match scope {
                Ok(scope) => self.add_scope(number, PathScope::of(&scope)),
                // It may have named any function, where the unit does not have the remaining ones anyway.
                Err(error) if unit.serves == Serves::Named => self.damage(error),
                Err(error) => self.notes.push(Note::Damage(error)),
            }
        }
    }

    fn add_scope(&mut self, unit: usize, scope: PathScope) {
        if let Some(unit) = self.units.get_mut(unit).filter(|_| self.claims < super::MOST_CLAIMS) {
            unit.scopes.push(scope);
        }
        self.counted();
    }
}
