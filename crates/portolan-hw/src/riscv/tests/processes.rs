//! Address spaces of a stream.

use crate::promise::tests::{all_memory, described};
use alloc::sync::Arc;

use portolan::addr::{Iova, Pasid, PhysAddr, StreamId};
use portolan::iommu::{
    Attach as _, AttachError, Domain as _, FaultEvent, FaultReason, Iommu as _, IommuError,
    RemapInterrupts as _,
};
use portolan::table::format::RiscvLevels;
use portolan_chips::inject::DmaFault;
use portolan_chips::riscv::{RiscvIdentification, RiscvMachine as Machine};
use portolan_sim::decode::AccessKind;

use super::machine::{Iommu, Riscv as _, new_machine, with};
use super::{STREAM, Tables, config};
use crate::chassis::tests::suite::{BASE, Driven, PAGE, map, unmap};
use portolan_spec::riscv::command::opcode;
use portolan_spec::riscv::reg::queue;

const ONE: Pasid = Pasid::new(1);
const TWO: Pasid = Pasid::new(2);

fn machine() -> Machine {
    with(RiscvIdentification::able().pasids())
}

fn unit(machine: &Machine, lg2: u32) -> Iommu {
    let unit = machine.enable(config()).unwrap();
    unit.enable_pasids(STREAM, lg2).unwrap();
    machine.commands();
    unit
}

fn domain(unit: &Iommu) -> Arc<Tables> {
    Arc::new(unit.first_stage(RiscvLevels::Four).unwrap())
}

/// Physical address of a read of `pasid`; without a number, that of a request without a PASID.
fn read(machine: &Machine, pasid: Option<Pasid>) -> Option<u64> {
    let found = reach(machine, pasid, BASE).ok()?;
    Some(found)
}

fn reach(machine: &Machine, pasid: Option<Pasid>, at: Iova) -> Result<u64, DmaFault> {
    let pieces = machine.unit().dma(STREAM, pasid, at, AccessKind::Read, 4)?;
    Ok(pieces[0].pa.get())
}

fn reason(unit: &Iommu) -> Option<(Option<Pasid>, FaultReason)> {
    match unit.next_fault().unwrap()? {
        FaultEvent::Fault(record) => Some((record.pasid, record.reason)),
        other => panic!("{other:?}"),
    }
}

/// Words that a person wrote down from the figures of the contexts.
#[test]
fn directories_and_contexts_by_hand() {
    let machine = machine();
    for (lg2, mode, levels) in [(1, 1, 1), (8, 1, 1), (9, 2, 2), (17, 2, 2), (18, 3, 3), (20, 3, 3)]
    {
        let unit = unit(&machine, lg2);
        let words = machine.context(STREAM.get().into());
        // Valid, with a process directory, and address space 0 for requests without a PASID.
        assert_eq!((words[0], words[1], words[2]), (0x221, 0, 0));
        assert_eq!(words[3] >> 60, mode, "{lg2}");
        let mut table = words[3] << 12 & 0xff_ffff_ffff_ffff;
        let (one, pasid) = (domain(&unit), (1 << lg2) - 1);
        unit.attach_pasid(STREAM, Pasid::new(pasid), &one).unwrap();
        for level in (0..levels - 1).rev() {
            let index = u64::from(pasid) >> (8 + 9 * level) & 0x1ff;
            let entry = machine.word(table + 8 * index);
            assert_eq!(entry & 0x3ff, 1);
            table = entry >> 10 << 12;
        }
        let at = table + u64::from(pasid & 0xff) * 16;
        let root = one.table().root().get() >> 12;
        let tag = u64::from(one.context().get());
        assert_eq!([machine.word(at), machine.word(at + 8)], [tag << 12 | 1, 9 << 60 | root]);
        machine.commands();
        unit.block_pasid(STREAM, Pasid::new(pasid)).unwrap();
        assert_eq!(machine.word(at), 0);
        // IODIR.INVAL_PDT, and the tag's translations.
        let process = 0x2802_0000_0083 | u64::from(pasid) << 12;
        assert_eq!(machine.commands(), [[process, 0], [1 | 1 << 32 | tag << 12, 0]]);
        unit.disable_pasids(STREAM).unwrap();
        assert_eq!(machine.commands(), [[0x2802_0000_0003, 0]]);
        assert_eq!(machine.context(STREAM.get().into())[0], 0);
        drop(one);
        unit.release(all_memory()).unwrap();
        assert_eq!(machine.live(), 0);
    }
    machine.expect_obedience();
}

#[test]
fn each_address_space_reaches_its_own_domain_and_requests_without_one_another() {
    let machine = machine();
    let unit = unit(&machine, 8);
    let [main, one] = [(); 2].map(|()| domain(&unit));
    assert_eq!(read(&machine, None), None);
    assert_eq!(reason(&unit), Some((None, FaultReason::Blocked)));
    unit.attach(STREAM, &main).unwrap();
    unit.attach_pasid(STREAM, ONE, &one).unwrap();
    one.sync(&mut map(&*one, 2)).unwrap();
    assert_eq!(read(&machine, Some(ONE)), Some(0x1000));
    assert_eq!(read(&machine, None), None);
    assert_eq!(reason(&unit), Some((None, FaultReason::NotMapped)));
    assert_eq!(read(&machine, Some(TWO)), None);
    assert_eq!(reason(&unit), Some((Some(TWO), FaultReason::Blocked)));
    main.sync(&mut map(&*main, 1)).unwrap();
    assert_eq!(read(&machine, None), Some(0x1000));
    // A read-only page would say so; a page that is missing in one is not looked for in the other.
    let next = Iova::new(BASE.get() + PAGE);
    assert!(reach(&machine, None, next).is_err());
    assert_eq!(reason(&unit), Some((None, FaultReason::NotMapped)));
    unit.block(STREAM).unwrap();
    assert_eq!(read(&machine, None), None);
    assert_eq!(read(&machine, Some(ONE)), Some(0x1000));
    unit.pass_through(STREAM, all_memory()).unwrap();
    assert_eq!(read(&machine, None), Some(BASE.get()));
    one.sync(&mut unmap(&*one, 2)).unwrap();
    assert_eq!(read(&machine, Some(ONE)), None);
    unit.block_pasid(STREAM, ONE).unwrap();
    unit.block_all().unwrap();
    unit.disable_pasids(STREAM).unwrap();
    assert_eq!(read(&machine, None), None);
    machine.expect_obedience();
}

#[test]
fn an_address_space_moves_and_what_it_left_is_not_reached() {
    let machine = machine();
    let unit = unit(&machine, 17);
    let [one, two] = [(); 2].map(|()| domain(&unit));
    one.sync(&mut map(&*one, 1)).unwrap();
    unit.attach_pasid(STREAM, ONE, &one).unwrap();
    unit.attach_pasid(STREAM, TWO, &one).unwrap();
    assert_eq!(read(&machine, Some(ONE)), Some(0x1000));
    assert_eq!(read(&machine, Some(TWO)), Some(0x1000));
    unit.attach_pasid(STREAM, ONE, &two).unwrap();
    assert_eq!(read(&machine, Some(ONE)), None);
    assert_eq!(read(&machine, Some(TWO)), Some(0x1000));
    unit.block_pasid(STREAM, TWO).unwrap();
    assert_eq!(read(&machine, Some(TWO)), None);
    machine.expect_obedience();
}

#[test]
fn a_context_that_the_unit_did_not_forget_keeps_its_domain_alive() {
    let machine = machine();
    let unit = unit(&machine, 8);
    let one = domain(&unit);
    one.sync(&mut map(&*one, 1)).unwrap();
    unit.attach_pasid(STREAM, ONE, &one).unwrap();
    assert_eq!(read(&machine, Some(ONE)), Some(0x1000));
    machine.refuse_kind(opcode::DIRECTORY, 1, queue::ILLEGAL);
    assert!(unit.block_pasid(STREAM, ONE).is_err());
    assert_eq!(Arc::strong_count(&one), 2);
    assert_eq!(unit.disable_pasids(STREAM), Err(AttachError::Mismatch));
    unit.block_pasid(STREAM, ONE).unwrap();
    assert_eq!(Arc::strong_count(&one), 1);
    assert_eq!(read(&machine, Some(ONE)), None);
    machine.refuse_kind(opcode::DIRECTORY, 1, queue::ILLEGAL);
    assert!(unit.disable_pasids(STREAM).is_err());
    unit.disable_pasids(STREAM).unwrap();
    machine.expect_obedience();
}

#[test]
fn what_does_not_fit_is_refused() {
    let machine = machine();
    let unit = machine.enable(config()).unwrap();
    let one = domain(&unit);
    let mismatch = Err(AttachError::Mismatch);
    // No room; no PASID; too wide.
    assert_eq!(unit.attach_pasid(STREAM, ONE, &one), mismatch);
    assert_eq!(unit.block_pasid(STREAM, ONE), mismatch);
    assert_eq!(unit.enable_pasids(STREAM, 21), Err(IommuError::Unsupported.into()));
    let stream = StreamId::new(64);
    let no_such = Err(AttachError::NoSuchStream { stream });
    assert_eq!(unit.enable_pasids(stream, 1), no_such);
    assert_eq!(unit.disable_pasids(stream), no_such);
    assert_eq!(unit.disable_pasids(STREAM), Ok(()));
    unit.attach(STREAM, &one).unwrap();
    assert_eq!(unit.enable_pasids(STREAM, 1), mismatch);
    unit.block(STREAM).unwrap();
    unit.enable_pasids(STREAM, 1).unwrap();
    assert_eq!(unit.enable_pasids(STREAM, 8), Ok(()));
    assert_eq!(unit.enable_pasids(STREAM, 9), mismatch);
    for pasid in [Pasid::new(0), Pasid::new(256), Pasid::new(u32::MAX)] {
        assert_eq!(unit.attach_pasid(STREAM, pasid, &one), mismatch);
        assert_eq!(unit.block_pasid(STREAM, pasid), mismatch);
    }
    let second = Arc::new(unit.second_stage(RiscvLevels::Three).unwrap());
    assert_eq!(unit.attach(STREAM, &second), mismatch);
    assert_eq!(unit.attach_pasid(STREAM, ONE, &second), mismatch);
    unit.attach_pasid(STREAM, ONE, &one).unwrap();
    assert_eq!(unit.disable_pasids(STREAM), mismatch);
    let without = new_machine().enable(config()).unwrap();
    assert_eq!(without.enable_pasids(STREAM, 1), Err(IommuError::Unsupported.into()));
    machine.expect_obedience();
}

/// A unit with directories of one kind.
#[test]
fn the_shallowest_directory_that_there_is_and_that_is_wide_enough_is_taken() {
    let mode = |has: u64, lg2| {
        let mut identification = RiscvIdentification::able();
        identification.capabilities |= has << 38;
        let machine = with(identification);
        let unit = machine.enable(config()).unwrap();
        unit.enable_pasids(STREAM, lg2).ok()?;
        Some(machine.context(STREAM.get().into())[3] >> 60)
    };
    assert_eq!([1, 8, 9].map(|lg2| mode(1, lg2)), [Some(1), Some(1), None]);
    assert_eq!([1, 17, 18].map(|lg2| mode(2, lg2)), [Some(2), Some(2), None]);
    assert_eq!([1, 20, 21].map(|lg2| mode(4, lg2)), [Some(3), Some(3), None]);
    assert_eq!(mode(0, 1), None);
}

#[test]
fn a_stream_has_interrupts_or_pasids() {
    use crate::riscv::{InterruptFiles, Messages};
    use portolan::addr::RequesterId;
    use portolan::iommu::{Destination, InterruptError, InterruptSource, InterruptTarget, Vector};
    let machine = with(RiscvIdentification::able().extended().pasids());
    let mut config = config();
    let files = InterruptFiles::new(PhysAddr::new(0x2800_0000), 1);
    config.interrupts = Some(Messages::new(files, described()));
    let unit = machine.enable(config).unwrap();
    let source = InterruptSource::Requester(RequesterId::new(STREAM.get() as u16));
    let target = InterruptTarget::new(Vector::new(40).unwrap(), Destination::Physical(0));
    unit.enable_pasids(STREAM, 1).unwrap();
    let refused = unit.allocate(source, target);
    assert_eq!(refused, Err(InterruptError::Target));
    unit.disable_pasids(STREAM).unwrap();
    let _interrupt = unit.allocate(source, target).unwrap();
    assert_eq!(unit.enable_pasids(STREAM, 1), Err(AttachError::Mismatch));
    unit.block(STREAM).unwrap();
    assert_eq!(unit.enable_pasids(STREAM, 1), Ok(()));
}
