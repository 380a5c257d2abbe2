//! Lists of granules, of which one quick look at all finds the shape and the runs.

use alloc::vec::Vec;

use crate::addr::{Iova, PageSize, PhysAddr, PhysRange};
use crate::inval::Gather;
use crate::platform::HostTables;
use crate::table::format::{VtdLevels, VtdSecondStage};
use crate::table::pieces::{ListKind, Piece, Shape};
use crate::table::{Access, PageTable, Segment, TableMapError};

const PAGE: PageSize = PageSize::SIZE_4K;
const BLOCK: PageSize = PageSize::SIZE_2M;
const TOO_LONG: TableMapError = TableMapError::IovaOutOfRange { iova: Iova::new(0) };

fn quick<P: Piece>(list: &[P]) -> Result<Shape, TableMapError> {
    Shape::of(list.iter().copied(), PAGE, BLOCK, 40, TOO_LONG)
}

/// A list as any other: the quick look says what the look at each piece says.
#[test]
fn a_list_of_single_pages_has_the_shape_that_its_pieces_have() {
    let seed = 0x5e77_1e00;
    let mut random = Random(seed);
    let mut runs = 0;
    for round in 0..400 {
        let (mut pa, mut list) = (1 << 30, Vec::new());
        let rarely = [3, 900, 9000][round % 3];
        for _ in 0..random.below(1500) {
            if random.below(rarely) == 0 {
                pa = random.below(1 << 24) << 12;
            }
            let odd = if random.below(3000) == 0 { 1 + random.below(9000) } else { 0 };
            list.push(Segment { pa: PhysAddr::new(pa), bytes: 4096 + odd });
            pa += 4096;
        }
        if random.below(4) == 0 && !list.is_empty() {
            let (one, other) = (random.below(list.len() as u64), random.below(list.len() as u64));
            list.swap(one as usize, other as usize);
        }
        let each = Shape::of_each(list.iter().copied(), PAGE, 40, TOO_LONG);
        let quick = quick(&list);
        let what = alloc::format!("seed {seed:#x}, round {round}");
        let (each, quick) = match (each, quick) {
            (Ok(each), Ok(quick)) => (each, quick),
            (each, quick) => {
                assert_eq!(each, quick, "{what}");
                continue;
            }
        };
        assert_eq!(each.bytes, quick.bytes, "{what}");
        match quick.kind {
            ListKind::Singles => {
                assert!(each.longest < BLOCK.bytes(), "{what}");
                assert!(list.iter().all(|piece| piece.bytes == 4096), "{what}");
            }
            ListKind::OneRun(pa) => {
                assert_eq!((each.longest, pa), (each.bytes, list[0].pa), "{what}");
                assert_eq!(quick.longest, each.longest, "{what}");
                runs += 1;
            }
            ListKind::Mixed => {
                assert_eq!(each.longest, quick.longest, "{what}");
                assert!(each.longest < each.bytes || each.bytes == 0, "{what}");
            }
        }
    }
    assert!(runs > 20, "{runs}");
}

/// One page that is elsewhere, or longer, parts a run; one of whose bytes only some are wanted does not.
#[test]
fn a_run_is_one_only_if_every_piece_is_in_its_place() {
    let first = 0x4020_1000;
    for count in [512, 700, 1024] {
        let at = |page: u64| PhysAddr::new(first + (page << 12));
        let pages: Vec<_> = (0..count).map(|page| PhysRange::page(at(page), PAGE)).collect();
        let kind = |list: &[PhysRange]| quick(list).unwrap().kind;
        let run = ListKind::OneRun(PhysAddr::new(first));
        assert_eq!(kind(&pages), run);
        let segments: Vec<_> = pages.iter().map(|&page| Segment::of(page)).collect();
        assert_eq!(quick(&segments).unwrap().kind, run);
        for page in [0, 1, 255, 256, 510] {
            let mut list = pages.clone();
            list[page] = PhysRange::from_len(pages[page].start(), 17).unwrap();
            assert_eq!(kind(&list), run, "{count} pages, {page}");
            list[page] = PhysRange::page(at(5000), PAGE);
            assert_eq!(kind(&list), ListKind::Mixed, "{count} pages, {page}");
            list[page] = PhysRange::from_len(pages[page].start(), 0x2000).unwrap();
            assert_eq!(kind(&list), ListKind::Mixed, "{count} pages, {page}");

            let mut list = segments.clone();
            list[page].pa = PhysAddr::new(list[page].pa.get() + 64);
            assert!(quick(&list).is_err(), "{count} pages, {page}");
            list[page] = Segment { bytes: 0x2000, ..segments[page] };
            assert_eq!(quick(&list).unwrap().kind, ListKind::Mixed, "{count} pages, {page}");
        }
        // The last page is beyond the width.
        let high = (1 << 40) - ((count - 1) << 12);
        let beyond = |page: u64| PhysRange::page(PhysAddr::new(high + (page << 12)), PAGE);
        let list: Vec<_> = (0..count).map(beyond).collect();
        assert!(matches!(quick(&list), Err(TableMapError::MemoryOutOfRange { .. })));
    }
}

/// Pieces of any length that follow each other are one run as well, empty ones aside.
#[test]
fn a_run_may_be_of_long_pieces() {
    let piece = |pa, bytes| Segment { pa: PhysAddr::new(pa), bytes };
    let list = [piece(0x9000, 0), piece(0x40_0000, 0x20_0000), piece(0x60_0000, 0x1000)];
    let shape = quick(&list).unwrap();
    assert_eq!(shape.kind, ListKind::OneRun(PhysAddr::new(0x40_0000)));
    assert_eq!(quick(&[list[2], list[1]]).unwrap().kind, ListKind::Mixed);
}

/// Leaves are as large as those of the memory mapped as ranges, wherever runs of single pages begin and end.
#[test]
fn runs_of_single_pages_are_mapped_as_ranges_are() {
    let first = 0x4000_0000;
    // Page numbers of the runs, and their lengths.
    let lists: [&[(u64, u64)]; 5] = [
        &[(0, 2048)],
        &[(1, 1500)],
        &[(0, 512), (1024, 512), (700, 1)],
        &[(9, 1), (513, 1023), (2048, 600)],
        &[(512, 1536), (0, 512), (2048, 1), (2050, 511)],
    ];
    for runs in lists {
        for from in [0, 1, 512] {
            let memory = || HostTables::new(PAGE, 16);
            let format = VtdSecondStage::new(VtdLevels::Three, 40);
            let [pages, ranges] = [(); 2].map(|()| PageTable::new(format, memory()).unwrap());
            let at = |page: u64| PhysAddr::new(first + (page << 12));
            let singles = runs.iter().flat_map(|&(run, count)| run..run + count);
            let singles: Vec<_> = singles.map(|page| PhysRange::page(at(page), PAGE)).collect();
            let (mut owed, iova) = (Gather::new(), Iova::new(from << 12));
            let mapped = pages.map_around(iova, &singles, Access::READ, &mut owed).unwrap();

            let (mut owed, mut next) = (Gather::new(), iova);
            for &(run, count) in runs {
                let mapped = ranges.map(next, at(run), count << 12, Access::READ, &mut owed);
                next = mapped.unwrap().last().checked_add(1).unwrap();
            }
            assert_eq!(next, mapped.last().checked_add(1).unwrap());
            for page in 0..singles.len() as u64 {
                let iova = Iova::new((from + page) << 12);
                let found = pages.translate(iova).unwrap();
                assert_eq!(found, ranges.translate(iova).unwrap(), "{runs:?} from {from}, {page}");
            }
            assert_eq!(pages.pages(), ranges.pages(), "{runs:?} from {from}");
        }
    }
}

/// Pages of one leaf table go a way of their own, which leaves to the way of lists what is not for it.
#[test]
fn a_list_that_is_no_part_of_a_leaf_table_is_mapped_or_refused_as_any_other() {
    let format = VtdSecondStage::new(VtdLevels::Three, 40);
    let table = PageTable::new(format, HostTables::new(PAGE, 16)).unwrap();
    let page = |page: u64| PhysRange::page(PhysAddr::new(page << 12), PAGE);
    let at = |page: u64| Iova::new(page << 12);
    let map = |iova, list: &[PhysRange]| {
        let mut owed = Gather::new();
        table.map_around(iova, list, Access::READ, &mut owed).map(|range| range.last().get() >> 12)
    };
    let leads = |page| table.translate(at(page)).map(|found| found.pa.get() >> 12);
    // The leaf table is there from here on.
    assert_eq!(map(at(5), &[page(7)]), Ok(5));
    let taken = map(at(3), &[page(1), page(2), page(3), page(4)]);
    assert_eq!(taken, Err(TableMapError::AlreadyMapped { iova: at(5) }));
    let beyond = map(at(6), &[page(1), page(1 << 28)]);
    assert!(matches!(beyond, Err(TableMapError::MemoryOutOfRange { .. })), "{beyond:?}");
    let odd = map(Iova::new(0x6800), &[page(1), page(2)]);
    assert!(matches!(odd, Err(TableMapError::UnalignedIova { .. })), "{odd:?}");
    let outside = map(at((1 << 27) + 6), &[page(1), page(2)]);
    assert!(matches!(outside, Err(TableMapError::IovaOutOfRange { .. })), "{outside:?}");
    assert_eq!(map(at(6), &[]), Err(TableMapError::Empty { iova: at(6) }));
    assert_eq!([3, 4, 6, 7].map(leads), [None; 4]);
    // A piece of two pages, and a list that ends in the next leaf table.
    let long = PhysRange::from_len(PhysAddr::new(0x2_0800), 0x1000).unwrap();
    assert_eq!(map(at(8), &[page(1), long]), Ok(10));
    assert_eq!([8, 9, 10, 11].map(leads), [Some(1), Some(0x20), Some(0x21), None]);
    assert_eq!(map(at(510), &[page(9), page(19), page(29)]), Ok(512));
    assert_eq!([510, 511, 512].map(leads), [Some(9), Some(19), Some(29)]);
}

/// Numbers that look random, from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}
