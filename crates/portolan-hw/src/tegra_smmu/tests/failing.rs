//! Units with a previous owner, that lose writes, or are gone; debts that go through other hands.

use crate::promise::tests::{all_memory, promised};
use portolan::addr::InvalTag;
use portolan::inval::{Command, Depth, InvalidationQueue, Step, TablesLeft};
use portolan::platform::UnitParts;

use super::*;

#[test]
fn a_unit_that_translates_is_taken_over_without_being_turned_off() {
    let regs = Regs::new();
    // The camera is in address space 3 of the previous owner.
    regs.set(0x10, 1);
    regs.set(0x280, 0x8000_0003);
    regs.set(0x234, 1 << 18);
    let tables: Tables = Arc::new(SlabTables::new(HIGH, PageSize::SIZE_4K, 8));
    let config = Config::of(Chip::Tegra210);
    let smmu =
        TegraSmmu::enable(regs.clone(), tables, UnitParts::new(Arc::new(Ticks::default())), config);
    assert!(smmu.is_ok());
    let log = regs.take();
    let at = |wanted: (usize, u32)| log.iter().position(|&write| write == wanted);
    assert_eq!(at((0x10, 0)), None, "all accesses pass");
    let translated = log.iter().filter(|(offset, _)| *offset == 0x234);
    assert!(translated.into_iter().all(|(_, value)| value >> 18 & 1 == 1));
    // There is an empty directory before the camera comes to it, and cached lines of the address
    // space are flushed after.
    let directory = at((0x20, 0xe028_0000)).unwrap();
    let moved = at((0x280, 0x8000_0000)).unwrap();
    let flushed = at((0x30, 0)).unwrap();
    assert!(directory < moved && moved < flushed);
}

#[test]
fn enables_whose_write_was_lost_are_written_again() {
    let (regs, smmu) = unit(Chip::Tegra210, HIGH);
    let domain = Arc::new(smmu.domain().unwrap());
    let camera = stream(23);
    smmu.pass_through(camera, all_memory()).unwrap();
    assert_eq!(regs.get(0x234) >> 18 & 1, 0);
    regs.loses.store(0x234, Ordering::Relaxed);
    let lost = smmu.attach(camera, &domain);
    let nonsense = |error| matches!(error, IommuError::Nonsense { offset: 0x234, .. });
    assert!(matches!(lost, Err(AttachError::Iommu(error)) if nonsense(error)));
    // The register was noted to hold what it does not, and is written all the same.
    assert_eq!(regs.get(0x234) >> 18 & 1, 1, "the client passes");
    assert!(Arc::strong_count(&domain) > 1, "as far as anybody knows it is in use");
    smmu.attach(camera, &domain).unwrap();
    assert_eq!(regs.get(0x234) >> 18 & 1, 1, "the client is translated");
    assert_eq!(regs.get(0x280), 0x8000_0001);
}

#[test]
fn a_stream_goes_nowhere_before_it_could_be_blocked() {
    let (regs, smmu) = unit(Chip::Tegra210, HIGH);
    let domains: [_; 3] = core::array::from_fn(|_| Arc::new(smmu.domain().unwrap()));
    let camera = stream(23);
    smmu.attach(camera, &domains[0]).unwrap();
    regs.gone.store(1, Ordering::Relaxed);
    for _ in 0..3 {
        assert!(smmu.attach(camera, &domains[1]).is_err());
        assert!(smmu.attach(camera, &domains[2]).is_err());
    }
    // Where it was and where it was to go may be reached; nothing else was ever written.
    let held = domains.each_ref().map(Arc::strong_count);
    assert_eq!(held, [2, 2, 1]);
    regs.gone.store(0, Ordering::Relaxed);
    smmu.block(camera).unwrap();
    assert_eq!(domains.each_ref().map(Arc::strong_count), [1; 3]);
}

#[test]
fn a_unit_that_does_not_follow_is_not_let_go_of() {
    let (regs, smmu) = unit(Chip::Tegra210, HIGH);
    let domain = Arc::new(smmu.domain().unwrap());
    smmu.attach(stream(23), &domain).unwrap();
    regs.take();
    regs.loses.store(0x280, Ordering::Relaxed);
    let kept = smmu.release(all_memory());
    assert!(matches!(kept, Err(IommuError::Nonsense { offset: 0x280, .. })));
    assert!(!regs.take().contains(&(0x10, 0)), "translation is off");
    // Gone from the start.
    let (regs, smmu) = unit(Chip::Tegra210, HIGH);
    let other = Arc::new(smmu.domain().unwrap());
    smmu.attach(stream(23), &other).unwrap();
    regs.gone.store(1, Ordering::Relaxed);
    assert_eq!(smmu.release(all_memory()), Err(IommuError::Gone));
    assert!(Arc::strong_count(&other) > 1);
}

#[test]
fn a_debt_that_was_absorbed_is_paid() {
    let (regs, smmu) = unit(Chip::Tegra210, HIGH);
    let domain = smmu.domain().unwrap();
    let (iova, pa) = (Iova::new(0x1234_5000), PhysAddr::new(0x9000_0000));
    let (mut mapped, mut all) = (Gather::new(), Gather::new());
    domain.map(iova, promised(pa, 4096), RW, &mut mapped).unwrap();
    sync(&domain, mapped);
    let mut owed = Gather::new();
    let page = IovaRange::page(iova, PageSize::SIZE_4K);
    domain.unmap(page, &mut owed).unwrap();
    domain.absorb(&mut all, &mut owed).unwrap();
    regs.take();
    sync(&domain, all);
    let flushed = regs.take();
    assert!(flushed.contains(&(0x30, 0x8101_2347)), "{flushed:x?}");
}

#[test]
fn a_flush_by_page_names_its_address_space_and_its_group() {
    let (regs, smmu) = unit(Chip::Tegra210, HIGH);
    let page = |size| {
        Step::Invalidate(Command::Page {
            context: InvalTag::new(5),
            iova: Iova::new(0x1234_5000),
            size,
            depth: Depth::LeafOnly,
        })
    };
    let steps =
        [page(PageSize::SIZE_4K), page(PageSize::of_lg2(22)), page(PageSize::SIZE_1G), Step::Sync];
    smmu.queue().pay(&mut steps.into_iter(), TablesLeft::ByDepth).unwrap();
    // 16 KiB and 4 MiB of address space 5, and all of it.
    let flushes = [0x8501_2347, 0x8501_2002, 0x8500_0000];
    assert_eq!(regs.take(), flushes.map(|value| (0x30, value)));
}
