//! Translation of a device's address to memory: section 2.2.

use portolan::addr::{InvalTag, Iova, Pasid, PhysAddr, StreamId};

use super::entries::{Entry, Excluded, HostTable, IotlbPermission, decode};
use super::events::{AmdRefusal, PageRefusal};
use super::guest::Guest;
use super::registers::control;
use super::{AmdRegisters, State};
use crate::stage::{CachedWalk, Tag, WalkError, WalkedLeaf};
use portolan_sim::decode::{Cursor, Leaf, WalkFault, WalkMemory};
use portolan_sim::request::Request;

/// Exclusion base: the range counts; it is every device's.
const EXCLUDES: u64 = 1;
const ALL_DEVICES: u64 = 1 << 1;

impl AmdRegisters {
    /// Memory address of one device address.
    pub(super) fn translate(&self, state: &mut State, of: Request) -> Result<PhysAddr, AmdRefusal> {
        let untranslated = Ok(PhysAddr::new(of.iova.get()));
        if !state.own.registers.enabled() {
            return untranslated;
        }
        let refused = |domain, why| Err(AmdRefusal::Page { domain, why });
        let (domain, guest, table, permissions, excluded, marks) =
            match self.entry(state, of.stream)? {
                Entry::Passes => return untranslated,
                Entry::Ends => return refused(0, PageRefusal::NotPresent),
                Entry::Translates {
                    domain, guest, table, permissions, excluded, marks, ..
                } => (domain, guest, table, permissions, excluded, marks),
            };
        if excludes(state.own.registers.exclusion, excluded, of.iova) {
            return untranslated;
        }
        let host = table.map(|table| HostTable { domain, table, permissions, marks });
        // Without GTEn an entry's guest tables do not count.
        let guest = guest.filter(|_| state.own.registers.control & control::GUESTS != 0);
        let pasid = of.pasid.map(Pasid::get);
        let named = guest.and_then(|guest| Some((guest, pasid.or(guest.default)?)));
        if let Some((roots, pasid)) = named {
            let guest = Guest { domain, roots, pasid, host, permissions };
            return self.guest_page(state, guest, of);
        }
        // Guest tables alone know PASIDs.
        if of.pasid.is_some() {
            return refused(domain, PageRefusal::NotPresent);
        }
        let Some(through) = host else {
            return if permissions.allow(of.access) {
                untranslated
            } else {
                refused(domain, PageRefusal::Forbidden)
            };
        };
        Ok(self.host_page(state, through, of)?.address(of.iova))
    }

    /// Tells if a device may ask for translations.
    pub(super) fn gives_translations(&self, state: &mut State, stream: StreamId) -> bool {
        let given = |entry| {
            let remote = IotlbPermission::Given;
            matches!(entry, Entry::Translates { remote: of, .. } if of == remote)
        };
        state.own.registers.enabled() && self.entry(state, stream).is_ok_and(given)
    }

    /// The entry of a device, kept or from memory.
    pub(super) fn entry(&self, state: &mut State, stream: StreamId) -> Result<Entry, AmdRefusal> {
        let device = stream.get() as u16;
        if let Some(kept) = state.own.entries.get(&device) {
            return *kept;
        }
        let base = state.own.registers.device_table;
        let bytes = ((base & 0x1ff) + 1) << 12;
        let offset = u64::from(device) * 32;
        if offset >= bytes {
            return Err(AmdRefusal::NoEntry);
        }
        let at = PhysAddr::new((base & 0x000f_ffff_ffff_f000) + offset);
        let entry = self
            .words(at)
            .ok_or(AmdRefusal::NoTable(at))
            .and_then(|words| decode(words, &self.setup.identification));
        state.own.entries.insert(device, entry);
        entry
    }

    fn words(&self, at: PhysAddr) -> Option<[u64; 4]> {
        let mut words = [0; 4];
        for (i, word) in words.iter_mut().enumerate() {
            let at = at.checked_add(8 * i as u64)?;
            *word = self.memory.snooped().read_u64(at)?;
        }
        Some(words)
    }

    /// Memory address of an address of a domain's tables.
    pub(super) fn host_page(
        &self,
        state: &mut State,
        through: HostTable,
        of: Request,
    ) -> Result<Leaf, AmdRefusal> {
        let refused = |why| Err(AmdRefusal::Page { domain: through.domain, why });
        match self.page(state, through, of)? {
            CachedWalk::Present { leaf, .. } if leaf.permissions.allow(of.access) => Ok(leaf),
            CachedWalk::Present { .. } => refused(PageRefusal::Forbidden),
            CachedWalk::Absent { .. } => refused(PageRefusal::NotPresent),
        }
    }

    /// Looks an address up in a domain's tables. A page that is kept has the permissions of the device's entry in it.
    fn page(
        &self,
        state: &mut State,
        HostTable { domain, table, permissions, marks }: HostTable,
        of: Request,
    ) -> Result<CachedWalk, AmdRefusal> {
        let at = of.iova;
        let owner = u32::from(domain);
        let context = InvalTag::new(owner);
        let tag = Tag { context, owner };
        let kept = state.own.pages.lookup(context, at);
        if let Some(known) = kept.filter(|kept| marks.is_none() || !kept.wants_mark(of.access)) {
            return Ok(known);
        }
        state.counts.misses += 1;
        let format = table.format;
        if !format.holds(at) {
            let level = format.levels() - 1;
            return Ok(CachedWalk::Absent { level });
        }
        let (memory, top) = (self.memory.snooped(), Cursor::top(&table));
        let pages = &mut state.own.pages;
        let walk = pages.walk(&memory, tag, format, top, at, Ok::<_, WalkFault>);
        let (known, size) = match walk {
            Ok(found) => {
                let page = found.leaf.size;
                let permissions = found.leaf.permissions.and(permissions);
                let found = WalkedLeaf { leaf: Leaf { permissions, ..found.leaf }, ..found };
                let marked = marks.and_then(|marks| marks.set(&self.memory, found, of.access));
                let leaf = marked.unwrap_or(found).leaf;
                (CachedWalk::Present { leaf, page }, page)
            }
            Err(WalkError::Here(fault) | WalkError::Locating(fault)) => match fault {
                WalkFault::NoTranslation { level } => {
                    let absent = CachedWalk::Absent { level };
                    if !self.setup.identification.caches_absence() {
                        return Ok(absent);
                    }
                    (absent, format.span(level))
                }
                WalkFault::Unreadable { entry: at, .. } => {
                    return Err(AmdRefusal::NoPage { domain, at });
                }
                WalkFault::BadEntry { .. } => {
                    let why = PageRefusal::Reserved;
                    return Err(AmdRefusal::Page { domain, why });
                }
            },
        };
        state.own.pages.insert(tag, at, size, known);
        Ok(known)
    }
}

/// Tells if an address is in the exclusion range of a device (3.4.6 and 3.4.7).
fn excludes([base, limit]: [u64; 2], excluded: Excluded, at: Iova) -> bool {
    let page = |word: u64| word & 0x000f_ffff_ffff_f000;
    let within = (page(base)..=page(limit) | 0xfff).contains(&at.get());
    let concerned = base & ALL_DEVICES != 0 || excluded == Excluded::Yes;
    base & EXCLUDES != 0 && concerned && within
}
