//! The plan: one test for each input, and random debts against the addresses that they must and may
//! cover.

extern crate std;

use std::vec::Vec;

use super::*;
use crate::addr::{InvalTag, Iova, IovaRange, PageSize};

const CONTEXT: InvalTag = InvalTag::new(7);

pub(super) const CAPS: Capabilities = Capabilities::new(PageSize::SIZE_4K);

const POWERS: RangeForm = RangeForm::PowerOfTwo { max_lg2_pages: 18 };
const SCALES: RangeForm = RangeForm::NumScale { max_num: 32, max_scale: 31 };

fn range(start: u64, pages: u64) -> IovaRange {
    IovaRange::from_len(Iova::new(start), pages << 12).unwrap()
}

fn unmapped(start: u64, pages: u64, depth: Depth) -> Gather {
    let mut gather = Gather::new();
    gather.add_unmapped(range(start, pages), PageSize::SIZE_4K, depth);
    gather
}

fn steps(caps: Capabilities, quirks: Quirks, gather: &Gather) -> Vec<Step> {
    let plan = plan(CONTEXT, &caps, &quirks, gather);
    let steps: Vec<Step> = plan.steps().collect();
    let count = |wanted: fn(&Command) -> bool| {
        let is = |step: &&Step| matches!(step, Step::Invalidate(command) if wanted(command));
        steps.iter().filter(is).count() as u64
    };
    let counts = plan.counts();
    assert_eq!(counts.page, count(|c| matches!(c, Command::Page { .. })));
    assert_eq!(counts.range, count(|c| matches!(c, Command::Range { .. })));
    assert_eq!(counts.context, count(|c| matches!(c, Command::Context { .. })));
    let syncs = steps.iter().filter(|step| **step == Step::Sync).count();
    assert_eq!(counts.syncs, syncs as u64);
    assert_eq!(plan.is_empty(), steps.is_empty());
    steps
}

fn page(iova: u64, size: PageSize, depth: Depth) -> Step {
    Step::Invalidate(Command::Page { context: CONTEXT, iova: Iova::new(iova), size, depth })
}

const WHOLE: Step = Step::Invalidate(Command::Context { context: CONTEXT });

fn prefer(preference: Preference) -> Quirks {
    Quirks { preference, ..Quirks::default() }
}

#[test]
fn nothing_owed_takes_no_step() {
    assert_eq!(steps(CAPS, Quirks::default(), &Gather::new()), []);
}

#[test]
fn page_form_gives_one_command_a_page() {
    let gather = unmapped(0x5000, 2, Depth::LeafOnly);
    let leaf = |at| page(at, PageSize::SIZE_4K, Depth::LeafOnly);
    let found = steps(CAPS, Quirks::default(), &gather);
    assert_eq!(found, [leaf(0x5000), leaf(0x6000), Step::Sync]);
    let caps = Capabilities { page: PageForm::Absent, ..CAPS };
    assert_eq!(steps(caps, Quirks::default(), &gather), [WHOLE, Step::Sync]);
}

#[test]
fn granule_sets_the_size_of_a_page_command() {
    let mut gather = Gather::new();
    gather.add_unmapped(range(0x10000, 16), PageSize::SIZE_64K, Depth::LeafOnly);
    let caps = Capabilities { granule: PageSize::SIZE_64K, ..CAPS };
    let want = [page(0x10000, PageSize::SIZE_64K, Depth::LeafOnly), Step::Sync];
    assert_eq!(steps(caps, Quirks::default(), &gather), want);
}

#[test]
fn a_block_takes_one_page_command_unless_granules_are_asked_for() {
    let mut gather = Gather::new();
    gather.add_unmapped(range(0x20_0000, 512), PageSize::SIZE_2M, Depth::LeafOnly);
    let want = [page(0x20_0000, PageSize::SIZE_2M, Depth::LeafOnly), Step::Sync];
    assert_eq!(steps(CAPS, Quirks::default(), &gather), want);
    assert_eq!(steps(CAPS, prefer(Preference::ByPage), &gather).len(), 513);
}

#[test]
fn power_of_two_form_gives_the_smallest_aligned_cover() {
    let caps = Capabilities { range: POWERS, ..CAPS };
    let gather = unmapped(0x3000, 2, Depth::LeafOnly);
    let run = Run::PowerOfTwo { start: Iova::new(0), lg2_pages: 3 };
    let command = Command::Range {
        context: CONTEXT,
        run,
        granule: PageSize::SIZE_4K,
        depth: Depth::LeafOnly,
    };
    let found = steps(caps, Quirks::default(), &gather);
    assert_eq!(found, [Step::Invalidate(command), Step::Sync]);
    let caps = Capabilities { range: RangeForm::PowerOfTwo { max_lg2_pages: 2 }, ..CAPS };
    assert_eq!(steps(caps, prefer(Preference::ByRange), &gather), [WHOLE, Step::Sync]);
}

#[test]
fn num_scale_form_is_exact_in_few_commands() {
    let caps = Capabilities { range: SCALES, ..CAPS };
    for (pages, commands) in [(1, 1), (31, 1), (32, 1), (33, 2), (8192, 1), (8191, 3)] {
        let gather = unmapped(0x7000, pages, Depth::LeafOnly);
        let found = steps(caps, prefer(Preference::ByRange), &gather);
        assert_eq!(found.len(), commands + 1, "{pages}");
    }
}

#[test]
fn small_scales_do_not_make_a_plan_endless() {
    let scales = RangeForm::NumScale { max_num: 32, max_scale: 0 };
    let caps = Capabilities { range: scales, page: PageForm::Absent, ..CAPS };
    let gather = unmapped(0, 1 << 40, Depth::LeafOnly);
    assert_eq!(steps(caps, Quirks::default(), &gather), [WHOLE, Step::Sync]);
    let gather = unmapped(0, 1 << 30, Depth::LeafOnly);
    assert_eq!(steps(CAPS, Quirks::default(), &gather), [WHOLE, Step::Sync]);
}

#[test]
fn leaf_only_keeps_walk_caches_where_the_hardware_can() {
    let gather = unmapped(0x1000, 1, Depth::LeafOnly);
    let caps = Capabilities { leaf_only: LeafOnly::Absent, ..CAPS };
    let want = [page(0x1000, PageSize::SIZE_4K, Depth::AllLevels), Step::Sync];
    assert_eq!(steps(caps, Quirks::default(), &gather), want);
    let gather = unmapped(0x1000, 1, Depth::AllLevels);
    assert_eq!(steps(CAPS, Quirks::default(), &gather), want);
}

#[test]
fn caching_of_what_is_not_there_makes_a_map_owe() {
    let mut gather = Gather::new();
    gather.add_mapped(range(0x4000, 1), PageSize::SIZE_4K);
    assert_eq!(steps(CAPS, Quirks::default(), &gather), []);
    let caps = Capabilities { caching: Caching::NotPresentToo, ..CAPS };
    let want = [page(0x4000, PageSize::SIZE_4K, Depth::AllLevels), Step::Sync];
    assert_eq!(steps(caps, Quirks::default(), &gather), want);
}

#[test]
fn write_buffer_is_flushed_after_a_map_and_after_an_unmap() {
    let caps = Capabilities { write_buffer: WriteBuffer::MustFlush, ..CAPS };
    let mut gather = Gather::new();
    gather.add_mapped(range(0x4000, 1), PageSize::SIZE_4K);
    assert_eq!(steps(caps, Quirks::default(), &gather), [Step::FlushWriteBuffer]);
    let gather = unmapped(0x1000, 1, Depth::LeafOnly);
    assert_eq!(steps(caps, Quirks::default(), &gather)[0], Step::FlushWriteBuffer);
    assert_eq!(steps(caps, Quirks::default(), &Gather::new()), []);
}

#[test]
fn walk_flush_by_context_is_for_tables_that_left_only() {
    let quirks = Quirks { walk_flush: WalkFlush::ByContext, ..Quirks::default() };
    let tables = unmapped(0x20_0000, 512, Depth::AllLevels);
    assert_eq!(steps(CAPS, quirks, &tables), [WHOLE, Step::Sync]);
    assert_eq!(steps(CAPS, Quirks::default(), &tables).len(), 513);
    let leaves = unmapped(0x20_0000, 2, Depth::LeafOnly);
    assert_eq!(steps(CAPS, quirks, &leaves).len(), 3);
}

#[test]
fn preference_picks_the_form() {
    let caps = Capabilities { range: POWERS, ..CAPS };
    let gather = unmapped(0x1000, 4, Depth::LeafOnly);
    let commands = |preference| steps(caps, prefer(preference), &gather).len() - 1;
    assert_eq!(commands(Preference::ByPage), 4);
    assert_eq!(commands(Preference::ByRange), 1);
    assert_eq!(commands(Preference::Fewest), 1);
    assert_eq!(steps(caps, prefer(Preference::ByContext), &gather), [WHOLE, Step::Sync]);
}

#[test]
fn fewest_is_by_page_where_ranges_take_more_and_by_range_where_they_take_as_many() {
    let caps = Capabilities { range: RangeForm::NumScale { max_num: 32, max_scale: 0 }, ..CAPS };
    let counts = |pages, leaf| {
        let mut gather = Gather::new();
        gather.add_unmapped(range(0x20_0000, pages), leaf, Depth::LeafOnly);
        let counts = plan(CONTEXT, &caps, &Quirks::default(), &gather).counts();
        (counts.page, counts.range)
    };
    assert_eq!(counts(512, PageSize::SIZE_2M), (1, 0));
    assert_eq!(counts(2, PageSize::SIZE_4K), (0, 1));
    assert_eq!(counts(1, PageSize::SIZE_4K), (0, 1));
}

#[test]
fn threshold_turns_many_commands_into_one() {
    let gather = unmapped(0x1000, 4, Depth::LeafOnly);
    let quirks = |context_above| Quirks { context_above, ..Quirks::default() };
    assert_eq!(steps(CAPS, quirks(4), &gather).len(), 5);
    assert_eq!(steps(CAPS, quirks(3), &gather), [WHOLE, Step::Sync]);
}

#[test]
fn repeat_issues_all_invalidations_and_the_sync_again() {
    let gather = unmapped(0x1000, 1, Depth::LeafOnly);
    let quirks = Quirks { repeat: 2, ..Quirks::default() };
    let one = page(0x1000, PageSize::SIZE_4K, Depth::LeafOnly);
    assert_eq!(steps(CAPS, quirks, &gather), [one, Step::Sync, one, Step::Sync]);
    let quirks = Quirks { repeat: 0, ..Quirks::default() };
    assert_eq!(steps(CAPS, quirks, &gather), [one, Step::Sync]);
}

#[test]
fn context_tags_every_command() {
    let gather = unmapped(0x1000, 1, Depth::LeafOnly);
    let other = InvalTag::new(9);
    let found: Vec<Step> = plan(other, &CAPS, &Quirks::default(), &gather).steps().collect();
    assert!(
        matches!(found[0], Step::Invalidate(Command::Page { context, .. }) if context == other)
    );
}

/// The granules that a command drops.
fn covered(command: Command, granule: PageSize) -> IovaRange {
    match command {
        Command::Page { iova, size, .. } => IovaRange::page(iova, size),
        Command::Range { run, .. } => run.range(granule),
        _ => IovaRange::new(Iova::new(0), Iova::new(u64::MAX)).unwrap(),
    }
}

fn all_covered(owed: IovaRange, commands: &[IovaRange]) {
    let mut at = Some(owed.start());
    while let Some(iova) = at.filter(|&iova| iova <= owed.last()) {
        let by = commands.iter().find(|c| c.contains(iova));
        at = by.expect("an address is left out").last().checked_add(1);
    }
}

fn by_one_no_larger_than_needed(owed: IovaRange, commands: &[IovaRange]) {
    let by = commands.iter().find(|c| c.covers(owed));
    let by = by.expect("one command");
    let middle = by.start().get() + by.len_minus_one() / 2;
    let (first, last) = (owed.start().get(), owed.last().get());
    assert!(by.len_minus_one() < 0x1000 || (first <= middle && middle < last));
}

#[test]
fn random_debts_are_covered_and_exact_forms_cover_no_more() {
    let seed = 0x9a11_0c8d_u64;
    std::println!("seed {seed:#x}");
    let mut state = seed;
    let mut random = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    for _ in 0..10_000 {
        let form = match random(4) {
            0 => RangeForm::Absent,
            1 => RangeForm::PowerOfTwo { max_lg2_pages: random(40) as u8 },
            _ => RangeForm::NumScale { max_num: 1 + random(32) as u8, max_scale: random(32) as u8 },
        };
        let caps = Capabilities { range: form, ..CAPS };
        let mut gather = Gather::new();
        for _ in 0..1 + random(3) {
            let most = 1 << random(12);
            let owed = range(random(1 << 30) << 12, 1 + random(most));
            gather.add_unmapped(owed, PageSize::SIZE_4K, Depth::LeafOnly);
        }
        let found = steps(caps, Quirks::default(), &gather);
        let commands: Vec<IovaRange> = found
            .iter()
            .filter_map(|step| match step {
                Step::Invalidate(command) => Some(covered(*command, caps.granule)),
                _ => None,
            })
            .collect();
        let is_range = |step: &Step| matches!(step, Step::Invalidate(Command::Range { .. }));
        let by_range = found.iter().any(is_range);
        for span in gather.unmapped() {
            all_covered(span.range, &commands);
            if let (RangeForm::PowerOfTwo { .. }, true) = (form, by_range) {
                by_one_no_larger_than_needed(span.range, &commands);
            }
        }
        if let (RangeForm::NumScale { .. }, true) = (form, by_range) {
            let bytes: u64 = commands.iter().map(|c| c.len_minus_one() + 1).sum();
            let owed: u64 = gather.unmapped().iter().map(|s| s.range.len_minus_one() + 1).sum();
            assert_eq!(bytes, owed, "an exact form drops just what is owed");
        }
    }
}

#[test]
fn a_page_is_named_whole_where_a_smaller_command_would_leave_it() {
    let whole = Capabilities { page: PageForm::Whole, range: RangeForm::Absent, ..CAPS };
    let by_page = prefer(Preference::ByPage);
    let mut gather = Gather::new();
    gather.add_unmapped(range(0x20_0000, 512), PageSize::SIZE_2M, Depth::LeafOnly);
    let pages = plan(CONTEXT, &whole, &by_page, &gather).counts();
    assert_eq!((pages.page, pages.context), (1, 0));
    // Pages of two sizes: no one step names each of them.
    let (small, large) = (PageSize::SIZE_4K, PageSize::SIZE_2M);
    gather.add_unmapped_mixed(range(0x40_0000, 513), small, large, Depth::LeafOnly);
    for quirks in [by_page, prefer(Preference::Fewest)] {
        let counts = plan(CONTEXT, &whole, &quirks, &gather).counts();
        assert_eq!((counts.page, counts.context), (0, 1));
    }
}
