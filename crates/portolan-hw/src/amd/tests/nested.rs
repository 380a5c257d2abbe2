//! A guest's own tables over a domain's host tables, and guests that write anything into them.

use crate::promise::tests::{all_memory, promised};
use alloc::sync::Arc;
use alloc::vec::Vec;

use portolan::addr::{Iova, IovaRange, PageSize, Pasid, PhysAddr, StreamId};
use portolan::inval::Gather;
use portolan::iommu::{
    Attach as _, AttachError, DeviceTlb, Domain as _, FaultEvent, FaultReason, Iommu as _,
    IommuDomains as _, IommuError,
};
use portolan::platform::TableMem as _;
use portolan::table::Access;
use portolan::table::format::{AmdV2Levels, DirtyTracking};
use portolan_chips::amd::{AmdIdentification, AmdMachine as Machine, AmdSetup};
use portolan_chips::chips::RAVEN_RIDGE;
use portolan_chips::fixture::seed;
use portolan_chips::inject::RegisterFaults;
use portolan_chips::machine::Manner;
use portolan_sim::decode::AccessKind;

use super::machine::{Amd as _, ILLEGAL, Iommu, of};
use super::{STREAM, config};
use crate::amd::{AmdDomain, Config, GuestRoots, WithoutPasid};
use crate::chassis::Words;
use crate::chassis::tests::suite::{BASE, Driven, PAGE, quiet};
use portolan_spec::amd::command::opcode;
use portolan_spec::amd::event::code;
use portolan_spec::amd::reg;

const RW: Access = Access::READ.union(Access::WRITE);
/// The guest's addresses: its GCR3 table, and its tables from the top down.
const ROOTS: u64 = 0x8000_0000;
const TABLES: [u64; 4] = [0x8000_1000, 0x8000_2000, 0x8000_3000, 0x8000_4000];
/// Its data, and the memory behind it.
const DATA: u64 = 0x9000_0000;
const MEMORY: u64 = 0x1000;
/// Entries of its tables: present, writable, for all, accessed; of a page, written as well.
const TABLE: u64 = 0x27;
const LEAF: u64 = 0x67;

const GUEST: GuestRoots = GuestRoots {
    table: Iova::new(ROOTS),
    levels: 1,
    paging: AmdV2Levels::Four,
    without: WithoutPasid::Default,
};
/// Identifiers of the domain and of the guest's tables, which are the first two.
const HOST: u64 = 2;
const ID: u64 = 3;

fn identification() -> AmdIdentification {
    RAVEN_RIDGE.identification.marks().guests().nesting()
}

/// A guest whose first page of [`BASE`] leads to [`DATA`].
struct Rig {
    machine: Machine,
    unit: Iommu,
    domain: Arc<AmdDomain<Machine>>,
    /// Memory of the GCR3 table and of the tables.
    roots: u64,
    tables: [u64; 4],
}

impl Rig {
    fn new(setup: AmdSetup, config: Config) -> Self {
        let machine = of(setup);
        let unit = machine.enable(config).unwrap();
        let domain = Arc::new(unit.domain().unwrap());
        let page = || machine.alloc(PageSize::SIZE_4K).unwrap().get();
        let (roots, tables) = (page(), TABLES.map(|_| page()));
        let rig = Self { machine, unit, domain, roots, tables };
        rig.host(ROOTS, roots, RW);
        TABLES.into_iter().zip(tables).for_each(|(gpa, pa)| rig.host(gpa, pa, RW));
        rig.host(DATA, MEMORY, RW);
        rig.honest();
        rig.unit.attach_nested(STREAM, &rig.domain, &GUEST).unwrap();
        rig.machine.commands();
        rig
    }

    fn ordinary() -> Self {
        Self::new(AmdSetup { identification: identification(), ..AmdSetup::default() }, config())
    }

    /// The guest's tables as they are meant.
    fn honest(&self) {
        self.machine.store(self.roots, TABLES[0] | 1);
        let index = [39, 30, 21].map(|shift| BASE.get() >> shift & 0x1ff);
        for (level, index) in index.into_iter().enumerate() {
            self.machine.store(self.tables[level] + 8 * index, TABLES[level + 1] | TABLE);
        }
        self.leaf(DATA | LEAF);
    }

    /// The guest's entry of the first page.
    fn leaf(&self, word: u64) {
        self.machine.store(self.tables[3], word);
    }

    /// The host maps a page of the guest's memory.
    fn host(&self, gpa: u64, pa: u64, access: Access) {
        let mut owed = Gather::new();
        let at = promised(PhysAddr::new(pa), PAGE);
        self.domain.map(Iova::new(gpa), at, access, &mut owed).unwrap();
        self.domain.sync(&mut owed).unwrap();
    }

    /// The host takes a page of the guest's memory away.
    fn taken(&self, gpa: u64) {
        let mut owed = Gather::new();
        let page = IovaRange::page(Iova::new(gpa), PageSize::SIZE_4K);
        self.domain.unmap(page, &mut owed).unwrap();
        self.domain.sync(&mut owed).unwrap();
    }

    fn reached(&self, access: AccessKind) -> Option<u64> {
        let pieces = self.machine.unit().dma(STREAM, BASE, access, 4);
        pieces.ok()?.first().map(|piece| piece.pa.get())
    }

    fn write(&self) -> Option<u64> {
        self.reached(AccessKind::Write)
    }

    fn reason(&self) -> FaultReason {
        match self.unit.next_fault() {
            Ok(Some(FaultEvent::Fault(record))) => record.reason,
            other => panic!("{other:?}"),
        }
    }
}

fn all_of(domain: u64) -> Words {
    [3 << 60 | domain << 32, 0x7fff_ffff_ffff_f003]
}

#[test]
fn an_entry_of_a_guests_tables_over_host_tables_by_hand() {
    let rig = Rig::ordinary();
    let [low, high, third, _] = rig.machine.entry(0x28);
    // V, TV, four levels, GIoV, GV, a GCR3 table of one level, reads and writes; bit 31 of its address.
    let root = rig.domain.table().root().get();
    assert_eq!(low, 0x60c0_0000_0000_0003 | 4 << 9 | root);
    assert_eq!((high, third), (ID | 1 << 43, 0));
    assert_eq!(rig.machine.reg(reg::CONTROL) >> 58 & 1, 1);
    assert_eq!(rig.write(), Some(MEMORY));
    rig.machine.expect_obedience();
}

#[test]
fn a_guest_has_its_own_translations_forgotten() {
    let rig = Rig::ordinary();
    assert_eq!(rig.write(), Some(MEMORY));
    rig.leaf(0);
    let page = [3 << 60 | 0x7777 << 32, BASE.get() | 4];
    rig.unit.guest_commands(STREAM, &[page]).unwrap();
    assert_eq!(rig.machine.commands(), [[3 << 60 | ID << 32, BASE.get() | 4]]);
    assert_eq!(rig.write(), None);
    // One command of another kind, and none is carried out.
    for kind in [opcode::COMPLETION_WAIT, opcode::DEVICE_TLB, opcode::RESPONSE, 15] {
        let refused = rig.unit.guest_commands(STREAM, &[page, [kind << 60, 0]]);
        assert_eq!(refused, Err(IommuError::Unsupported.into()));
    }
    assert_eq!(rig.machine.commands(), Vec::<Words>::new());
    rig.unit.block(STREAM).unwrap();
    let refused = rig.unit.guest_commands(STREAM, &[page]);
    assert_eq!(refused, Err(AttachError::Mismatch));
}

#[test]
fn host_memory_that_is_taken_is_reached_by_no_guests_tables() {
    let rig = Rig::ordinary();
    let pages = TABLES.into_iter().chain([ROOTS]).zip(rig.tables.into_iter().chain([rig.roots]));
    for (gpa, pa) in pages.chain([(DATA, MEMORY)]) {
        assert_eq!(rig.write(), Some(MEMORY), "{gpa:#x}");
        rig.machine.commands();
        rig.taken(gpa);
        let commands = rig.machine.commands();
        let [first, second] = commands[..] else { panic!("{commands:x?}") };
        assert_eq!((first[0], second), (3 << 60 | HOST << 32, all_of(ID)), "{gpa:#x}");
        assert_eq!(rig.write(), None, "{gpa:#x}");
        rig.host(gpa, pa, RW);
    }
    assert_eq!(rig.write(), Some(MEMORY));
    // A stream that has left is told nothing more.
    rig.unit.block(STREAM).unwrap();
    assert_eq!(rig.write(), None);
    rig.machine.commands();
    rig.taken(DATA);
    assert_eq!(rig.machine.commands().len(), 1);
    rig.machine.expect_obedience();
}

#[test]
fn a_device_that_is_gone_leaves_its_guests_tables() {
    let rig = Rig::ordinary();
    rig.unit.device_gone(STREAM).unwrap();
    rig.machine.commands();
    rig.taken(DATA);
    assert_eq!(rig.machine.commands().len(), 1);
    assert_eq!(rig.machine.entry(0x28)[0], 3);
}

/// Tables that are none: by the reason that is told.
#[test]
fn hostile_tables_are_refused_where_the_host_or_the_format_ends() {
    let rig = Rig::ordinary();
    let [top, upper, middle, last] = rig.tables;
    let absent = FaultReason::NotMapped;
    let reserved = FaultReason::Table;
    let cases = [
        // Beyond what the host maps, by each table and by the page.
        (rig.roots, 0x7000_0000 | 1, absent),
        (top, 0x7000_0000 | TABLE, absent),
        (upper + 8, 0x7000_0000 | TABLE, absent),
        (middle, 0x7000_0000 | TABLE, absent),
        (last, 0x7000_0000 | LEAF, absent),
        // Beyond the host's addresses.
        (last, 0x000f_ffff_ffff_f000 | LEAF, absent),
        // Reserved bits of the GCR3 table, and a page where there can be none.
        (rig.roots, TABLES[0] | 3, reserved),
        (top, TABLES[1] | TABLE | 1 << 7, reserved),
    ];
    for (at, word, reason) in cases {
        rig.machine.store(at, word);
        rig.unit.guest_commands(STREAM, &[[8 << 60, 0]]).unwrap();
        assert_eq!((rig.write(), rig.reason()), (None, reason), "{at:#x}: {word:#x}");
        rig.honest();
        rig.unit.guest_commands(STREAM, &[[8 << 60, 0]]).unwrap();
        assert_eq!(rig.write(), Some(MEMORY));
    }
    // A loop ends after four levels, at a table that is taken for a page.
    rig.machine.store(middle, TABLES[2] | LEAF);
    rig.unit.guest_commands(STREAM, &[[8 << 60, 0]]).unwrap();
    assert_eq!(rig.write(), Some(middle));
}

/// A page that the host lets the device read alone, and tables that the unit would have to mark.
#[test]
fn a_guests_permissions_add_none_to_the_hosts() {
    let rig = Rig::ordinary();
    rig.taken(DATA);
    rig.host(DATA, MEMORY, Access::READ);
    assert_eq!(rig.reached(AccessKind::Read), Some(MEMORY));
    assert_eq!((rig.write(), rig.reason()), (None, FaultReason::Permission));
    rig.taken(TABLES[3]);
    rig.host(TABLES[3], rig.tables[3], Access::READ);
    assert_eq!(rig.reached(AccessKind::Read), Some(MEMORY));
    let clean = DATA | LEAF & !0x60;
    rig.leaf(clean);
    rig.unit.guest_commands(STREAM, &[[8 << 60, 0]]).unwrap();
    assert_eq!((rig.reached(AccessKind::Read), rig.reason()), (None, FaultReason::Permission));
    assert_eq!(rig.machine.word(rig.tables[3]), clean);
}

#[test]
fn guests_reach_the_hosts_maps_alone_whatever_their_tables_say() {
    let seed = seed();
    std::println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let rig = Rig::ordinary();
    rig.taken(TABLES[1]);
    rig.host(TABLES[1], rig.tables[1], Access::READ);
    let memory = rig.tables.into_iter().chain([rig.roots, MEMORY]);
    let allowed: Vec<u64> = memory.collect();
    let places: Vec<u64> = TABLES.into_iter().chain([ROOTS, DATA]).collect();
    let before: Vec<u64> = (0..512).map(|n| rig.machine.word(rig.tables[1] + 8 * n)).collect();
    let mut reached = 0;
    for round in 0..4000 {
        let table = [rig.roots, rig.tables[0], rig.tables[2], rig.tables[3]][rng.usize(..4)];
        let index = if rng.u8(..4) == 0 { rng.u64(..512) } else { rng.u64(..2) };
        let to = match rng.u8(..4) {
            0 => rng.u64(..),
            _ => places[rng.usize(..places.len())] | rng.u64(..0x100),
        };
        rig.machine.store(table + 8 * index, to);
        rig.unit.guest_commands(STREAM, &[[8 << 60, 0]]).unwrap();
        let access = if rng.bool() { AccessKind::Read } else { AccessKind::Write };
        let iova = Iova::new(BASE.get() + rng.u64(..0x3000));
        let pieces = rig.machine.unit().dma(STREAM, iova, access, 1);
        for piece in pieces.into_iter().flatten() {
            let page = piece.pa.get() & !(PAGE - 1);
            assert!(allowed.contains(&page), "{seed}, {round}: {page:#x}");
            let forbidden = access == AccessKind::Write && page == rig.tables[1];
            assert!(!forbidden, "{seed}, {round}: written");
            reached += 1;
        }
        if round % 8 == 0 {
            rig.honest();
        }
        while let Ok(Some(_)) = rig.unit.next_fault() {}
    }
    let after: Vec<u64> = (0..512).map(|n| rig.machine.word(rig.tables[1] + 8 * n)).collect();
    assert!(reached > 20, "{seed}: {reached}");
    assert_eq!(before, after, "{seed}: marks in a table that the host makes read-only");
    rig.machine.expect_obedience();
}

#[test]
fn pages_that_a_guests_device_writes_are_marked_for_the_host() {
    let setup =
        AmdSetup { identification: identification(), temper: quiet(), ..AmdSetup::default() };
    let rig = Rig::new(setup, Config { dirty: DirtyTracking::Hardware, ..config() });
    rig.machine.unit().behave(Manner::Obliging);
    let marks = || rig.machine.entry(0x28)[0] >> 7 & 3;
    let all = IovaRange::from_len(Iova::new(ROOTS), 1 << 30).unwrap();
    let written = || {
        let (mut owed, mut found) = (Gather::new(), Vec::new());
        let each = &mut |page: IovaRange| found.push(page.start().get());
        rig.domain.read_and_clear_dirty(all, &mut owed, each).unwrap();
        rig.domain.sync(&mut owed).unwrap();
        found
    };
    assert_eq!(marks(), 3);
    written();
    for _ in 0..2 {
        assert_eq!(rig.reached(AccessKind::Read), Some(MEMORY));
        assert!(written().is_empty());
        assert_eq!(rig.write(), Some(MEMORY));
        assert_eq!(written(), [DATA]);
    }
    // The unit writes the guest's tables itself.
    rig.leaf(DATA | LEAF & !0x60);
    rig.unit.guest_commands(STREAM, &[[8 << 60, 0]]).unwrap();
    assert_eq!(rig.write(), Some(MEMORY));
    assert_eq!(written(), [TABLES[3], DATA]);
    rig.domain.track_dirty(DirtyTracking::Off).unwrap();
    assert_eq!(marks(), 0);
    rig.domain.track_dirty(DirtyTracking::Hardware).unwrap();
    assert_eq!(marks(), 3);
    assert_eq!(rig.write(), Some(MEMORY));
    assert_eq!(written(), [DATA]);
    rig.machine.expect_obedience();
}

#[test]
fn a_guests_tables_come_back_after_a_loss_of_power() {
    let rig = Rig::ordinary();
    rig.unit.suspend().unwrap();
    assert_eq!(rig.write(), None);
    rig.machine.unit().cut_power();
    rig.unit.resume().unwrap();
    assert_eq!(rig.write(), Some(MEMORY));
    rig.taken(DATA);
    assert_eq!(rig.write(), None);
    rig.machine.expect_obedience();
}

#[test]
fn guests_that_a_unit_cannot_serve_are_refused_by_name() {
    let rig = Rig::ordinary();
    let unsupported = Err(AttachError::Iommu(IommuError::Unsupported));
    let attach = |guest| rig.unit.attach_nested(STREAM, &rig.domain, &guest);
    for levels in [0, 4, u32::MAX] {
        assert_eq!(attach(GuestRoots { levels, ..GUEST }), unsupported);
    }
    for table in [ROOTS + 8, 1 << 52, u64::MAX].map(Iova::new) {
        assert_eq!(attach(GuestRoots { table, ..GUEST }), Err(AttachError::Mismatch));
    }
    let stream = StreamId::new(0x1_0000);
    let elsewhere = rig.unit.attach_nested(stream, &rig.domain, &GUEST);
    assert_eq!(elsewhere, Err(AttachError::NoSuchStream { stream }));
    let other = Rig::ordinary();
    let foreign = rig.unit.attach_nested(STREAM, &other.domain, &GUEST);
    assert_eq!(foreign, Err(AttachError::Mismatch));
    assert_eq!(rig.write(), Some(MEMORY), "it goes on as it did");
    assert_eq!(rig.unit.handover().err(), Some(IommuError::Unsupported));
    // Without GCR3TRPMode, and without five levels.
    let without = AmdIdentification { features2: 0, ..identification() };
    let machine = of(AmdSetup { identification: without, ..AmdSetup::default() });
    let unit = machine.enable(config()).unwrap();
    assert_eq!(machine.reg(reg::CONTROL) >> 58 & 1, 0);
    let domain = Arc::new(unit.domain().unwrap());
    assert_eq!(unit.attach_nested(STREAM, &domain, &GUEST), unsupported);
    let four = RAVEN_RIDGE.identification.nesting();
    let unit = of(AmdSetup { identification: four, ..AmdSetup::default() }).enable(config());
    let unit = unit.unwrap();
    let domain = Arc::new(unit.domain().unwrap());
    let five = GuestRoots { paging: AmdV2Levels::Five, ..GUEST };
    assert_eq!(unit.attach_nested(STREAM, &domain, &five), unsupported);
}

#[test]
fn streams_move_between_tables_of_their_own_and_a_guests() {
    let rig = Rig::ordinary();
    let (unit, mismatch) = (&rig.unit, Err(AttachError::Mismatch));
    let own = Arc::new(unit.guest_domain(AmdV2Levels::Four).unwrap());
    assert_eq!(unit.attach_pasid(STREAM, Pasid::new(1), &own), mismatch);
    let five = GuestRoots { paging: AmdV2Levels::Five, ..GUEST };
    unit.attach_nested(STREAM, &rig.domain, &five).unwrap();
    assert_eq!(rig.machine.entry(0x28)[2], 1 << 54);
    unit.attach(STREAM, &own).unwrap();
    assert_eq!((rig.machine.entry(0x28)[2], rig.write()), (0, None));
    unit.attach_pasid(STREAM, Pasid::new(1), &own).unwrap();
    assert_eq!(unit.attach_nested(STREAM, &rig.domain, &GUEST), mismatch);
    unit.block_pasid(STREAM, Pasid::new(1)).unwrap();
    unit.attach(STREAM, &rig.domain).unwrap();
    assert_eq!(rig.write(), None);
    unit.attach_nested(STREAM, &rig.domain, &GUEST).unwrap();
    assert_eq!(rig.write(), Some(MEMORY));
    // Accesses without a PASID by the host's tables alone.
    let passes = GuestRoots { without: WithoutPasid::Pass, ..GUEST };
    unit.attach_nested(STREAM, &rig.domain, &passes).unwrap();
    assert_eq!(rig.write(), None);
    let iova = Iova::new(DATA);
    let pieces = rig.machine.unit().dma(STREAM, iova, AccessKind::Write, 4).unwrap();
    assert_eq!(pieces[0].pa.get(), MEMORY);
    rig.machine.expect_obedience();
}

/// A guest's device that may keep translations.
fn keeping() -> Rig {
    let rig = Rig::ordinary();
    let tlb = DeviceTlb { depth: 1, physical: 0x28, twice: false };
    rig.unit.use_device_tlb(STREAM, tlb, all_memory()).unwrap();
    rig.unit.attach_nested(STREAM, &rig.domain, &GUEST).unwrap();
    // Another PASID of the guest's, with the same tables.
    rig.machine.store(rig.roots + 8 * 511, TABLES[0] | 1);
    rig.machine.commands();
    rig
}

fn kept(rig: &Rig, pasid: Option<u32>) -> Option<u64> {
    let pasid = pasid.map(Pasid::new);
    let kept = rig.machine.unit().ats_access(STREAM, pasid, BASE, AccessKind::Write);
    kept.map(PhysAddr::get)
}

#[test]
fn a_guests_device_forgets_all_pasids_when_the_host_takes_memory() {
    let rig = keeping();
    assert_eq!(rig.machine.entry(0x28)[1] >> 32 & 1, 1);
    for pasid in [None, Some(0), Some(511)] {
        assert_eq!(kept(&rig, pasid), Some(MEMORY), "{pasid:?}");
    }
    // The guest hides that it has used a PASID.
    rig.machine.store(rig.roots + 8 * 511, 0);
    rig.machine.commands();
    rig.taken(DATA);
    let order: Vec<u64> =
        rig.machine.commands().iter().map(|words: &Words| words[0] >> 60).collect();
    // Behind the domain and the guest's identifier.
    assert_eq!(order[..3], [opcode::PAGES, opcode::PAGES, opcode::DEVICE_TLB]);
    assert_eq!(order.iter().filter(|kind| **kind == opcode::DEVICE_TLB).count(), 513);
    for pasid in [None, Some(0), Some(511)] {
        assert_eq!(kept(&rig, pasid), None, "{pasid:?}");
    }
    rig.host(DATA, MEMORY, RW);
    assert_eq!(kept(&rig, None), Some(MEMORY));
    rig.unit.block(STREAM).unwrap();
    assert_eq!(kept(&rig, None), None);
    // A stream that has left is told nothing more.
    rig.machine.commands();
    rig.taken(DATA);
    assert_eq!(rig.machine.commands().len(), 1);
    rig.machine.expect_obedience();
}

#[test]
fn a_guest_has_its_own_device_forget() {
    let rig = keeping();
    assert_eq!((kept(&rig, None), kept(&rig, Some(511))), (Some(MEMORY), Some(MEMORY)));
    rig.leaf(0);
    // It names a device of its own numbering.
    let page = [3 << 60 | 0x7777 << 32 | 511, BASE.get() | 4];
    let device = [4 << 60 | 0xff << 48 | 0x7777 << 32 | 1 << 16 | 0x7777, BASE.get() | 4];
    rig.unit.guest_commands(STREAM, &[page, device]).unwrap();
    let wanted = [3 << 60 | ID << 32 | 511, 0x40ff_0028_0101_0028];
    let found = rig.machine.commands();
    assert_eq!(found.iter().map(|words: &Words| words[0]).collect::<Vec<_>>(), wanted);
    assert_eq!((kept(&rig, None), kept(&rig, Some(511))), (Some(MEMORY), None));
    // A device that does not answer is an error.
    const SILENT: u32 = code::DEVICE_TLB_TIMEOUT as u32;
    rig.machine.refuse_kind(opcode::DEVICE_TLB, u32::MAX, SILENT);
    let silent = IommuError::DeviceSilent { stream: None };
    assert_eq!(rig.unit.guest_commands(STREAM, &[device]), Err(silent.into()));
}

#[test]
fn a_device_gets_no_translations_under_a_gcr3_table_of_several_levels() {
    let rig = keeping();
    let deep = GuestRoots { levels: 2, ..GUEST };
    rig.unit.attach_nested(STREAM, &rig.domain, &deep).unwrap();
    assert_eq!(rig.machine.entry(0x28)[1] >> 32 & 1, 0);
    assert_eq!(kept(&rig, None), None);
    let device = rig.unit.guest_commands(STREAM, &[[4 << 60, 0]]);
    assert_eq!(device, Err(IommuError::Unsupported.into()));
}

#[test]
fn a_move_that_fails_keeps_the_domain_below_until_a_later_one() {
    let rig = Rig::ordinary();
    let other = Arc::new(rig.unit.domain().unwrap());
    assert_eq!(rig.write(), Some(MEMORY));
    rig.machine.refuse_kind(opcode::PAGES, 1, ILLEGAL);
    assert!(rig.unit.attach_nested(STREAM, &other, &GUEST).is_err());
    rig.machine.wrong(RegisterFaults::NONE);
    assert_eq!(rig.machine.entry(0x28)[0], 3);
    // Still among those that are told, as the unit may not have forgotten it.
    rig.machine.commands();
    rig.taken(DATA);
    assert_eq!(rig.machine.commands().last(), Some(&all_of(ID)));
    rig.unit.block(STREAM).unwrap();
    rig.machine.commands();
    rig.host(DATA, MEMORY, RW);
    rig.taken(DATA);
    assert_eq!(rig.machine.commands().len(), 1);
    let Rig { machine, unit, domain, .. } = rig;
    drop((domain, other));
    unit.release(all_memory()).unwrap();
    // The guest's own pages.
    assert_eq!(machine.live(), 5);
}
