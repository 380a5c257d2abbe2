//! Translation of a stream's address to memory.

use portolan::addr::{InvalTag, Iova, PhysAddr};

use super::banks::Walks;
use super::faults::{SmmuV2Refusal, context, global};
use super::space::{Space, global_context, space_context};
use super::unit::Target;
use super::{SmmuV2Registers, State};
use crate::stage::{CachedWalk, OwnedEntry, Stage, Tag, WalkError, top_of};
use portolan_sim::cache::{Cache, Key};
use portolan_sim::decode::{Leaf, TableFormat, WalkFault};
use portolan_sim::iommu::Temper;
use portolan_sim::profile::CacheGeometry;
use portolan_sim::request::Request;

/// A realistic micro TLB: a few entries in one set.
const MICRO: CacheGeometry = CacheGeometry { entries: 8, ways: 8 };

/// Exponent of the streams that share a micro TLB.
const STREAMS_OF_MICRO_LG2: u32 = 10;

fn code_of(walk: WalkFault) -> u32 {
    match walk {
        WalkFault::NoTranslation { .. } => context::TRANSLATION,
        WalkFault::Unreadable { .. } => context::EXTERNAL,
        WalkFault::BadEntry { raw, .. } if raw & 1 == 1 && raw & 1 << 10 == 0 => {
            context::ACCESS_FLAG
        }
        WalkFault::BadEntry { .. } => context::ADDRESS_SIZE,
    }
}

/// Tables to walk, and their bank.
#[derive(Clone, Copy)]
struct BankTables {
    bank: usize,
    space: Space,
    format: TableFormat,
    root: PhysAddr,
    level: u8,
}

impl SmmuV2Registers {
    /// Memory address of one device address.
    pub(super) fn translate(
        &self,
        state: &mut State,
        of: Request,
    ) -> Result<PhysAddr, SmmuV2Refusal> {
        let Request { stream, iova, access, .. } = of;
        let untranslated = Ok(PhysAddr::new(iova.get()));
        if state.own.global.cr0 & 1 == 1 {
            return untranslated;
        }
        let Some(target) = self.target(state, stream.get())? else {
            return untranslated;
        };
        let bank = match target {
            Target::Bypass => return untranslated,
            Target::Bank(bank) => bank,
        };
        let registers = &state.own.banks[bank];
        if !registers.goes_on() {
            return Err(SmmuV2Refusal::Silent);
        }
        let refused = |code| SmmuV2Refusal::Context { bank, code };
        let tables = match registers.walks(self) {
            Walks::Not => return untranslated,
            Walks::Disabled => return Err(refused(context::TRANSLATION)),
            Walks::Malformed => return Err(refused(context::FORMAT)),
            Walks::Table { space, format, root, level } => {
                BankTables { bank, space, format, root, level }
            }
        };
        let leaf = self.leaf(state, stream.get(), tables, iova)?;
        if !leaf.permissions.allow(access) {
            return Err(refused(context::PERMISSION));
        }
        Ok(leaf.address(iova))
    }

    /// Target of a stream. `None`: it matches nothing, and passes through.
    fn target(&self, state: &mut State, stream: u32) -> Result<Option<Target>, SmmuV2Refusal> {
        if let Some((target, _)) = state.own.matched.get(&stream) {
            return Ok(Some(*target));
        }
        let Some(slot) = self.matching(state, stream)? else {
            // USFCFG.
            return match state.own.global.cr0 >> 10 & 1 {
                0 => Ok(None),
                _ => Err(SmmuV2Refusal::Global(global::UNIDENTIFIED)),
            };
        };
        let word = state.own.global.s2cr[slot];
        let target = match word >> 16 & 3 {
            0 => {
                let bank = (word & 0xff) as usize;
                if bank >= state.own.banks.len() {
                    return Err(SmmuV2Refusal::Global(global::NO_BANK));
                }
                Target::Bank(bank)
            }
            1 => Target::Bypass,
            _ => return Err(SmmuV2Refusal::Global(global::INVALID_CONTEXT)),
        };
        // As badly as possible, the match of a stream is kept with its translations.
        if self.setup.temper == Temper::Adversarial {
            let space = match target {
                Target::Bypass => None,
                Target::Bank(bank) => Some(state.own.banks[bank].space()),
            };
            state.own.matched.insert(stream, (target, space));
        }
        Ok(Some(target))
    }

    /// The register that a stream matches.
    fn matching(&self, state: &State, stream: u32) -> Result<Option<usize>, SmmuV2Refusal> {
        let id = &self.setup.identification;
        let most = id.streams();
        if !id.matches() {
            let slot = stream as usize;
            return Ok((slot < most).then_some(slot));
        }
        let hits = |word: u32| {
            let (number, mask) = (word & 0x7fff, word >> 16 & 0x7fff);
            word >> 31 == 1 && (number ^ stream) & !mask == 0
        };
        let mut found = (0..most).filter(|slot| hits(state.own.global.smr[*slot]));
        match (found.next(), found.next()) {
            (_, Some(_)) => Err(SmmuV2Refusal::Global(global::CONFLICT)),
            (found, None) => Ok(found),
        }
    }

    /// The leaf for an address: from the micro TLB, the main TLB, or a walk.
    fn leaf(
        &self,
        state: &mut State,
        stream: u32,
        tables: BankTables,
        iova: Iova,
    ) -> Result<Leaf, SmmuV2Refusal> {
        let context = space_context(tables.space);
        let vmid = tables.space.vmid();
        let micro = state.own.micro.entry(stream >> STREAMS_OF_MICRO_LG2).or_insert_with(|| {
            match self.setup.temper {
                Temper::Adversarial => Cache::unbounded(),
                Temper::Realistic(_) => Cache::of_size(MICRO),
            }
        });
        let mut hit = micro.lookup(context, iova);
        if hit.is_none() && matches!(tables.space, Space::One { .. }) {
            hit = micro.lookup(global_context(vmid), iova);
        }
        if let Some(held) = hit {
            return self.unless_conflicting(tables, iova, held.what);
        }
        let (leaf, tag) = self.main(state, tables, iova)?;
        let held = OwnedEntry {
            what: leaf,
            owner: vmid.into(),
            page: iova.align_down(leaf.size),
            size: leaf.size,
        };
        let key = Key::new(tag, iova, leaf.size);
        if let Some(micro) = state.own.micro.get_mut(&(stream >> STREAMS_OF_MICRO_LG2)) {
            micro.insert(key, held);
        }
        Ok(leaf)
    }

    /// Translates by the main TLB or a walk; returns the tag of the cached entry as well.
    fn main(
        &self,
        state: &mut State,
        tables: BankTables,
        iova: Iova,
    ) -> Result<(Leaf, InvalTag), SmmuV2Refusal> {
        let context = space_context(tables.space);
        let vmid = tables.space.vmid();
        let owner = vmid.into();
        let global = global_context(vmid);
        let first = matches!(tables.space, Space::One { .. });
        let cached = if first {
            state.own.stage1.lookup(context, iova).map(|hit| (hit, context))
        } else {
            state.own.stage2.lookup(context, iova).map(|hit| (hit, context))
        };
        let cached = match cached {
            None if first => state.own.globals.lookup(global, iova).map(|hit| (hit, global)),
            other => other,
        };
        if let Some((CachedWalk::Present { leaf, .. }, tag)) = cached {
            return Ok((self.unless_conflicting(tables, iova, leaf)?, tag));
        }
        state.counts.misses += 1;
        let tag = Tag { context, owner };
        let stage = if first { &mut state.own.stage1 } else { &mut state.own.stage2 };
        let (leaf, entry) = self.walk(stage, tables, tag, iova)?;
        let page = leaf.size;
        let known = CachedWalk::Present { leaf, page };
        // Bit 11 set makes an entry of a first stage its address space's own.
        let own = !first || self.memory_word(entry) & 1 << 11 != 0;
        if own {
            stage.insert(tag, iova, leaf.size, known);
            return Ok((leaf, context));
        }
        let context = global;
        let tag = Tag { context, owner };
        state.own.globals.insert(tag, iova, leaf.size, known);
        Ok((leaf, global))
    }

    fn memory_word(&self, at: PhysAddr) -> u64 {
        use portolan_sim::decode::WalkMemory as _;
        self.memory.read_u64(at).unwrap_or(0)
    }

    fn walk(
        &self,
        stage: &mut Stage,
        tables: BankTables,
        tag: Tag,
        iova: Iova,
    ) -> Result<(Leaf, PhysAddr), SmmuV2Refusal> {
        let BankTables { bank, format, root, .. } = tables;
        let refused = |code| SmmuV2Refusal::Context { bank, code };
        if !format.holds(iova) {
            return Err(refused(context::TRANSLATION));
        }
        let top = top_of(format, root, tables.level, iova);
        let walk = stage.walk(&*self.memory, tag, format, top, iova, Ok::<_, WalkFault>);
        let found = walk.map_err(|ended| {
            let (WalkError::Here(walk) | WalkError::Locating(walk)) = ended;
            refused(code_of(walk))
        })?;
        Ok((found.leaf, found.entry))
    }

    /// Returns a cached leaf, unless the TLB could hold another size of entry for it by now: tables may be read at
    /// any time.
    fn unless_conflicting(
        &self,
        tables: BankTables,
        iova: Iova,
        cached: Leaf,
    ) -> Result<Leaf, SmmuV2Refusal> {
        let temper = &self.setup.temper;
        if *temper != Temper::Adversarial {
            return Ok(cached);
        }
        let (context, owner) = (space_context(tables.space), 0);
        let mut nothing = Stage::new(temper);
        match self.walk(&mut nothing, tables, Tag { context, owner }, iova) {
            Ok((leaf, _)) if leaf.size != cached.size => {
                Err(SmmuV2Refusal::Context { bank: tables.bank, code: context::CONFLICT })
            }
            _ => Ok(cached),
        }
    }
}
