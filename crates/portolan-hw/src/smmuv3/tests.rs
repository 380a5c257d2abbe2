//! The driver on the unit of `portolan-chips`: every kind of entry by hand, moves that fail,
//! commands to units and devices.

mod ats;
mod beside;
mod chips;
mod edges;
mod former;
mod handover;
mod interrupts;
pub(super) mod kit;
mod lines;
mod records;

use crate::promise::tests::{all_memory, promised};
use chips::changed;

use super::*;
use alloc::sync::Arc;
use alloc::vec::Vec;
use kit::{Driver, FULL, Kit, MSI, SLOWLY, machine};
use portolan::addr::{Iova, IovaRange, PageSize, Pasid, PhysAddr, StreamId};
use portolan::inval::{Command, Depth, Gather, InvalidationQueue as _, Step, TablesLeft};
use portolan::iommu::{
    Attach, AttachError, Domain, FaultAccess, FaultEvent, FaultReason, Iommu, IommuError,
};
use portolan::iopf::{
    GroupId, Permissions, Place, ReplyName, ReplyTo, RequestKind, Responder as _, Response,
};
use portolan::platform::{Mmio as _, Nanos};
use portolan::table::Access;
use portolan_chips::inject::{Drain, RegisterFaults};
use portolan_chips::smmuv3::SmmuMachine;
use portolan_spec::smmuv3::command::{error, op};
use portolan_spec::smmuv3::reg;

type First = FirstStage<12, SmmuMachine>;
type Second = SecondStage<12, SmmuMachine>;

const STREAM: StreamId = StreamId::new(0x1234);
const OPTIONS: fn() -> SmmuDomainOptions = SmmuDomainOptions::default;

crate::chassis::tests::hostile::on_a_hostile_machine! { portolan_chips::smmuv3::SmmuMachine }

fn config() -> Config {
    Config { limit: Nanos::from_millis(10), page_requests: Want::IfThere, ..Config::default() }
}

fn setup() -> (SmmuMachine, Driver) {
    let unit = machine(FULL);
    let driver = unit.enable(config()).unwrap();
    (unit, driver)
}

fn first(driver: &Driver) -> Arc<First> {
    Arc::new(driver.first_stage::<12>(&OPTIONS()).unwrap())
}

fn second(driver: &Driver) -> Arc<Second> {
    Arc::new(driver.second_stage::<12>(&OPTIONS()).unwrap())
}

/// Maps and unmaps a page at `iova`, and returns the debt.
fn debt(domain: &impl Domain, iova: u64) -> Gather {
    let access = Access::READ | Access::WRITE;
    let mut owed = Gather::new();
    let range = domain
        .map(Iova::new(iova), promised(PhysAddr::new(0x5000), 0x1000), access, &mut owed)
        .unwrap();
    domain.unmap(range, &mut owed).unwrap();
    owed
}

#[test]
fn enabled_in_order_and_disabled_without_loss() {
    let (unit, driver) = setup();
    let codes = unit.take_codes();
    assert_eq!(codes, [op::CFGI_STE_RANGE, op::TLBI_NSNH_ALL, op::SYNC]);
    assert_eq!(unit.reg32(reg::CR0), reg::cr0::ALL);
    assert_eq!(unit.reg32(reg::CR1), 0xd75);
    assert_eq!(unit.reg32(reg::STRTAB_BASE_CFG), 1 << 16 | 8 << 6 | 16);
    assert_eq!(unit.reg32(reg::GBPA), reg::gbpa::ABORT);
    assert_eq!(unit.entry(STREAM.get()), None, "no table before it is needed");
    driver.attach(STREAM, &first(&driver)).unwrap();
    driver.enable_pasids(StreamId::new(1), 12).unwrap();
    driver.attach_pasid(StreamId::new(1), Pasid::new(0xfff), &first(&driver)).unwrap();
    drop(driver);
    assert_eq!(unit.live(), 0);
    assert_eq!(unit.reg32(reg::CR0), 0);
}

#[test]
fn nothing_is_kept_if_memory_runs_out() {
    for allocation in 1..13 {
        let unit = machine(FULL);
        unit.fail_in(allocation);
        let made = unit.enable(config());
        if let Ok(driver) = made {
            let domain = driver.first_stage::<12>(&OPTIONS()).map(Arc::new);
            let attached = domain.map(|domain| driver.attach(STREAM, &domain));
            drop((attached, driver));
        }
        assert_eq!(unit.live(), 0, "{allocation}");
    }
}

#[test]
fn a_unit_that_is_deaf_or_gone_is_an_error() {
    let unit = machine(FULL);
    unit.write32(reg::CR0, reg::cr0::SMMUEN);
    unit.wrong(RegisterFaults { control: Drain::Never, ..RegisterFaults::NONE });
    let made = unit.enable(config());
    assert!(matches!(made, Err(IommuError::TimedOut { .. })));
    unit.wrong(RegisterFaults::GONE);
    let made = unit.enable(config());
    assert_eq!(made.err(), Some(IommuError::Gone));
}

#[test]
fn entries_and_descriptors_by_hand() {
    let (unit, driver) = setup();
    let domain = first(&driver);
    driver.attach(STREAM, &domain).unwrap();
    let entry = unit.entry(STREAM.get()).unwrap();
    assert_eq!(entry[0] & 0xf800_0000_0000_003f, 0xb);
    assert_eq!(entry[1..4], [1 << 44 | 1 << 27 | 0xd4, 0, 0]);
    let descriptor = unit.descriptor(&entry, 0).unwrap();
    // ASID 1, ASET, A, R, AA64, 48 bits, V, EPD1, inner shareable write-back, T0SZ 16.
    assert_eq!(descriptor[0], 0x0001_e205_c000_3510);
    let root = domain.table().root().get();
    assert_eq!(descriptor[1..4], [root, 0, 0x04ff]);
    driver.pass_through(STREAM, all_memory()).unwrap();
    let entry = unit.entry(STREAM.get()).unwrap();
    assert_eq!(entry[..4], [9, 1 << 44, 0, 0]);
    let domain = second(&driver);
    driver.attach(STREAM, &domain).unwrap();
    let entry = unit.entry(STREAM.get()).unwrap();
    let root = domain.table().root().get();
    assert_eq!(entry[..2], [0xd, 1 << 44]);
    assert_eq!(entry[2..4], [0x046d_3590_0000_0001, root]);
    driver.block(STREAM).unwrap();
    assert_eq!(unit.entry(STREAM.get()), Some([0; 8]));
}

#[test]
fn the_shareability_field_is_left_alone_where_attributes_cannot_be_replaced() {
    // Without IDR1.ATTR_TYPES_OVR.
    let mut fixed = FULL;
    fixed.idr[1] &= !(1 << 27);
    let unit = machine(fixed);
    let driver = unit.enable(config()).unwrap();
    let word = || unit.entry(STREAM.get()).unwrap()[1];
    driver.attach(STREAM, &first(&driver)).unwrap();
    assert_eq!(word(), 1 << 27 | 0xd4);
    driver.pass_through(STREAM, all_memory()).unwrap();
    assert_eq!(word(), 0);
    driver.attach(STREAM, &second(&driver)).unwrap();
    assert_eq!(word(), 0);
}

#[test]
fn moving_between_first_stages_is_one_word() {
    let (unit, driver) = setup();
    let (one, two) = (first(&driver), first(&driver));
    driver.attach(STREAM, &one).unwrap();
    let before = unit.entry(STREAM.get()).unwrap();
    unit.take_log();
    driver.attach(STREAM, &two).unwrap();
    let after = unit.entry(STREAM.get()).unwrap();
    assert_eq!(before[1..], after[1..]);
    assert_ne!(before[0], after[0]);
    let old = unit.descriptor(&before, 0).unwrap();
    let new = unit.descriptor(&after, 0).unwrap();
    assert_eq!(old[1], one.table().root().get());
    assert_eq!(new[1], two.table().root().get());
    let codes = unit.take_codes();
    assert_eq!(codes, [op::CFGI_STE, op::CFGI_CD_ALL, op::SYNC]);
}

#[test]
fn domains_of_another_unit_and_streams_out_of_range_are_refused() {
    let (_unit, driver) = setup();
    let (_other_unit, other) = setup();
    let domain = first(&other);
    assert_eq!(driver.attach(STREAM, &domain), Err(AttachError::Mismatch));
    let stream = StreamId::new(1 << 16);
    let outside = Err(AttachError::NoSuchStream { stream });
    assert_eq!(driver.block(stream), outside);
    let mut options = OPTIONS();
    options.input_lg2 = Some(49);
    let wide = driver.first_stage::<12>(&options);
    assert_eq!(wide.err(), Some(IommuError::Unsupported));
}

#[test]
fn substreams_have_their_own_descriptors() {
    for lg2 in [4, 12] {
        let (unit, driver) = setup();
        let pasid = Pasid::new((1 << lg2) - 1);
        driver.enable_pasids(STREAM, lg2).unwrap();
        let domain = first(&driver);
        driver.attach_pasid(STREAM, pasid, &domain).unwrap();
        let entry = unit.entry(STREAM.get()).unwrap();
        // Accesses without a substream stay blocked.
        assert_eq!(entry[1] & 3, 0);
        assert_eq!(entry[0] >> 59, u64::from(lg2));
        let root = |pasid: u32| {
            let entry = unit.entry(STREAM.get()).unwrap();
            let descriptor = unit.descriptor(&entry, pasid)?;
            (descriptor[0] >> 31 & 1 != 0).then_some(descriptor[1])
        };
        assert_eq!(root(pasid.get()), Some(domain.table().root().get()));
        let main = first(&driver);
        driver.attach(STREAM, &main).unwrap();
        assert_eq!(root(0), Some(main.table().root().get()));
        assert_eq!(unit.entry(STREAM.get()).unwrap()[1] & 3, 2);
        driver.pass_through(STREAM, all_memory()).unwrap();
        assert_eq!((root(0), unit.entry(STREAM.get()).unwrap()[1] & 3), (None, 1));
        assert_eq!(root(pasid.get()), Some(domain.table().root().get()));
        unit.take_log();
        driver.block_pasid(STREAM, pasid).unwrap();
        assert_eq!(root(pasid.get()), None);
        assert_eq!(unit.take_codes()[..2], [op::CFGI_CD, op::SYNC]);
        let zero = driver.attach_pasid(STREAM, Pasid::new(0), &domain);
        assert_eq!(zero, Err(AttachError::Mismatch));
        let over = driver.attach_pasid(STREAM, Pasid::new(1 << lg2), &domain);
        assert_eq!(over, Err(AttachError::Mismatch));
    }
}

#[test]
fn devices_with_translations_are_told_after_the_unit() {
    let (unit, driver) = setup();
    driver.enable_ats(STREAM, all_memory()).unwrap();
    let domain = first(&driver);
    driver.attach(STREAM, &domain).unwrap();
    let entry = unit.entry(STREAM.get()).unwrap();
    assert_eq!(entry[1] >> 28 & 3, 1);
    unit.take_log();
    domain.sync(&mut debt(&*domain, 0x7000)).unwrap();
    let log = unit.take_log();
    let codes: Vec<_> = log.iter().map(|words| words[0] & 0xff).collect();
    assert_eq!(codes, [op::TLBI_NH_VA, op::SYNC, op::ATC_INV, op::SYNC]);
    assert_eq!(log[2], [0x1234_0000_0040, 0x7000]);
    // A device that does not answer: the debt comes back.
    unit.refuse_kind((op::SYNC, error::ATC_INV_SYNC, 1));
    let mut owed = debt(&*domain, 0x9000);
    let error = IommuError::from(domain.sync(&mut owed).unwrap_err());
    assert_eq!(error, IommuError::DeviceSilent { stream: None });
    domain.sync(&mut owed).unwrap();
    unit.take_log();
    // When it moves away it forgets everything, and is not told any more.
    driver.block(STREAM).unwrap();
    assert!(unit.take_log().contains(&[0x1234_0000_0040, 52]));
    domain.sync(&mut debt(&*domain, 0xb000)).unwrap();
    assert_eq!(unit.take_codes(), [op::TLBI_NH_VA, op::SYNC]);
}

#[test]
fn a_guest_s_first_stage_over_ours() {
    let (unit, driver) = setup();
    let domain = second(&driver);
    let guest = GuestContexts {
        table: Iova::new(0x8000_0040),
        format: GuestFormat::Linear,
        lg2: 0,
        without: WithoutSubstream::First,
    };
    let commands = [[op::TLBI_NH_ASID | 0xff << 32 | 7 << 48, u64::MAX]];
    let refused = driver.guest_commands(STREAM, &commands);
    assert_eq!(refused, Err(AttachError::Mismatch));
    driver.attach_nested(STREAM, &domain, &guest).unwrap();
    let entry = unit.entry(STREAM.get()).unwrap();
    assert_eq!(entry[0], 0x8000_0040 | 0xf);
    assert_eq!(entry[3], domain.table().root().get());
    unit.take_log();
    domain.sync(&mut debt(&*domain, 0x7000)).unwrap();
    let log = unit.take_log();
    // The table stays, so the leaf alone is invalidated.
    assert_eq!(log[0], [0x1_0000_002a, 0x7000 | 1]);
    let sync = [op::SYNC, 0];
    assert_eq!(log[1..], [sync, [0x1_0000_0010, 0], sync]);
    driver.guest_commands(STREAM, &commands).unwrap();
    let own = [op::TLBI_NH_ASID | 1 << 32 | 7 << 48, 0];
    assert_eq!(unit.take_log(), [own, [op::SYNC, 0]]);
    for code in [op::CFGI_STE, op::TLBI_NSNH_ALL, op::TLBI_S2_IPA, op::SYNC, 0xff] {
        let refused = driver.guest_commands(STREAM, &[[op::TLBI_NH_ALL, 0], [code, 0]]);
        assert_eq!(refused, Err(IommuError::Unsupported.into()));
    }
    assert!(unit.take_log().is_empty());
    driver.block(STREAM).unwrap();
    domain.sync(&mut debt(&*domain, 0x7000)).unwrap();
    assert_eq!(unit.take_codes().iter().filter(|c| **c == op::TLBI_NH_ALL).count(), 0);
}

#[test]
fn every_context_of_one_batch_has_its_devices_told() {
    let (unit, driver) = setup();
    let domains = [(); 12].map(|()| first(&driver));
    for (stream, domain) in (0u32..).zip(&domains) {
        let stream = StreamId::new(stream);
        driver.enable_ats(stream, all_memory()).unwrap();
        driver.attach(stream, domain).unwrap();
    }
    unit.take_log();
    let page = |domain: &Arc<First>| {
        Step::Invalidate(Command::Page {
            context: domain.context(),
            iova: Iova::new(0x7000),
            size: PageSize::SIZE_4K,
            depth: Depth::LeafOnly,
        })
    };
    let steps = domains.iter().chain(&domains).map(page);
    let mut steps = steps.chain([Step::Sync]);
    driver.queue().pay(&mut steps, TablesLeft::ByDepth).unwrap();
    let log = unit.take_log();
    let told = |stream: u64| log.contains(&[stream << 32 | 0x40, 0x7000]);
    assert!((0..12).all(told), "{log:x?}");
    // A device is told after a sync of what was sent for its context.
    let last = |code: u64| log.iter().rposition(|words| words[0] & 0xff == code);
    assert!(last(op::TLBI_NH_VA) < last(op::ATC_INV));
    let invalidations = log.iter().filter(|words| words[0] & 0xff == op::TLBI_NH_VA);
    assert_eq!(invalidations.count(), 24);
}

#[test]
fn combined_entries_go_after_a_sync_has_completed_the_second_stage_s() {
    let (unit, driver) = setup();
    let domain = second(&driver);
    let guest = GuestContexts {
        table: Iova::new(0x8000_0040),
        format: GuestFormat::Linear,
        lg2: 0,
        without: WithoutSubstream::First,
    };
    driver.enable_ats(STREAM, all_memory()).unwrap();
    driver.attach_nested(STREAM, &domain, &guest).unwrap();
    unit.take_log();
    domain.sync(&mut debt(&*domain, 0x7000)).unwrap();
    let second = [op::TLBI_S2_IPA, op::SYNC];
    let both = [op::TLBI_NH_ALL, op::SYNC];
    let device = [op::ATC_INV, op::SYNC];
    assert_eq!(unit.take_codes(), [second, both, device].concat());
    // The first of the syncs fails: nothing is taken for done, and all of it is sent once more.
    let illegal = (op::SYNC, error::ILL, 1);
    unit.refuse_kind(illegal);
    let mut owed = debt(&*domain, 0x9000);
    domain.sync(&mut owed).unwrap_err();
    unit.take_log();
    domain.sync(&mut owed).unwrap();
    assert_eq!(unit.take_codes(), [second, both, device].concat());
}

#[test]
fn a_move_that_fails_blocks_and_keeps_both_domains() {
    let (unit, driver) = setup();
    let (one, two) = (first(&driver), first(&driver));
    driver.attach(STREAM, &one).unwrap();
    unit.drain(Drain::Never);
    let failed = driver.attach(STREAM, &two).unwrap_err();
    assert!(matches!(failed, AttachError::Iommu(IommuError::TimedOut { .. })));
    assert_eq!(unit.entry(STREAM.get()).unwrap()[0], 0);
    let (weak_one, weak_two) = (Arc::downgrade(&one), Arc::downgrade(&two));
    drop((one, two));
    assert!(weak_one.upgrade().is_some() && weak_two.upgrade().is_some());
    unit.drain(SLOWLY);
    let three = first(&driver);
    driver.attach(STREAM, &three).unwrap();
    assert!(weak_one.upgrade().is_none() && weak_two.upgrade().is_none());
    drop((three, driver));
    assert_eq!(unit.live(), 0);
}

#[test]
fn a_substream_whose_move_failed_reaches_nothing_when_its_stream_is_back() {
    let mut failures = 0;
    for number in 0..8 {
        let (unit, driver) = setup();
        let (one, two) = (first(&driver), first(&driver));
        driver.enable_pasids(STREAM, 4).unwrap();
        driver.attach(STREAM, &one).unwrap();
        unit.refuse_after(number);
        let moved = driver.attach_pasid(STREAM, Pasid::new(3), &two);
        unit.wrong(RegisterFaults::NONE);
        if moved.is_ok() {
            continue;
        }
        failures += 1;
        assert_eq!(unit.entry(STREAM.get()).unwrap()[0], 0);
        let weak_two = Arc::downgrade(&two);
        drop(two);
        assert!(weak_two.upgrade().is_some());
        driver.attach(STREAM, &one).unwrap();
        assert!(weak_two.upgrade().is_none());
        let entry = unit.entry(STREAM.get()).unwrap();
        let valid = |pasid| unit.descriptor(&entry, pasid).unwrap()[0] >> 31 & 1;
        assert_eq!((valid(0), valid(3)), (1, 0));
    }
    assert!(failures >= 2, "{failures}");
}

#[test]
fn whichever_command_is_refused_the_next_move_works() {
    let mut refusals = 0;
    for number in 0..12 {
        let (unit, driver) = setup();
        let (one, two) = (first(&driver), second(&driver));
        driver.enable_ats(STREAM, all_memory()).unwrap();
        driver.attach(STREAM, &one).unwrap();
        unit.refuse_after(number);
        let moved = driver.attach(STREAM, &two);
        let refused = AttachError::Iommu(IommuError::Refused { code: error::ILL });
        unit.wrong(RegisterFaults::NONE);
        let entry = unit.entry(STREAM.get()).unwrap();
        match moved {
            // A refused sync was replaced by another, so nothing is missing.
            Ok(()) => assert_eq!(entry[3], two.table().root().get(), "{number}"),
            Err(error) => {
                assert_eq!((error, entry[0]), (refused, 0), "{number}");
                refusals += 1;
            }
        }
        driver.attach(STREAM, &one).unwrap();
        domain_is_told(&unit, &*one);
        drop((one, two, driver));
        assert_eq!(unit.live(), 0, "{number}");
    }
    assert!(refusals >= 4, "{refusals}");
}

/// The unit, and once the one device.
fn domain_is_told(unit: &SmmuMachine, domain: &impl Domain) {
    unit.take_log();
    domain.sync(&mut debt(domain, 0x7000)).unwrap();
    let codes = unit.take_codes();
    assert_eq!(codes, [op::TLBI_NH_VA, op::SYNC, op::ATC_INV, op::SYNC]);
}

#[test]
fn identifiers_come_back_only_when_they_are_quiet() {
    let (unit, driver) = setup();
    let tag = first(&driver).context();
    assert_eq!(first(&driver).context(), tag);
    unit.refuse_kind((op::TLBI_NH_ASID, error::ILL, 1));
    drop(first(&driver));
    assert_ne!(first(&driver).context(), tag);
    let (one, two) = (second(&driver), first(&driver));
    assert_ne!(one.context(), two.context(), "one space for both kinds");
}

#[test]
fn global_errors_are_served() {
    let (unit, driver) = setup();
    assert_eq!(driver.service_errors(), Ok(GlobalErrors::empty()));
    let some = GlobalErrors::SYNC_MESSAGE | GlobalErrors::PAGE_REQUEST_QUEUE;
    unit.unit().raise(some.bits());
    assert_eq!(driver.service_errors(), Ok(some));
    assert_eq!(driver.service_errors(), Ok(GlobalErrors::empty()));
    unit.unit().raise(reg::gerror::SFM);
    let stopped = AttachError::Iommu(IommuError::Stopped);
    assert_eq!(driver.service_errors(), Ok(GlobalErrors::SERVICE_FAILURE));
    assert_eq!(driver.block(STREAM), Err(stopped));
    assert_eq!(driver.next_fault(), Err(IommuError::Stopped));
}

#[test]
fn syncs_write_messages_where_the_unit_can() {
    let (unit, driver) = changed(config(), |id| id.idr[0] |= MSI);
    let domain = first(&driver);
    for page in 0..1_000 {
        domain.sync(&mut debt(&*domain, page << 12)).unwrap();
    }
    let log = unit.take_log();
    let syncs = log.iter().filter(|words| words[0] & 0xff == op::SYNC);
    assert!(syncs.clone().all(|words| words[0] & 0x3000 == 0x1000));
    assert_eq!(driver.counts().of(CommandKind::Sync), syncs.count() as u64);
    assert_eq!(driver.counts().total(), log.len() as u64);
}

#[test]
fn ranges_of_a_unit_that_has_none_are_refused() {
    let (unit, driver) = changed(config(), |id| id.idr[3] = 0);
    let domain = first(&driver);
    let access = Access::READ;
    let range = IovaRange::from_len(Iova::new(0x1000), 0x5000).unwrap();
    let mut owed = Gather::new();
    domain.map(range.start(), promised(PhysAddr::new(0), 0x5000), access, &mut owed).unwrap();
    domain.unmap(range, &mut owed).unwrap();
    unit.take_log();
    domain.sync(&mut owed).unwrap();
    let log = unit.take_log();
    assert_eq!(log.len(), 6);
    for (page, words) in log[..5].iter().enumerate() {
        assert_eq!(words[1], (page as u64 + 1) << 12 | 1, "a leaf alone");
    }
}
