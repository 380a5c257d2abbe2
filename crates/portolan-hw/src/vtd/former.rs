//! Tables of the system before: the entries of their streams, and the identifiers that they use.
//!
//! Intel Virtualization Technology for Directed I/O (D51397), revision 4.1, sections 3.4, 6.2 (tags of what is
//! cached) and 9.1 to 9.6. While its translation is inherited, the unit fills its caches from these tables until
//! the root has changed and all is forgotten. A domain with one of their identifiers would share what is cached.
//!
//! Not supported: the extended mode of revisions before 3.0.

use super::features::Mode;
use super::tables::{ABSENT, context_place, mode_bits};
use crate::chassis::Present as _;
use crate::chassis::entry::Words;
use alloc::collections::BTreeSet;
use core::cell::Cell;
use portolan::addr::{Iova, PhysAddr, StreamId};
use portolan::iommu::IommuError;
use portolan::platform::{FormerMemory, Mmio};
use portolan::table::Translation;
use portolan::table::format::{VtdLevels, VtdSecondStage};
use portolan_spec::vtd::ADDRESS;
use portolan_spec::vtd::entry::{self, P, context, pasid as pasid_entry, scalable};
use portolan_spec::vtd::reg::{self, command, root_mode};

/// Words that are read of former tables, whose contents are not trusted: those of 256 devices with directories of
/// all PASIDs.
const MOST_READS: u32 = 1 << 22;

/// Bits of an entry's addresses.
const WIDEST: u32 = 52;

/// Translation of `iova` for requests of `stream` without a PASID, by the tables of the kernel before, which `memory`
/// reads: at most ten words. No register is written. `None` if nothing is mapped, the stream passes through, or the
/// unit does not translate in legacy mode.
///
/// *Context.* Interrupt, if the embedder's reading is.
///
/// # Errors
/// [`IommuError::Gone`].
pub(crate) fn former_translation(
    registers: &impl Mmio,
    memory: FormerMemory<'_>,
    stream: StreamId,
    iova: Iova,
) -> Result<Option<Translation>, IommuError> {
    let (status, root) = (registers.present32(reg::GSTS)?, registers.present64(reg::RTADDR)?);
    if status & command::TE == 0 || root & root_mode::MASK != mode_bits(Mode::Legacy) {
        return Ok(None);
    }
    let tables = FormerTables::new(root, Mode::Legacy, memory);
    let stream = u16::try_from(stream.get()).ok();
    Ok(stream.and_then(|stream| tables.translate(stream, iova)))
}

/// Identifiers that tag translations of former tables in the unit's caches.
#[derive(Debug, Default)]
pub(super) enum FormerTags {
    /// None, or none that is still there once the new root is.
    #[default]
    Forgotten,
    /// These, which no domain gets.
    Named(BTreeSet<u16>),
    /// Any.
    Unknown,
}

impl FormerTags {
    pub(super) fn are_known(&self) -> bool {
        !matches!(self, Self::Unknown)
    }

    /// Tells if no translation of a former table has the identifier `id`; without one, that of a domain made since.
    pub(super) fn leave_out(&self, id: Option<u16>) -> bool {
        match (self, id) {
            (Self::Forgotten, _) => true,
            (Self::Named(tags), Some(id)) => !tags.contains(&id),
            (Self::Named(_), None) => true,
            (Self::Unknown, _) => false,
        }
    }

    /// Identifiers that were kept out of use.
    pub(super) fn named(self) -> BTreeSet<u16> {
        match self {
            Self::Named(tags) => tags,
            Self::Forgotten | Self::Unknown => BTreeSet::new(),
        }
    }
}

/// Entry that the former system had for a stream.
pub(super) struct FormerEntry {
    pub(super) words: Words,
    pub(super) domain: u16,
    pub(super) passes: bool,
}

/// Word of a former table that cannot be read, or one too many.
struct Unreadable;

/// The tables below a root that another system left.
pub(super) struct FormerTables<'r> {
    root: u64,
    mode: Mode,
    memory: FormerMemory<'r>,
    /// Reads that are left.
    left: Cell<u32>,
}

impl<'r> FormerTables<'r> {
    pub(super) fn new(root: u64, mode: Mode, memory: FormerMemory<'r>) -> Self {
        Self { root, mode, memory, left: Cell::new(MOST_READS) }
    }

    /// Tells if streams that passed through may go on doing so.
    pub(super) fn may_pass(&self) -> bool {
        self.memory.passes().is_some()
    }

    fn word(&self, table: u64, index: usize) -> Result<u64, Unreadable> {
        self.left.set(self.left.get().checked_sub(1).ok_or(Unreadable)?);
        self.memory.word(PhysAddr::new((table & ADDRESS) + index as u64 * 8)).ok_or(Unreadable)
    }

    /// The word, if it has the present bit.
    fn present(&self, table: u64, index: usize) -> Result<Option<u64>, Unreadable> {
        Ok(Some(self.word(table, index)?).filter(|word| word & P != 0))
    }

    /// The context entry of `stream`, if there is one.
    fn context(&self, stream: u16) -> Result<Option<Words>, Unreadable> {
        let (place, index, count) = context_place(self.mode, stream);
        let Some(table) = self.present(self.root, place)? else { return Ok(None) };
        if self.present(table, index * count)?.is_none() {
            return Ok(None);
        }
        let mut words = ABSENT;
        for (n, word) in words.iter_mut().take(count).enumerate() {
            *word = self.word(table, index * count + n)?;
        }
        Ok(Some(words))
    }

    /// The first two words of the entry of `pasid` below a scalable context, if it is present.
    fn of_pasid(&self, directory: u64, pasid: u32) -> Result<Option<[u64; 2]>, Unreadable> {
        let index = (pasid >> entry::PASID_TABLE_LG2) as usize;
        let Some(table) = self.present(directory, index)? else { return Ok(None) };
        let slot = pasid as usize & ((1 << entry::PASID_TABLE_LG2) - 1);
        let first = slot * entry::PASID_WORDS;
        let Some(low) = self.present(table, first)? else { return Ok(None) };
        Ok(Some([low, self.word(table, first + 1)?]))
    }

    /// The entry of `stream` for requests without a PASID, if there is one.
    pub(super) fn entry(&self, stream: u16) -> Option<FormerEntry> {
        let mut words = self.context(stream).ok()??;
        let (domain, passes) = match self.mode {
            Mode::Legacy => {
                let passes = context::TT.of(words[0]) == context::translation::PASS;
                (context::DID.of(words[1]), passes)
            }
            Mode::Scalable => {
                words[0] &= !(scalable::PASIDE | scalable::PRE);
                let pasid = scalable::RID_PASID.of(words[1]) as u32;
                let [low, high] = self.of_pasid(words[0], pasid).ok()??;
                let passes = pasid_entry::PGTT.of(low) == pasid_entry::translation::PASS;
                (pasid_entry::DID.of(high), passes)
            }
        };
        Some(FormerEntry { words, domain: domain as u16, passes })
    }

    /// Translation of `iova` for requests of `stream` without a PASID, by the second-stage table of a legacy entry.
    fn translate(&self, stream: u16, iova: Iova) -> Option<Translation> {
        let FormerEntry { words, passes: false, .. } = self.entry(stream)? else { return None };
        let levels = match context::AW.of(words[1]) {
            1 => VtdLevels::Three,
            2 => VtdLevels::Four,
            3 => VtdLevels::Five,
            _ => return None,
        };
        // Addresses that a unit has not are left to the reader of memory.
        let format = VtdSecondStage::new(levels, WIDEST);
        self.memory.translate(&format, PhysAddr::new(words[0] & ADDRESS), iova)
    }

    /// The identifiers of all entries; `None` if some cannot be read.
    pub(super) fn tags(&self) -> Option<BTreeSet<u16>> {
        let mut tags = BTreeSet::new();
        for stream in 0..=u16::MAX {
            self.note(stream, &mut tags).ok()?;
        }
        Some(tags)
    }

    fn note(&self, stream: u16, tags: &mut BTreeSet<u16>) -> Result<(), Unreadable> {
        let Some(words) = self.context(stream)? else { return Ok(()) };
        if self.mode == Mode::Legacy {
            tags.insert(context::DID.of(words[1]) as u16);
            return Ok(());
        }
        for index in 0..1 << (scalable::PDTS.of(words[0]) + 7) {
            if self.present(words[0], index)?.is_none() {
                continue;
            }
            for slot in 0..1u32 << entry::PASID_TABLE_LG2 {
                let pasid = (index as u32) << entry::PASID_TABLE_LG2 | slot;
                if let Some([_, high]) = self.of_pasid(words[0], pasid)? {
                    tags.insert(pasid_entry::DID.of(high) as u16);
                }
            }
        }
        Ok(())
    }
}
