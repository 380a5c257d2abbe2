//! Ranges that a gather joins, ranges that it keeps apart, and its table.

use super::*;
use crate::addr::Iova;

fn range(start: u64, last: u64) -> IovaRange {
    IovaRange::new(Iova::new(start), Iova::new(last)).unwrap()
}

#[test]
fn a_gather_is_of_the_first_table_that_adds_to_it() {
    let (one, other) = (TableId::fresh(), TableId::fresh());
    let mut gather = Gather::new();
    assert_eq!((gather.table(), gather.check(other)), (None, Ok(())));
    gather.claim(one).unwrap();
    gather.claim(one).unwrap();
    assert_eq!(gather.table(), Some(one));
    let wrong = WrongTable { of: one, here: other };
    assert_eq!(gather.claim(other), Err(wrong));
    assert_eq!((gather.check(one), gather.check(other)), (Ok(()), Err(wrong)));
    let quiesced = gather.take_quiesced(one);
    assert_eq!((quiesced.table(), quiesced.check(other)), (one, Err(wrong)));
    gather.claim(other).unwrap();
}

#[test]
fn neighbours_merge_and_strangers_stay_apart() {
    let mut gather = Gather::new();
    gather.add_unmapped(range(0x1000, 0x1fff), PageSize::SIZE_4K, Depth::LeafOnly);
    gather.add_unmapped(range(0x2000, 0x2fff), PageSize::SIZE_4K, Depth::AllLevels);
    gather.add_unmapped(range(0x9000, 0x9fff), PageSize::SIZE_4K, Depth::LeafOnly);
    assert_eq!(gather.unmapped().len(), 2);
    assert_eq!(gather.unmapped()[0].range, range(0x1000, 0x2fff));
    assert_eq!(gather.unmapped()[0].depth, Depth::AllLevels);
    assert!(!gather.is_empty());
}

#[test]
fn what_is_added_twice_is_owed_as_deep_as_the_deeper_and_in_all_sizes() {
    let (leaf, all) = (Depth::LeafOnly, Depth::AllLevels);
    let (small, large) = (PageSize::SIZE_4K, PageSize::SIZE_2M);
    let (whole, inside) = (range(0, 0x3f_ffff), range(0x1000, 0x1fff));
    for (first, second) in [(whole, inside), (inside, whole), (whole, whole)] {
        for depths in [(leaf, leaf), (leaf, all), (all, leaf), (all, all)] {
            for sizes in [
                [(small, small), (small, large)],
                [(large, large), (small, large)],
                [(small, large), (large, large)],
                [(small, small), (large, large)],
            ] {
                let mut gather = Gather::new();
                gather.add_unmapped_mixed(first, sizes[0].0, sizes[0].1, depths.0);
                gather.add_unmapped_mixed(second, sizes[1].0, sizes[1].1, depths.1);
                let deep = depths != (leaf, leaf);
                let expected = Span {
                    range: whole,
                    leaf: small,
                    largest: large,
                    depth: if deep { all } else { leaf },
                };
                assert_eq!(gather.unmapped(), [expected], "{depths:?} {sizes:?}");
            }
        }
    }
    // Nothing is taken for held because it is as deep and of the same sizes.
    let mut gather = Gather::new();
    gather.add_unmapped(range(0x1000, 0x1fff), small, all);
    gather.add_unmapped(range(0x9000, 0x9fff), small, leaf);
    assert_eq!(gather.unmapped().len(), 2);
}

#[test]
fn a_full_gather_covers_all_the_same() {
    let mut gather = Gather::new();
    for i in 0..100u64 {
        let at = range(i << 20, (i << 20) + 0xfff);
        gather.add_unmapped(at, PageSize::SIZE_4K, Depth::LeafOnly);
    }
    for i in 0..100u64 {
        let at = range(i << 20, (i << 20) + 0xfff);
        assert!(gather.unmapped().iter().any(|span| span.range.covers(at)), "{i}");
    }
}

#[test]
fn lines_that_do_not_fit_come_back() {
    let mut gather = Gather::new();
    let line = |i: u64| PhysRange::from_len(PhysAddr::new(i * 0x1000), 64).unwrap();
    for i in 0..LINES as u64 {
        assert_eq!(gather.add_lines(line(i)), None);
    }
    assert_eq!(gather.cleaned_early(), Cleaned::Nothing);
    assert_eq!(gather.add_lines(line(99)), Some(line(99)));
    assert_eq!(gather.cleaned_early(), Cleaned::Some);
}

#[test]
fn lines_that_touch_are_one_run_and_others_stay_apart() {
    let line = |start| PhysRange::from_len(PhysAddr::new(start), 64).unwrap();
    for (next, runs) in [(0x10c0, 1), (0x1041, 1), (0x1040, 1), (0x103f, 2), (0x10c1, 2)] {
        let mut gather = Gather::new();
        assert_eq!(gather.add_lines(line(0x1080)), None);
        assert_eq!(gather.add_lines(line(next)), None);
        assert_eq!(gather.lines().len(), runs, "{next:#x}");
        let holds = |at: u64| gather.lines().iter().any(|r| r.contains(PhysAddr::new(at)));
        assert!([0x1080, 0x10bf, next, next + 63].into_iter().all(holds));
    }
}

#[test]
fn what_was_cleaned_early_stays_owed_in_the_gather_that_absorbs_it() {
    let table = TableId::fresh();
    for early in [Cleaned::Nothing, Cleaned::Some] {
        let (mut into, mut from) = (Gather::new(), Gather::new());
        from.cleaned_early = early;
        into.absorb_spans(table, &mut from).unwrap();
        assert_eq!((into.cleaned_early(), from.is_empty()), (early, true));
        // And the debt of that is not forgotten.
        into.absorb_spans(table, &mut from).unwrap();
        assert_eq!(into.cleaned_early(), early);
    }
}

#[test]
fn the_proof_has_the_table_pages_of_the_debt() {
    let mut gather = Gather::new();
    gather.tables.pages = 3;
    assert_eq!(gather.table_pages(), 3);
    assert_eq!(gather.take_quiesced(TableId::fresh()).table_pages(), 3);
    assert_eq!(gather.table_pages(), 0);
}

#[test]
fn a_run_that_no_longer_has_a_place_of_its_own_grows_where_it_was_merged() {
    let page = |page: u64| range(page << 12, (page << 12) + 0xfff);
    let mut gather = Gather::new();
    let add = |gather: &mut Gather, number| {
        gather.add_unmapped(page(number), PageSize::SIZE_4K, Depth::LeafOnly);
    };
    for number in [100, 200, 300, 400] {
        add(&mut gather, number);
    }
    // Nearest to the first of the four; the next one is its neighbour.
    for number in [103, 104, 105] {
        add(&mut gather, number);
        let last = gather.unmapped().last().unwrap();
        assert_eq!(last.range, page(100).hull(page(number)));
    }
    assert_eq!(gather.unmapped().len(), 4);
    for number in [100, 103, 105, 200, 300, 400] {
        let covers = |span: &Span| span.range.covers(page(number));
        assert!(gather.unmapped().iter().any(covers), "{number}");
    }
}
