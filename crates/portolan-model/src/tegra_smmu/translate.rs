//! From a client's access to memory: enables, address space, TLB, PTC, walk.

use portolan::addr::{InvalTag, Iova, PageSize, PhysAddr, StreamId};

use super::registers::ENABLES;
use super::{State, TegraRegisters};
use crate::adversary::{Visit, Way};
use crate::asking::Request;
use crate::cache::Key;
use crate::decode::{AccessKind, Decoded, Permissions, TableFormat, WalkMemory};
use crate::inject::DmaFault;
use crate::unit::Manner;

/// Span of a line of the TLB: four pages of a table, or a section.
const GROUP: PageSize = PageSize::of_lg2(14);
const SECTION: PageSize = PageSize::of_lg2(22);
/// Entries of the longest line of the PTC.
const ENTRIES: usize = 16;

/// A quarter of a line of the TLB: where it is, if anywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    Page {
        pa: PhysAddr,
        permissions: Permissions,
    },
    Absent,
    /// Its entry could not be read.
    Unreadable,
}

/// A line of the TLB. The manual does not tell the form in which it keeps a section: here it is one line, which only
/// a flush of the whole section drops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Group {
    pub born: u64,
    size: PageSize,
    slots: [Slot; 4],
}

/// A line of the PTC, as memory held it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub born: u64,
    entries: [Option<u32>; ENTRIES],
}

/// Reason for which an access is refused, with its number in the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    /// No memory has the address.
    Decode,
    /// The page is absent, or lets other accesses through.
    Page(Permissions),
}

impl Refusal {
    const fn code(self) -> u32 {
        match self {
            Self::Decode => 2,
            Self::Page(_) => 6,
        }
    }

    /// Bits 27 and 26 of the record.
    fn attributes(self) -> u32 {
        match self {
            Self::Decode => 0,
            Self::Page(permissions) => {
                let bit = |kind, bit: u32| u32::from(permissions.allow(kind)) << bit;
                bit(AccessKind::Read, 27) | bit(AccessKind::Write, 26)
            }
        }
    }
}

impl TegraRegisters {
    pub(super) fn access(
        &self,
        state: &mut State,
        stream: StreamId,
        iova: Iova,
        access: AccessKind,
    ) -> Result<PhysAddr, DmaFault> {
        let fault = |code| DmaFault {
            stream,
            pasid: None,
            iova,
            access,
            code,
        };
        let (client, found) = self.way(state, stream, iova, access).ok_or(fault(0))?;
        match found {
            Ok(pa) => {
                state.counts.accesses += 1;
                let of = Request::new(stream, None, iova, access);
                let way = Way::Untranslated;
                state.visits.note(Visit { of, way });
                Ok(pa)
            }
            Err(refusal) => {
                state.counts.faults += 1;
                record(state, client, iova, access, refusal);
                Err(fault(refusal.code()))
            }
        }
    }

    /// On a hostile machine devices go on where they have been. Nothing is counted or recorded.
    pub(super) fn disturb(&self, state: &mut State) {
        if self.manner == Manner::Obliging {
            return;
        }
        let counts = state.counts.clone();
        for Visit { of, .. } in state.visits.all() {
            let _ = self.way(state, of.stream, of.iova, of.access);
        }
        state.counts = counts;
    }

    /// Client of the memory controller that a device is, and the way of its access; nothing if it is none.
    fn way(
        &self,
        state: &mut State,
        stream: StreamId,
        iova: Iova,
        access: AccessKind,
    ) -> Option<(u8, Result<PhysAddr, Refusal>)> {
        // Without its memory controller no device reaches memory.
        if state.is_gone() {
            return None;
        }
        let mut all = self.setup.chip.clients().into_iter();
        let behind = all.find(|one| one.stream == stream)?;
        let [reads, writes] = behind.clients;
        let client = match access {
            AccessKind::Read => reads,
            AccessKind::Write => writes,
        };
        let client = client?;
        let n = usize::from(client) / 32 % ENABLES.len();
        let translated = state.registers.enables[n] >> (client % 32) & 1 == 1;
        let asid = state.registers.asids.get(&behind.register);
        let asid = asid.copied().filter(|asid| asid >> 31 == 1);
        let found = match asid.filter(|_| translated && state.registers.config & 1 == 1) {
            Some(asid) => self.translate(state, asid & 0x7f, iova, access),
            None => self.direct(iova),
        };
        Some((client, found))
    }

    /// Untranslated.
    fn direct(&self, iova: Iova) -> Result<PhysAddr, Refusal> {
        match iova.get() >> self.setup.chip.memory_lg2() {
            0 => Ok(PhysAddr::new(iova.get())),
            _ => Err(Refusal::Decode),
        }
    }

    fn translate(
        &self,
        state: &mut State,
        asid: u32,
        iova: Iova,
        access: AccessKind,
    ) -> Result<PhysAddr, Refusal> {
        if iova.get() >> 32 != 0 {
            return Err(Refusal::Page(Permissions::NONE));
        }
        let context = InvalTag::new(asid);
        let group = match state.tlb.lookup(context, iova) {
            Some(group) => group,
            None => {
                state.counts.misses += 1;
                let group = self.walk(state, asid, iova);
                state.tlb.insert(Key::new(context, iova, group.size), group);
                group
            }
        };
        let quarter = group.size.lg2() - 2;
        let inside = (1 << quarter) - 1;
        match group.slots[(iova.get() >> quarter & 3) as usize] {
            Slot::Page { pa, permissions } if permissions.allow(access) => {
                Ok(PhysAddr::new(pa.get() | iova.get() & inside))
            }
            Slot::Page { permissions, .. } => Err(Refusal::Page(permissions)),
            Slot::Absent => Err(Refusal::Page(Permissions::NONE)),
            Slot::Unreadable => Err(Refusal::Decode),
        }
    }

    /// Reads the section at `iova`, or the four pages around it.
    fn walk(&self, state: &mut State, asid: u32, iova: Iova) -> Group {
        let directory = state.registers.directories[asid as usize % 128];
        let bit = |bit: u32, allowed| match directory >> bit & 1 {
            1 => allowed,
            _ => Permissions::NONE,
        };
        let allowed = bit(31, Permissions::READ).or(bit(30, Permissions::WRITE));
        let (size, slots) = match TableFormat::tegra(self.setup.chip.memory_lg2()) {
            Ok(format) if allowed != Permissions::NONE => {
                let root = u64::from(directory & 0x3f_ffff) << 12;
                self.slots(state, format, root, iova, allowed)
            }
            _ => (GROUP, [Slot::Absent; 4]),
        };
        state.now += 1;
        let born = state.now;
        Group { born, size, slots }
    }

    /// Slots for `iova` in the directory at `root`, and the span of them.
    fn slots(
        &self,
        state: &mut State,
        format: TableFormat,
        root: u64,
        iova: Iova,
        allowed: Permissions,
    ) -> (PageSize, [Slot; 4]) {
        let entry = |table: u64, at: Iova, level| {
            let index = format.index(at, level);
            PhysAddr::new(table + index * format.entry_bytes())
        };
        let Some(raw) = self.read_entry(state, entry(root, iova, 1)) else {
            return (GROUP, [Slot::Unreadable; 4]);
        };
        match format.decode(raw.into(), 1) {
            Decoded::Table { next, permissions } => {
                let allowed = allowed.and(permissions);
                let start = iova.align_down(GROUP).get();
                let pages = [0, 1, 2, 3].map(|page| Iova::new(start + (page << 12)));
                let slots = pages.map(|page| {
                    let raw = self.read_entry(state, entry(next.get(), page, 0));
                    match raw.map(|raw| format.decode(raw.into(), 0)) {
                        Some(Decoded::Leaf { pa, permissions }) => Slot::Page {
                            pa,
                            permissions: allowed.and(permissions),
                        },
                        Some(_) => Slot::Absent,
                        None => Slot::Unreadable,
                    }
                });
                (GROUP, slots)
            }
            Decoded::Leaf { pa, permissions } => {
                let quarter = |n: u64| Slot::Page {
                    pa: PhysAddr::new(pa.get() + n * SECTION.bytes() / 4),
                    permissions: allowed.and(permissions),
                };
                (SECTION, [0, 1, 2, 3].map(quarter))
            }
            Decoded::Part { .. } | Decoded::Nothing | Decoded::Bad => (GROUP, [Slot::Absent; 4]),
        }
    }

    /// An entry through the PTC; `None` where there is no memory.
    fn read_entry(&self, state: &mut State, at: PhysAddr) -> Option<u32> {
        let size = self.setup.chip.line();
        let (here, context) = (Iova::new(at.get()), InvalTag::default());
        let start = at.align_down(size);
        let index = ((at.get() - start.get()) / 4) as usize;
        let caches = state.registers.ptc_config >> 29 & 1 == 1;
        if let Some(line) = state.ptc.lookup(context, here).filter(|_| caches) {
            return *line.entries.get(index)?;
        }
        state.counts.line_reads += 1;
        state.now += 1;
        let mut line = Line {
            born: state.now,
            entries: [None; ENTRIES],
        };
        for (n, entry) in (0..size.bytes() / 4).zip(&mut line.entries) {
            let at = start.checked_add(n * 4);
            *entry = at.and_then(|at| self.memory.read_u32(at));
        }
        if caches {
            state.ptc.insert(Key::new(context, here, size), line);
        }
        *line.entries.get(index)?
    }
}

/// Fills the record, if it is empty.
fn record(state: &mut State, client: u8, iova: Iova, access: AccessKind, refusal: Refusal) {
    let bit = match refusal {
        Refusal::Decode => 1 << 6,
        Refusal::Page(_) => 1 << 10,
    };
    let registers = &mut state.registers;
    if registers.intstatus != 0 {
        state.counts.lost_faults += 1;
        return;
    }
    registers.intstatus = bit;
    let write = u32::from(access == AccessKind::Write) << 16;
    let high = (iova.get() >> 32 & 3) as u32;
    registers.err_status =
        refusal.code() << 28 | refusal.attributes() | high << 20 | write | u32::from(client);
    registers.err_adr = iova.get() as u32;
}
