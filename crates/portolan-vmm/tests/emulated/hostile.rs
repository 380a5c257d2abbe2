//! Tables that no sane guest writes: every access is refused or stays in the memory that they grant.

use portolan::addr::{InvalTag, PhysAddr};
use portolan::table::format::{DirtyTracking, VtdSecondStage};
use portolan_vmm::emulated::{AttachError, Context, ContextError, Fault, FaultKind, Scope};
use portolan_vmm::{Endpoint, EndpointId};
use vm_memory::iommu::{Iommu, IommuMemory};
use vm_memory::{Bytes, GuestAddress, Permissions};

use crate::{ENDPOINT, Guest, LONG, Unit, VTD, VTD_FIRST, guest, riscv, stage1, unit};

const TAG: InvalTag = InvalTag::new(1);
const READ: Permissions = Permissions::Read;

fn machine(root: u64) -> (Guest, Unit, Endpoint) {
    let guest = guest(0x1_0000);
    let (unit, endpoint) = unit(&guest, 64, LONG);
    let context = Context::tables(VTD, PhysAddr::new(root), TAG).unwrap();
    unit.attach(ENDPOINT, context).unwrap();
    (guest, unit, endpoint)
}

fn refused(unit: &Unit, endpoint: &Endpoint, at: u64) -> FaultKind {
    assert!(endpoint.translate(GuestAddress(at), 8, READ).is_err());
    let Fault { endpoint: id, kind, .. } = unit.next_fault().unwrap();
    assert_eq!(id, ENDPOINT);
    kind
}

#[test]
fn a_table_that_points_at_itself_ends_at_the_lowest_level() {
    let (guest, unit, endpoint) = machine(0x1000);
    // Every entry is the table itself, which at the lowest level is a page like any other.
    for index in 0..512 {
        guest.write_obj(0x1003_u64, GuestAddress(0x1000 + index * 8)).unwrap();
    }
    for at in [0, 0x1234, 0x7f_ffff_fff0] {
        let found = endpoint.translate(GuestAddress(at), 8, READ).unwrap().next();
        assert_eq!(found.unwrap().base.0, 0x1000 + (at & 0xfff), "{at:#x}");
    }
    // Two tables that point at each other.
    for (at, next) in [(0x2000, 0x3003_u64), (0x3000, 0x2003)] {
        guest.write_obj(next, GuestAddress(at)).unwrap();
    }
    unit.attach(ENDPOINT, Context::tables(VTD, PhysAddr::new(0x2000), TAG).unwrap()).unwrap();
    let found = endpoint.translate(GuestAddress(8), 8, READ).unwrap().next();
    assert_eq!(found.unwrap().base.0, 0x3008);
    assert_eq!(unit.next_fault(), None);
}

#[test]
fn tables_out_of_memory_are_not_read() {
    let (guest, unit, endpoint) = machine(0x1000);
    let unreadable = |level, entry| FaultKind::Unreadable { level, entry: PhysAddr::new(entry) };
    for next in [0x1_0000, 0x7f_ffff_f000, 0x000f_ffff_ffff_f000] {
        guest.write_obj(next | 3_u64, GuestAddress(0x1000)).unwrap();
        assert_eq!(refused(&unit, &endpoint, 0x3008), unreadable(1, next));
    }
    unit.attach(ENDPOINT, Context::tables(VTD, PhysAddr::new(0x8_0000), TAG).unwrap()).unwrap();
    assert_eq!(refused(&unit, &endpoint, 0), unreadable(2, 0x8_0000));
    assert_eq!(refused(&unit, &endpoint, 1 << 39), FaultKind::Input);
    assert_eq!(refused(&unit, &endpoint, u64::MAX - 8), FaultKind::Input);
}

#[test]
fn a_page_out_of_memory_grants_nothing() {
    let (guest, _unit, endpoint) = machine(0x1000);
    guest.write_obj(0x2003_u64, GuestAddress(0x1000)).unwrap();
    guest.write_obj(0x3003_u64, GuestAddress(0x2000)).unwrap();
    // The last page of memory, the page behind it, and a large page that begins in memory.
    guest.write_obj(0xf003_u64, GuestAddress(0x3000)).unwrap();
    guest.write_obj(0x1_0003_u64, GuestAddress(0x3008)).unwrap();
    guest.write_obj(0x83_u64, GuestAddress(0x2008)).unwrap();
    let memory = IommuMemory::new((*guest).clone(), endpoint, true, ());
    let write = |at, bytes: &[u8]| memory.write_slice(bytes, GuestAddress(at)).is_ok();
    assert!(write(0xff8, &[7; 8]));
    assert!(!write(0xff8, &[7; 9]), "across its end");
    assert!(!write(0x1000, &[7; 8]));
    assert!(write(0x20_fff8, &[7; 8]));
    assert!(!write(0x21_0000, &[7; 8]));
}

#[test]
fn what_is_reserved_is_named() {
    let (guest, unit, endpoint) = machine(0x1000);
    let narrow = VtdSecondStage { output_lg2: 39, ..VTD };
    let context = Context::tables(narrow, PhysAddr::new(0x1000), TAG).unwrap();
    unit.attach(ENDPOINT, context).unwrap();
    // An address that is too wide, of a table and of a page; a misaligned large page.
    for (level, entry, raw) in [
        (2, 0x1000, 1 << 39 | 0x2003_u64),
        (1, 0x2000, 0x1083),
        (1, 0x2000, 1 << 40 | 0x83),
        (0, 0x3000, 1 << 51 | 3),
    ] {
        guest.write_obj(0x2003_u64, GuestAddress(0x1000)).unwrap();
        guest.write_obj(0x3003_u64, GuestAddress(0x2000)).unwrap();
        guest.write_obj(raw, GuestAddress(entry)).unwrap();
        unit.invalidate(Scope::All, None).unwrap();
        let entry = PhysAddr::new(entry);
        let wanted = FaultKind::Reserved { level, entry, raw };
        assert_eq!(refused(&unit, &endpoint, 0), wanted);
    }
}

#[test]
fn contexts_that_cannot_be_are_refused() {
    let root = PhysAddr::new(0x1800);
    let misaligned = |bytes| Err(ContextError::Misaligned { root, bytes });
    let tag = TAG;
    assert_eq!(Context::tables(VTD, root, tag).map(drop), misaligned(4096));
    assert_eq!(Context::tables(riscv::<14>(), root, tag).map(drop), misaligned(0x4000));
    // A root of two entries.
    assert!(Context::tables(stage1::<12>(40), PhysAddr::new(0x1810), tag).is_ok());
    let dirty = DirtyTracking::Hardware;
    let tracked = portolan::table::format::VtdFirstStage { dirty, ..VTD_FIRST };
    let none = PhysAddr::new(0);
    assert_eq!(Context::tables(tracked, none, tag).map(drop), Err(ContextError::Dirty));
    let root = PhysAddr::new(1 << 52);
    assert_eq!(Context::tables(VTD, root, tag).map(drop), Err(ContextError::Root { root }));
    let (_, unit, _) = machine(0x1000);
    let nobody = EndpointId::new(99);
    assert!(unit.add(ENDPOINT).is_err());
    assert_eq!(unit.attach(nobody, Context::blocked()), Err(AttachError::NoEndpoint(nobody)));
}

#[test]
fn faults_that_nobody_reads_are_bounded() {
    let (_guest, unit, endpoint) = machine(0x1000);
    for _ in 0..1000 {
        assert!(endpoint.translate(GuestAddress(0), 8, READ).is_err());
    }
    assert_eq!(unit.faults_lost(), 1000 - 256);
    assert_eq!(std::iter::from_fn(|| unit.next_fault()).count(), 256);
    drop(unit);
    assert!(endpoint.translate(GuestAddress(0), 8, READ).is_err(), "it has gone");
}
