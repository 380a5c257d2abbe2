//! Memory: none is lost whichever allocation fails, and none that the unit may use is freed.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use portolan::addr::{Pasid, StreamId};
use portolan::iommu::{Attach, AttachError, Domain as _, IommuError};
use portolan::table::format::VtdFirstLevels;

use super::mock::{CAP, ECAP, Iommu, Mock, SCALABLE, Wrong};
use super::{STREAM, attached, config, legacy, map, unmap};
use crate::vtd::spec::reg::{self, command};
use crate::vtd::{DeviceTlb, Mode};

const FIRST: u64 = CAP | 1 << 56;
const OTHER: StreamId = StreamId::new(0x02f8);

fn fail_in(mock: &Mock, allocations: u64) {
    mock.0.fail_in.store(allocations, Ordering::Relaxed);
}

fn live(mock: &Mock) -> usize {
    mock.0.slab.live()
}

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
            let mock = Mock::new(FIRST, ecap);
            fail_in(&mock, n);
            let unit = match mock.enable(config(mode)) {
                Ok(unit) => unit,
                Err(error) => {
                    failures += 1;
                    assert!(matches!(error, IommuError::Memory(_)), "{error}");
                    assert_eq!(live(&mock), 0);
                    // Not one register was written.
                    assert!(mock.take().is_empty());
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
            fail_in(&mock, 0);
            if failed {
                everything(&unit, mode).unwrap();
            }
            unit.release().unwrap();
            assert_eq!(live(&mock), 0, "{mode:?}, allocation {n}");
            assert_eq!(mock.0.state.lock().violations, 0);
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
    let mock = Mock::new(CAP, ECAP);
    let unit = mock.enable(legacy()).unwrap();
    let domain = Arc::new(unit.second_stage().unwrap());
    mock.take();
    fail_in(&mock, 1);
    unit.attach(STREAM, &domain).unwrap_err();
    assert_eq!(mock.word(mock.reg(reg::RTADDR) + 16), 0);
    assert!(mock.take().is_empty());
    assert_eq!(Arc::strong_count(&domain), 1);
}

#[test]
fn dropping_a_unit_blocks_its_streams_and_keeps_what_it_walks() {
    let mock = Mock::new(CAP, ECAP);
    let (unit, domain) = attached(&mock, legacy());
    let before = live(&mock);
    drop(unit);
    assert_ne!(mock.reg(reg::GSTS) as u32 & command::TE, 0);
    let context = mock.word(mock.reg(reg::RTADDR) + 16) & !0xfff;
    assert_eq!(mock.word(context + 8 * 16), 0);
    assert_eq!(live(&mock), before);
    assert_eq!(Arc::strong_count(&domain), 1);
    // The domain alone goes on, and goes.
    domain.sync(&mut map(&*domain, 1)).unwrap();
    domain.sync(&mut unmap(&*domain, 1)).unwrap();
    drop(domain);
    assert_eq!(live(&mock), 4);
}

#[test]
fn a_unit_that_does_not_follow_keeps_everything() {
    for wrong in [Wrong::Stuck, Wrong::Gone] {
        let mock = Mock::new(CAP, ECAP);
        let (unit, domain) = attached(&mock, legacy());
        domain.sync(&mut map(&*domain, 1)).unwrap();
        let before = live(&mock);
        drop(domain);
        mock.wrong(wrong);
        drop(unit);
        assert_eq!(live(&mock), before);
    }
}

#[test]
fn a_domain_whose_identifier_is_not_forgotten_keeps_its_tables() {
    let mock = Mock::new(CAP, ECAP);
    let unit = mock.enable(legacy()).unwrap();
    let domain = unit.second_stage().unwrap();
    domain.sync(&mut map(&domain, 1)).unwrap();
    let (before, id) = (live(&mock), domain.context());
    mock.wrong(Wrong::Stuck);
    drop(domain);
    assert_eq!(live(&mock), before);
    mock.wrong(Wrong::Nothing);
    assert_ne!(unit.second_stage().unwrap().context(), id);
}

#[test]
fn after_a_release_domains_that_are_held_go_without_the_unit() {
    let mock = Mock::new(CAP, ECAP);
    let (unit, domain) = attached(&mock, legacy());
    domain.sync(&mut map(&*domain, 1)).unwrap();
    unit.release().unwrap();
    let on = mock.reg(reg::GSTS) as u32 & (command::TE | command::QIE);
    assert_eq!(on, 0);
    mock.take();
    domain.sync(&mut unmap(&*domain, 1)).unwrap();
    drop(domain);
    let tails = mock.take().into_iter();
    let wrote = |event| matches!(event, super::mock::Event::Register(..));
    assert_eq!(tails.filter(|event| wrote(*event)).count(), 0);
    // The queue's two pages, which somebody might have been writing to.
    assert_eq!(live(&mock), 2);
}

#[test]
fn a_context_entry_that_may_be_stale_is_forgotten_before_it_is_used_again() {
    let mock = Mock::new(FIRST, SCALABLE);
    let (unit, domain) = attached(&mock, config(Mode::Scalable));
    let physical = STREAM.get() as u16;
    let device = DeviceTlb { depth: 4, physical };
    unit.use_device_tlb(STREAM, device).unwrap();
    // Its flags change, and the unit does not say that it has forgotten the old ones.
    mock.wrong(Wrong::Stuck);
    unit.attach(STREAM, &domain).unwrap_err();
    mock.wrong(Wrong::Nothing);
    mock.take();
    unit.attach(STREAM, &domain).unwrap();
    let kinds = mock.descriptors();
    assert_eq!(kinds.first(), Some(&[0x0108_0000_0031, 0]));
}
