//! Translation of a stream's address to memory: sections 3.3, 3.4 and 3.12.

use portolan::addr::{InvalTag, Iova, Pasid, PhysAddr, StreamId};

use super::entries::{
    AtsPermission, ContextDescriptor, DefaultSubstream, DescriptorTable, DirtyState, FaultBehavior,
    Stage1, Stage2, StreamTableEntry, context_descriptor, stream_entry,
};
use super::events::{self, AtStage, Cached, Class, SmmuV3Refusal};
use super::{SmmuRegisters, State};
use crate::stage::{CachedWalk, ManagedLeaves, Tag, WalkError, top_of};
use portolan_sim::decode::{
    AccessKind, Cursor, Leaf, Permissions, TableRoot, WalkFault, WalkMemory,
};
use portolan_sim::iommu::Temper;
use portolan_sim::request::Request;

/// Dirty state of leaves with DBM (D8.4.6): `AP[2]` is cleared in the first stage, `S2AP[1]` is set in the second.
const FIRST_LEAVES: ManagedLeaves = ManagedLeaves { managed: 1 << 51, mark: 1 << 7, written: 0 };
const SECOND_LEAVES: ManagedLeaves =
    ManagedLeaves { managed: 1 << 51, mark: 1 << 7, written: 1 << 7 };

/// An access of a stream, or of a walk, by an address of the second stage.
#[derive(Clone, Copy, Debug)]
struct SecondAccess {
    ipa: Iova,
    access: AccessKind,
}

pub(super) fn stage1_tag(vmid: u16, asid: u16) -> Tag {
    Tag { context: InvalTag::new(u32::from(vmid) << 16 | u32::from(asid)), owner: vmid.into() }
}

fn stage2_tag(vmid: u16) -> Tag {
    Tag { context: InvalTag::new(vmid.into()), owner: vmid.into() }
}

fn configuration(code: u8) -> SmmuV3Refusal {
    SmmuV3Refusal::Configuration { code }
}

fn fault(records: FaultBehavior, code: u8, stage: AtStage, class: Class) -> SmmuV3Refusal {
    match records {
        FaultBehavior::Faults => SmmuV3Refusal::Translation { code, stage, class },
        FaultBehavior::Stalls if stalls(code) => SmmuV3Refusal::Stalled { code, stage, class },
        FaultBehavior::Stalls => SmmuV3Refusal::Translation { code, stage, class },
        FaultBehavior::Nothing => SmmuV3Refusal::Unrecorded { code },
    }
}

/// Tells if an access can wait after an event of this code.
fn stalls(code: u8) -> bool {
    matches!(code, events::TRANSLATION | events::ADDRESS_SIZE | events::ACCESS | events::PERMISSION)
}

fn walk_code(walk: WalkFault) -> u8 {
    match walk {
        WalkFault::NoTranslation { .. } => events::TRANSLATION,
        WalkFault::Unreadable { .. } => events::WALK_ABORT,
        // A reserved descriptor is invalid. One without the access flag, and one that points beyond the output
        // size, are faults of their own kinds.
        WalkFault::BadEntry { raw, .. } if raw & 1 == 1 && raw & 1 << 10 == 0 => events::ACCESS,
        WalkFault::BadEntry { .. } => events::ADDRESS_SIZE,
    }
}

impl SmmuRegisters {
    /// Memory address of one device address.
    pub(super) fn translate(
        &self,
        state: &mut State,
        of: Request,
    ) -> Result<PhysAddr, SmmuV3Refusal> {
        let Request { stream, pasid, iova, access } = of;
        let untranslated = Ok(PhysAddr::new(iova.get()));
        if !state.own.registers.enabled() {
            return match state.own.registers.gbpa >> 20 & 1 {
                0 => untranslated,
                _ => Err(SmmuV3Refusal::Silent),
            };
        }
        let entry = self.stream(state, stream.get())?;
        let (stage1, stage2, vmid) = match entry {
            StreamTableEntry::Abort => return Err(SmmuV3Refusal::Silent),
            StreamTableEntry::Bypass => return untranslated,
            StreamTableEntry::Translate { stage1, stage2, vmid, .. } => (stage1, stage2, vmid),
        };
        let Some((stage1, ssid)) = substream(stage1, pasid)? else {
            return match stage2 {
                None => untranslated,
                Some(stage2) => {
                    let at = SecondAccess { ipa: iova, access };
                    let leaf = self.second(state, &stage2, vmid, at, Class::Input)?;
                    permit(leaf, access, stage2.records, AtStage::Two(iova.get()))?;
                    Ok(leaf.address(iova))
                }
            };
        };
        let sid = stream.get();
        let context = self.descriptor(state, sid, ssid, &stage1, stage2.as_ref(), vmid)?;
        let leaf = self.first(state, &context, stage2.as_ref(), vmid, iova, access)?;
        Ok(leaf.address(iova))
    }

    /// Tells if a stream may ask for translations.
    pub(super) fn lets_translate(&self, state: &mut State, stream: StreamId) -> bool {
        let entry = StreamTableEntry::Abort;
        let entry = self.stream(state, stream.get()).unwrap_or(entry);
        let ats = self.setup.identification.has(0, 10) && state.own.registers.enabled();
        ats && matches!(
            entry,
            StreamTableEntry::Translate { translations: AtsPermission::Given, .. }
        )
    }

    fn words(&self, at: PhysAddr) -> Option<[u64; 8]> {
        let mut words = [0; 8];
        for (i, word) in words.iter_mut().enumerate() {
            *word = self.memory.read_u64(at.checked_add(8 * i as u64)?)?;
        }
        Some(words)
    }

    /// The entry of a stream, cached or from memory.
    fn stream(&self, state: &mut State, sid: u32) -> Cached<StreamTableEntry> {
        if let Some(cached) = state.own.entries.get(&sid) {
            return *cached;
        }
        let entry = self.locate_stream(state, sid).and_then(|at| {
            let code = events::STE_FETCH;
            let words = self.words(at).ok_or(SmmuV3Refusal::Fetch { code, at })?;
            let id = &self.setup.identification;
            stream_entry(words, id).map_err(|_| configuration(events::BAD_STE))
        });
        // Without an entry there is nothing to cache.
        if entry != Err(configuration(events::BAD_STREAM)) {
            state.own.entries.insert(sid, entry);
        }
        entry
    }

    fn locate_stream(&self, state: &mut State, sid: u32) -> Result<PhysAddr, SmmuV3Refusal> {
        let bad = configuration(events::BAD_STREAM);
        let id = &self.setup.identification;
        let bits = id.field(1, 0, 6).min(32);
        let cfg = state.own.registers.strtab_base_cfg;
        let lg2 = (cfg & 0x3f).min(bits);
        if u64::from(sid) >> lg2 != 0 {
            return Err(bad);
        }
        let base = state.own.registers.strtab_base & 0x000f_ffff_ffff_ffc0;
        let sid = u64::from(sid);
        let aligned = |lg2: u32| base >> lg2 << lg2;
        if cfg >> 16 & 3 != 1 || id.field(0, 27, 2) != 1 {
            return Ok(PhysAddr::new(aligned(lg2 + 6) + sid * 64));
        }
        let split = match cfg >> 6 & 0x1f {
            8 => 8,
            10 => 10,
            _ => 6,
        };
        let top = aligned((lg2.saturating_sub(split) + 3).max(6));
        let at = PhysAddr::new(top + (sid >> split) * 8);
        let span = match state.own.spans.get(&at.get()) {
            Some(span) => *span,
            None => {
                let code = events::STE_FETCH;
                let span = self.memory.read_u64(at).ok_or(SmmuV3Refusal::Fetch { code, at })?;
                // Drivers add tables without a word, so that absence is not cached.
                if span & 0x1f != 0 {
                    state.own.spans.insert(at.get(), span);
                }
                span
            }
        };
        let lg2 = ((span & 0x1f) as u32).checked_sub(1).ok_or(bad)?;
        let within = sid & ((1 << split) - 1);
        if lg2 > split || within >> lg2 != 0 {
            return Err(bad);
        }
        let table = (span & 0x000f_ffff_ffff_ffc0) >> (lg2 + 6) << (lg2 + 6);
        Ok(PhysAddr::new(table + within * 64))
    }

    /// A context descriptor, cached or from memory, which may lie behind a second stage.
    fn descriptor(
        &self,
        state: &mut State,
        sid: u32,
        ssid: u32,
        stage1: &Stage1,
        stage2: Option<&Stage2>,
        vmid: u16,
    ) -> Cached<ContextDescriptor> {
        if let Some(cached) = state.own.descriptors.get(&(sid, ssid)) {
            return *cached;
        }
        let read = self.read_descriptor(state, ssid, stage1, stage2, vmid);
        state.own.descriptors.insert((sid, ssid), read);
        read
    }

    fn read_descriptor(
        &self,
        state: &mut State,
        ssid: u32,
        stage1: &Stage1,
        stage2: Option<&Stage2>,
        vmid: u16,
    ) -> Cached<ContextDescriptor> {
        let code = events::CD_FETCH;
        let wide = u64::from(ssid);
        let at = match stage1.format {
            DescriptorTable::Linear => stage1.table.get() + wide * 64,
            DescriptorTable::TwoLevel { leaf_lg2 } => {
                let at = PhysAddr::new(stage1.table.get() + (wide >> leaf_lg2) * 8);
                let at = self.behind(state, stage2, vmid, at, Class::Descriptor)?;
                let pointer = self.memory.read_u64(at).ok_or(SmmuV3Refusal::Fetch { code, at })?;
                if pointer & 1 == 0 {
                    return Err(configuration(events::BAD_SUBSTREAM));
                }
                let within = wide & ((1 << leaf_lg2) - 1);
                (pointer & 0x000f_ffff_ffff_f000) + within * 64
            }
        };
        let at = self.behind(state, stage2, vmid, PhysAddr::new(at), Class::Descriptor)?;
        let words = self.words(at).ok_or(SmmuV3Refusal::Fetch { code, at })?;
        let id = &self.setup.identification;
        context_descriptor(words, stage1.stalls, id).map_err(|_| configuration(events::BAD_CD))
    }

    /// Memory address of a structure or page of the first stage.
    fn behind(
        &self,
        state: &mut State,
        stage2: Option<&Stage2>,
        vmid: u16,
        at: PhysAddr,
        class: Class,
    ) -> Result<PhysAddr, SmmuV3Refusal> {
        let Some(stage2) = stage2 else { return Ok(at) };
        let ipa = Iova::new(at.get());
        let read = SecondAccess { ipa, access: AccessKind::Read };
        let leaf = self.second(state, stage2, vmid, read, class)?;
        let at_stage = AtStage::Two(at.get());
        permit_class(leaf, AccessKind::Read, stage2.records, at_stage, class)?;
        Ok(leaf.address(ipa))
    }

    /// The second stage's leaf for an address.
    fn second(
        &self,
        state: &mut State,
        stage2: &Stage2,
        vmid: u16,
        SecondAccess { ipa, access }: SecondAccess,
        class: Class,
    ) -> Result<Leaf, SmmuV3Refusal> {
        let tag = stage2_tag(vmid);
        let marks = stage2.dirty == DirtyState::Kept;
        let kept = state.own.stage2.lookup(tag.context, ipa);
        let kept = kept.filter(|kept| !(marks && kept.wants_mark(access)));
        if let Some(CachedWalk::Present { leaf, .. }) = kept {
            return Ok(leaf);
        }
        state.counts.misses += 1;
        let top = top_of(stage2.format, stage2.root, stage2.level, ipa);
        let walk =
            state.own.stage2.walk(&*self.memory, tag, stage2.format, top, ipa, Ok::<_, WalkFault>);
        let found = walk.map_err(|ended| {
            let (WalkError::Here(walk) | WalkError::Locating(walk)) = ended;
            let at = AtStage::Two(ipa.get());
            fault(stage2.records, walk_code(walk), at, class)
        })?;
        let found = match stage2.dirty {
            DirtyState::Kept => SECOND_LEAVES.set(&self.memory, found, access),
            DirtyState::Left => found,
        };
        let leaf = found.leaf;
        let page = leaf.size;
        let known = CachedWalk::Present { leaf, page };
        state.own.stage2.insert(tag, ipa, leaf.size, known);
        Ok(leaf)
    }

    /// Tells if an entry of another size could be cached together with `cached` by now: tables may be read at any
    /// time. Units with the highest level (`IDR3.BBML`) resolve this.
    fn conflicts(&self, context: &ContextDescriptor, iova: Iova, cached: Leaf) -> bool {
        let temper = &self.setup.temper;
        let sorted_out = self.setup.identification.field(3, 11, 2) == 2;
        let Some((format, root)) = context.table.filter(|_| !sorted_out) else {
            return false;
        };
        if *temper != Temper::Adversarial || !format.holds(iova) {
            return false;
        }
        let top = Cursor::top(&TableRoot { root, format });
        let mut nothing = crate::stage::Stage::new(temper);
        let tag = stage1_tag(0, context.asid);
        let found = nothing.walk(&*self.memory, tag, format, top, iova, Ok::<_, WalkFault>);
        found.is_ok_and(|found| found.leaf.size != cached.size)
    }

    /// The leaf of both stages together.
    fn first(
        &self,
        state: &mut State,
        context: &ContextDescriptor,
        stage2: Option<&Stage2>,
        vmid: u16,
        iova: Iova,
        access: AccessKind,
    ) -> Result<Leaf, SmmuV3Refusal> {
        let tag = stage1_tag(vmid, context.asid);
        let refused = |code| fault(context.records, code, AtStage::One, Class::Input);
        let global = InvalTag::new(vmid.into());
        let cached = match state.own.stage1.lookup(tag.context, iova) {
            None => state.own.globals.lookup(global, iova),
            known => known,
        };
        let marks = context.dirty == DirtyState::Kept
            || stage2.is_some_and(|stage2| stage2.dirty == DirtyState::Kept);
        let cached = cached.filter(|cached| !(marks && cached.wants_mark(access)));
        if let Some(CachedWalk::Present { leaf, .. }) = cached {
            if stage2.is_none() && self.conflicts(context, iova, leaf) {
                return Err(refused(events::TLB_CONFLICT));
            }
            permit(leaf, access, context.records, AtStage::One)?;
            return Ok(leaf);
        }
        state.counts.misses += 1;
        let (format, root) = context.table.ok_or(refused(events::TRANSLATION))?;
        if !format.holds(iova) {
            return Err(refused(events::TRANSLATION));
        }
        let top = Cursor::top(&TableRoot { root, format });
        // The walk needs its own caches and those of the second stage at once.
        let temper = &self.setup.temper;
        let mut caches = std::mem::replace(&mut state.own.stage1, crate::stage::Stage::new(temper));
        let walk = caches.walk(&*self.memory, tag, format, top, iova, |at| {
            self.behind(state, stage2, vmid, at, Class::Table)
        });
        state.own.stage1 = caches;
        let found = walk.map_err(|ended| match ended {
            WalkError::Here(walk) => refused(walk_code(walk)),
            WalkError::Locating(refusal) => refusal,
        })?;
        let found = match context.dirty {
            DirtyState::Kept => FIRST_LEAVES.set(&self.memory, found, access),
            DirtyState::Left => found,
        };
        permit(found.leaf, access, context.records, AtStage::One)?;
        let mut leaf = found.leaf;
        if let Some(stage2) = stage2 {
            let ipa = Iova::new(leaf.address(iova).get());
            let at = SecondAccess { ipa, access };
            let second = self.second(state, stage2, vmid, at, Class::Input)?;
            permit(second, access, stage2.records, AtStage::Two(ipa.get()))?;
            let size = leaf.size.min(second.size);
            leaf = Leaf {
                pa: second.address(ipa).align_down(size),
                size,
                permissions: leaf.permissions.and(second.permissions),
            };
        }
        let page = found.leaf.size;
        let known = CachedWalk::Present { leaf, page };
        let raw = self.memory.read_u64(found.entry).unwrap_or(0);
        // Bit 11 set makes an entry its address space's own.
        if raw & 1 << 11 != 0 {
            state.own.stage1.insert(tag, iova, leaf.size, known);
        } else {
            let context = global;
            let tag = Tag { context, ..tag };
            state.own.globals.insert(tag, iova, leaf.size, known);
        }
        Ok(leaf)
    }
}

/// The context descriptor table and the substream that an access uses; nothing if it bypasses the
/// first stage.
fn substream(
    stage1: Option<Stage1>,
    pasid: Option<Pasid>,
) -> Result<Option<(Stage1, u32)>, SmmuV3Refusal> {
    let Some(stage1) = stage1 else {
        return match pasid {
            None => Ok(None),
            Some(_) => Err(configuration(events::BAD_SUBSTREAM)),
        };
    };
    let disabled = Err(configuration(events::STREAM_DISABLED));
    match (pasid, stage1.default) {
        (None, _) if stage1.lg2 == 0 => Ok(Some((stage1, 0))),
        (None, DefaultSubstream::Terminate) => disabled,
        (None, DefaultSubstream::Bypass) => Ok(None),
        (None, DefaultSubstream::First) => Ok(Some((stage1, 0))),
        (Some(pasid), _) if pasid.get() >> stage1.lg2 != 0 || stage1.lg2 == 0 => {
            Err(configuration(events::BAD_SUBSTREAM))
        }
        (Some(pasid), DefaultSubstream::First) if pasid.get() == 0 => disabled,
        (Some(pasid), _) => Ok(Some((stage1, pasid.get()))),
    }
}

fn permit(
    leaf: Leaf,
    access: AccessKind,
    records: FaultBehavior,
    stage: AtStage,
) -> Result<(), SmmuV3Refusal> {
    permit_class(leaf, access, records, stage, Class::Input)
}

fn permit_class(
    leaf: Leaf,
    access: AccessKind,
    records: FaultBehavior,
    stage: AtStage,
    class: Class,
) -> Result<(), SmmuV3Refusal> {
    let permissions: Permissions = leaf.permissions;
    if permissions.allow(access) {
        return Ok(());
    }
    Err(fault(records, events::PERMISSION, stage, class))
}
