//! Entries of a former kernel's device table, for streams that go on through its tables.
//!
//! AMD I/O Virtualization Technology (IOMMU) Specification (48882), revision 3.10, sections 2.2.2.1 and 3.4.1. The
//! entries are copied into the new table before the unit is told of it, with the domain identifiers of before: until
//! the unit has forgotten everything, these tag what it has cached of the same tables.
//!
//! Not supported: entries with guest tables, device tables in segments.

use super::command::AmdControl;
use super::queue::{NOTHING, PASS};
use super::tables::{DeviceTable, ENTRY, Memory};
use crate::ids::Ids;
use alloc::vec::Vec;
use portolan::addr::{PageSize, PhysAddr, StreamId};
use portolan::iommu::IommuError;
use portolan::platform::{FormerMemory, OutOfTableMemory, UnitPlatform};
use portolan_spec::amd::ADDRESS;
use portolan_spec::amd::entry::{
    DEVICE_TLB, DOMAIN, GUEST, IR, IW, LG2_BYTES, MARKS, MODE, TV, V, WORDS,
};
use portolan_spec::amd::reg::{self, control};

/// Bits of an entry that are copied: those of host tables. The device may go on with translations that it keeps.
const COPIED: Memory =
    [V | TV | MARKS.mask() | MODE.mask() | ADDRESS | IR | IW, DOMAIN.mask() | DEVICE_TLB];

/// Levels of host tables, at most.
const MOST_LEVELS: u64 = 6;

/// Stream that goes on through the tables of a former kernel.
pub(super) struct KeptEntry {
    pub(super) stream: u16,
    pub(super) memory: Memory,
}

impl KeptEntry {
    pub(super) fn domain(&self) -> u16 {
        DOMAIN.of(self.memory[1]) as u16
    }
}

/// The device table that a former kernel left.
struct FormerEntries<'r> {
    /// Value of the register of its base.
    base: u64,
    memory: FormerMemory<'r>,
}

impl<'r> FormerEntries<'r> {
    /// The table that the unit uses, if it is one whole.
    fn of<P: UnitPlatform>(
        unit: &AmdControl<P>,
        memory: FormerMemory<'r>,
    ) -> Result<Option<Self>, IommuError> {
        let how = unit.read(reg::CONTROL)? & (control::ENABLE | control::SEGMENTS);
        let base = unit.read(reg::DEVICE_TABLE)?;
        Ok((how == control::ENABLE).then_some(Self { base, memory }))
    }

    /// The words about memory of the entry of `stream`, if it lets something through that can be kept.
    fn memory(&self, stream: u16) -> Option<Memory> {
        let streams = (reg::TABLE_SIZE.of(self.base) + 1) << (PageSize::SIZE_4K.lg2() - LG2_BYTES);
        let index = u64::from(stream);
        let first = (self.base & ADDRESS) + index * WORDS as u64 * 8;
        let word = |number: u64| self.memory.word(PhysAddr::new(first + number * 8));
        let old = [word(0).filter(|_| index < streams)?, word(1)?];
        let mut memory = [old[0] & COPIED[0], old[1] & COPIED[1]];
        let valid = old[0] & (V | TV) == V | TV && old[0] & GUEST == 0;
        match MODE.of(memory[0]) {
            _ if !valid || ENTRY.is_closed(memory[0]) => None,
            0 if self.memory.passes().is_none() => None,
            // No tables hang on it, so that any domain will do.
            0 => {
                memory[1] = memory[1] & !DOMAIN.mask() | DOMAIN.at(PASS.into());
                Some(memory)
            }
            1..=MOST_LEVELS => Some(memory),
            _ => None,
        }
    }
}

/// The old entries of those of `keep` that have a place in `table`. Their identifiers are taken from `ids`.
///
/// # Errors
/// If the unit is gone, and without memory.
pub(super) fn kept<P: UnitPlatform>(
    unit: &AmdControl<P>,
    table: &DeviceTable,
    ids: &Ids<P>,
    keep: &[StreamId],
    memory: FormerMemory<'_>,
) -> Result<Vec<KeptEntry>, IommuError> {
    let mut all: Vec<KeptEntry> = Vec::new();
    let Some(former) = FormerEntries::of(unit, memory)? else { return Ok(all) };
    all.try_reserve(keep.len()).map_err(|_| OutOfTableMemory { size: PageSize::SIZE_4K })?;
    for stream in keep.iter().filter_map(|stream| table.has(*stream)) {
        if all.iter().any(|one| one.stream == stream) {
            continue;
        }
        let Some(memory) = former.memory(stream) else { continue };
        let new = KeptEntry { stream, memory };
        if reserve(ids, &all, &new) {
            all.push(new);
        }
    }
    Ok(all)
}

/// Takes the identifier of `new` out of use, unless another kept stream has it, which is fine.
fn reserve<P: UnitPlatform>(ids: &Ids<P>, all: &[KeptEntry], new: &KeptEntry) -> bool {
    match new.domain() {
        // Blocked streams have it.
        0 | NOTHING => false,
        PASS => MODE.of(new.memory[0]) == 0,
        id => all.iter().any(|one| one.domain() == id) || ids.take_this(id.into()),
    }
}
