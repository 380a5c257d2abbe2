//! Units of AMD-Vi by the IVRS table.

use alloc::vec::Vec;

use portolan::addr::PciFunction;

use super::{
    AmdSettings, Description, MOST_RESERVED, Note, Place, RemappingOffer, TableKind,
    UnitDescription, UnitKind, UnitSettings,
};
use crate::TableError;
use crate::claim::{Claim, ClaimUid, name};
use crate::ivrs::{
    Block, Entry, EntryKind, Info, Ivhd, Ivrs, Level, SpecialKind, UnitOrders, is_better,
};
use crate::madt::IoApics;
use crate::reserved::Reserved;

/// Bit of the attributes of blocks from type 11h on: host tables are not walked (HATDis; 48882, section 5.2.2.1).
const NO_HOST_TABLES: u32 = 1;
/// XTSup and GASup in the features of blocks of type 10h (5.2.2.1).
const REPORTED_X2APIC: u64 = 1 << 6 | 1;
/// The same in the image of the extended feature register, in later blocks (3.4.11).
const FEATURES_X2APIC: u64 = 1 << 7 | 1 << 2;
/// Bytes of a unit's registers without its performance counters.
pub(super) const WINDOW: u64 = 0x4000;

pub(super) fn describe(bytes: &[u8]) -> Result<Description, TableError> {
    let table = Ivrs::parse(bytes)?;
    let mut found = Description::new(TableKind::Ivrs);
    found.wants_protection = table.info().contains(Info::REMAP_FROM_START);
    let blocks: Vec<Result<Block<'_>, TableError>> = table.blocks().collect();
    let mut io_apics = Some(IoApics::default());
    let mut offer = RemappingOffer::X2Apic;
    for block in &blocks {
        match block {
            Ok(Block::Ivhd(unit)) if is_best(&blocks, unit) => {
                if !has_wide_destinations(unit) {
                    offer = RemappingOffer::XApic;
                }
                found.add_ivhd(&table, unit, &blocks, &mut io_apics);
            }
            Ok(_) => {}
            Err(error) => {
                found.damage(*error);
                found.units.push(UnitDescription::damaged(UnitKind::AmdVi, *error));
            }
        }
    }
    // Where two have one number, their messages cannot be told apart.
    if let Some(io_apics) = io_apics.filter(|named| !named.is_empty()) {
        found.remapping = offer;
        found.io_apics = io_apics;
    }
    Ok(found)
}

/// Tells if the unit of a block has interrupt entries with identifiers of 32 bits.
fn has_wide_destinations(unit: &Ivhd<'_>) -> bool {
    let (value, wanted) = match unit.level {
        Level::Basic => (unit.attributes.into(), REPORTED_X2APIC),
        _ => (unit.features.unwrap_or_default(), FEATURES_X2APIC),
    };
    value & wanted == wanted
}

/// Tells if no other block says more of the unit, or as much before this one.
fn is_best(blocks: &[Result<Block<'_>, TableError>], unit: &Ivhd<'_>) -> bool {
    !blocks.iter().any(|block| match block {
        Ok(Block::Ivhd(other)) => is_better(other, unit),
        _ => false,
    })
}

impl Description {
    fn add_ivhd(
        &mut self,
        table: &Ivrs<'_>,
        unit: &Ivhd<'_>,
        blocks: &[Result<Block<'_>, TableError>],
        io_apics: &mut Option<IoApics>,
    ) {
        let entries: Vec<Result<Entry<'_>, TableError>> = unit.entries().collect();
        let memory: Vec<Result<Reserved, TableError>> =
            table.memory_of(blocks.iter().copied(), unit.segment).take(MOST_RESERVED).collect();
        let settings = AmdSettings {
            function: PciFunction { segment: unit.segment, requester: unit.requester },
            capability: unit.capability,
            host_tables: unit.level == Level::Basic || unit.attributes & NO_HOST_TABLES == 0,
            physical_lg2: table.physical_lg2(),
            virtual_lg2: table.virtual_lg2(),
            orders: UnitOrders::of(unit, &entries, &memory),
        };
        let place = Place::of(unit.base, WINDOW);
        let mut described =
            UnitDescription::new(UnitKind::AmdVi, place, UnitSettings::AmdVi(settings));
        described.segment = Some(unit.segment);
        let number = self.units.len();
        // A block may be for all functions of the segment: each of its units has it, the first one its errors.
        described.reserved = memory.into_iter().filter(|one| one.is_ok() || number == 0).collect();
        self.units.push(described);
        for entry in entries {
            match entry {
                Ok(entry) => {
                    if let EntryKind::Special(special) = entry.kind {
                        let io_apic = special.kind == SpecialKind::IoApic;
                        let again = io_apics.as_mut().filter(|_| io_apic);
                        if again.is_some_and(|named| !named.insert(special.handle)) {
                            *io_apics = None;
                        }
                    }
                    self.claim(number, claim(unit, &entry));
                }
                Err(error) => {
                    self.notes.push(Note::Damage(error));
                    if let Some(unit) = self.units.get_mut(number) {
                        unit.damage.get_or_insert(error);
                    }
                }
            }
        }
    }
}

/// Claim of an entry of `unit`.
fn claim(unit: &Ivhd<'_>, entry: &Entry<'_>) -> Claim {
    let (first, last) = (entry.devices.first(), entry.devices.last());
    let segment = unit.segment;
    match entry.kind {
        EntryKind::All => Claim::Remaining(segment),
        EntryKind::Named => {
            Claim::Range { segments: (segment, segment), first, last, stream: first.stream() }
        }
        EntryKind::Alias(alias) => Claim::Alias { segment, first, last, alias },
        EntryKind::Special(special) => match special.kind {
            SpecialKind::IoApic => Claim::IoApic(special.handle, Some(special.source)),
            SpecialKind::Timer => Claim::Timer(special.handle, Some(special.source)),
        },
        EntryKind::Acpi(device) => Claim::Acpi {
            hid: name(device.hid),
            uid: ClaimUid::of(device.uid),
            stream: first.stream(),
        },
    }
}
