//! Translation of a client's access to memory: enables, address space, TLB, PTC, walk.

use portolan::addr::{InvalTag, Iova, PageSize, PhysAddr};

use super::caches::{ENTRIES, Group, Line, Slot};
use super::registers::ENABLES;
use super::{State, TegraRegisters};
use crate::inject::DmaFault;
use portolan_sim::cache::Key;
use portolan_sim::decode::{AccessKind, Decoded, Permissions, TableFormat, WalkMemory};
use portolan_sim::request::Request;

/// Span of a line of the TLB: four pages of a table, or a section.
const GROUP: PageSize = PageSize::of_lg2(14);
const SECTION: PageSize = PageSize::of_lg2(22);

/// Reason why an access is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TegraRefusal {
    /// The stream is no client's, or without the memory controller no device reaches memory.
    NoClient,
    /// Refusal of an access by a client of the memory controller.
    Of(u8, RefusalCause),
}

/// Cause of the refusal of an access, with its number in the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalCause {
    /// The address is not in memory.
    Decode,
    /// The page is absent, or lets other accesses through.
    Page(Permissions),
}

impl RefusalCause {
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

/// Records a refusal and returns the fault for the device.
pub(super) fn refuse(state: &mut State, refusal: TegraRefusal, of: Request) -> DmaFault {
    match refusal {
        TegraRefusal::NoClient => DmaFault::of(of, 0),
        TegraRefusal::Of(client, cause) => {
            state.counts.faults += 1;
            record(state, client, of, cause);
            DmaFault::of(of, cause.code())
        }
    }
}

impl TegraRegisters {
    /// Address that an access reaches.
    pub(super) fn way(&self, state: &mut State, of: Request) -> Result<PhysAddr, TegraRefusal> {
        if state.is_gone() {
            return Err(TegraRefusal::NoClient);
        }
        let mut all = self.setup.chip.clients().into_iter();
        let behind = all.find(|one| one.stream == of.stream).ok_or(TegraRefusal::NoClient)?;
        let [reads, writes] = behind.clients;
        let client = match of.access {
            AccessKind::Read => reads,
            AccessKind::Write => writes,
        };
        let client = client.ok_or(TegraRefusal::NoClient)?;
        let registers = &state.own.registers;
        let n = usize::from(client) / 32 % ENABLES.len();
        let translated = registers.enables[n] >> (client % 32) & 1 == 1;
        let asid = registers.asids.get(&behind.register);
        let asid = asid.copied().filter(|asid| asid >> 31 == 1);
        let found = match asid.filter(|_| translated && registers.config & 1 == 1) {
            Some(asid) => self.translate(state, asid & 0x7f, of.iova, of.access),
            None => self.direct(of.iova),
        };
        found.map_err(|cause| TegraRefusal::Of(client, cause))
    }

    /// Untranslated.
    fn direct(&self, iova: Iova) -> Result<PhysAddr, RefusalCause> {
        match iova.get() >> self.setup.chip.memory_lg2() {
            0 => Ok(PhysAddr::new(iova.get())),
            _ => Err(RefusalCause::Decode),
        }
    }

    fn translate(
        &self,
        state: &mut State,
        asid: u32,
        iova: Iova,
        access: AccessKind,
    ) -> Result<PhysAddr, RefusalCause> {
        if iova.get() >> 32 != 0 {
            return Err(RefusalCause::Page(Permissions::NONE));
        }
        let context = InvalTag::new(asid);
        let group = match state.own.tlb.lookup(context, iova) {
            Some(group) => group,
            None => {
                state.counts.misses += 1;
                let group = self.walk(state, asid, iova);
                state.own.tlb.insert(Key::new(context, iova, group.size), group);
                group
            }
        };
        let quarter = group.size.lg2() - 2;
        let inside = (1 << quarter) - 1;
        match group.slots[(iova.get() >> quarter & 3) as usize] {
            Slot::Page { pa, permissions } if permissions.allow(access) => {
                Ok(PhysAddr::new(pa.get() | iova.get() & inside))
            }
            Slot::Page { permissions, .. } => Err(RefusalCause::Page(permissions)),
            Slot::Absent => Err(RefusalCause::Page(Permissions::NONE)),
            Slot::Unreadable => Err(RefusalCause::Decode),
        }
    }

    /// Reads the section at `iova`, or the four pages around it.
    fn walk(&self, state: &mut State, asid: u32, iova: Iova) -> Group {
        let directory = state.own.registers.directories[asid as usize % 128];
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
        state.own.now += 1;
        let born = state.own.now;
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
                        Some(Decoded::Leaf { pa, permissions }) => {
                            Slot::Page { pa, permissions: allowed.and(permissions) }
                        }
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

    /// Reads an entry through the PTC; `None` if it is not in memory.
    fn read_entry(&self, state: &mut State, at: PhysAddr) -> Option<u32> {
        let size = self.setup.chip.line();
        let (here, context) = (Iova::new(at.get()), InvalTag::default());
        let start = at.align_down(size);
        let index = ((at.get() - start.get()) / 4) as usize;
        let caches = state.own.registers.ptc_config >> 29 & 1 == 1;
        if let Some(line) = state.own.ptc.lookup(context, here).filter(|_| caches) {
            return *line.entries.get(index)?;
        }
        state.counts.line_reads += 1;
        state.own.now += 1;
        let mut line = Line { born: state.own.now, entries: [None; ENTRIES] };
        for (n, entry) in (0..size.bytes() / 4).zip(&mut line.entries) {
            let at = start.checked_add(n * 4);
            *entry = at.and_then(|at| self.memory.read_u32(at));
        }
        if caches {
            state.own.ptc.insert(Key::new(context, here, size), line);
        }
        *line.entries.get(index)?
    }
}

/// Fills the record, if it is empty.
fn record(state: &mut State, client: u8, of: Request, cause: RefusalCause) {
    let bit = match cause {
        RefusalCause::Decode => 1 << 6,
        RefusalCause::Page(_) => 1 << 10,
    };
    let registers = &mut state.own.registers;
    if registers.intstatus != 0 {
        state.counts.lost_faults += 1;
        return;
    }
    registers.intstatus = bit;
    let write = u32::from(of.access == AccessKind::Write) << 16;
    let high = (of.iova.get() >> 32 & 3) as u32;
    registers.err_status =
        cause.code() << 28 | cause.attributes() | high << 20 | write | u32::from(client);
    registers.err_adr = of.iova.get() as u32;
}
