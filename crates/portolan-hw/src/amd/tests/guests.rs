//! Guest tables, PASIDs, and all that is forgotten with them.

use crate::promise::tests::all_memory;
use alloc::sync::Arc;
use alloc::vec::Vec;

use portolan::addr::{Iova, Pasid, StreamId};
use portolan::iommu::{
    Attach as _, AttachError, Domain, FaultEvent, FaultReason, Iommu as _, IommuError,
};
use portolan::table::format::AmdV2Levels;
use portolan_chips::amd::{AmdIdentification, AmdMachine as Machine, AmdVi as Kind};
use portolan_chips::chips::{AMD_990FX, RAVEN_RIDGE};
use portolan_chips::inject::{DmaFault, Piece, RegisterFaults};
use portolan_sim::decode::AccessKind;

use super::machine::{Amd as _, ILLEGAL, Iommu, with};
use super::{STREAM, config};
use crate::amd::{AmdGuestDomain, Config, Features, GuestFeatures};
use crate::chassis::Words;
use crate::chassis::tests::suite::*;
use portolan_spec::amd::command::{OPCODE, opcode};
use portolan_spec::amd::reg;

const OTHER: StreamId = StreamId::new(0x29);
/// A PASID of three levels: 1, 2 and 3.
const DEEP: Pasid = Pasid::new(1 << 18 | 2 << 9 | 3);

type Guest = Arc<AmdGuestDomain<Machine>>;

fn identification() -> AmdIdentification {
    RAVEN_RIDGE.identification.guests()
}

/// PASIDs of all 20 bits.
fn wide() -> Config {
    Config { pasid_bits: 20, ..config() }
}

fn opened(config: Config) -> (Machine, Iommu, Guest) {
    let machine = with(identification());
    let unit = machine.enable(config).unwrap();
    let domain = Arc::new(unit.guest_domain(AmdV2Levels::Four).unwrap());
    domain.sync(&mut map(&*domain, 2)).unwrap();
    machine.commands();
    (machine, unit, domain)
}

/// Tells where a write of `stream` with `pasid` to the first page arrives.
fn reached(machine: &Machine, stream: StreamId, pasid: Option<Pasid>) -> Option<u64> {
    let pieces = machine.unit().dma_as(stream, pasid, BASE, AccessKind::Write, 4);
    pieces.ok()?.first().map(|piece| piece.pa.get())
}

fn mapped(domain: &dyn Domain) -> Option<u64> {
    domain.translate(BASE).map(|found| found.pa.get())
}

/// INVALIDATE_IOMMU_PAGES of all of a PASID.
fn all_of(domain: u64, pasid: Pasid) -> Words {
    [3 << 60 | domain << 32 | u64::from(pasid.get()), 0x7fff_ffff_ffff_f007]
}

/// A machine whose domains have guest tables.
pub(super) struct GuestMachine(Machine);

impl From<Machine> for GuestMachine {
    fn from(machine: Machine) -> Self {
        Self(machine)
    }
}

impl Driven for GuestMachine {
    type Kind = Kind;
    type Config = Config;
    type Unit = Iommu;
    type Tables = AmdGuestDomain<Machine>;

    const STREAMS: [StreamId; 2] = [STREAM, OTHER];
    const WAIT: u64 = opcode::COMPLETION_WAIT;
    const REFUSALS: &'static [(u64, u32)] =
        &[(opcode::COMPLETION_WAIT, ILLEGAL), (opcode::PAGES, ILLEGAL)];

    fn ordinary() -> Self {
        Self(with(identification().caching_absence()))
    }

    fn config() -> Config {
        config()
    }

    fn enable(&self, config: Config) -> Result<Iommu, IommuError> {
        Driven::enable(&self.0, config)
    }

    fn release(unit: Iommu) -> Result<(), IommuError> {
        unit.release(all_memory())
    }

    fn tables(unit: &Iommu) -> Result<Self::Tables, IommuError> {
        unit.guest_domain(AmdV2Levels::Four)
    }

    fn machine(&self) -> &Machine {
        &self.0
    }

    fn operation(word: u64) -> u64 {
        OPCODE.of(word)
    }

    fn access(
        &self,
        stream: StreamId,
        iova: Iova,
        kind: AccessKind,
    ) -> Result<Vec<Piece>, DmaFault> {
        self.0.unit().dma(stream, iova, kind, 4)
    }

    fn is_blocked(&self, stream: StreamId) -> bool {
        let entry = self.0.entry(stream.get().into());
        let root = entry[0] >> 58 & 7 | (entry[1] >> 16 & 0xffff) << 3 | entry[1] >> 43 << 19;
        entry[0] == 3 || self.0.word(root << 12) & 1 == 0
    }
}

suite! {
    crate::amd::tests::guests::GuestMachine:
        devices_reach_what_is_mapped_for_them_and_nothing_else
        a_domain_of_another_unit_does_not_fit
        a_unit_that_refuses_everything_ends_in_time
        a_unit_that_was_turned_off_has_stopped
        a_release_that_fails_keeps_what_may_still_be_reached
        a_unit_that_goes_away_is_an_error_at_each_call
        a_unit_that_is_slow_is_waited_for
        what_a_failure_left_of_one_stream_is_not_settled_with_another
}

crate::chassis::tests::hostile::on_a_hostile_machine! { crate::amd::tests::guests::GuestMachine }

#[test]
fn an_entry_that_leads_to_a_gcr3_table_by_hand() {
    let (machine, unit, domain) = opened(config());
    unit.attach(STREAM, &domain).unwrap();
    let [low, high, third, fourth] = machine.entry(0x28);
    // V, TV, GIoV, GV, a GCR3 table of one level, reads and writes; domain 2, and guest tables of four levels.
    assert_eq!(low & !(7 << 58), 0x60c0_0000_0000_0003);
    assert_eq!((high & 0xffff, third, fourth), (2, 0, 0));
    let root = (low >> 58 & 7) << 12 | (high >> 16 & 0xffff) << 15 | high >> 43 << 31;
    assert_eq!(machine.word(root), domain.table().root().get() | 1);
    assert_eq!(machine.word(root + 8), 0);
    assert_eq!(reached(&machine, STREAM, None), mapped(&*domain));
    domain.sync(&mut unmap(&*domain, 1)).unwrap();
    let page = [0x3000_0002_0000_0000, BASE.get() | 4];
    assert_eq!(machine.commands().last(), Some(&page));
    assert_eq!(reached(&machine, STREAM, None), None);
    unit.block(STREAM).unwrap();
    assert_eq!(machine.entry(0x28), [3, 0, 0, 0]);
    let entry = [0x2000_0000_0000_0028, 0];
    let everything = [0x3000_0002_0000_0000, 0x7fff_ffff_ffff_f003];
    assert_eq!(machine.commands(), [all_of(2, Pasid::new(0)), entry, everything, entry]);
    machine.expect_obedience();
}

#[test]
fn pasids_are_apart_and_go_alone() {
    let (machine, unit, domain) = opened(wide());
    let other = Arc::new(unit.guest_domain(AmdV2Levels::Four).unwrap());
    let mut owed = map(&*other, 3);
    other.sync(&mut owed).unwrap();
    other.sync(&mut unmap(&*other, 1)).unwrap();
    unit.attach_pasid(STREAM, DEEP, &domain).unwrap();
    unit.attach_pasid(STREAM, Pasid::new(1), &other).unwrap();
    unit.attach_pasid(OTHER, Pasid::new(1), &domain).unwrap();
    let reach = |stream, pasid| reached(&machine, stream, Some(pasid));
    assert_eq!(reach(STREAM, DEEP), mapped(&*domain));
    assert_eq!(reach(OTHER, Pasid::new(1)), mapped(&*domain));
    assert_eq!(reach(STREAM, Pasid::new(1)), None);
    assert_eq!(reach(OTHER, DEEP), None);
    assert_eq!(reached(&machine, STREAM, None), None);
    machine.commands();
    // One invalidation for each place: GCR3 tables 2 and 3.
    domain.sync(&mut unmap(&*domain, 1)).unwrap();
    let of = |id: u64, pasid: Pasid| [3 << 60 | id << 32 | u64::from(pasid.get()), BASE.get() | 4];
    assert_eq!(machine.commands(), [of(2, DEEP), of(3, Pasid::new(1))]);
    assert_eq!((reach(STREAM, DEEP), reach(OTHER, Pasid::new(1))), (None, None));
    unit.block_pasid(STREAM, DEEP).unwrap();
    assert_eq!(machine.commands(), [all_of(2, DEEP)]);
    unit.attach(STREAM, &other).unwrap();
    unit.block(STREAM).unwrap();
    assert_eq!(machine.entry(0x28)[0] >> 54 & 3, 3, "a PASID keeps the entry");
    unit.block_pasid(STREAM, Pasid::new(1)).unwrap();
    unit.block(STREAM).unwrap();
    assert_eq!(machine.entry(0x28), [3, 0, 0, 0]);
    machine.expect_obedience();
}

#[test]
fn a_pasid_moves_from_one_domain_to_another_in_one_step() {
    let (machine, unit, domain) = opened(config());
    let other = Arc::new(unit.guest_domain(AmdV2Levels::Four).unwrap());
    let pasid = Pasid::new(7);
    unit.attach_pasid(STREAM, pasid, &domain).unwrap();
    assert!(reached(&machine, STREAM, Some(pasid)).is_some());
    unit.attach_pasid(STREAM, pasid, &other).unwrap();
    assert_eq!(reached(&machine, STREAM, Some(pasid)), None);
    // The domain that was left tells the unit nothing.
    machine.commands();
    domain.sync(&mut unmap(&*domain, 1)).unwrap();
    assert_eq!(machine.commands(), Vec::<Words>::new());
    machine.expect_obedience();
}

#[test]
fn host_tables_and_pasids_do_not_go_together() {
    let (machine, unit, domain) = opened(config());
    let (host, pasid) = (Arc::new(unit.domain().unwrap()), Pasid::new(7));
    let mismatch = Err(AttachError::Mismatch);
    unit.attach(STREAM, &host).unwrap();
    assert_eq!(unit.attach_pasid(STREAM, pasid, &domain), mismatch);
    unit.pass_through(STREAM, all_memory()).unwrap();
    unit.attach_pasid(STREAM, pasid, &domain).unwrap();
    // Without a PASID it passes on.
    assert_eq!(reached(&machine, STREAM, None), Some(BASE.get()));
    assert_eq!(reached(&machine, STREAM, Some(pasid)), mapped(&*domain));
    assert_eq!(unit.attach(STREAM, &host), mismatch);
    unit.attach(STREAM, &domain).unwrap();
    assert_eq!(reached(&machine, STREAM, None), mapped(&*domain));
    unit.pass_through(STREAM, all_memory()).unwrap();
    assert_eq!(reached(&machine, STREAM, None), Some(BASE.get()));
    unit.block(STREAM).unwrap();
    assert_eq!(reached(&machine, STREAM, None), None);
    assert_eq!(reached(&machine, STREAM, Some(pasid)), mapped(&*domain));
    unit.block_pasid(STREAM, pasid).unwrap();
    unit.attach(STREAM, &host).unwrap();
    assert_eq!(machine.entry(0x28)[0] & 1 << 55, 0);
    machine.expect_obedience();
}

#[test]
fn five_levels_are_named_in_the_entry_and_are_those_of_all_pasids() {
    let (machine, unit, four) = opened(config());
    let five = Arc::new(unit.guest_domain(AmdV2Levels::Five).unwrap());
    let mut owed = map(&*five, 1);
    five.sync(&mut owed).unwrap();
    unit.attach(STREAM, &four).unwrap();
    unit.attach(STREAM, &five).unwrap();
    assert_eq!(machine.entry(0x28)[2], 1 << 54);
    assert_eq!(reached(&machine, STREAM, None), mapped(&*five));
    unit.attach_pasid(STREAM, Pasid::new(1), &five).unwrap();
    let mismatch = Err(AttachError::Mismatch);
    assert_eq!(unit.attach(STREAM, &four), mismatch);
    assert_eq!(unit.attach_pasid(STREAM, Pasid::new(2), &four), mismatch);
    unit.block_pasid(STREAM, Pasid::new(1)).unwrap();
    unit.attach(STREAM, &four).unwrap();
    assert_eq!(machine.entry(0x28)[2], 0);
    assert_eq!(reached(&machine, STREAM, None), mapped(&*four));
    machine.expect_obedience();
}

#[test]
fn pasids_out_of_range_are_refused() {
    let (_machine, unit, domain) = opened(config());
    let mismatch = Err(AttachError::Mismatch);
    for pasid in [0, 512, 1 << 20, u32::MAX].map(Pasid::new) {
        assert_eq!(unit.attach_pasid(STREAM, pasid, &domain), mismatch);
        assert_eq!(unit.block_pasid(STREAM, pasid), mismatch);
    }
    unit.attach_pasid(STREAM, Pasid::new(511), &domain).unwrap();
    let stream = StreamId::new(0x1_0000);
    let no_such = Err(AttachError::NoSuchStream { stream });
    assert_eq!(unit.attach_pasid(stream, Pasid::new(1), &domain), no_such);
}

#[test]
fn registers_that_lie_of_guest_tables_are_nonsense_or_nothing() {
    let enable =
        |features| with(AmdIdentification { features, ..identification() }).enable(config());
    let all = identification().features;
    // GATS 2, GLXSup 3, PASmax 20.
    for value in [all ^ 3 << 12, all | 3 << 14, all & !(0x1f << 32) | 20 << 32] {
        let nonsense = IommuError::Nonsense { offset: reg::FEATURES, value };
        assert_eq!(enable(value).err(), Some(nonsense), "{value:#x}");
    }
    // Without GTSup, GIoSup or IASup the others mean nothing.
    for bit in [4, 48, 6] {
        let unit = enable((all | 3 << 14) & !(1 << bit)).unwrap();
        assert_eq!(unit.features().guests, None);
        let domain = unit.guest_domain(AmdV2Levels::Four);
        assert_eq!(domain.err(), Some(IommuError::Unsupported));
        assert_eq!(unit.block_pasid(STREAM, Pasid::new(1)), Err(AttachError::NoPasids));
    }
    let raven = with(RAVEN_RIDGE.identification).enable(config()).unwrap();
    let wanted = GuestFeatures { levels: 4, root_levels: 2, pasid_bits: 16, over_host: false };
    assert_eq!(raven.features().guests, Some(wanted));
    let five = raven.guest_domain(AmdV2Levels::Five);
    assert_eq!(five.err(), Some(IommuError::Unsupported));
    let old: Features = *with(AMD_990FX.identification).enable(config()).unwrap().features();
    assert_eq!(old.guests, None);
}

#[test]
fn refused_accesses_name_their_pasid() {
    let (machine, unit, domain) = opened(config());
    unit.attach_pasid(STREAM, Pasid::new(5), &domain).unwrap();
    domain.sync(&mut unmap(&*domain, 1)).unwrap();
    let event = |pasid| {
        assert_eq!(reached(&machine, STREAM, pasid), None);
        match unit.next_fault() {
            Ok(Some(FaultEvent::Fault(record))) => (record.pasid, record.reason),
            other => panic!("{other:?}"),
        }
    };
    let [five, six] = [5, 6].map(|pasid| Some(Pasid::new(pasid)));
    assert_eq!(event(five), (five, FaultReason::NotMapped));
    assert_eq!(event(six), (six, FaultReason::Blocked));
    assert_eq!(event(None), (None, FaultReason::Blocked));
}

/// The unit keeps that there was nothing, in the GCR3 table as well.
#[test]
fn absence_that_is_kept_is_forgotten() {
    let machine = with(identification().caching_absence());
    let unit = machine.enable(wide()).unwrap();
    let domain = Arc::new(unit.guest_domain(AmdV2Levels::Four).unwrap());
    unit.attach_pasid(STREAM, Pasid::new(1), &domain).unwrap();
    let reach = |pasid| reached(&machine, STREAM, Some(pasid));
    assert_eq!((reach(Pasid::new(1)), reach(DEEP)), (None, None));
    unit.attach_pasid(STREAM, DEEP, &domain).unwrap();
    domain.sync(&mut map(&*domain, 1)).unwrap();
    assert_eq!(reach(DEEP), mapped(&*domain));
    assert_eq!(reach(Pasid::new(1)), mapped(&*domain));
    machine.expect_obedience();
}

#[test]
fn a_failure_keeps_a_pasids_domain_until_the_unit_has_forgotten_it() {
    let (machine, unit, domain) = opened(config());
    let (weak, pasid) = (Arc::downgrade(&domain), Pasid::new(3));
    unit.attach_pasid(STREAM, pasid, &domain).unwrap();
    assert!(reached(&machine, STREAM, Some(pasid)).is_some());
    drop(domain);
    machine.refuse_kind(opcode::PAGES, 1, ILLEGAL);
    assert!(unit.block_pasid(STREAM, pasid).is_err());
    assert!(weak.upgrade().is_some());
    machine.wrong(RegisterFaults::NONE);
    let host = Arc::new(unit.domain().unwrap());
    assert_eq!(unit.attach(STREAM, &host), Err(AttachError::Mismatch), "it is not settled");
    unit.block_pasid(STREAM, pasid).unwrap();
    assert!(weak.upgrade().is_none());
    assert_eq!(reached(&machine, STREAM, Some(pasid)), None);
    unit.attach(STREAM, &host).unwrap();
}

#[test]
fn pasids_come_back_after_a_loss_of_power() {
    let (machine, unit, domain) = opened(config());
    let pasid = Pasid::new(3);
    unit.attach_pasid(STREAM, pasid, &domain).unwrap();
    unit.suspend().unwrap();
    machine.unit().cut_power();
    unit.resume().unwrap();
    assert_eq!(reached(&machine, STREAM, Some(pasid)), mapped(&*domain));
    assert_eq!(reached(&machine, STREAM, None), None);
    machine.expect_obedience();
}

#[test]
fn a_device_that_is_gone_leaves_all_its_pasids() {
    let (machine, unit, domain) = opened(wide());
    let weak = Arc::downgrade(&domain);
    unit.attach_pasid(STREAM, DEEP, &domain).unwrap();
    unit.attach(STREAM, &domain).unwrap();
    unit.device_gone(STREAM).unwrap();
    machine.commands();
    domain.sync(&mut unmap(&*domain, 1)).unwrap();
    assert_eq!(machine.commands(), Vec::<Words>::new());
    drop(domain);
    assert!(weak.upgrade().is_none());
    assert_eq!(machine.entry(0x28), [3, 0, 0, 0]);
    let domain = Arc::new(unit.guest_domain(AmdV2Levels::Four).unwrap());
    domain.sync(&mut map(&*domain, 1)).unwrap();
    unit.attach(STREAM, &domain).unwrap();
    assert_eq!(reached(&machine, STREAM, Some(DEEP)), None);
}

#[test]
fn all_memory_comes_back_with_a_release() {
    let (machine, unit, domain) = opened(wide());
    unit.attach_pasid(STREAM, DEEP, &domain).unwrap();
    unit.attach(OTHER, &domain).unwrap();
    drop(domain);
    unit.release(all_memory()).unwrap();
    assert_eq!(machine.live(), 0);
}
