//! Streams, domains and cached translations of a unit, on the register model of `portolan-chips`,
//! whose caches forget nothing that they are not told to forget.

use crate::promise::tests::{all_memory, promised};
use alloc::sync::Arc;
use alloc::vec::Vec;

use portolan::addr::{Iova, IovaRange, PageSize, PhysAddr};
use portolan::inval::{Command, Depth, Gather, InvalidationQueue, Step, TablesLeft};
use portolan::iommu::{
    Attach, AttachError, Awaited, Domain, FaultEvent, FaultReason, Iommu as _, IommuError,
};
use portolan::platform::Nanos;
use portolan::table::Access;
use portolan_chips::chips;
use portolan_chips::smmuv2::{SmmuV2Identification, SmmuV2Setup};

use super::super::{
    Config, GroupError, Implementation, Inherited, SmmuV2DomainOptions, WaitForSafe, WhenDisabled,
    WriteKind,
};
use super::kit::{First, Kit, Machine, Unit, first, map, of, start, stream};

const RW: Access = Access::READ_WRITE;
/// As far up as addresses of 48 bits go.
const HIGH: u64 = 0xffff_1234_5000;

fn plain() -> (Machine, Unit) {
    of(chips::LS1088A.identification)
}

fn unmap(domain: &impl Domain, iova: u64, bytes: u64) {
    let mut owed = Gather::new();
    let range = IovaRange::from_len(Iova::new(iova), bytes).unwrap();
    domain.unmap(range, &mut owed).unwrap();
    domain.sync(&mut owed).map_err(IommuError::from).unwrap();
}

/// Unmapped pages are forgotten, page by page, table by table and as a whole.
fn forgets<D: Domain>(machine: &Machine, unit: &Unit, domain: Arc<D>)
where
    Unit: Attach<D> + Attach<First>,
{
    let device = stream(0x20);
    unit.attach(device, &domain).unwrap();
    for at in [0x5000, HIGH, HIGH + 0x1000] {
        map(&*domain, at, 0x9000_0000 + (at & 0xf000));
        assert_eq!(machine.reach(0x20, at), Some(0x9000_0000 + (at & 0xf000)));
    }
    unmap(&*domain, HIGH, 4096);
    assert_eq!(machine.reach(0x20, HIGH), None);
    assert!(machine.reach(0x20, HIGH + 0x1000).is_some());
    // A table's worth: the table goes as well.
    let block = HIGH & !0x1f_ffff;
    unmap(&*domain, HIGH + 0x1000, 4096);
    let mut owed = Gather::new();
    let range = IovaRange::from_len(Iova::new(block), 2 << 20).unwrap();
    let pa = PhysAddr::new(0xa000_0000);
    for page in 0..512 {
        let at = Iova::new(block + (page << 12));
        domain
            .map(at, promised(PhysAddr::new(pa.get() + (page << 13)), 4096), RW, &mut owed)
            .unwrap();
    }
    domain.sync(&mut owed).map_err(IommuError::from).unwrap();
    assert!(machine.reach(0x20, block).is_some());
    domain.unmap(range, &mut owed).unwrap();
    domain.sync(&mut owed).map_err(IommuError::from).unwrap();
    assert_eq!(machine.reach(0x20, block), None);
    assert!(machine.reach(0x20, 0x5000).is_some());
    unit.block(device).unwrap();
    assert_eq!(machine.reach(0x20, 0x5000), None);
    // The next owner of its number finds nothing of it.
    drop(domain);
    let next = first(unit);
    unit.attach(device, &next).unwrap();
    assert_eq!(machine.reach(0x20, 0x5000), None);
    assert_eq!(machine.unit().violations(), []);
}

#[test]
fn a_first_stage_forgets_what_is_unmapped() {
    let (machine, unit) = plain();
    let domain = first(&unit);
    forgets(&machine, &unit, domain);
    assert_ne!(unit.counts().of(WriteKind::TlbiVal), 0);
}

#[test]
fn a_second_stage_forgets_what_is_unmapped() {
    let (machine, unit) = plain();
    let domain = unit.second_stage::<12>(&SmmuV2DomainOptions::default()).unwrap();
    forgets(&machine, &unit, Arc::new(domain));
    assert_ne!(unit.counts().of(WriteKind::TlbiIpas2l), 0);
}

#[test]
fn one_bank_is_awaited_by_itself_and_several_together() {
    let (_machine, unit) = plain();
    let domains = [first(&unit), first(&unit)];
    let second = unit.second_stage::<12>(&SmmuV2DomainOptions::default()).unwrap();
    let page = |context| Command::Page {
        context,
        iova: Iova::new(0x1000),
        size: PageSize::SIZE_4K,
        depth: Depth::LeafOnly,
    };
    let syncs = |commands: &[Command]| {
        let before = unit.counts();
        let steps = commands.iter().map(|one| Step::Invalidate(*one));
        let mut steps = steps.chain([Step::Sync]);
        unit.queue().pay(&mut steps, TablesLeft::ByDepth).unwrap();
        let done = unit.counts().since(&before);
        [WriteKind::TlbSync, WriteKind::TlbGlobalSync].map(|kind| done.of(kind))
    };
    let [one, other] = domains.each_ref().map(|domain| page(domain.context()));
    assert_eq!(syncs(&[]), [0, 0]);
    assert_eq!(syncs(&[one]), [1, 0]);
    assert_eq!(syncs(&[one, one]), [1, 0]);
    assert_eq!(syncs(&[one, other]), [0, 1]);
    assert_eq!(syncs(&[one, other, one]), [0, 1]);
    let whole = |context| Command::Context { context };
    assert_eq!(syncs(&[whole(domains[0].context())]), [1, 0]);
    assert_eq!(syncs(&[whole(second.context())]), [0, 1]);
    assert_eq!(syncs(&[one, Command::Global]), [0, 1]);
}

#[test]
fn streams_pass_through_are_attached_and_blocked_each_by_itself() {
    let (machine, unit) = plain();
    let domains = [first(&unit), first(&unit)];
    for (domain, pa) in domains.iter().zip([0x9000_0000, 0xa000_0000]) {
        map(&**domain, 0x5000, pa);
    }
    let at = |n| machine.reach(n, 0x5000);
    unit.pass_through(stream(1), all_memory()).unwrap();
    unit.attach(stream(2), &domains[0]).unwrap();
    unit.attach(stream(3), &domains[1]).unwrap();
    assert_eq!([1, 2, 3, 4].map(at), [Some(0x5000), Some(0x9000_0000), Some(0xa000_0000), None]);
    // What passed through is translated from now on, and no entry of before is used.
    unit.attach(stream(1), &domains[1]).unwrap();
    unit.block(stream(2)).unwrap();
    assert_eq!([1, 2, 3].map(at), [Some(0xa000_0000), None, Some(0xa000_0000)]);
    unit.pass_through(stream(2), all_memory()).unwrap();
    unit.block(stream(3)).unwrap();
    unit.block(stream(1)).unwrap();
    assert_eq!([1, 2, 3].map(at), [None, Some(0x5000), None]);
    unit.block_all().unwrap();
    assert_eq!(at(2), None);
    assert_eq!(machine.unit().violations(), []);
}

#[test]
fn match_registers_are_used_again_and_run_out() {
    let mut identification = SmmuV2Identification::default();
    identification.idr[0] = identification.idr[0] & !0xff | 2;
    let (machine, unit) = of(identification);
    let domain = first(&unit);
    map(&*domain, 0x5000, 0x9000_0000);
    let full = AttachError::Iommu(IommuError::OutOfContexts);
    unit.attach(stream(1), &domain).unwrap();
    unit.attach(stream(2), &domain).unwrap();
    assert_eq!(unit.attach(stream(3), &domain), Err(full));
    unit.block(stream(1)).unwrap();
    // The other's register is still its own.
    unit.attach(stream(3), &domain).unwrap();
    assert_eq!(unit.group(stream(8), 1), Err(GroupError::NoRoom));
    let at = |n| machine.reach(n, 0x5000).is_some();
    assert_eq!([1, 2, 3].map(at), [false, true, true]);
    unit.block(stream(2)).unwrap();
    assert_eq!([1, 2, 3].map(at), [false, false, true]);
}

#[test]
fn streams_of_a_group_move_together() {
    let (machine, unit) =
        of(SmmuV2Identification { stream_bits: 0x7ff, ..SmmuV2Identification::default() });
    let domain = first(&unit);
    map(&*domain, 0x5000, 0x9000_0000);
    unit.group(stream(0x40), 0x3).unwrap();
    let at = |n| machine.reach(n, 0x5000).is_some();
    assert!(!at(0x41));
    unit.attach(stream(0x42), &domain).unwrap();
    assert_eq!([0x3f, 0x40, 0x43, 0x44].map(at), [false, true, true, false]);
    unit.block(stream(0x41)).unwrap();
    assert_eq!([0x40, 0x43].map(at), [false; 2]);
    // It stays a group.
    unit.attach(stream(0x40), &domain).unwrap();
    assert!(at(0x43));
    let conflict = GroupError::Conflict { id: 0x40, mask: 3 };
    for (id, mask) in [(0x40, 0), (0x42, 1), (0x50, 0x1f)] {
        assert_eq!(unit.group(stream(id), mask), Err(conflict));
    }
    // Bits of a number, and of a mask, that the unit does not match.
    assert_eq!(unit.group(stream(0x800), 0), Err(GroupError::Width));
    assert_eq!(unit.group(stream(0x80), 0x800), Err(GroupError::Width));
    assert_eq!(unit.group(stream(0x80), 0x10), Ok(()));
    let stream = stream(0x800);
    assert_eq!(unit.attach(stream, &domain), Err(AttachError::NoSuchStream { stream }));
}

#[test]
fn a_unit_that_indexes_has_a_register_for_each_stream_and_no_groups() {
    let (machine, unit) = of(SmmuV2Identification::default().indexed(4));
    let domains = [first(&unit), first(&unit)];
    for (domain, pa) in domains.iter().zip([0x9000_0000, 0xa000_0000]) {
        map(&**domain, 0x5000, pa);
    }
    unit.attach(stream(0), &domains[0]).unwrap();
    unit.attach(stream(15), &domains[1]).unwrap();
    let at = |n| machine.reach(n, 0x5000);
    assert_eq!([0, 14, 15].map(at), [Some(0x9000_0000), None, Some(0xa000_0000)]);
    for n in [16, 0x8000, u32::MAX] {
        let stream = stream(n);
        let none = Err(AttachError::NoSuchStream { stream });
        assert_eq!(unit.attach(stream, &domains[0]), none);
    }
    assert_eq!(unit.group(stream(2), 0), Err(GroupError::Width));
    unit.block(stream(0)).unwrap();
    assert_eq!([0, 15].map(at), [None, Some(0xa000_0000)]);
}

#[test]
fn a_unit_that_is_disabled_lets_nothing_or_everything_pass_and_moves_no_stream() {
    for (when_disabled, after) in
        [(WhenDisabled::Abort, None), (WhenDisabled::Bypass(all_memory()), Some(0x5000))]
    {
        let config = || Config { when_disabled, ..Config::default() };
        let (machine, unit) = start(SmmuV2Setup::default(), config());
        let unit = unit.unwrap();
        let domain = first(&unit);
        map(&*domain, 0x5000, 0x9000_0000);
        unit.attach(stream(1), &domain).unwrap();
        let at = |n| machine.reach(n, 0x5000);
        assert_eq!(at(1), Some(0x9000_0000));
        unit.disable().unwrap();
        assert_eq!([1, 2].map(at), [after; 2]);
        let stopped = Err(AttachError::Iommu(IommuError::Stopped));
        assert_eq!(unit.attach(stream(1), &domain), stopped);
        assert_eq!(unit.pass_through(stream(1), all_memory()), stopped);
        assert_eq!(unit.block(stream(1)), Ok(()));
        drop(unit);
        assert_eq!(Arc::strong_count(&domain), 1);
        // Dropped, one that works is disabled.
        let (machine, unit) = start(SmmuV2Setup::default(), config());
        let unit = unit.unwrap();
        let domain = first(&unit);
        map(&*domain, 0x5000, 0x9000_0000);
        unit.attach(stream(1), &domain).unwrap();
        assert_eq!(machine.reach(1, 0x5000), Some(0x9000_0000));
        drop(unit);
        assert_eq!(machine.reach(1, 0x5000), after);
    }
}

#[test]
fn a_unit_that_goes_away_says_so_when_it_is_disabled() {
    let (machine, unit) = plain();
    let domain = first(&unit);
    unit.attach(stream(1), &domain).unwrap();
    let faults =
        portolan_chips::inject::RegisterFaults { gone_from: Some(1), ..Default::default() };
    machine.wrong(faults);
    assert_eq!(unit.disable(), Err(IommuError::Gone));
    assert!(Arc::strong_count(&domain) > 1, "it is kept");
}

#[test]
fn each_bank_s_fault_is_told_with_its_stream_also_the_last_one_s() {
    let (machine, unit) = of(SmmuV2Identification::default().banks(3, 0));
    let domains = [(); 3].map(|()| first(&unit));
    for (n, domain) in (1..).zip(&domains) {
        unit.attach(stream(n), domain).unwrap();
        assert_eq!(machine.reach(n, 0x5000 + u64::from(n)), None);
    }
    // And a stream without an owner.
    assert_eq!(machine.reach(9, 0x9000), None);
    let mut found = Vec::new();
    while let Some(event) = unit.next_fault().unwrap() {
        let FaultEvent::Fault(record) = event else {
            panic!("none is lost");
        };
        found.push((record.stream.get(), record.iova.unwrap().get(), record.reason));
    }
    found.sort_by_key(|found| found.0);
    let missing = FaultReason::NotMapped;
    let expected = [
        (1, 0x5001, missing),
        (2, 0x5002, missing),
        (3, 0x5003, missing),
        (9, 0x9000, FaultReason::Blocked),
    ];
    assert_eq!(found, expected);
    // A bank whose domain has gone starts without a record.
    assert_eq!(machine.reach(3, 0x7000), None);
    unit.block(stream(3)).unwrap();
    let [_, _, last] = domains;
    drop(last);
    let next = first(&unit);
    unit.attach(stream(3), &next).unwrap();
    assert_eq!(unit.next_fault(), Ok(None));
}

fn qualcomm(wait: WaitForSafe) -> Config {
    Config {
        implementation: Implementation::Qualcomm(wait),
        limit: Nanos::new(100_000),
        inherited: Inherited::PassThrough(all_memory()),
        ..Config::default()
    }
}

#[test]
fn a_display_passes_through_firmware_that_bends_writes_until_it_is_moved() {
    let (machine, unit) = start(SmmuV2Setup::qualcomm(0), qualcomm(WaitForSafe::Off));
    let unit = unit.unwrap();
    let at = |n| machine.reach(n, 0x5000);
    // A group of two, by its mask.
    assert_eq!([0x880, 0x882, 0x881].map(at), [Some(0x5000), Some(0x5000), None]);
    let domain = first(&unit);
    map(&*domain, 0x5000, 0x9000_0000);
    unit.attach(stream(0x882), &domain).unwrap();
    assert_eq!([0x880, 0x882].map(at), [Some(0x9000_0000); 2]);
    unit.pass_through(stream(0x880), all_memory()).unwrap();
    assert_eq!([0x880, 0x882].map(at), [Some(0x5000); 2]);
    unit.block(stream(0x880)).unwrap();
    assert_eq!([0x880, 0x882].map(at), [None; 2]);
    unit.pass_through(stream(7), all_memory()).unwrap();
    assert_eq!([7, 8].map(at), [Some(0x5000), None]);
    // One bank passes accesses through, and belongs to no domain.
    let all: Vec<_> =
        core::iter::from_fn(|| unit.first_stage::<12>(&SmmuV2DomainOptions::default()).ok())
            .collect();
    let banks = SmmuV2Identification::default().idr[1] & 0xff;
    assert_eq!(all.len() + 1, banks as usize - 1);
}

#[test]
fn a_display_is_blocked_if_the_embedder_wants_it_so() {
    let config = Config { inherited: Inherited::Blocked, ..qualcomm(WaitForSafe::Off) };
    let (machine, unit) = start(SmmuV2Setup::qualcomm(0), config);
    let unit = unit.unwrap();
    assert_eq!(machine.reach(0x880, 0x5000), None);
    drop(unit);
    // A display is blocked unless the embedder wants it to pass.
    assert_eq!(Config::default().inherited, Inherited::Blocked);
    let inherited =
        || SmmuV2Setup { inherited: alloc::vec![(0x880, 0x2)], ..SmmuV2Setup::default() };
    for (wanted, passes) in
        [(Inherited::Blocked, false), (Inherited::PassThrough(all_memory()), true)]
    {
        let config = Config { inherited: wanted, ..Config::default() };
        let (machine, unit) = start(inherited(), config);
        let _unit = unit.unwrap();
        assert_eq!(machine.reach(0x880, 0x5000).is_some(), passes);
    }
}

#[test]
fn a_unit_of_one_bank_whose_firmware_bends_writes_has_none_for_domains() {
    let setup = |banks| SmmuV2Setup {
        identification: SmmuV2Identification::default().banks(banks, 0),
        ..SmmuV2Setup::qualcomm(0)
    };
    let unit = start(setup(1), qualcomm(WaitForSafe::Off)).1;
    assert_eq!(unit.err(), Some(IommuError::Unsupported));
    let unit = start(setup(2), qualcomm(WaitForSafe::Off)).1.unwrap();
    let options = SmmuV2DomainOptions::default();
    let only = unit.first_stage::<12>(&options).unwrap();
    let full = unit.first_stage::<12>(&options).err();
    assert_eq!(full, Some(IommuError::OutOfContexts));
    drop(only);
}

#[test]
fn a_synchronisation_may_take_as_long_as_real_time_devices_do_and_no_longer() {
    // The devices take a millisecond, ten times the limit.
    let setup = || SmmuV2Setup { safe_ns: 1_000_000, ..SmmuV2Setup::qualcomm(1_000) };
    let longest = Nanos::from_millis(2);
    let unit = start(setup(), qualcomm(WaitForSafe::On { longest })).1;
    assert!(unit.is_ok());
    let unit = start(setup(), qualcomm(WaitForSafe::Off)).1;
    let awaited = Awaited::Invalidation;
    assert!(matches!(unit.err(), Some(IommuError::TimedOut { awaited: of, .. }) if of == awaited));
}
