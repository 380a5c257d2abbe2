//! Memory: none is lost whichever allocation fails, and none that the unit may use is freed.

use crate::promise::tests::all_memory;
use alloc::sync::Arc;

use portolan::addr::{Pasid, StreamId};
use portolan::iommu::{Attach, AttachError, Domain as _, IommuError};
use portolan::table::format::VtdFirstLevels;

use super::kit::{CAP, ECAP, Iommu, SCALABLE, new_machine};
use super::{STREAM, attached, config, legacy, map, unmap};
use crate::chassis::tests::suite::Driven;
use crate::vtd::{DeviceTlb, Mode};
use portolan_chips::inject::RegisterFaults;
use portolan_spec::vtd::reg::{self, command};

const FIRST: u64 = CAP | 1 << 56;
const OTHER: StreamId = StreamId::new(0x02f8);

/// All that allocates: tables of the unit and of domains, queues, directories.
fn everything(unit: &Iommu, mode: Mode) -> Result<(), AttachError> {
    let domain = Arc::new(unit.second_stage()?);
    unit.attach(STREAM, &domain)?;
    unit.attach(OTHER, &domain)?;
    if mode == Mode::Scalable {
        let first = Arc::new(unit.first_stage(VtdFirstLevels::Four)?);
        unit.attach_pasid(STREAM, Pasid::new(0x1001), &first)?;
        let nested = Arc::new(unit.nested(VtdFirstLevels::Four, &domain)?);
        unit.attach(OTHER, &nested)?;
        unit.read_page_requests(0)?;
    }
    Ok(())
}

#[test]
fn whichever_allocation_fails_nothing_is_lost_and_nothing_half_done() {
    for (mode, ecap) in [(Mode::Legacy, ECAP), (Mode::Scalable, SCALABLE)] {
        let mut failures = 0;
        for n in 1.. {
            let machine = new_machine(FIRST, ecap);
            machine.fail_in(n);
            let unit = match machine.enable(config(mode)) {
                Ok(unit) => unit,
                Err(error) => {
                    failures += 1;
                    assert!(matches!(error, IommuError::Memory(_)), "{error}");
                    assert_eq!(machine.live(), 0);
                    // Not one register was written.
                    assert!(machine.take().is_empty());
                    continue;
                }
            };
            let done = everything(&unit, mode);
            // Used up, or this was the last allocation and none failed.
            let failed = done.is_err();
            if let Err(error) = done {
                failures += 1;
                let memory = matches!(error, AttachError::Iommu(IommuError::Memory(_)));
                assert!(memory, "{error}");
            }
            machine.fail_in(0);
            if failed {
                everything(&unit, mode).unwrap();
            }
            unit.release(all_memory()).unwrap();
            assert_eq!(machine.live(), 0, "{mode:?}, allocation {n}");
            machine.expect_obedience();
            if !failed {
                break;
            }
        }
        let least = match mode {
            Mode::Legacy => 6,
            Mode::Scalable => 12,
        };
        assert!(failures >= least, "{mode:?}: {failures}");
    }
}

#[test]
fn an_attachment_without_memory_leaves_the_stream_blocked() {
    let machine = new_machine(CAP, ECAP);
    let unit = machine.enable(legacy()).unwrap();
    let domain = Arc::new(unit.second_stage().unwrap());
    machine.take();
    machine.fail_in(1);
    unit.attach(STREAM, &domain).unwrap_err();
    assert_eq!(machine.word(machine.reg(reg::RTADDR) + 16), 0);
    assert!(machine.take().is_empty());
    assert_eq!(Arc::strong_count(&domain), 1);
}

#[test]
fn dropping_a_unit_blocks_its_streams_and_keeps_what_it_walks() {
    let machine = new_machine(CAP, ECAP);
    let (unit, domain) = attached(&machine, legacy());
    let before = machine.live();
    drop(unit);
    assert_ne!(machine.reg32(reg::GSTS) & command::TE, 0);
    let context = machine.word(machine.reg(reg::RTADDR) + 16) & !0xfff;
    assert_eq!(machine.word(context + 8 * 16), 0);
    assert_eq!(machine.live(), before);
    assert_eq!(Arc::strong_count(&domain), 1);
    // The domain alone goes on, and goes.
    domain.sync(&mut map(&*domain, 1)).unwrap();
    domain.sync(&mut unmap(&*domain, 1)).unwrap();
    drop(domain);
    assert_eq!(machine.live(), 4);
}

#[test]
fn a_unit_that_does_not_follow_keeps_everything() {
    for wrong in [RegisterFaults::STUCK, RegisterFaults::GONE] {
        let machine = new_machine(CAP, ECAP);
        let (unit, domain) = attached(&machine, legacy());
        domain.sync(&mut map(&*domain, 1)).unwrap();
        let before = machine.live();
        drop(domain);
        machine.wrong(wrong);
        drop(unit);
        assert_eq!(machine.live(), before);
    }
}

#[test]
fn a_domain_whose_identifier_is_not_forgotten_keeps_its_tables() {
    let machine = new_machine(CAP, ECAP);
    let unit = machine.enable(legacy()).unwrap();
    let domain = unit.second_stage().unwrap();
    domain.sync(&mut map(&domain, 1)).unwrap();
    let (before, id) = (machine.live(), domain.context());
    machine.wrong(RegisterFaults::STUCK);
    drop(domain);
    assert_eq!(machine.live(), before);
    machine.wrong(RegisterFaults::NONE);
    assert_ne!(unit.second_stage().unwrap().context(), id);
}

#[test]
fn after_a_release_domains_that_are_held_go_without_the_unit() {
    let machine = new_machine(CAP, ECAP);
    let (unit, domain) = attached(&machine, legacy());
    domain.sync(&mut map(&*domain, 1)).unwrap();
    unit.release(all_memory()).unwrap();
    let on = machine.reg32(reg::GSTS) & (command::TE | command::QIE);
    assert_eq!(on, 0);
    machine.take();
    domain.sync(&mut unmap(&*domain, 1)).unwrap();
    drop(domain);
    let tails = machine.take().into_iter();
    let wrote = |event| matches!(event, portolan_chips::machine::Event::Write(..));
    assert_eq!(tails.filter(|event| wrote(*event)).count(), 0);
    // The queue's two pages, to which another caller might have been writing.
    assert_eq!(machine.live(), 2);
}

#[test]
fn a_context_entry_that_may_be_stale_is_forgotten_before_it_is_used_again() {
    let machine = new_machine(FIRST, SCALABLE);
    let (unit, domain) = attached(&machine, config(Mode::Scalable));
    let physical = STREAM.get() as u16;
    let device = DeviceTlb { depth: 4, physical, twice: false };
    unit.use_device_tlb(STREAM, device, all_memory()).unwrap();
    // Its flags change, and the unit does not say that it has forgotten the old ones.
    machine.wrong(RegisterFaults::STUCK);
    unit.attach(STREAM, &domain).unwrap_err();
    machine.wrong(RegisterFaults::NONE);
    machine.take();
    unit.attach(STREAM, &domain).unwrap();
    let kinds = machine.commands();
    assert_eq!(kinds.first(), Some(&[0x0108_0000_0031, 0]));
}
