//! Tables of every format against a list of pages: random maps, unmaps and splits, with the pages
//! around them looked at after each, and errors that change nothing.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::addr::{InvalTag, Iova, IovaRange, PageSize, PhysAddr, PhysRange};
use crate::inval::{Gather, Quirks};
use crate::platform::SlabTables;
use crate::table::format::{
    AmdLevels, AmdSizes, AmdV1, Armv8Config, Armv8Stage1, Armv8Stage2, DirtyTracking, Riscv,
    RiscvContiguity, RiscvLevels, RiscvMemoryTypes, SplitRule, Tegra, VtdLevels, VtdSecondStage,
    span_lg2,
};
use crate::table::tests::kept::{CAPS, Willing};
use crate::table::{
    Access, Format, PageTable, Segment, SplitError, TableMapError, TableUnmapError, Translation,
};

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 5) % bound
    }
}

const ACCESSES: [Access; 2] = [Access::READ, Access::READ_WRITE];

struct Game<F: Format> {
    table: PageTable<F, SlabTables<F::Word>>,
    /// Physical page and access of each page, by number.
    pages: BTreeMap<u64, (u64, Access)>,
    owed: Gather,
    random: Random,
    /// The first page of the window, and the number of its pages.
    first: u64,
    count: u64,
}

impl<F: Format> Game<F> {
    /// In a window of four leaf tables, with two of them on each side of a table above where there is
    /// one.
    fn new(format: F, tables: u32, seed: u64) -> Self {
        let (slot, upper) = (span_lg2::<F>(1), span_lg2::<F>(2));
        let middle = match upper < format.input_lg2() {
            true => 1u64 << upper,
            false => 8 << slot,
        };
        let memory = SlabTables::new(PhysAddr::new(1 << 31), F::ROOT, tables);
        Self {
            table: PageTable::new(format, memory).unwrap(),
            pages: BTreeMap::new(),
            owed: Gather::new(),
            random: Random(seed),
            first: (middle - (2 << slot)) >> F::GRANULE.lg2(),
            count: 4 << F::INDEX_LG2,
        }
    }

    fn at(page: u64) -> Iova {
        Iova::new(page << F::GRANULE.lg2())
    }

    fn range(first: u64, count: u64) -> IovaRange {
        IovaRange::from_len(Self::at(first), count << F::GRANULE.lg2()).unwrap()
    }

    fn translation(&self, page: u64) -> Option<Translation> {
        self.table.translate(Self::at(page))
    }

    /// Pages from `first` lead where the list says, to the last byte.
    fn audit(&self, first: u64, count: u64) {
        let lg2 = F::GRANULE.lg2();
        for page in first..first + count {
            let last = Iova::new((page << lg2) | (F::GRANULE.bytes() - 1));
            let found = self.table.translate(last);
            let found = found.map(|found| (found.pa.get() >> lg2, found.access));
            assert_eq!(found, self.pages.get(&page).copied(), "{page:#x}");
        }
        // And so say the leaves one after the other.
        let mut leaves = BTreeMap::new();
        for run in self.table.mappings(Self::range(first, count)) {
            let (start, pa) = (run.range.start().get() >> lg2, run.pa.get() >> lg2);
            for page in 0..run.range.pages(F::GRANULE) {
                assert!(run.size.bytes() >> lg2 > page);
                leaves.insert(start + page, (pa + page, run.access));
            }
        }
        let listed = self.pages.range(first..first + count);
        assert!(leaves.into_iter().eq(listed.map(|(page, to)| (*page, *to))));
    }

    /// The pages of an operation and some around them.
    fn audit_around(&self, first: u64, count: u64) {
        self.audit(first.saturating_sub(3), count + 6);
    }

    fn pay(&mut self) {
        let paid =
            self.table.sync(&Willing, InvalTag::new(1), &CAPS, &Quirks::default(), &mut self.owed);
        self.table.reclaim(paid.unwrap()).unwrap();
    }

    /// Pages that begin anywhere, or with a leaf table.
    fn place(&mut self) -> (u64, u64) {
        let slot = 1 << F::INDEX_LG2;
        let (first, count) = match self.random.below(4) {
            0 => (self.random.below(4) * slot, slot),
            1 => (self.random.below(self.count), 1 + self.random.below(2 * slot)),
            _ => (self.random.below(self.count), 1 + self.random.below(20)),
        };
        (self.first + first, count.min(self.count - first))
    }

    /// Memory of `count` pages: aligned to blocks, in one piece, in some, or in single pages.
    fn memory(&mut self, count: u64) -> Vec<Segment> {
        let lg2 = F::GRANULE.lg2();
        let pages = 1 << (F::INDEX_LG2 + 2);
        let most = match self.random.below(3) {
            0 => count,
            1 => 1 + count / 3,
            _ => 1,
        };
        let (mut left, mut segments) = (count, Vec::new());
        let mut next = self.random.below(pages);
        if self.random.below(2) == 0 {
            next &= !0 << F::INDEX_LG2;
        }
        while left > 0 {
            let many = (1 + self.random.below(most)).min(left);
            let bytes = many << lg2;
            segments.push(Segment { pa: PhysAddr::new(next << lg2), bytes });
            left -= many;
            // The next piece follows in memory, or does not.
            next = match self.random.below(3) {
                0 => self.random.below(pages),
                _ => next + many,
            };
        }
        segments
    }

    fn map(&mut self) {
        let (first, count) = self.place();
        let memory = self.memory(count);
        let access = ACCESSES[self.random.below(2) as usize];
        let mut owed = Gather::new();
        let mapped = match self.random.below(2) {
            0 => {
                let list = memory.iter().copied();
                self.table.map_sg(Self::at(first), list, access, &mut owed)
            }
            _ => {
                // Bytes inside of the granules are as good.
                let piece = |s: &Segment| {
                    let (from, cut) = (s.pa.get() + 1, s.bytes - 2);
                    PhysRange::from_len(PhysAddr::new(from), cut).unwrap()
                };
                let pieces: Vec<_> = memory.iter().map(piece).collect();
                self.table.map_around(Self::at(first), &pieces, access, &mut owed)
            }
        };
        let taken = self.pages.range(first..first + count).next();
        match mapped {
            Ok(range) => {
                assert_eq!((range, taken), (Self::range(first, count), None));
                assert!(owed.mapped().iter().any(|span| span.range.covers(range)));
                let to = memory.iter().flat_map(|segment| {
                    let pa = segment.pa.get() >> F::GRANULE.lg2();
                    pa..pa + (segment.bytes >> F::GRANULE.lg2())
                });
                self.pages.extend((first..).zip(to.map(|to| (to, access))));
            }
            Err(TableMapError::AlreadyMapped { iova }) => {
                let page = iova.get() >> F::GRANULE.lg2();
                assert_eq!(taken.map(|(page, _)| *page), Some(page));
            }
            Err(TableMapError::Memory(_)) => {}
            Err(error) => panic!("{error}"),
        }
        self.table.absorb(&mut self.owed, &mut owed).unwrap();
        self.audit_around(first, count);
    }

    /// The block that `page` is in, if it is mapped.
    fn leaf(&self, page: u64) -> Option<IovaRange> {
        let found = self.translation(page)?;
        Some(IovaRange::page(Self::at(page), found.size))
    }

    fn unmap(&mut self) {
        let (first, count) = self.place();
        let range = Self::range(first, count);
        let hole = (first..first + count).find(|page| !self.pages.contains_key(page));
        let cut = [first, first + count - 1].map(|page| self.leaf(page));
        let cut = cut.into_iter().flatten().find(|leaf| !range.covers(*leaf));
        let depths = |owed: &Gather| owed.unmapped().to_vec();
        let mut owed = Gather::new();
        match self.table.unmap(range, &mut owed) {
            Ok(()) => {
                assert_eq!((hole, cut), (None, None));
                assert!(depths(&owed).iter().any(|span| span.range.covers(range)));
                self.pages.retain(|page, _| !(first..first + count).contains(page));
            }
            Err(TableUnmapError::NotMapped { iova }) => {
                assert_eq!(Some(iova), hole.map(Self::at));
            }
            Err(TableUnmapError::NeedsSplit { block }) => assert_eq!(Some(block), cut),
            Err(error) => panic!("{error}"),
        }
        self.table.absorb(&mut self.owed, &mut owed).unwrap();
        self.audit_around(first, count);
    }

    fn split(&mut self) {
        let page = self.first + self.random.below(self.count);
        let block = self.leaf(page);
        let mut owed = Gather::new();
        match self.table.split(Self::at(page), &mut owed) {
            Ok(pending) => {
                assert_eq!(Some(pending.block()), block);
                assert!(pending.block().len_minus_one() >= F::GRANULE.bytes());
                let paid = self.table.sync(
                    &Willing,
                    InvalTag::new(1),
                    &CAPS,
                    &Quirks::default(),
                    &mut owed,
                );
                let done = self.table.complete_split(pending, &paid.unwrap(), &mut self.owed);
                assert!(done.is_ok());
                let after = self.leaf(page).unwrap();
                assert!(block.is_some_and(|block| block.covers(after) && block != after));
            }
            Err(SplitError::NoBlock { .. }) => {
                let page = IovaRange::page(Self::at(page), F::GRANULE);
                assert!(block.is_none_or(|block| block == page));
            }
            Err(SplitError::Memory(_)) => {}
            Err(error) => panic!("{error}"),
        }
        let block = block.unwrap_or(Self::range(page, 1));
        let first = block.start().get() >> F::GRANULE.lg2();
        self.audit_around(first, block.pages(F::GRANULE));
    }

    /// Unmaps all that is left; then the root is all that there is.
    fn end(&mut self) {
        while let Some((&page, _)) = self.pages.first_key_value() {
            let leaf = self.leaf(page).unwrap();
            self.table.unmap(leaf, &mut self.owed).unwrap();
            let pages = page..page + leaf.pages(F::GRANULE);
            self.pages.retain(|page, _| !pages.contains(page));
            if self.owed.table_pages() > 8 {
                self.pay();
            }
        }
        self.pay();
        let all = self.table.input_range();
        self.table.prune(all, &mut self.owed).unwrap();
        self.pay();
        assert_eq!(self.table.pages(), 1);
        self.audit(self.first, self.count);
    }

    fn play(mut self, steps: u32) {
        for step in 0..steps {
            match self.random.below(16) {
                0..=7 => self.map(),
                8..=13 => self.unmap(),
                14 => self.split(),
                _ => self.pay(),
            }
            if step % 64 == 0 {
                self.audit(self.first, self.count);
            }
        }
        self.end();
    }
}

fn play<F: Format>(format: F) {
    for seed in 1..4 {
        let steps = 400 >> (F::INDEX_LG2 - 9);
        Game::new(format, 64, seed * 0x9e37_79b9).play(steps);
        // Too little memory for all of it.
        let few = format.levels() + 2;
        Game::new(format, few, seed * 0x7f4a_7c15).play(steps);
    }
}

fn config(split: SplitRule) -> Armv8Config {
    Armv8Config { input_lg2: 42, output_lg2: 42, split, dirty: DirtyTracking::Off }
}

#[test]
fn vtd_tables_agree_with_a_list_of_pages() {
    play(VtdSecondStage::new(VtdLevels::Three, 46));
}

#[test]
fn amd_tables_agree_with_a_list_of_pages() {
    play(AmdV1::new(AmdLevels::Four, 48));
    play(AmdV1 { sizes: AmdSizes::Between, ..AmdV1::new(AmdLevels::Four, 48) });
}

#[test]
fn riscv_tables_agree_with_a_list_of_pages() {
    play(Riscv::<14> {
        levels: RiscvLevels::Three,
        output_lg2: 56,
        memory_types: RiscvMemoryTypes::Absent,
        contiguity: RiscvContiguity::Absent,
        dirty: DirtyTracking::Off,
    });
}

#[test]
fn tegra_tables_agree_with_a_list_of_pages() {
    play(Tegra::default());
}

#[test]
fn arm_tables_agree_with_a_list_of_pages() {
    play(Armv8Stage1::<12>::new(config(SplitRule::BreakBeforeMake)).unwrap());
    play(Armv8Stage2::<14>::new(config(SplitRule::Direct)).unwrap());
}

#[test]
fn what_does_not_fit_the_format_is_refused_and_changes_nothing() {
    let format = VtdSecondStage::new(VtdLevels::Three, 40);
    let memory = SlabTables::new(PhysAddr::new(1 << 31), PageSize::SIZE_4K, 8);
    let table = PageTable::new(format, memory).unwrap();
    let mut owed = Gather::new();
    let mut map = |iova: u64, pa: u64, bytes: u64| {
        let iova = Iova::new(iova);
        let mapped = table.map(iova, PhysAddr::new(pa), bytes, Access::READ, &mut owed);
        mapped.map(|_| ())
    };
    let (input, output) = (1u64 << 39, 1u64 << 40);
    let memory = |pa: u64, bytes: u64| (PhysAddr::new(pa), bytes);
    for (pa, bytes) in [(0x800, 0x1000), (0x1000, 0x800), (0x1800, 0x800)] {
        let (pa, bytes) = memory(pa, bytes);
        let uneven = Err(TableMapError::UnalignedMemory { pa, bytes });
        assert_eq!(map(0, pa.get(), bytes), uneven);
    }
    for (pa, bytes) in [(output, 0x1000), (output - 0x1000, 0x2000), (0x1000, output)] {
        let (pa, bytes) = memory(pa, bytes);
        let outside = Err(TableMapError::MemoryOutOfRange { pa, bytes });
        assert_eq!(map(0, pa.get(), bytes), outside);
    }
    for (at, bytes) in [(input, 0x1000), (input - 0x1000, 0x2000), (0x1000, input)] {
        let iova = Iova::new(at);
        let outside = Err(TableMapError::IovaOutOfRange { iova });
        assert_eq!(map(at, 0x1000, bytes), outside);
    }
    let iova = Iova::new(0x800);
    assert_eq!(map(0x800, 0x1000, 0x1000), Err(TableMapError::UnalignedIova { iova }));
    let iova = Iova::new(0x1000);
    assert_eq!(map(0x1000, 0x1000, 0), Err(TableMapError::Empty { iova }));
    assert_eq!(table.pages(), 1);
    // The last page of each.
    assert_eq!(map(input - 0x1000, output - 0x1000, 0x1000), Ok(()));
    for (start, last) in [(0x800, 0xfff), (0, 0x17ff), (0x800, 0x17ff)] {
        let range = IovaRange::new(Iova::new(start), Iova::new(last)).unwrap();
        let uneven = Err(TableUnmapError::Unaligned { range });
        assert_eq!(table.unmap(range, &mut owed), uneven);
    }
    let range = IovaRange::from_len(Iova::new(input - 0x1000), 0x2000).unwrap();
    assert_eq!(table.unmap(range, &mut owed), Err(TableUnmapError::OutOfRange { range }));
}
