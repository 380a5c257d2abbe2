//! Faults saved against granules wasted, by the pattern of accesses.

use alloc::collections::BTreeSet;
use core::num::NonZeroU32;

use super::rig::{BASE, PAGE, Rig, request};
use crate::addr::{Iova, PageSize, StreamId};
use crate::demand::premap::{Adaptive, Requester, Streams, Window};
use crate::demand::{FaultRequest, IoasOptions};
use crate::iommu::Domain as _;

/// Numbers that look random: a linear congruence of full period.
struct Numbers(u64);

impl Iterator for Numbers {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        Some(self.0 >> 33)
    }
}

/// Faults, and granules mapped that were never accessed.
fn run(window: Window, pages: u64, accesses: impl Iterator<Item = u64>) -> (u64, u64, u64) {
    let options = IoasOptions { window, ..IoasOptions::default() };
    let rig = Rig::new(options, 1024);
    rig.region(pages);
    let mut touched = BTreeSet::new();
    for page in accesses {
        touched.insert(page);
        if rig.leads(page).is_none() {
            rig.fault(page).unwrap();
        }
    }
    let usage = rig.container.usage();
    let wasted = usage.granules_mapped - touched.len() as u64;
    (usage.faults, wasted, usage.granules_mapped)
}

fn fixed(pages: u32) -> Window {
    Window::Fixed(NonZeroU32::new(pages).unwrap())
}

const PAGES: u64 = 64 * 1024;

#[test]
fn adaptive_is_no_worse_than_the_best_fixed_window_in_sequence() {
    let adaptive = Window::Adaptive(Adaptive::default());
    for length in [2560, PAGES] {
        let (best, _, _) = run(fixed(512), PAGES, 0..length);
        let (faults, wasted, _) = run(adaptive, PAGES, 0..length);
        assert!(faults <= best, "{length}: {faults} faults against {best}");
        assert!(wasted <= 4096, "{wasted}");
        let (downwards, _, _) = run(adaptive, PAGES, (0..length).map(|page| PAGES - 1 - page));
        assert!(downwards <= best, "{length}: {downwards} faults against {best}");
    }
}

#[test]
fn random_accesses_waste_little() {
    for seed in 1..4 {
        let accesses = || Numbers(seed).take(4000).map(|number| number % PAGES);
        let (faults, wasted, mapped) =
            run(Window::Adaptive(Adaptive::default()), PAGES, accesses());
        assert!(wasted * 10 <= mapped, "seed {seed}: {wasted} of {mapped} wasted");
        let (_, wasted, mapped) = run(fixed(512), PAGES, accesses());
        assert!(wasted * 10 > mapped, "seed {seed}: {wasted} of {mapped} wasted");
        assert!(faults <= 4000);
    }
}

#[test]
fn strides_and_several_streams_are_followed() {
    let adaptive = Window::Adaptive(Adaptive::default());
    let (faults, wasted, _) = run(adaptive, PAGES, (0..2000).map(|page| page * 16));
    assert!(faults < 100 && wasted <= 64, "{faults} faults, {wasted} wasted");
    let both = (0..2000).flat_map(|page| [page, 30_000 + page]);
    let (faults, _, _) = run(adaptive, PAGES, both);
    assert_eq!(faults, 10);
}

#[test]
fn streams_that_end_early_shrink_windows() {
    // Pairs of neighbours far apart: each looks like the beginning of a stream.
    let pairs = (0..8000).map(|i: u64| (i / 2) * 700 % 1_000_000 + i % 2);
    let options = Adaptive::default();
    let mut streams = Streams::new(options);
    let who = Requester { stream: StreamId::new(1), pasid: None };
    let (mut mapped, mut touched) = (BTreeSet::new(), BTreeSet::new());
    for page in pairs {
        touched.insert(page);
        if !mapped.contains(&page) {
            let ahead = streams.fault(who, page);
            mapped.extend(
                (0..i64::from(ahead.count)).map(|i| page.wrapping_add_signed(ahead.step * i)),
            );
        }
    }
    let wasted = mapped.difference(&touched).count() as u64;
    let bound = touched.len() as u64 / 10 + u64::from(options.allowance) + 64;
    assert!(wasted <= bound, "{wasted} wasted, {bound} allowed");
}

#[test]
fn requesters_do_not_disturb_each_other() {
    let mut streams = Streams::new(Adaptive::default());
    for page in 0..2 {
        for number in 0..16 {
            let who = Requester { stream: StreamId::new(number), pasid: None };
            let ahead = streams.fault(who, page);
            assert_eq!(ahead.count, if page == 0 { 1 } else { 8 });
        }
    }
    let asked: FaultRequest = request(1);
    assert_eq!(asked.iova.get(), BASE + PAGE + 8);
}

fn downwards(first: u64, last: u64) -> Rig {
    let options =
        IoasOptions { window: Window::Adaptive(Adaptive::default()), ..IoasOptions::default() };
    let rig = Rig::new(options, 64);
    rig.region(4096);
    // Memory in which blocks can be mapped.
    let memory = (0..4096).map(|page| (BASE / PAGE + page, 0x10_0000 + page));
    rig.memory.pages.lock().extend(memory);
    rig.fault(100).unwrap();
    for page in (first..=last).rev() {
        if rig.leads(page).is_none() {
            rig.fault(page).unwrap();
        }
    }
    rig
}

#[test]
fn a_stream_downwards_maps_blocks() {
    let rig = downwards(1024, 4095);
    let found = rig.domain.translate(Iova::new(BASE + 1024 * PAGE)).unwrap();
    assert_eq!(found.size, PageSize::SIZE_2M);
    rig.audit(4096);
}

#[test]
fn a_stream_downwards_ends_where_something_is_mapped() {
    let rig = downwards(101, 130);
    assert!(rig.leads(101).is_some() && rig.leads(99).is_none());
    rig.audit(4096);
}
