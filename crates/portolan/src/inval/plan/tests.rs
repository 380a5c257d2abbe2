//! The plan of one span, which is made at once, against the one that is made of many.

use super::*;
use crate::addr::{Iova, IovaRange, PhysAddr, PhysRange};
use crate::inval::tests::CAPS;
use crate::inval::{OneCommand, Step};

const CONTEXT: InvalTag = InvalTag::new(7);

fn inputs<'t>(caps: &'t Capabilities, quirks: &'t Quirks) -> PlanInputs<'t> {
    PlanInputs { context: &CONTEXT, caps, quirks }
}

/// Calls `look` for abilities and quirks of each kind; returns their number.
fn every_unit(mut look: impl FnMut(&Capabilities, &Quirks)) -> usize {
    let pages = [PageForm::Absent, PageForm::Granule, PageForm::Whole];
    let long = RangeForm::PowerOfTwo { max_lg2_pages: 18 };
    let short = RangeForm::PowerOfTwo { max_lg2_pages: 1 };
    let scales = RangeForm::NumScale { max_num: 32, max_scale: 31 };
    let ranges = [RangeForm::Absent, long, short, scales];
    let flushes = [WalkFlush::ByAddress, WalkFlush::ByContext];
    let preferences =
        [Preference::Fewest, Preference::ByPage, Preference::ByRange, Preference::ByContext];
    let mut count = 0;
    for i in 0..pages.len() * ranges.len() * flushes.len() * preferences.len() * 3 {
        let (i, context_above) = (i / 3, [0, 1, 1 << 16][i % 3]);
        let (i, page) = (i / 3, pages[i % 3]);
        let (i, range) = (i / 4, ranges[i % 4]);
        let (i, walk_flush) = (i / 2, flushes[i % 2]);
        let preference = preferences[i];
        let quirks = Quirks { walk_flush, preference, context_above, ..Quirks::default() };
        look(&Capabilities { page, range, ..CAPS }, &quirks);
        count += 1;
    }
    count
}

#[test]
fn a_lone_page_is_paid_as_its_plan_would() {
    let (mut known, mut together, mut tables) = (0, 0, 0);
    let units = every_unit(|caps, quirks| {
        for (granule, least) in [(12, 12), (14, 12), (12, 14)] {
            let caps = Capabilities { granule: PageSize::of_lg2(least), ..*caps };
            let page = PageSize::of_lg2(granule);
            let command = OneCommand::new(inputs(&caps, quirks), page);
            for at in [0, 1, 0x1_2345, (1 << 40) - 1] {
                let range = IovaRange::page(Iova::new(at << granule), page);
                let mut owed = Gather::new();
                owed.add_unmapped(range, page, Depth::LeafOnly);
                if let Some(command) = command.of(&owed) {
                    assert_eq!(Some(command), plan(CONTEXT, &caps, quirks, &owed).lone());
                    known += 1;
                }
                // Two pages, or a page whose table left, are others.
                let mut two = Gather::new();
                let both = IovaRange::from_len(range.start(), 2 * page.bytes()).unwrap();
                two.add_unmapped(both, page, Depth::LeafOnly);
                assert_eq!(command.of(&two), None);
                // Some commands name more pages than one.
                for count in [2, 3, 32, 33, 512] {
                    let mut more = Gather::new();
                    let pages = IovaRange::from_len(range.start(), count * page.bytes()).unwrap();
                    more.add_unmapped_mixed(pages, page, PageSize::of_lg2(21), Depth::LeafOnly);
                    if let Some(command) = command.of_pages(&more) {
                        assert_eq!(Some(command), plan(CONTEXT, &caps, quirks, &more).lone());
                        together += 1;
                    }
                    more.add_unmapped(range, page, Depth::AllLevels);
                    assert_eq!(command.of_pages(&more), None);
                }
                // With its table, or with many, it is dropped with the context, or not foretold.
                for range in [range, both] {
                    let mut left = Gather::new();
                    left.add_unmapped(range, page, Depth::AllLevels);
                    if let Some(command) = command.of(&left) {
                        assert_eq!(Some(command), plan(CONTEXT, &caps, quirks, &left).lone());
                        assert_eq!(command, Command::Context { context: CONTEXT });
                        tables += 1;
                    }
                }
            }
        }
    });
    // Most units, where their granule is not the larger one.
    assert!(known > 4 * units, "{known} of {units}");
    // Those that drop the context, and those with long ranges.
    assert!(together > 20 * units, "{together} of {units}");
    // Half of them drop the context with tables.
    assert_eq!(tables, units / 2 * 2 * 4 * 2, "{units}");
}

#[test]
fn what_comes_before_a_command_is_not_left_out_for_a_lone_page() {
    let page = PageSize::SIZE_4K;
    let quirks = Quirks::default();
    let of = |caps: &Capabilities, quirks: &Quirks| {
        let mut owed = Gather::new();
        owed.add_unmapped(IovaRange::page(Iova::new(0), page), page, Depth::LeafOnly);
        OneCommand::new(inputs(caps, quirks), page).of(&owed)
    };
    assert!(of(&CAPS, &quirks).is_some());
    let caching = Caching::NotPresentToo;
    assert_eq!(of(&Capabilities { caching, ..CAPS }, &quirks), None);
    let write_buffer = WriteBuffer::MustFlush;
    let buffered = Capabilities { write_buffer, ..CAPS };
    assert_eq!(of(&buffered, &quirks), None);
    assert_eq!(of(&CAPS, &Quirks { repeat: 2, ..quirks }), None);
}

#[test]
fn a_debt_of_one_span_is_paid_as_any_other() {
    let (leaf, all) = (Depth::LeafOnly, Depth::AllLevels);
    let size = |more: u32| PageSize::of_lg2(12 + more);
    let mut looked = 0;
    for (pages, depth) in [(1, leaf), (1, all), (3, leaf), (33, leaf), (512, all)] {
        for (least, most) in [(0, 0), (0, 9), (9, 9)] {
            let mut gather = Gather::new();
            let range = IovaRange::from_len(Iova::new(0x4000_0000), pages << 12).unwrap();
            gather.add_unmapped_mixed(range, size(least), size(most), depth);
            looked += every_unit(|caps, quirks| {
                let plan = plan(CONTEXT, caps, quirks, &gather);
                let form = many(CONTEXT, caps, quirks, gather.unmapped(), &[]);
                let general = Plan { form, ..plan };
                let same = plan.steps().eq(general.steps());
                assert!(same, "{caps:?} {quirks:?} {gather:?}");
                assert_eq!(plan.counts(), general.counts());
                shortcut_is_the_plan(caps, quirks, &gather);
            });
        }
    }
    assert_eq!(looked, 5 * 3 * 3 * 4 * 2 * 4 * 3);
}

/// Checks that where one command is said to pay, the plan is that command and a sync.
fn shortcut_is_the_plan(caps: &Capabilities, quirks: &Quirks, gather: &Gather) {
    let Some(command) = plan(CONTEXT, caps, quirks, gather).lone() else {
        return;
    };
    let steps = [Step::Invalidate(command), Step::Sync];
    let plan = plan(CONTEXT, caps, quirks, gather);
    assert!(plan.steps().eq(steps), "{caps:?} {quirks:?} {gather:?}");
}

#[test]
fn one_command_pays_nothing_that_takes_more_than_that() {
    let page = |page: u64| IovaRange::page(Iova::new(page << 12), PageSize::SIZE_4K);
    let line = PhysRange::page(PhysAddr::new(1 << 20), PageSize::of_lg2(3));
    let (mut taken, mut looked) = (0, 0);
    for i in 0..64 {
        let is = |bit: u32| i >> bit & 1 != 0;
        let mut gather = Gather::new();
        let leaf = PageSize::SIZE_4K;
        gather.add_unmapped(page(1), leaf, Depth::LeafOnly);
        if is(0) {
            gather.add_unmapped(page(5), leaf, Depth::LeafOnly);
        }
        if is(1) {
            gather.add_mapped(page(9), leaf);
        }
        if is(2) {
            assert_eq!(gather.add_lines(line), None);
        }
        let walker = [Walker::Coherent, Walker::NonCoherent][usize::from(is(3))];
        let caching = [Caching::PresentOnly, Caching::NotPresentToo][usize::from(is(4))];
        let buffer = [WriteBuffer::Absent, WriteBuffer::MustFlush][usize::from(is(5))];
        for repeat in [0, 1, 2] {
            let quirks = Quirks { repeat, ..Quirks::default() };
            let caps = Capabilities { walker, caching, write_buffer: buffer, ..CAPS };
            shortcut_is_the_plan(&caps, &quirks, &gather);
            taken += usize::from(plan(CONTEXT, &caps, &quirks, &gather).lone().is_some());
            looked += 1;
        }
    }
    assert!(taken > 0 && taken < looked, "{taken} of {looked}");
    assert_eq!(plan(CONTEXT, &CAPS, &Quirks::default(), &Gather::new()).lone(), None);
}

#[test]
fn every_round_names_every_span() {
    let quirks = Quirks { repeat: 2, ..Quirks::default() };
    let page = |page: u64| IovaRange::page(Iova::new(page << 12), PageSize::SIZE_4K);
    let mut gather = Gather::new();
    for number in [1, 5, 9] {
        gather.add_unmapped(page(number), PageSize::SIZE_4K, Depth::LeafOnly);
    }
    let plan = plan(CONTEXT, &CAPS, &quirks, &gather);
    let named = |step| match step {
        Step::Invalidate(Command::Page { iova, .. }) => Some(iova.get() >> 12),
        Step::Sync => Some(0),
        _ => None,
    };
    let numbers = plan.steps().filter_map(named);
    assert!(numbers.eq([1, 5, 9, 0, 1, 5, 9, 0]));
}

#[test]
fn ranges_count_in_granules_whatever_the_leaves() {
    let caps = Capabilities { range: RangeForm::PowerOfTwo { max_lg2_pages: 9 }, ..CAPS };
    let mut gather = Gather::new();
    for block in [2, 6] {
        let block = IovaRange::page(Iova::new(block << 21), PageSize::SIZE_2M);
        gather.add_unmapped(block, PageSize::SIZE_2M, Depth::LeafOnly);
    }
    let quirks = Quirks { preference: Preference::ByRange, ..Quirks::default() };
    let plan = plan(CONTEXT, &caps, &quirks, &gather);
    let named = |step| match step {
        Step::Invalidate(Command::Range { run, granule, .. }) => Some(run.range(granule)),
        _ => None,
    };
    let spans = gather.unmapped().iter().map(|span| span.range);
    assert!(plan.steps().filter_map(named).eq(spans));
}
