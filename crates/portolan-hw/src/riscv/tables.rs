//! Directories, the tables that attachments give to the unit, and the state of devices with translations
//! of their own.
//!
//! RISC-V IOMMU Architecture Specification, version 1.0, sections "Device-Directory-Table" and
//! "Process-Directory-Table", whose entries above the leaves are the same: contexts at the leaves of a
//! tree of pages of 4 KiB. The device directory has a device context for each stream, a stream's process
//! directory a process context for each PASID. A stream that was never named has no valid context, and is
//! blocked; the page that would hold it need not be there. An empty root means the same with any number
//! of levels.

use super::command::{self, Counted, RiscvTag, process_context};
use super::messages::MessageTables;
use crate::chassis::entry::{self, At, Kind, Live, Words};
use crate::chassis::{Block, book};
use crate::handover::AdoptError;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::sync::atomic::AtomicU64;
use portolan::addr::{PageSize, PhysAddr, StreamId};
use portolan::inval::Walker;
use portolan::iommu::{AttachError, IommuError};
use portolan::platform::{TableClaims, TableMem, Word};
use portolan_spec::riscv::context::{BASE_WORDS, PROCESS_WORDS, V};
use portolan_spec::riscv::{PPN, page_of};

/// The unit may read a context word by word, whenever it likes, and keeps valid ones until it is
/// told to forget them (section "Updating in-memory data structure entries").
pub(crate) const CONTEXT: Kind =
    Kind { deciding: V, closed: 0, reads: |_| [u64::MAX; entry::WORDS], live: Live::Closed };

/// Bits of a device's number that one page above the leaves resolves.
const INDEX_LG2: u32 = 9;
/// Most levels.
const MOST_LEVELS: u32 = 3;

/// The shape of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DirectoryShape {
    /// Number of levels.
    pub(super) levels: u32,
    /// Words of a context.
    pub(super) words: usize,
    /// Width of the numbers of devices in bits.
    pub(super) lg2: u32,
}

impl DirectoryShape {
    /// Bits of a device's number that a page of contexts of `words` words resolves.
    const fn leaf_lg2(words: usize) -> u32 {
        match words {
            PROCESS_WORDS => 8,
            BASE_WORDS => 7,
            _ => 6,
        }
    }

    /// The shallowest for numbers of `lg2` bits; `None` if there is none.
    pub(super) fn shallowest(words: usize, lg2: u32) -> Option<Self> {
        let deep = |levels: &u32| Self::leaf_lg2(words) + INDEX_LG2 * (levels - 1) >= lg2;
        let levels = (1..=MOST_LEVELS).find(deep)?;
        Some(Self { levels, words, lg2 })
    }

    /// Directory of `levels` levels, for numbers of `lg2` bits at most.
    pub(super) fn of_levels(levels: u32, words: usize, lg2: u32) -> Self {
        let most = Self::leaf_lg2(words) + INDEX_LG2 * (levels - 1);
        Self { levels, words, lg2: lg2.min(most) }
    }

    /// Index of `stream` in a page of `level`; contexts are level 0, and the pages above them begin with it.
    pub(super) fn index(self, stream: u32, level: u32) -> u64 {
        u64::from(self.above(stream, level)) & ((1 << INDEX_LG2) - 1)
    }

    /// First word of the context of `stream` in its page.
    pub(super) fn slot(self, stream: u32) -> usize {
        (stream as usize & ((1 << Self::leaf_lg2(self.words)) - 1)) * self.words
    }

    /// The device's number without the bits that `level` and those below resolve; contexts are
    /// level 0.
    fn above(self, stream: u32, level: u32) -> u32 {
        stream >> (Self::leaf_lg2(self.words) + INDEX_LG2 * level)
    }
}

/// Stream that goes on through the tables of a former kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeptContext {
    pub(super) stream: u32,
    pub(super) words: Words,
}

/// The tree. A caller that has it changes it alone.
#[derive(Debug)]
pub(super) struct Directory {
    shape: DirectoryShape,
    root: Block,
    /// The other pages, by their level and by the part of the index that is resolved above them.
    pages: BTreeMap<(u32, u32), Block>,
}

impl Directory {
    /// A directory over the empty page `root`.
    pub(super) fn new(root: Block, shape: DirectoryShape) -> Self {
        let pages = BTreeMap::new();
        Self { shape, root, pages }
    }

    /// A directory over a new root with the contexts of `kept`, of which the unit was not told.
    ///
    /// # Errors
    /// [`IommuError::Memory`].
    pub(super) fn filled(
        mem: &impl TableMem<AtomicU64>,
        shape: DirectoryShape,
        kept: &[KeptContext],
    ) -> Result<Self, IommuError> {
        let mut directory = Self::new(Block::new(mem, 12)?, shape);
        let fill = |one: &KeptContext| -> Result<(), IommuError> {
            let at = directory.place(mem, one.stream)?;
            at.fill(mem, Walker::Coherent, &one.words);
            Ok(())
        };
        let filled = kept.iter().try_for_each(fill);
        filled.inspect_err(|_| directory.free(mem))?;
        Ok(directory)
    }

    /// Has the root that the unit uses, at `root`, lead to what this one's leads to, by one store for each entry: a
    /// context that it holds stays or is closed. It is this directory's root from then on.
    pub(super) fn move_to(&mut self, mem: &impl TableMem<AtomicU64>, root: PhysAddr) {
        let former = Block { at: root, size: PageSize::SIZE_4K };
        let words = match self.shape.levels {
            1 => self.shape.words,
            _ => 1,
        };
        let both = former.words(mem).iter().zip(self.root.words(mem));
        for (word, new) in both.step_by(words) {
            Word::store(word, Word::load(new));
        }
        former.entry(0, 1).publish(mem, Walker::Coherent);
        self.root.free(mem);
        self.root = former;
    }

    /// Finds the pages of a directory that a former kernel left, and claims each of them.
    ///
    /// # Errors
    /// See [`AdoptError`].
    pub(super) fn adopt(
        mem: &impl TableMem<AtomicU64>,
        root: PhysAddr,
        shape: DirectoryShape,
        claims: &mut TableClaims<'_>,
    ) -> Result<Self, AdoptError> {
        let block = |at| Block { at, size: PageSize::SIZE_4K };
        claims.claim(root, PageSize::SIZE_4K)?;
        let mut directory = Self::new(block(root), shape);
        let mut upper = Vec::from([(0, block(root))]);
        for level in (0..shape.levels - 1).rev() {
            let mut lower = Vec::new();
            for (above, page) in upper {
                for (index, word) in (0..).zip(page.words(mem)) {
                    let word = Word::load(word);
                    let at = PhysAddr::new(PPN.of(word) << 12);
                    match word {
                        0 => continue,
                        word if word == V | page_of(at.get()) => {}
                        _ => return Err(AdoptError::Unrecorded { table: page.at }),
                    }
                    claims.claim(at, PageSize::SIZE_4K)?;
                    let below = above << INDEX_LG2 | index;
                    directory.pages.insert((level, below), block(at));
                    lower.push((below, block(at)));
                }
            }
            upper = lower;
        }
        Ok(directory)
    }

    /// Streams whose contexts count.
    pub(super) fn contexts(&self, mem: &impl TableMem<AtomicU64>) -> Vec<u32> {
        let root = (self.shape.levels == 1).then_some((0, self.root));
        let others = self.pages.range((0, 0)..(1, 0)).map(|((_, above), page)| (*above, *page));
        let lg2 = DirectoryShape::leaf_lg2(self.shape.words);
        let of_page = |(above, page): (u32, Block)| {
            let places = (0..1 << lg2).map(move |index: u32| {
                (above << lg2 | index, page.entry(index as usize * self.shape.words, 1))
            });
            places.filter(|(_, at)| at.read(mem)[0] & V != 0).map(|(stream, _)| stream)
        };
        root.into_iter().chain(others).flat_map(of_page).collect()
    }

    /// Place of the context of `stream`, if there is a page for it.
    pub(super) fn known(&self, stream: u32) -> Option<At> {
        let Self { shape, root, pages } = self;
        let page = match shape.levels {
            1 => root,
            _ => pages.get(&(0, shape.above(stream, 0)))?,
        };
        Some(page.entry(shape.slot(stream), shape.words))
    }

    /// `stream`, if it can have a context.
    pub(super) fn has(lg2: u32, stream: StreamId) -> Option<u32> {
        Some(stream.get()).filter(|stream| u64::from(*stream) >> lg2 == 0)
    }

    /// Width of the numbers that have contexts, in bits.
    pub(super) fn lg2(&self) -> u32 {
        self.shape.lg2
    }

    /// Place of the context of `stream`. The pages that lead to it are made if they are not there:
    /// the unit need not be told that entries begin to count.
    ///
    /// # Errors
    /// [`IommuError::Memory`].
    pub(super) fn place(
        &mut self,
        mem: &impl TableMem<AtomicU64>,
        stream: u32,
    ) -> Result<At, IommuError> {
        let Self { shape, root, pages } = self;
        let mut page = *root;
        for level in (0..shape.levels - 1).rev() {
            let above = shape.above(stream, level);
            page = match pages.get(&(level, above)) {
                Some(known) => *known,
                None => {
                    let new = Block::new(mem, 12)?;
                    let at = page.entry(shape.index(stream, level) as usize, 1);
                    at.publish(mem, Walker::Coherent);
                    at.write(mem, 0, V | page_of(new.at.get()));
                    pages.insert((level, above), new);
                    new
                }
            };
        }
        Ok(page.entry(shape.slot(stream), shape.words))
    }

    /// Number of levels.
    pub(super) fn levels(&self) -> u32 {
        self.shape.levels
    }

    /// Page at which the unit begins.
    pub(super) fn root(&self) -> Block {
        self.root
    }

    /// Adds a level above the root, for a unit that has no directory with so few. The unit must not
    /// be using it.
    ///
    /// # Errors
    /// [`IommuError::Unsupported`] if it has all levels; [`IommuError::Memory`].
    pub(super) fn deepen(&mut self, mem: &impl TableMem<AtomicU64>) -> Result<(), IommuError> {
        let below = self.shape.levels - 1;
        if self.shape.levels == MOST_LEVELS {
            return Err(IommuError::Unsupported);
        }
        let root = Block::new(mem, 12)?;
        let at = root.entry(0, 1);
        at.publish(mem, Walker::Coherent);
        at.write(mem, 0, V | page_of(self.root.at.get()));
        // All numbers so far have zeros where the new level looks.
        self.pages.insert((below, 0), self.root);
        self.root = root;
        self.shape.levels += 1;
        Ok(())
    }

    /// Has no context count any more, so that streams are blocked as soon as the unit looks. Where the
    /// root holds contexts, their other words stay: the unit reads words in any order.
    pub(super) fn clear(&self, mem: &impl TableMem<AtomicU64>) {
        let words = match self.shape.levels {
            1 => self.shape.words,
            _ => 1,
        };
        for word in self.root.words(mem).iter().step_by(words) {
            Word::store(word, 0);
        }
    }

    /// Gives the memory back. The unit must have stopped using it.
    pub(super) fn free(&mut self, mem: &impl TableMem<AtomicU64>) {
        for (_, page) in core::mem::take(&mut self.pages) {
            page.free(mem);
        }
        self.root.free(mem);
    }
}

/// Tables that give the attachments of streams to the unit.
#[derive(Debug)]
pub(super) struct Tables {
    pub(super) directory: Directory,
    /// MSI page tables, where messages go through such.
    pub(super) messages: Option<MessageTables>,
    /// Process directories, of streams with PASIDs.
    pub(super) processes: BTreeMap<u32, Directory>,
    /// Devices with translations of their own.
    pub(super) remotes: Remotes,
}

/// A stream, and one of its address spaces: 0 is that of its requests without a PASID.
pub(super) type Key = (u32, u32);

/// Place of the context of an address space, and its words.
pub(super) struct Place {
    pub(super) at: At,
    pub(super) words: Words,
}

impl Tables {
    /// The command by which the unit forgets the context of an address space.
    pub(super) fn forget(&self, (stream, pasid): Key) -> Counted {
        if self.processes.contains_key(&stream) {
            command::process(stream, pasid)
        } else {
            command::context_of(stream)
        }
    }

    /// Checks that a stream has that address space.
    pub(super) fn has(&self, (stream, pasid): Key) -> Result<(), AttachError> {
        let lg2 = self.processes.get(&stream).map_or(0, Directory::lg2);
        if u64::from(pasid) >> lg2 == 0 { Ok(()) } else { Err(AttachError::Mismatch) }
    }

    /// The place of the context of an address space that the stream has, and its words: those that
    /// mean for it the same as `words` for a whole stream.
    pub(super) fn place(
        &mut self,
        mem: &impl TableMem<AtomicU64>,
        (stream, pasid): Key,
        words: &Words,
    ) -> Result<Place, AttachError> {
        let (at, words) = match self.processes.get_mut(&stream) {
            Some(directory) => {
                let words = process_context(words).ok_or(AttachError::Mismatch)?;
                (directory.place(mem, pasid)?, words)
            }
            None => (self.directory.place(mem, stream)?, *words),
        };
        Ok(Place { at, words })
    }

    /// Gives the memory back. The unit must have stopped using it.
    pub(super) fn free(&mut self, mem: &impl TableMem<AtomicU64>) {
        self.directory.free(mem);
        self.remotes.free(mem);
        for (_, mut directory) in core::mem::take(&mut self.processes) {
            directory.free(mem);
        }
        if let Some(messages) = &mut self.messages {
            messages.free(mem);
        }
    }
}

/// Attachments of streams, and the tables that give them to the unit.
pub(super) type Streams = book::Streams<Key, Option<RiscvTag>, Tables>;

/// Devices with translations of their own.
#[derive(Debug, Default)]
pub(super) struct Remotes {
    pub(super) streams: BTreeSet<u32>,
    /// Address spaces, by stream and PASID, of which the device has nothing: it was asked, and could ask
    /// for nothing since.
    pub(super) clean: BTreeSet<(u32, u32)>,
    /// A root in which nothing is.
    pub(super) empty: Option<Block>,
}

impl Remotes {
    pub(super) fn has(&self, stream: u32) -> bool {
        self.streams.contains(&stream)
    }

    pub(super) fn forget_stream(&mut self, stream: u32) {
        self.streams.remove(&stream);
        self.clean.retain(|(of, _)| *of != stream);
    }

    pub(super) fn free(&mut self, mem: &impl TableMem<AtomicU64>) {
        if let Some(empty) = self.empty.take() {
            empty.free(mem);
        }
    }
}

#[cfg(test)]
mod tests;
