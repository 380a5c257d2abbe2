//! Batches: commands that cover each other, and the merging of many commands.

use super::*;
use crate::addr::{Iova, PageSize};
use crate::inval::{Depth, Run};
use alloc::vec::Vec;

fn page(context: u32, number: u64) -> Command {
    Command::Page {
        context: InvalTag::new(context),
        iova: Iova::new(number << 12),
        size: PageSize::SIZE_4K,
        depth: Depth::LeafOnly,
    }
}

fn debt(commands: &[Command]) -> Debt {
    Debt { commands: commands.iter().copied().collect(), tables: TablesLeft::No }
}

fn merger(form: RangeForm, limits: Merging) -> Merger {
    let granules = Granules::One(PageSize::SIZE_4K);
    Merger { ranges: Ranges { form, granules }, limits }
}

fn add(batch: &mut Batch, commands: &[Command], context_above: usize) -> Added {
    let limits = Merging { above: 0, granules: 1 << 20, context_above };
    let merging = merger(RangeForm::Absent, limits);
    batch.add(&debt(commands), &merging)
}

#[test]
fn pages_that_are_near_become_one_range() {
    let mut batch = Batch::default();
    let limits = Merging { above: 2, granules: 100, context_above: 4 };
    let merging = merger(RangeForm::NumScale { max_num: 32, max_scale: 31 }, limits);
    let mut add = |commands: &[Command]| {
        batch.add(&debt(commands), &merging);
        batch.commands.to_vec()
    };
    add(&[page(1, 40), page(1, 10), page(2, 10)]);
    let merged = add(&[page(1, 73)]);
    let (range, depth) = part(merged[1]).unwrap();
    assert_eq!((merged.len(), merged[0]), (2, page(2, 10)));
    assert_eq!(depth, Depth::LeafOnly);
    assert!((10..=73).all(|n| range.covers(part(page(1, n)).unwrap().0)));
    assert!(range.pages(PageSize::SIZE_4K) <= 66);
    // Commands that it covers are not added again; one that is too far away stays by itself.
    assert_eq!(add(&[page(1, 50)]).len(), 2);
    assert_eq!(add(&[page(1, 200), page(1, 400), page(1, 600)]).len(), 5);
    // Too many of those are the context.
    let all = add(&[page(1, 800)]);
    let context = InvalTag::new(1);
    assert_eq!(all[..], [page(2, 10), Command::Context { context }]);
}

#[test]
fn a_range_of_one_tag_covers_nothing_of_another() {
    let mut batch = Batch::default();
    let limits = Merging { above: 1, granules: 1 << 9, context_above: 16 };
    let merging = merger(RangeForm::PowerOfTwo { max_lg2_pages: 9 }, limits);
    batch.add(&debt(&[page(1, 4), page(1, 5)]), &merging);
    assert_eq!(batch.commands.len(), 1);
    batch.add(&debt(&[page(2, 4)]), &merging);
    assert_eq!(batch.commands[1..], [page(2, 4)]);
}

#[test]
fn a_merged_range_reaches_as_deep_as_its_parts() {
    let limits = Merging { above: 1, granules: 1 << 9, context_above: 16 };
    let merging = merger(RangeForm::PowerOfTwo { max_lg2_pages: 9 }, limits);
    let deep = Command::Page {
        context: InvalTag::new(1),
        iova: Iova::new(0x5000),
        size: PageSize::SIZE_4K,
        depth: Depth::AllLevels,
    };
    for own in [[page(1, 4), deep], [deep, page(1, 4)]] {
        let mut batch = Batch::default();
        batch.add(&debt(own.as_slice()), &merging);
        let (range, depth) = part(batch.commands[0]).unwrap();
        assert_eq!(depth, Depth::AllLevels);
        assert_eq!(range.start(), Iova::new(0x4000));
        assert_eq!(range.pages(PageSize::SIZE_4K), 2);
    }
}

#[test]
fn one_sync_for_all() {
    let mut batch = Batch::default();
    add(&mut batch, &[page(1, 1), page(1, 2)], 8);
    add(&mut batch, &[page(2, 1), page(1, 1)], 8);
    let commands = [page(1, 1), page(1, 2), page(2, 1)];
    assert_eq!(batch.steps().collect::<Vec<_>>(), sealed(&commands).collect::<Vec<_>>());
}

#[test]
fn many_of_one_context_become_the_context() {
    let context = InvalTag::new(1);
    let mut batch = Batch::default();
    for number in 0..3 {
        add(&mut batch, &[page(1, number), page(2, number)], 3);
    }
    assert_eq!(batch.commands.len(), 6);
    add(&mut batch, &[page(1, 9), page(1, 10)], 3);
    assert_eq!(batch.commands.len(), 4);
    assert_eq!(batch.commands.last(), Some(&Command::Context { context }));
    let setup = Command::Configuration { context };
    add(&mut batch, &[setup, page(1, 11), Command::Global], 3);
    assert_eq!(&batch.commands[..], [setup, Command::Global]);
    add(&mut batch, &[page(3, 1), setup], 3);
    assert_eq!(batch.commands.len(), 2);
}

#[test]
fn a_full_batch_takes_nothing() {
    let mut batch = Batch::default();
    for number in 0..BATCH as u64 - 1 {
        assert_eq!(add(&mut batch, &[page(1, number)], BATCH), Added::All);
    }
    let two = [page(1, 100), page(1, 101)];
    assert_eq!(add(&mut batch, &two, BATCH), Added::NoRoom);
    assert_eq!(batch.commands.len(), BATCH - 1);
    assert_eq!(add(&mut batch, &two[..1], BATCH), Added::All);
    assert_eq!(batch.commands.len(), BATCH);
}

#[test]
fn a_merged_range_is_as_long_as_it_may_be_and_no_longer() {
    let limits = Merging { above: 1, granules: 8, context_above: 16 };
    let merging = merger(RangeForm::PowerOfTwo { max_lg2_pages: 9 }, limits);
    for (last, commands) in [(7, 1), (8, 2)] {
        let mut batch = Batch::default();
        let own = [page(1, 0), page(1, last)];
        batch.add(&debt(own.as_slice()), &merging);
        assert_eq!(batch.commands.len(), commands, "{last}");
    }
}

#[test]
fn a_range_covers_pages_inside_it_that_reach_no_deeper() {
    let context = InvalTag::new(1);
    let there = |depth| Command::Range {
        context,
        run: Run::PowerOfTwo { start: Iova::new(0x4000), lg2_pages: 2 },
        granule: PageSize::SIZE_4K,
        depth,
    };
    let wanted = |number: u64, depth| Command::Page {
        context,
        iova: Iova::new(number << 12),
        size: PageSize::SIZE_4K,
        depth,
    };
    let (leaf, all) = (Depth::LeafOnly, Depth::AllLevels);
    for (depth, asked, covers) in
        [(all, all, true), (all, leaf, true), (leaf, leaf, true), (leaf, all, false)]
    {
        let mut batch = Batch::default();
        add(&mut batch, &[there(depth)], 16);
        let inside = [4, 7].map(|number| batch.covers(wanted(number, asked)));
        assert_eq!(inside, [covers; 2], "{depth:?} {asked:?}");
        assert!(!batch.covers(wanted(3, asked)) && !batch.covers(wanted(8, asked)));
    }
}

#[test]
fn only_commands_with_one_sync_are_taken() {
    let whole = [Step::Invalidate(page(1, 1)), Step::Sync];
    let mut steps = whole.into_iter();
    let first = steps.next();
    assert!(matches!(parse(first, &mut steps), Parsed::Whole(own) if own.len() == 1));
    let twice = whole.into_iter().chain(whole);
    let open = core::iter::once(whole[0]);
    let many = (0..9).map(|n| Step::Invalidate(page(1, n)));
    let sorts: [Vec<Step>; 3] = [twice.collect(), open.collect(), many.collect()];
    for sort in sorts {
        let mut steps = sort.iter().copied();
        let first = steps.next();
        let Parsed::Other(own, rest) = parse(first, &mut steps) else {
            panic!("taken whole");
        };
        let again: Vec<Step> =
            own.into_iter().map(Step::Invalidate).chain(rest).chain(steps).collect();
        assert_eq!(again, sort);
    }
}

#[test]
fn a_range_counts_in_the_granule_of_its_context() {
    let limits = Merging { above: 1, granules: 1 << 14, context_above: 16 };
    let form = RangeForm::NumScale { max_num: 32, max_scale: 31 };
    let merger = Merger { ranges: Ranges { form, granules: Granules::Armv8 }, limits };
    let of = |lg2: u32, number: u64| Command::Page {
        context: InvalTag::new(1),
        iova: Iova::new(number << lg2),
        size: PageSize::of_lg2(lg2),
        depth: Depth::LeafOnly,
    };
    // Pages, and blocks one level up.
    for (granule, block) in [(12, 21), (14, 25), (16, 29)] {
        for two in [[of(granule, 1), of(granule, 2)], [of(block, 0), of(granule, 9)]] {
            let mut batch = Batch::default();
            batch.add(&debt(&two), &merger);
            let [Command::Range { granule: of, run, .. }] = batch.commands[..] else {
                panic!("{batch:?}");
            };
            assert_eq!(of, PageSize::of_lg2(granule));
            let range = run.range(of);
            assert!(two.iter().all(|&page| range.covers(part(page).unwrap().0)));
        }
    }
    // A size that no table has is not guessed at.
    let mut batch = Batch::default();
    batch.add(&debt(&[of(13, 0), of(13, 1)]), &merger);
    assert_eq!(batch.commands.len(), 2);
}

#[test]
fn a_batch_holds_tables_if_one_of_its_debts_does() {
    let limits = Merging { above: 1, granules: 1, context_above: 16 };
    let merger = merger(RangeForm::Absent, limits);
    let mut batch = Batch::default();
    for (tables, all) in [
        (TablesLeft::No, TablesLeft::No),
        (TablesLeft::Yes, TablesLeft::Yes),
        (TablesLeft::No, TablesLeft::Yes),
    ] {
        let commands = [page(1, 4)].into_iter().collect();
        batch.add(&Debt { commands, tables }, &merger);
        assert_eq!(batch.tables(), all);
    }
}
