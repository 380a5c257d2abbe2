//! Translation of an address of a source and a PASID to memory: sections 3.4 to 3.8.

use portolan::addr::{InvalTag, Iova, PageSize, Pasid, PhysAddr};

use super::entries::{
    ContextEntry, PasidEntry, SecondMarks, Table, Through, Walk, context, pasid as pasid_entry,
    records, root, scalable_context, scalable_root,
};
use super::faults::{FaultProcessing, VtdRefusal, reason};
use super::unit::Cached;
use super::{State, VtdRegisters};
use crate::stage::{CachedWalk, LeafMarks, Stage, Tag, WalkError, WalkedLeaf};
use portolan_sim::decode::{AccessKind, Cursor, Leaf, TableRoot, WalkFault, WalkMemory};
use portolan_sim::request::Request;

/// Path of a stream's accesses through the tables.
#[derive(Clone, Copy, Debug)]
struct Path {
    domain: u16,
    pasid: u32,
    through: Through,
    walk: Walk,
    records: FaultProcessing,
    mode: Mode,
    marks: SecondMarks,
}

/// Accessed and dirty bits (9.7 and 9.8).
const FIRST_MARKS: LeafMarks = LeafMarks { accessed: 1 << 5, dirty: 1 << 6 };
const SECOND_MARKS: LeafMarks = LeafMarks { accessed: 1 << 8, dirty: 1 << 9 };

/// A walk for an access.
#[derive(Clone, Copy, Debug)]
struct Walked {
    table: Table,
    at: Iova,
    access: AccessKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Legacy,
    Scalable,
}

impl Path {
    fn refusal(&self, legacy: u8, scalable: u8) -> VtdRefusal {
        let reason = match self.mode {
            Mode::Legacy => legacy,
            Mode::Scalable => scalable,
        };
        let recorded = self.records;
        VtdRefusal { reason, recorded }
    }

    /// Refusal of an access that the second stage does not allow.
    fn denied(&self, access: AccessKind) -> VtdRefusal {
        let legacy = match access {
            AccessKind::Read => reason::READ,
            AccessKind::Write => reason::WRITE,
        };
        self.refusal(legacy, reason::SECOND_PERMISSION)
    }

    /// Refusal of an access that the first stage does not allow.
    fn first_denied(&self, access: AccessKind) -> VtdRefusal {
        match access {
            AccessKind::Read => self.refusal(reason::READ, reason::SM_READ),
            AccessKind::Write => self.refusal(reason::WRITE, reason::SM_WRITE),
        }
    }

    fn second_tag(&self) -> Tag {
        let owner = u32::from(self.domain);
        let context = InvalTag::new(owner);
        Tag { context, owner }
    }
}

impl VtdRegisters {
    /// Memory address of one device address.
    pub(super) fn translate(&self, state: &mut State, of: Request) -> Result<PhysAddr, VtdRefusal> {
        let Request { iova, access, .. } = of;
        if !state.own.registers.translates() {
            return Ok(PhysAddr::new(iova.get()));
        }
        let path = self.path(state, of.stream.get() as u16, of.pasid)?;
        match path.through {
            Through::Nothing => {
                let width = self.setup.identification.cap(16, 6) as u32 + 1;
                if iova.get().checked_shr(width).unwrap_or(0) != 0 {
                    return Err(path.refusal(reason::BEYOND_WIDTH, reason::SECOND_BEYOND));
                }
                Ok(PhysAddr::new(iova.get()))
            }
            Through::Second(table) => {
                let leaf = self.second(state, &path, table, iova, access)?;
                Ok(leaf.address(iova))
            }
            Through::First(first) => self.first(state, &path, first, None, iova, access),
            Through::Both { first, second } => {
                self.first(state, &path, first, Some(second), iova, access)
            }
        }
    }

    fn path(
        &self,
        state: &mut State,
        source: u16,
        pasid: Option<Pasid>,
    ) -> Result<Path, VtdRefusal> {
        match self.context(state, source)? {
            ContextEntry::Legacy { domain, through } => {
                if pasid.is_some() {
                    return Err(VtdRefusal::recorded(reason::REQUEST_BLOCKED));
                }
                Ok(Path {
                    domain,
                    pasid: 0,
                    through,
                    walk: Walk::DoesNotSnoop,
                    records: FaultProcessing::Faults,
                    mode: Mode::Legacy,
                    marks: SecondMarks::Ignored,
                })
            }
            ContextEntry::Scalable { directory, pasid_lg2, default, refused, records, .. } => {
                let pasid = match (pasid, refused) {
                    (None, _) => default,
                    (Some(_), Some(refusal)) => return Err(refusal),
                    (Some(pasid), None) => pasid.get(),
                };
                if pasid >> pasid_lg2 != 0 {
                    let reason = reason::SM_PASID_TOO_LARGE;
                    return Err(VtdRefusal { reason, recorded: records });
                }
                let entry = self.pasid(state, source, pasid, directory)?;
                Ok(Path {
                    domain: entry.domain,
                    pasid,
                    through: entry.through,
                    walk: entry.walk,
                    records: entry.records,
                    mode: Mode::Scalable,
                    marks: entry.marks,
                })
            }
        }
    }

    pub(super) fn words<const N: usize>(&self, at: PhysAddr) -> Option<[u64; N]> {
        let mut words = [0; N];
        for (i, word) in words.iter_mut().enumerate() {
            *word = self.memory.read_u64(at.checked_add(8 * i as u64)?)?;
        }
        Some(words)
    }

    /// Tells if the result of a read is cached: an entry always, a refusal in caching mode, tagged by domain 0.
    fn caches<T>(&self, entry: &Result<T, VtdRefusal>) -> bool {
        entry.is_ok() || self.setup.identification.caches_absence()
    }

    /// The context entry of a source, cached or from memory.
    pub(super) fn context(
        &self,
        state: &mut State,
        source: u16,
    ) -> Result<ContextEntry, VtdRefusal> {
        if let Some(cached) = state.own.contexts.get(&source) {
            return cached.entry;
        }
        let entry = self.read_context(state, source);
        if self.caches(&entry) {
            let domain = match entry {
                Ok(ContextEntry::Legacy { domain, .. }) => Some(domain),
                Ok(ContextEntry::Scalable { .. }) => None,
                Err(_) => Some(0),
            };
            state.own.contexts.insert(source, Cached { entry, domain });
        }
        entry
    }

    fn read_context(&self, state: &State, source: u16) -> Result<ContextEntry, VtdRefusal> {
        let id = &self.setup.identification;
        let table = state.own.registers.root & !0xfff;
        let entry = table + u64::from(source >> 8) * 16;
        let entry = PhysAddr::new(entry);
        let function = u64::from(source & 0xff);
        let unreadable = VtdRefusal::recorded;
        match state.own.registers.root >> 10 & 3 {
            0 => {
                let words = self.words(entry);
                let contexts = root(words.ok_or(unreadable(reason::ROOT_UNREADABLE))?)?;
                let at = PhysAddr::new(contexts.get() + function * 16);
                let words = self.words(at);
                context(words.ok_or(unreadable(reason::CONTEXT_UNREADABLE))?, id)
            }
            1 if id.ecap(43, 1) == 1 => {
                let [low, high] =
                    self.words(entry).ok_or(unreadable(reason::SM_ROOT_UNREADABLE))?;
                let contexts = scalable_root(if function < 128 { low } else { high })?;
                let at = PhysAddr::new(contexts.get() + (function & 0x7f) * 32);
                let words = self.words(at);
                scalable_context(words.ok_or(unreadable(reason::SM_CONTEXT_UNREADABLE))?)
            }
            // Abort: nothing goes through and nothing is said.
            3 => Err(VtdRefusal { reason: 0, recorded: FaultProcessing::Nothing }),
            _ => Err(VtdRefusal::recorded(reason::SM_ROOT_POINTER)),
        }
    }

    /// The PASID entry of a source, cached or from memory.
    fn pasid(
        &self,
        state: &mut State,
        source: u16,
        pasid: u32,
        directory: PhysAddr,
    ) -> Result<PasidEntry, VtdRefusal> {
        if let Some(cached) = state.own.pasids.get(&(source, pasid)) {
            return cached.entry;
        }
        let entry = self.read_pasid(pasid, directory);
        if self.caches(&entry) {
            let domain = Some(entry.map_or(0, |entry| entry.domain));
            let cached = Cached { entry, domain };
            state.own.pasids.insert((source, pasid), cached);
        }
        entry
    }

    fn read_pasid(&self, pasid: u32, directory: PhysAddr) -> Result<PasidEntry, VtdRefusal> {
        let wide = u64::from(pasid);
        let at = PhysAddr::new(directory.get() + (wide >> 6) * 8);
        let unreadable = VtdRefusal::recorded(reason::SM_DIRECTORY_UNREADABLE);
        let word = self.memory.read_u64(at).ok_or(unreadable)?;
        if word & 1 == 0 {
            let recorded = records(word >> 1 & 1);
            let reason = reason::SM_DIRECTORY_ABSENT;
            return Err(VtdRefusal { reason, recorded });
        }
        let table = word & 0x000f_ffff_ffff_f000;
        let words = self.words(PhysAddr::new(table + (wide & 0x3f) * 64));
        let unreadable = VtdRefusal::recorded(reason::SM_PASID_UNREADABLE);
        pasid_entry(words.ok_or(unreadable)?, &self.setup.identification)
    }

    /// Walks with the caches of `stage`, reading memory as the path does.
    fn walk<E>(
        &self,
        stage: &mut Stage,
        path: &Path,
        tag: Tag,
        table: Table,
        at: Iova,
        locate: impl FnMut(PhysAddr) -> Result<PhysAddr, E>,
    ) -> Result<WalkedLeaf, WalkError<E>> {
        let Table { format, root } = table;
        let top = Cursor::top(&TableRoot { root, format });
        match path.walk {
            Walk::Snoops => stage.walk(&self.memory.snooped(), tag, format, top, at, locate),
            Walk::DoesNotSnoop => stage.walk(&*self.memory, tag, format, top, at, locate),
        }
    }

    /// The second stage's leaf for an address, which allows the access.
    fn second(
        &self,
        state: &mut State,
        path: &Path,
        table: Table,
        at: Iova,
        access: AccessKind,
    ) -> Result<Leaf, VtdRefusal> {
        let id = &self.setup.identification;
        let width = (id.cap(16, 6) as u32 + 1).min(table.format.input_lg2().into());
        if at.get().checked_shr(width).unwrap_or(0) != 0 {
            return Err(path.refusal(reason::BEYOND_WIDTH, reason::SECOND_BEYOND));
        }
        let tag = path.second_tag();
        let marks = path.marks == SecondMarks::Set;
        let kept = state.own.second.lookup(tag.context, at);
        let known = match kept.filter(|known| !(marks && known.wants_mark(access))) {
            Some(known) => known,
            None => {
                state.counts.misses += 1;
                self.second_from_memory(state, path, tag, Walked { table, at, access })?
            }
        };
        match known {
            CachedWalk::Present { leaf, .. } if leaf.permissions.allow(access) => Ok(leaf),
            _ => Err(path.denied(access)),
        }
    }

    fn second_from_memory(
        &self,
        state: &mut State,
        path: &Path,
        tag: Tag,
        Walked { table, at, access }: Walked,
    ) -> Result<CachedWalk, VtdRefusal> {
        let reserved = path.refusal(reason::TABLE_RESERVED, reason::SECOND_RESERVED);
        let walk = self.walk(&mut state.own.second, path, tag, table, at, Ok::<_, WalkFault>);
        let (known, size) = match walk {
            Ok(found) => {
                // Bit 0 is for 2 MiB, bit 1 for 1 GiB.
                let large = self.setup.identification.cap(34, 2) << 1 | 1;
                if large >> found.level & 1 == 0 {
                    return Err(reserved);
                }
                // One that has left meanwhile was there when the access came.
                let marked = match path.marks {
                    SecondMarks::Set => SECOND_MARKS.set(&self.memory, found, access),
                    SecondMarks::Ignored => Some(found),
                };
                let leaf = marked.unwrap_or(found).leaf;
                let page = leaf.size;
                (CachedWalk::Present { leaf, page }, page)
            }
            Err(WalkError::Here(fault) | WalkError::Locating(fault)) => match fault {
                WalkFault::NoTranslation { level } => {
                    (CachedWalk::Absent { level }, table.format.span(level))
                }
                WalkFault::Unreadable { .. } => {
                    let (legacy, scalable) = (reason::TABLE_UNREADABLE, reason::SECOND_UNREADABLE);
                    return Err(path.refusal(legacy, scalable));
                }
                WalkFault::BadEntry { .. } => return Err(reserved),
            },
        };
        let present = matches!(known, CachedWalk::Present { .. });
        if present || self.setup.identification.caches_absence() {
            state.own.second.insert(tag, at, size, known);
        }
        Ok(known)
    }

    /// Memory address of an address of a first stage, with a second below it or without.
    fn first(
        &self,
        state: &mut State,
        path: &Path,
        table: Table,
        second: Option<Table>,
        at: Iova,
        access: AccessKind,
    ) -> Result<PhysAddr, VtdRefusal> {
        let refused = |scalable| path.refusal(scalable, scalable);
        if !table.format.holds(at) {
            return Err(refused(reason::NOT_CANONICAL));
        }
        let owner = u32::from(path.domain);
        let context = state.own.first_tag(path.domain, path.pasid);
        let tag = Tag { context, owner };
        let kept = state.own.first.lookup(context, at);
        if let Some(CachedWalk::Present { leaf, .. }) = kept.filter(|kept| !kept.wants_mark(access))
        {
            return if leaf.permissions.allow(access) {
                Ok(leaf.address(at))
            } else {
                Err(path.first_denied(access))
            };
        }
        state.counts.misses += 1;
        // The walk needs its own caches and those of the second stage at once.
        let temper = &self.setup.temper;
        let mut caches = std::mem::replace(&mut state.own.first, Stage::new(temper));
        let walk = self.walk(&mut caches, path, tag, table, at, |entry| {
            let Some(second) = second else {
                return Ok(entry);
            };
            let ipa = Iova::new(entry.get());
            // The first stage's entries are marked, so that reading one counts as a write (3.8).
            let access = match path.marks {
                SecondMarks::Set => AccessKind::Write,
                SecondMarks::Ignored => AccessKind::Read,
            };
            let leaf = self.second(state, path, second, ipa, access)?;
            Ok(leaf.address(ipa))
        });
        state.own.first = caches;
        let found = walk.map_err(|ended| match ended {
            WalkError::Locating(refusal) => refusal,
            WalkError::Here(WalkFault::NoTranslation { .. }) => refused(reason::FIRST_ABSENT),
            WalkError::Here(WalkFault::Unreadable { .. }) => refused(reason::FIRST_UNREADABLE),
            WalkError::Here(WalkFault::BadEntry { .. }) => refused(reason::FIRST_RESERVED),
        })?;
        let giant = found.leaf.size == PageSize::SIZE_1G;
        if giant && self.setup.identification.cap(56, 1) == 0 {
            return Err(refused(reason::FIRST_RESERVED));
        }
        if !found.leaf.permissions.allow(access) {
            return Err(path.first_denied(access));
        }
        let mut leaf = FIRST_MARKS.set(&self.memory, found, access).unwrap_or(found).leaf;
        if let Some(second) = second {
            let ipa = Iova::new(leaf.address(at).get());
            let below = self.second(state, path, second, ipa, access)?;
            let size = leaf.size.min(below.size);
            leaf = Leaf {
                pa: below.address(ipa).align_down(size),
                size,
                permissions: leaf.permissions.and(below.permissions),
            };
        }
        let page = found.leaf.size;
        let known = CachedWalk::Present { leaf, page };
        state.own.first.insert(tag, at, leaf.size, known);
        Ok(leaf.address(at))
    }
}
