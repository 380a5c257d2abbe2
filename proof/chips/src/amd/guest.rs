//! Guest tables, by PASID, and their caches: sections 2.2.6 and 2.4.3.
//!
//! Translations of guest tables are kept by domain and PASID. Where a host table is below, they are kept with what it
//! says; then an invalidation of all addresses of the domain in the host table drops them, and of a part it drops none.
//! Guest tables lie behind the host table, GCR3 tables where `GCR3TRPMode` is set. A leaf is marked only where the host
//! table lets the guest's table be written.

use std::collections::BTreeMap;

use portolan::addr::{InvalTag, Iova, IovaRange, PhysAddr};

use super::entries::{GuestRoots, HostTable};
use super::events::{AmdRefusal, PageRefusal};
use super::registers::control;
use super::{AmdRegisters, State};
use crate::stage::{CachedWalk, Drops, LeafMarks, Sizes, Stage, Tag, WalkError, WalkedLeaf};
use portolan_sim::cache::Reach;
use portolan_sim::decode::{
    AccessKind, Cursor, Leaf, Permissions, TableRoot, WalkFault, WalkMemory,
};
use portolan_sim::iommu::Temper;
use portolan_sim::request::Request;

/// Bits of a PASID that one level of GCR3 tables looks at.
const LG2_ENTRIES: u32 = 9;
/// Accessed and dirty bits, which the unit sets always.
const MARKS: LeafMarks = LeafMarks { accessed: 1 << 5, dirty: 1 << 6 };
/// Owner of translations with no host table below; those with one are their domain's.
const UNHOSTED: u32 = 1 << 16;

/// Path of an access through guest tables.
#[derive(Clone, Copy, Debug)]
pub(super) struct Guest {
    pub domain: u16,
    pub roots: GuestRoots,
    pub pasid: u32,
    /// Tables that translate the guest's addresses, if they are not those of memory.
    pub host: Option<HostTable>,
    /// Permissions of the device's entry.
    pub permissions: Permissions,
}

/// Guest tables of a PASID.
#[derive(Clone, Copy, Debug)]
struct GuestTables {
    tag: Tag,
    root: PhysAddr,
}

/// Caches of guest tables.
#[derive(Debug)]
pub(super) struct Guests {
    /// Roots of guest tables, by domain and PASID; `None` where there is none.
    pub roots: BTreeMap<(u16, u32), Option<PhysAddr>>,
    pub pages: Stage,
    /// Domains and PASIDs, in the order of their first use.
    tags: Vec<(u16, u32)>,
}

impl Guests {
    pub fn new(temper: &Temper) -> Self {
        Self { roots: BTreeMap::new(), pages: Stage::new(temper), tags: Vec::new() }
    }

    fn tag(&mut self, domain: u16, pasid: u32) -> InvalTag {
        let wanted = (domain, pasid);
        let known = self.tags.iter().position(|tag| *tag == wanted);
        let index = known.unwrap_or_else(|| {
            self.tags.push(wanted);
            self.tags.len() - 1
        });
        InvalTag::new(index as u32)
    }

    /// Drops translations of a PASID; with upper levels and all addresses its root as well.
    pub fn forget(&mut self, domain: u16, pasid: u32, range: IovaRange, drops: Drops) {
        let reach = Reach::Range(self.tag(domain, pasid), range);
        self.pages.invalidate(reach, None, drops);
        if is_all(range) && drops.pointers != Sizes::NONE {
            self.roots.remove(&(domain, pasid));
        }
    }

    /// Drops translations with a host table below of which all addresses are invalidated.
    pub fn forget_hosted(&mut self, domain: u16, range: IovaRange) {
        if is_all(range) {
            self.pages.invalidate(Reach::All, Some(domain.into()), Drops::ALL);
            self.roots.retain(|(of, _), _| *of != domain);
        }
    }

    pub fn forget_all(&mut self) {
        self.roots.clear();
        self.pages.invalidate(Reach::All, None, Drops::ALL);
    }
}

fn is_all(range: IovaRange) -> bool {
    range.start().get() == 0 && range.last().get() == u64::MAX
}

impl AmdRegisters {
    /// Memory address of an address of guest tables.
    pub(super) fn guest_page(
        &self,
        state: &mut State,
        guest: Guest,
        of: Request,
    ) -> Result<PhysAddr, AmdRefusal> {
        let Guest { domain, roots, pasid, .. } = guest;
        let refused = |why| AmdRefusal::Guest { pasid, why };
        let root = self.guest_root(state, guest, of)?.ok_or(refused(PageRefusal::NotPresent))?;
        if !roots.format.holds(of.iova) {
            return Err(refused(PageRefusal::NotPresent));
        }
        let context = state.own.guests.tag(domain, pasid);
        let owner = u32::from(domain) | if guest.host.is_none() { UNHOSTED } else { 0 };
        let tag = Tag { context, owner };
        let kept = state.own.guests.pages.lookup(context, of.iova);
        let known = match kept.filter(|kept| !kept.wants_mark(of.access)) {
            Some(known) => known,
            None => self.guest_walk(state, guest, GuestTables { tag, root }, of)?,
        };
        match known {
            CachedWalk::Present { leaf, .. } if leaf.permissions.allow(of.access) => {
                Ok(leaf.address(of.iova))
            }
            CachedWalk::Present { .. } => Err(refused(PageRefusal::Forbidden)),
            CachedWalk::Absent { .. } => Err(refused(PageRefusal::NotPresent)),
        }
    }

    /// The root of a PASID's tables, kept or from the GCR3 table.
    fn guest_root(
        &self,
        state: &mut State,
        Guest { domain, roots, pasid, host, .. }: Guest,
        of: Request,
    ) -> Result<Option<PhysAddr>, AmdRefusal> {
        let wide = (roots.levels * LG2_ENTRIES).min(self.setup.identification.pasid_bits());
        if pasid >> wide != 0 {
            return Ok(None);
        }
        if let Some(kept) = state.own.guests.roots.get(&(domain, pasid)) {
            return Ok(*kept);
        }
        let translated = state.own.registers.control & control::ROOTS_OVER_HOST != 0;
        let host = host.filter(|_| translated);
        let mut table = roots.root;
        for level in (0..roots.levels).rev() {
            let index = u64::from(pasid >> (level * LG2_ENTRIES) & 0x1ff);
            let entry = PhysAddr::new(table.get() + index * 8);
            let at = self.below(state, host, entry, of, AccessKind::Read)?;
            let word = self.memory.snooped().read_u64(at);
            let word = word.ok_or(AmdRefusal::NoPage { domain, at })?;
            if word & 1 == 0 {
                if self.setup.identification.caches_absence() {
                    state.own.guests.roots.insert((domain, pasid), None);
                }
                return Ok(None);
            }
            if word & !(0x000f_ffff_ffff_f000 | 1) != 0 {
                return Err(AmdRefusal::Guest { pasid, why: PageRefusal::Reserved });
            }
            table = PhysAddr::new(word & 0x000f_ffff_ffff_f000);
        }
        state.own.guests.roots.insert((domain, pasid), Some(table));
        Ok(Some(table))
    }

    /// Memory address of an entry of guest tables.
    fn below(
        &self,
        state: &mut State,
        host: Option<HostTable>,
        at: PhysAddr,
        of: Request,
        access: AccessKind,
    ) -> Result<PhysAddr, AmdRefusal> {
        let Some(host) = host else { return Ok(at) };
        let iova = Iova::new(at.get());
        let of = Request { iova, pasid: None, access, ..of };
        Ok(self.host_page(state, host, of)?.address(iova))
    }

    fn guest_walk(
        &self,
        state: &mut State,
        guest: Guest,
        GuestTables { tag, root }: GuestTables,
        of: Request,
    ) -> Result<CachedWalk, AmdRefusal> {
        let Guest { domain, roots, pasid, host, permissions } = guest;
        state.counts.misses += 1;
        let format = roots.format;
        let top = Cursor::top(&TableRoot { root, format });
        let memory = self.memory.snooped();
        // The walk needs its own caches and those of the host's tables at once.
        let empty = Stage::new(&self.setup.temper);
        let mut caches = std::mem::replace(&mut state.own.guests.pages, empty);
        let mut last = root;
        let walk = caches.walk(&memory, tag, format, top, of.iova, |entry| {
            last = entry;
            self.below(state, host, entry, of, AccessKind::Read)
        });
        state.own.guests.pages = caches;
        let found = match walk {
            Ok(found) => found,
            Err(WalkError::Locating(refusal)) => return Err(refusal),
            Err(WalkError::Here(WalkFault::NoTranslation { level })) => {
                let absent = CachedWalk::Absent { level };
                if self.setup.identification.caches_absence() {
                    state.own.guests.pages.insert(tag, of.iova, format.span(level), absent);
                }
                return Ok(absent);
            }
            Err(WalkError::Here(WalkFault::Unreadable { entry: at, .. })) => {
                return Err(AmdRefusal::NoPage { domain, at });
            }
            Err(WalkError::Here(WalkFault::BadEntry { .. })) => {
                return Err(AmdRefusal::Guest { pasid, why: PageRefusal::Reserved });
            }
        };
        let page = found.leaf.size;
        let permissions = found.leaf.permissions.and(permissions);
        let found = WalkedLeaf { leaf: Leaf { permissions, ..found.leaf }, ..found };
        if MARKS.wants(&self.memory, found, of.access) {
            self.below(state, host, last, of, AccessKind::Write)?;
        }
        let mut leaf = MARKS.set(&self.memory, found, of.access).unwrap_or(found).leaf;
        if let Some(host) = host {
            let iova = Iova::new(leaf.address(of.iova).get());
            let below = self.host_page(state, host, Request { iova, pasid: None, ..of })?;
            let size = leaf.size.min(below.size);
            leaf = Leaf {
                pa: below.address(iova).align_down(size),
                size,
                permissions: leaf.permissions.and(below.permissions),
            };
        }
        let known = CachedWalk::Present { leaf, page };
        state.own.guests.pages.insert(tag, of.iova, leaf.size, known);
        Ok(known)
    }
}
