//! Translation of a device's address to memory: section "Process to translate an IOVA".

use portolan::addr::{InvalTag, Iova, IovaRange, PageSize, PhysAddr, StreamId};

use super::contexts::{
    Context, Processes, StageTables, TranslationControl, Without, Words, decode, decode_process,
};
use super::faults::RiscvRefusal;
use super::messages::PlacedEntry;
use super::monitor::event;
use super::queue::OWNER;
use super::registers::mode;
use super::{RiscvRegisters, State};
use crate::stage::{CachedWalk, Drops, Tag, WalkError, WalkedLeaf};
use portolan_sim::cache::Reach;
use portolan_sim::decode::{
    AccessKind, Cursor, Decoded, Leaf, Stepped, WalkFault, WalkMemory, step,
};
use portolan_sim::iommu::Temper;
use portolan_sim::request::Request;

/// Parts of a leaf that are kept, each with its address. Of a page that is several entries (Svnapot), a unit may keep
/// each part by itself, with no regard to the other entries: at its worst, it does.
fn pieces(found: &WalkedLeaf, iova: Iova, temper: &Temper) -> Vec<(Iova, Leaf)> {
    let leaf = found.leaf;
    let of_several = found.level == 0 && leaf.size != PageSize::SIZE_4K;
    if !of_several || *temper != Temper::Adversarial {
        return vec![(iova, leaf)];
    }
    let size = PageSize::SIZE_4K;
    let (start, pages) = (iova.align_down(leaf.size), leaf.size.bytes() / size.bytes());
    let offsets = (0..pages).map(|page| page * size.bytes());
    let piece = |offset| {
        let pa = PhysAddr::new(leaf.pa.get() + offset);
        (Iova::new(start.get() + offset), Leaf { pa, size, ..leaf })
    };
    offsets.map(piece).collect()
}

/// Stage that has tables.
#[derive(Clone, Copy)]
enum TableStage {
    First,
    Second,
}

impl RiscvRegisters {
    /// Memory address of one device address.
    pub(super) fn translate(
        &self,
        state: &mut State,
        of: Request,
    ) -> Result<PhysAddr, RiscvRefusal> {
        let untranslated = Ok(PhysAddr::new(of.iova.get()));
        match state.own.registers.mode() {
            mode::OFF => return Err(RiscvRefusal::Off),
            mode::BARE => return untranslated,
            _ => {}
        }
        let (context, remote) = self.context(state, of.stream)?;
        let context = match (context, of.pasid) {
            (Context::Processes(all), Some(pasid)) => {
                self.process(state, of.stream, all, pasid.get())?
            }
            (Context::Processes(all), None) => match all.without {
                Without::Zero => self.process(state, of.stream, all, 0)?,
                Without::Untranslated => Context::Passes,
            },
            (_, Some(_)) => return Err(RiscvRefusal::Disallowed),
            (context, None) => context,
        };
        match context {
            // No process context has a process directory.
            Context::Processes(_) => Err(RiscvRefusal::BadProcess),
            Context::Passes => untranslated,
            Context::First(tables) => self.page(state, (TableStage::First, remote), tables, of),
            Context::Second(tables, messages) => {
                let page = of.iova.get() >> 12;
                match messages.and_then(|messages| messages.entry(page)) {
                    Some(entry) => self.translate_message(
                        state,
                        PlacedEntry { tag: tables.tag, page, at: entry },
                        of,
                    ),
                    None => self.page(state, (TableStage::Second, remote), tables, of),
                }
            }
        }
    }

    /// The context of a device, kept or from memory. One that does not count is not kept.
    pub(super) fn context(
        &self,
        state: &mut State,
        stream: StreamId,
    ) -> Result<(Context, TranslationControl), RiscvRefusal> {
        let device = stream.get();
        if let Some(kept) = state.own.contexts.get(&device) {
            return *kept;
        }
        let id = &self.setup.identification;
        let levels = state.own.registers.levels().ok_or(RiscvRefusal::Off)?;
        if u64::from(device) >> (id.leaf_lg2() + 9 * (levels - 1)).min(24) != 0 {
            return Err(RiscvRefusal::Disallowed);
        }
        state.counts.happened(event::DEVICE_WALK, device);
        let page = self.page_of_contexts(state, device, levels)?;
        let bytes = if id.has_message_tables() { 64 } else { 32 };
        let index = u64::from(device) & ((1 << id.leaf_lg2()) - 1);
        let words = self.words(page + index * bytes, bytes / 8);
        state.counts.configuration_reads += 1;
        let words = words.ok_or(RiscvRefusal::NoDirectory)?;
        if words[0] & 1 == 0 {
            return Err(RiscvRefusal::NoContext);
        }
        let context = decode(words, id);
        state.own.contexts.insert(device, context);
        context
    }

    /// The process context of an address space, kept or from memory.
    fn process(
        &self,
        state: &mut State,
        stream: StreamId,
        all: Processes,
        pasid: u32,
    ) -> Result<Context, RiscvRefusal> {
        let key = (stream.get(), pasid);
        if u64::from(pasid) >> all.lg2() != 0 {
            return Err(RiscvRefusal::Disallowed);
        }
        if let Some(kept) = state.own.processes.get(&key) {
            return *kept;
        }
        state.counts.happened(event::PROCESS_WALK, stream.get());
        let mut page = all.root;
        for level in (0..all.levels - 1).rev() {
            let above = pasid >> (8 + 9 * level);
            let key = (stream.get(), level, above);
            if let Some(kept) = state.own.process_pages.get(&key) {
                page = *kept;
                continue;
            }
            state.counts.configuration_reads += 1;
            let at = PhysAddr::new(page + 8 * u64::from(above & 0x1ff));
            let entry =
                self.memory.snooped().read_u64(at).ok_or(RiscvRefusal::NoProcessDirectory)?;
            if entry & 1 == 0 {
                return Err(RiscvRefusal::NoProcess);
            }
            if entry & !(0xfff_ffff_ffff << 10 | 1) != 0 {
                return Err(RiscvRefusal::BadProcess);
            }
            page = entry >> 10 << 12;
            state.own.process_pages.insert(key, page);
        }
        state.counts.configuration_reads += 1;
        let words = self.words(page + u64::from(pasid & 0xff) * 16, 2);
        let [attributes, first, ..] = words.ok_or(RiscvRefusal::NoProcessDirectory)?;
        if attributes & 1 == 0 {
            return Err(RiscvRefusal::NoProcess);
        }
        let context = decode_process([attributes, first], &self.setup.identification);
        state.own.processes.insert(key, context);
        context
    }

    /// The page of the directory that holds a device's context. Valid entries that lead there are cached by their
    /// level and the part of the number that they resolve.
    fn page_of_contexts(
        &self,
        state: &mut State,
        device: u32,
        levels: u32,
    ) -> Result<u64, RiscvRefusal> {
        let leaf_lg2 = self.setup.identification.leaf_lg2();
        let mut page = (state.own.registers.ddtp >> 10 & 0xfff_ffff_ffff) << 12;
        for level in (0..levels - 1).rev() {
            let above = device >> (leaf_lg2 + 9 * level);
            if let Some(kept) = state.own.pages.get(&(level, above)) {
                page = *kept;
                continue;
            }
            state.counts.configuration_reads += 1;
            let at = PhysAddr::new(page + 8 * u64::from(above & 0x1ff));
            let entry = self.memory.snooped().read_u64(at).ok_or(RiscvRefusal::NoDirectory)?;
            if entry & 1 == 0 {
                return Err(RiscvRefusal::NoContext);
            }
            if entry & !(0xfff_ffff_ffff << 10 | 1) != 0 {
                return Err(RiscvRefusal::Malformed);
            }
            page = entry >> 10 << 12;
            state.own.pages.insert((level, above), page);
        }
        Ok(page)
    }

    fn words(&self, at: u64, count: u64) -> Option<Words> {
        let mut words = [0; 8];
        for (n, word) in (0..count).zip(&mut words) {
            *word = self.memory.snooped().read_u64(PhysAddr::new(at + 8 * n))?;
        }
        Some(words)
    }

    /// Looks an address up in a stage's tables. Where the unit keeps accessed and dirty bits, a leaf that would let
    /// the access through once it is marked is marked, and read again.
    fn page(
        &self,
        state: &mut State,
        (which, remote): (TableStage, TranslationControl),
        tables: StageTables,
        of: Request,
    ) -> Result<PhysAddr, RiscvRefusal> {
        let marks = match which {
            TableStage::First => remote.marks_first(),
            TableStage::Second => remote.marks_second(),
        };
        let (leaf, refused) = self.leaf(state, which, tables, of)?;
        if leaf.permissions.allow(of.access) {
            return Ok(leaf.address(of.iova));
        }
        if !marks || self.mark(&tables, of).is_none() {
            return Err(refused);
        }
        let stage = match which {
            TableStage::First => &mut state.own.first,
            TableStage::Second => &mut state.own.second,
        };
        let page = IovaRange::page(of.iova, leaf.size);
        let reach = Reach::Range(InvalTag::new(tables.tag), page);
        stage.invalidate(reach, None, Drops::LEAVES);
        let (leaf, refused) = self.leaf(state, which, tables, of)?;
        if leaf.permissions.allow(of.access) { Ok(leaf.address(of.iova)) } else { Err(refused) }
    }

    /// Sets the accessed bit of the leaf for an address, and for a write the dirty bit, if it then lets the access
    /// through: section "Memory access and page-table updates".
    fn mark(&self, tables: &StageTables, of: Request) -> Option<()> {
        let memory = self.memory.snooped();
        let format = tables.table.format;
        let mut at = Cursor::top(&tables.table);
        loop {
            let entry = at.table.checked_add(8 * format.index(of.iova, at.level))?;
            match step(&memory, format, at, of.iova).ok()? {
                Stepped::Down(next) => at = next,
                Stepped::Found(_) => {
                    let written = match of.access {
                        AccessKind::Read => 0,
                        AccessKind::Write => 1 << 7,
                    };
                    let marked = memory.read_u64(entry)? | 1 << 6 | written;
                    let lets = match format.decode(marked, at.level) {
                        Decoded::Leaf { permissions, .. } | Decoded::Part { permissions, .. } => {
                            permissions.allow(of.access)
                        }
                        _ => false,
                    };
                    return if lets { self.memory.write_u64(entry, marked) } else { None };
                }
            }
        }
    }

    /// The leaf for an address, kept or from a walk, and the refusal if it does not let the access through.
    fn leaf(
        &self,
        state: &mut State,
        which: TableStage,
        tables: StageTables,
        of: Request,
    ) -> Result<(Leaf, RiscvRefusal), RiscvRefusal> {
        let (stage, refused, walked) = match which {
            TableStage::First => (&mut state.own.first, RiscvRefusal::Page, event::FIRST_WALK),
            TableStage::Second => {
                (&mut state.own.second, RiscvRefusal::GuestPage, event::SECOND_WALK)
            }
        };
        let context = InvalTag::new(tables.tag);
        let tag = Tag { context, owner: OWNER };
        let leaf = match stage.lookup(context, of.iova) {
            Some(CachedWalk::Present { leaf, .. }) => {
                state.counts.hits += 1;
                leaf
            }
            _ => {
                state.counts.misses += 1;
                let device = of.stream.get();
                state.counts.happened(event::MISS, device);
                state.counts.happened(walked, device);
                let format = tables.table.format;
                if !format.holds(of.iova) {
                    return Err(refused);
                }
                let top = Cursor::top(&tables.table);
                let memory = self.memory.snooped();
                let walk = stage.walk(&memory, tag, format, top, of.iova, Ok::<_, WalkFault>);
                let found = walk.map_err(|ended| match ended {
                    WalkError::Here(WalkFault::Unreadable { .. })
                    | WalkError::Locating(WalkFault::Unreadable { .. }) => RiscvRefusal::NoMemory,
                    WalkError::Here(_) | WalkError::Locating(_) => refused,
                })?;
                let leaf = found.leaf;
                for (at, leaf) in pieces(&found, of.iova, &self.setup.temper) {
                    let page = leaf.size;
                    stage.insert(tag, at, page, CachedWalk::Present { leaf, page });
                }
                leaf
            }
        };
        Ok((leaf, refused))
    }
}
