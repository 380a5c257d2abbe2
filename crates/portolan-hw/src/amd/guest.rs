//! Guest tables: the GCR3 table of a stream, by which its entry leads to them.
//!
//! AMD I/O Virtualization Technology (IOMMU) Specification (48882), revision 3.10, sections 2.2.2.1 (GV, GIoV, GLX,
//! the GCR3 table's address, GuestPagingMode), 2.2.6 and 2.4.3 (invalidation by domain and PASID). A stream's GCR3
//! table is its own, and has a domain identifier of its own: the unit tags translations by that identifier and the
//! PASID, so one identifier stands for one GCR3 table.
//!
//! *Context.* Interrupt, but for functions that take or give back memory (task).

use super::command::{AmdAtc, AmdKept, AtcSpaces, GuestUse};
use super::features::GuestFeatures;
use super::queue::{AmdQueue, AmdShared};
use crate::chassis::entry::{At, Kind, Live, WORDS};
use crate::chassis::{Block, book};
use crate::handover::AdoptError;
use crate::ids::Ids;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::sync::atomic::AtomicU64;
use portolan::addr::{InvalTag, PageSize, PhysAddr};
use portolan::inval::Walker;
use portolan::iommu::{IommuError, PagedDomain};
use portolan::platform::{ForeignTables, TableClaims, TableMem, UnitPlatform};
use portolan::table::format::{AmdV2, AmdV2Levels};
use portolan_spec::amd::entry::{
    DOMAIN, GUEST, GUEST_DEFAULT, GUEST_LEVELS, GUEST_PAGING, GUEST_ROOT_HIGH, GUEST_ROOT_LOW,
    GUEST_ROOT_MIDDLE, IR, IW,
};
use portolan_spec::amd::guest::{LG2_ENTRIES, V};
use portolan_spec::amd::{ADDRESS, entry};

/// A domain with guest tables.
pub type AmdGuestDomain<P> = PagedDomain<AmdV2, <P as UnitPlatform>::Memory, AmdQueue<P>>;
/// A domain over guest tables that a kernel built itself.
pub type ForeignAmdGuestDomain<P> = PagedDomain<AmdV2, ForeignTables, AmdQueue<P>>;

/// Entries of GCR3 tables: one word, which one store changes.
const ENTRY: Kind =
    Kind { deciding: V, closed: 0, reads: |_| [u64::MAX; WORDS], live: Live::OneWord };

/// PASID of accesses without one.
pub(super) const DEFAULT: u32 = 0;

/// Treatment of accesses without a PASID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WithoutPasid {
    /// They go through the tables of PASID 0.
    Default,
    /// They pass the guest tables by: to the host tables below, or through.
    Pass,
}

/// Address of the GCR3 table in the words of an entry.
pub(super) fn root_of(word: u64, second: u64) -> u64 {
    GUEST_ROOT_LOW.of(word) << 12
        | GUEST_ROOT_MIDDLE.of(second) << 15
        | GUEST_ROOT_HIGH.of(second) << 31
}

impl WithoutPasid {
    /// The field of an entry.
    pub(super) fn bit(self) -> u64 {
        match self {
            Self::Default => GUEST_DEFAULT,
            Self::Pass => 0,
        }
    }
}

/// The fields of an entry that lead to the GCR3 table at `root`.
pub(super) fn roots(root: u64, levels: u32, without: WithoutPasid) -> [u64; 2] {
    let without = without.bit();
    let levels = GUEST_LEVELS.at(u64::from(levels) - 1);
    let high = GUEST_ROOT_MIDDLE.at(root >> 15) | GUEST_ROOT_HIGH.at(root >> 31);
    [GUEST | without | levels | GUEST_ROOT_LOW.at(root >> 12), high]
}

/// The GCR3 table of a stream. It stays until the unit is released, as the unit may read it.
#[derive(Debug)]
pub(super) struct GuestTable {
    /// Domain identifier.
    pub(super) id: u16,
    root: Block,
    levels: u32,
    /// Tables below the root, by level and by the PASIDs' upper bits.
    lower: BTreeMap<(u32, u32), Block>,
    /// Levels of the guest tables that it leads to.
    pub(super) deep: AmdV2Levels,
    pub(super) without: WithoutPasid,
}

impl GuestTable {
    /// An empty table of the domain `id` for PASIDs of `bits` bits. *Context.* Task.
    pub(super) fn new(
        mem: &impl TableMem<AtomicU64>,
        id: u16,
        bits: u32,
    ) -> Result<Self, IommuError> {
        Ok(Self {
            id,
            root: Block::new(mem, 12)?,
            levels: bits.div_ceil(LG2_ENTRIES),
            lower: BTreeMap::new(),
            deep: AmdV2Levels::Four,
            without: WithoutPasid::Default,
        })
    }

    /// The table to which the words of an entry of a former kernel lead, and the PASIDs that are in it, for PASIDs of
    /// `bits` bits. Its memory is claimed; that it is the entry of such a table is for the caller to check.
    ///
    /// *Context.* Task.
    pub(super) fn adopt(
        mem: &impl TableMem<AtomicU64>,
        [word, second, third]: [u64; 3],
        bits: u32,
        claims: &mut TableClaims<'_>,
    ) -> Result<(Self, Vec<u32>), AdoptError> {
        let at = PhysAddr::new(root_of(word, second));
        let wrong = AdoptError::Shape { root: at };
        let levels = GUEST_LEVELS.of(word) as u32 + 1;
        let deep = match GUEST_PAGING.of(third) {
            0 => AmdV2Levels::Four,
            1 => AmdV2Levels::Five,
            _ => return Err(wrong),
        };
        if levels != bits.div_ceil(LG2_ENTRIES) {
            return Err(wrong);
        }
        let mut claim = |at| {
            claims.claim(at, PageSize::SIZE_4K)?;
            Ok::<_, AdoptError>(Block { at, size: PageSize::SIZE_4K })
        };
        let without = match word & GUEST_DEFAULT {
            0 => WithoutPasid::Pass,
            _ => WithoutPasid::Default,
        };
        let (root, id) = (claim(at)?, DOMAIN.of(second) as u16);
        let mut table = Self { id, root, levels, lower: BTreeMap::new(), deep, without };
        let mut open = present(mem, root, 0);
        for level in (1..levels).rev() {
            let mut below = Vec::new();
            for (prefix, word) in open {
                if word & !ADDRESS != V {
                    return Err(wrong);
                }
                let lower = claim(PhysAddr::new(word & ADDRESS))?;
                table.lower.insert((level, prefix), lower);
                below.extend(present(mem, lower, prefix));
            }
            open = below;
        }
        Ok((table, open.into_iter().map(|(pasid, _)| pasid).collect()))
    }

    /// The entry of `pasid`, if the tables that hold it are there.
    pub(super) fn known(&self, pasid: u32) -> Option<At> {
        let table = match self.levels {
            1 => self.root,
            _ => *self.lower.get(&(1, pasid >> LG2_ENTRIES))?,
        };
        Some(slot(table, pasid))
    }

    /// The words about memory of an entry that leads to it.
    pub(super) fn memory(&self) -> [u64; 2] {
        let [low, high] = roots(self.root.at.get(), self.levels, self.without);
        [entry::V | entry::TV | IR | IW | low, DOMAIN.at(self.id.into()) | high]
    }

    /// The entry of `pasid`, with the tables that hold it. *Context.* Task.
    pub(super) fn entry(
        &mut self,
        mem: &impl TableMem<AtomicU64>,
        pasid: u32,
    ) -> Result<At, IommuError> {
        let mut table = self.root;
        for level in (1..self.levels).rev() {
            let prefix = pasid >> (level * LG2_ENTRIES);
            let place = (level, prefix);
            table = match self.lower.get(&place) {
                Some(lower) => *lower,
                None => {
                    let lower = Block::new(mem, 12)?;
                    self.lower.insert(place, lower);
                    let at = slot(table, prefix);
                    at.write(mem, 0, lower.at.get() & ADDRESS | V);
                    at.publish(mem, Walker::Coherent);
                    lower
                }
            };
        }
        Ok(slot(table, pasid))
    }

    /// Gives the memory back. The unit must have stopped using it. *Context.* Task.
    pub(super) fn free(&self, mem: &impl TableMem<AtomicU64>) {
        self.root.free(mem);
        self.lower.values().for_each(|table| table.free(mem));
    }
}

/// Entries of a table that are not zero, by the bits of PASIDs that lead to them: `prefix` and their own.
fn present(mem: &impl TableMem<AtomicU64>, table: Block, prefix: u32) -> Vec<(u32, u64)> {
    let words = (0..1 << LG2_ENTRIES).map(|index| (index, slot(table, index).read(mem)[0]));
    let some = words.filter(|(_, word)| *word != 0);
    some.map(|(index, word)| (prefix << LG2_ENTRIES | index, word)).collect()
}

/// The entry of a table of one level for PASIDs with these last bits.
fn slot(table: Block, pasid: u32) -> At {
    table.entry(pasid as usize & ((1 << LG2_ENTRIES) - 1), 1)
}

/// Names of domains with guest tables, all free.
pub(super) fn guest_names<P: UnitPlatform>() -> Ids<P> {
    Ids::new(0, u16::MAX.into())
}

/// A stream and a PASID.
pub(super) type GuestKey = (u16, u32);

/// Destination of a PASID of a stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct GuestPlace {
    /// The domain that it is attached to.
    pub(super) context: InvalTag,
    /// Tag of its translations.
    pub(super) tagged: GuestUse,
    /// Those of them that the stream's device keeps, if its entry lets it.
    pub(super) kept: Option<AmdKept>,
}

impl GuestPlace {
    /// With the device `told`, which keeps translations.
    pub(super) fn new(context: InvalTag, tagged: GuestUse, told: Option<AmdAtc>) -> Self {
        let spaces = match tagged.pasid {
            DEFAULT => AtcSpaces::Default,
            pasid => AtcSpaces::Pasid(pasid),
        };
        Self { context, tagged, kept: told.map(|atc| AmdKept { atc, spaces }) }
    }
}

pub(super) type GuestAttachment = book::Attachment<GuestPlace>;

/// Attachments of PASIDs, and the GCR3 tables that name them, by stream.
#[derive(Debug, Default)]
pub(super) struct Guests {
    pub(super) pasids: book::Streams<GuestKey, GuestPlace, ()>,
    pub(super) tables: BTreeMap<u16, GuestTable>,
}

/// All PASIDs of `stream`.
pub(super) fn all_of(stream: u16) -> core::ops::RangeInclusive<GuestKey> {
    (stream, 0)..=(stream, u32::MAX)
}

impl Guests {
    /// PASIDs that lead anywhere, or may yet.
    pub(super) fn named(&self) -> Vec<GuestKey> {
        self.pasids.not_blocked(..).collect()
    }

    /// Tells if a PASID of `stream` leads anywhere, or may yet, beside that of accesses without one.
    pub(super) fn has_pasids(&self, stream: u16) -> bool {
        let mut some = self.pasids.not_blocked((stream, DEFAULT + 1)..=(stream, u32::MAX));
        some.next().is_some()
    }
}

/// Change of a PASID from one place to another; each is nowhere if `None`.
#[derive(Clone, Copy, Debug)]
pub(super) struct GuestMove<'a> {
    pub(super) tagged: GuestUse,
    pub(super) old: Option<&'a GuestAttachment>,
    pub(super) new: Option<&'a GuestAttachment>,
}

impl GuestMove<'_> {
    /// Changes the entry of the GCR3 table to lead to the guest table `root`, or nowhere. On return neither the unit
    /// nor the device uses an older copy. On an error the entry leads nowhere, and the unit may still use its copy of
    /// it.
    pub(super) fn change<P: UnitPlatform>(
        self,
        shared: &AmdShared<P>,
        at: At,
        root: u64,
    ) -> Result<(), IommuError> {
        let Self { tagged, old, new } = self;
        let mem = &shared.control.mem;
        let ask = |of: Option<&GuestAttachment>| {
            of.and_then(|of| of.to.kept).map_or(Ok(()), |kept| shared.ask_one(kept))
        };
        if old.is_none() {
            // The device may have been another's, and gets nothing under this PASID yet.
            ask(new)?;
        }
        let mut words = [0; WORDS];
        words[0] = root;
        let changed = at.change(mem, Walker::Coherent, &ENTRY, &words, |_| {
            // Absence may be kept, too.
            shared.forget_guest(tagged)?;
            // Behind the unit, from whose caches the device might be answered otherwise.
            ask(old)
        });
        changed.inspect_err(|_| at.write(mem, 0, 0))
    }
}

impl GuestFeatures {
    /// Tells if the unit walks guest tables of `levels` levels.
    pub(super) fn walks(&self, levels: AmdV2Levels) -> bool {
        match levels {
            AmdV2Levels::Four => self.levels >= 4,
            AmdV2Levels::Five => self.levels >= 5,
        }
    }

    /// Width of the PASIDs that are used where `wanted` is asked for, at least 1.
    pub(super) fn width(&self, wanted: u32) -> u32 {
        wanted.clamp(1, self.pasid_bits.min(self.root_levels * LG2_ENTRIES))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A GCR3 table of two levels at 0xa_bcde_f123_5000: bits 14:12 are 5, 30:15 are 0xe246, 51:31 are 0x1579bd.
    #[test]
    fn entries_by_hand() {
        let root = Block { at: PhysAddr::new(0xa_bcde_f123_5000), size: PageSize::SIZE_4K };
        let (lower, deep) = (BTreeMap::new(), AmdV2Levels::Four);
        let without = WithoutPasid::Default;
        let mut table = GuestTable { id: 7, root, levels: 2, lower, deep, without };
        assert_eq!(table.memory(), [0x75c0_0000_0000_0003, 0xabcd_e800_e246_0007]);
        table.without = WithoutPasid::Pass;
        table.levels = 1;
        assert_eq!(table.memory(), [0x7480_0000_0000_0003, 0xabcd_e800_e246_0007]);
    }
}
