//! The command queue: refusals, failures, stalls, and their costs.

use super::*;

#[test]
fn what_the_hardware_lacks_is_refused() {
    let narrow = Capabilities {
        page: PageForm::Absent,
        range: RangeForm::PowerOfTwo { max_lg2_pages: 4 },
        ..Setup::able(K4)
    };
    let scaled = Capabilities {
        range: RangeForm::NumScale { max_num: 32, max_scale: 3 },
        ..Setup::able(K4)
    };
    let by = |num, scale, start| {
        let run = Run::NumScale { start: Iova::new(start), num, scale };
        let depth = Depth::LeafOnly;
        Step::Invalidate(Command::Range { context: CTX, run, granule: K4, depth })
    };
    let leaf = Depth::LeafOnly;
    for (caps, step, legal) in [
        (narrow, page(0, leaf), false),
        (narrow, range(0x1_0000, 4, leaf), true),
        (narrow, range(0x2_0000, 5, leaf), false),
        (narrow, range(0x1000, 4, leaf), false),
        (narrow, by(1, 0, 0), false),
        (scaled, page(0x1001, leaf), false),
        (scaled, by(32, 3, 0x1000), true),
        (scaled, by(33, 3, 0), false),
        (scaled, by(0, 0, 0), false),
        (scaled, by(1, 4, 0), false),
        (scaled, range(0, 0, leaf), false),
        (Setup::able(K4), range(0, 255, leaf), false),
    ] {
        warm(Temper::Adversarial, caps, |iommu| {
            let done = run(iommu, &[step, Step::Sync]);
            let refused = matches!(done, Err(QueueError::Illegal { .. }));
            assert_eq!(done.is_ok(), legal, "{step:?}");
            assert_eq!(refused, !legal, "{step:?}");
            assert_eq!(iommu.counters().syncs, u64::from(legal));
        });
    }
}

#[test]
fn a_command_that_fails_changes_nothing() {
    for (temper, again) in tempers().into_iter().zip([true, false]) {
        warm(temper, Setup::able(K4), |iommu| {
            iommu.inject(Injection { fail_command: Some(2), stall_sync: None });
            let steps = [page(NEAR, Depth::LeafOnly), page(FAR, Depth::LeafOnly), Step::Sync];
            let failed = run(iommu, &steps).unwrap_err();
            assert!(matches!(failed, QueueError::Failed { ordinal: 2, .. }));
            assert_eq!(iommu.counters().syncs, 0);
            run(iommu, &[Step::Sync]).unwrap();
            assert_eq!(iommu.occupancy().iotlb, 3);
            run(iommu, &steps).unwrap();
            let dropped = iommu.counters().collateral;
            // Adversarial, the first page is read again before it is dropped again.
            assert_eq!(dropped, if again { 3 } else { 2 });
        });
    }
}

#[test]
fn a_sync_that_stalls_ends_at_the_deadline() {
    warm(Temper::Adversarial, Setup::able(K4), |iommu| {
        iommu.inject(Injection { fail_command: None, stall_sync: Some(1) });
        let steps = [page(NEAR, Depth::LeafOnly), Step::Sync];
        let waited_ns = 1_000_000_000;
        assert_eq!(run(iommu, &steps), Err(QueueError::TimedOut { ordinal: 1, waited_ns }));
        assert_eq!(iommu.clock().now_ns(), waited_ns);
        assert_eq!((iommu.occupancy().iotlb, iommu.occupancy().pending), (4, 1));
        // Pending commands complete with a later sync.
        run(iommu, &[Step::Sync]).unwrap();
        assert_eq!((iommu.occupancy().iotlb, iommu.occupancy().pending), (3, 0));
    });
}

#[test]
fn time_and_drains_are_accounted() {
    let prices = CommandPrices {
        page: 1.0,
        page_after_map: 0.25,
        range: 20.0,
        context: 300.0,
        global: 4000.0,
        sync: 20_000.0,
        exit: 30_000.0,
        clean_line: 0.0,
        miss_step: 7.0,
    };
    let queue = QueueLimits { depth: 2, deadline_ns: 1 };
    let tables = Tables::new(slab());
    let with = Setup { prices, queue, ..setup(Temper::Adversarial) };
    let iommu = Iommu::new(with, TableReader::new(&tables.memory, K4));
    let steps = [
        page(0, Depth::LeafOnly),
        range(0, 3, Depth::LeafOnly),
        Step::Invalidate(Command::Context { context: CTX }),
        Step::Invalidate(Command::Global),
        Step::Invalidate(Command::Configuration { context: CTX }),
        Step::Sync,
    ];
    run(&iommu, &steps).unwrap();
    assert_eq!(iommu.clock().now_exact_ns(), 54_621.0);
    let counters = iommu.counters();
    assert_eq!(counters.queue_drains, 2);
    assert_eq!(counters.range_masks.get(&3), Some(&1));
    let kinds = counters.invalidations;
    let all = [kinds.page, kinds.range, kinds.context, kinds.global, kinds.configuration];
    assert_eq!(all, [1; 5]);
    iommu.attach(DEV, tables.config(0));
    pa(&iommu, DEV, NEAR).unwrap();
    assert_eq!(iommu.stall_ns(), 21.0);
    assert_eq!(iommu.clock().now_exact_ns(), 54_621.0);
    // The debt of a map alone has a separate price.
    let after_map = [page(0, Depth::LeafOnly), page(0x1000, Depth::LeafOnly)];
    iommu.map_side().pay(&mut after_map.into_iter(), TablesLeft::ByDepth).unwrap();
    assert_eq!(iommu.clock().now_exact_ns(), 54_621.5);
    let kinds = iommu.counters().invalidations;
    assert_eq!((kinds.page, kinds.page_after_map), (3, 2));
}

#[test]
fn a_large_page_goes_only_if_it_is_named_whole() {
    // Blocks of 2 MiB need 9 bits of mask; pages of 4 KiB do not.
    for (step, left) in [
        (page(FAR, Depth::LeafOnly), 4),
        (page(FAR, Depth::AllLevels), 4),
        (range(FAR, 8, Depth::LeafOnly), 4),
        (range(FAR + (1 << 20), 8, Depth::LeafOnly), 4),
        (range(FAR, 9, Depth::LeafOnly), 3),
        (range(NEAR & !0x3f_ffff, 10, Depth::LeafOnly), 2),
        (page(NEAR, Depth::LeafOnly), 3),
        (Step::Invalidate(Command::Context { context: CTX }), 2),
    ] {
        for temper in tempers() {
            let generous = temper != Temper::Adversarial;
            let left = match step {
                Step::Invalidate(Command::Page { iova, .. }) if generous && iova.get() == FAR => 3,
                Step::Invalidate(Command::Range {
                    run: Run::PowerOfTwo { lg2_pages: 8, .. },
                    ..
                }) if generous => 3,
                _ => left,
            };
            let tables = Tables::new(slab());
            let with = Setup { names: Names::WholePage, ..setup(temper) };
            let iommu = Iommu::new(with, TableReader::new(&tables.memory, K4));
            iommu.attach(DEV, tables.config(0));
            iommu.attach(DEV2, tables.config(1));
            for stream in [DEV, DEV2] {
                pa(&iommu, stream, NEAR).unwrap();
                pa(&iommu, stream, FAR + 0x1234).unwrap();
            }
            run(&iommu, &[step, Step::Sync]).unwrap();
            assert_eq!(iommu.occupancy().iotlb, left, "{step:?}");
        }
    }
    // Two halves are not the whole.
    let tables = Tables::new(slab());
    let with = Setup { names: Names::WholePage, ..setup(Temper::Adversarial) };
    let iommu = Iommu::new(with, TableReader::new(&tables.memory, K4));
    iommu.attach(DEV, tables.config(0));
    pa(&iommu, DEV, FAR).unwrap();
    let half = |at| range(FAR + at, 8, Depth::LeafOnly);
    run(&iommu, &[half(0), half(1 << 20), Step::Sync]).unwrap();
    assert_eq!(iommu.occupancy().iotlb, 1);
}

#[test]
fn between_two_commands_a_device_reads_its_stale_configuration() {
    // The context's translations go first, and come back by the configuration that is still cached.
    let context = Step::Invalidate(Command::Context { context: CTX });
    let configuration = Step::Invalidate(Command::Configuration { context: CTX });
    for (steps, kept) in [
        (vec![configuration, context, Step::Sync], 1),
        (vec![context, configuration, Step::Sync], 1),
        (vec![configuration, Step::Sync, context, Step::Sync], 0),
    ] {
        let tables = Tables::new(slab());
        let reader = TableReader::new(&tables.memory, K4);
        let iommu = Iommu::new(setup(Temper::Adversarial), reader);
        iommu.attach(DEV, tables.config(0));
        pa(&iommu, DEV, NEAR).unwrap();
        iommu.attach(DEV, StreamConfig::Blocked);
        let before = iommu.counters();
        run(&iommu, &steps).unwrap();
        assert_eq!(iommu.occupancy().iotlb, kept, "{steps:?}");
        assert_eq!(pa(&iommu, DEV, NEAR), Err(FaultKind::Blocked));
        // Accesses of devices in between are not counted.
        let after = iommu.counters();
        assert_eq!(after.walk_steps, before.walk_steps);
        assert_eq!(after.dma_accesses, before.dma_accesses);
    }
}
