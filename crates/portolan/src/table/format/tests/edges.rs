//! Maps and unmaps at the edges of 2 MiB, 1 GiB and 512 GiB, and at the end of the addresses: each range
//! has the largest leaves that fit, leads where it should, and leaves nothing behind.

extern crate std;

use alloc::vec::Vec;
use core::fmt::Debug;

use crate::addr::{Iova, IovaRange, PageSize, PhysAddr};
use crate::inval::{Depth, Gather};
use crate::platform::SlabTables;
use crate::table::format::{
    AmdLevels, AmdSizes, AmdV1, Armv8Config, Armv8Stage1, DirtyTracking, Riscv, RiscvContiguity,
    RiscvFirstStage, RiscvLevels, RiscvMemoryTypes, SplitRule, VtdLevels, VtdSecondStage,
};
use crate::table::tests::kept::pay_for;
use crate::table::{Access, Format, MappedRun, PageTable, TableMapError};

const PAGE: u64 = 1 << 12;
const MEGABYTES: u64 = 1 << 21;
const GIGABYTE: u64 = 1 << 30;
/// 512 GiB.
const HUGE: u64 = 1 << 39;

const AMD: AmdV1 = AmdV1::new(AmdLevels::Four, 52);
const RISCV: RiscvFirstStage = Riscv {
    levels: RiscvLevels::Five,
    output_lg2: 56,
    memory_types: RiscvMemoryTypes::Absent,
    contiguity: RiscvContiguity::Absent,
    dirty: DirtyTracking::Off,
};
const VTD: VtdSecondStage =
    VtdSecondStage { levels: VtdLevels::Four, output_lg2: 46, dirty: DirtyTracking::Off };

fn arm() -> Armv8Stage1<12> {
    let config = Armv8Config {
        input_lg2: 48,
        output_lg2: 48,
        split: SplitRule::BreakBeforeMake,
        dirty: DirtyTracking::Off,
    };
    Armv8Stage1::new(config).unwrap()
}

type Table<F> = PageTable<F, SlabTables<<F as Format>::Word>>;

fn table<F: Format>(format: F, pages: u32) -> Table<F> {
    let memory = SlabTables::new(PhysAddr::new(1 << 31), PageSize::SIZE_4K, pages);
    PageTable::new(format, memory).unwrap()
}

/// A mapping: its address, its memory and its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mapped {
    at: u64,
    pa: u64,
    bytes: u64,
}

impl Mapped {
    fn range(self) -> IovaRange {
        IovaRange::from_len(Iova::new(self.at), self.bytes).unwrap()
    }

    /// The leaves that a table without others has for it, the largest that fit from its start on.
    fn leaves(self, format: &impl Format) -> Vec<(u64, u64, u64)> {
        let sizes: Vec<u64> = format.page_sizes().iter().map(PageSize::bytes).collect();
        let (mut done, mut leaves) = (0, Vec::new());
        while done < self.bytes {
            let (at, pa) = (self.at + done, self.pa + done);
            let fits = |size: &&u64| (at | pa) % **size == 0 && **size <= self.bytes - done;
            let size = *sizes.iter().rev().find(fits).unwrap();
            leaves.push((at, pa, size));
            done += size;
        }
        leaves
    }

    fn map<F: Format>(
        self,
        table: &Table<F>,
        owed: &mut Gather,
    ) -> Result<IovaRange, TableMapError> {
        let (at, pa) = (Iova::new(self.at), PhysAddr::new(self.pa));
        table.map(at, pa, self.bytes, Access::READ_WRITE, owed)
    }
}

fn leaf(run: &MappedRun) -> (u64, u64, u64) {
    (run.range.start().get(), run.pa.get(), run.size.bytes())
}

/// Maps it in a table of its own, looks at it, and unmaps it.
fn alone<F: Format + Debug>(format: F, mapped: Mapped) {
    let name = std::format!("{mapped:x?} in {format:?}");
    let table = table(format, 2600);
    let mut owed = Gather::new();
    assert_eq!(mapped.map(&table, &mut owed), Ok(mapped.range()), "{name}");
    pay_for(&table, &mut owed);
    let found: Vec<_> = table.mappings(table.input_range()).collect();
    let found: Vec<_> = found.iter().map(leaf).collect();
    assert_eq!(found, mapped.leaves(table.format()), "{name}");
    let before = table.pages();
    table.unmap(mapped.range(), &mut owed).unwrap();
    let deep = |owed: &Gather| owed.unmapped().iter().any(|span| span.depth == Depth::AllLevels);
    let (gone, was_deep) = (owed.table_pages(), deep(&owed));
    pay_for(&table, &mut owed);
    assert_eq!(table.mappings(table.input_range()).count(), 0, "{name}");
    assert_eq!(table.pages(), before - gone, "{name}");
    assert_eq!(was_deep, gone > 0, "tables leave, and walk caches: {name}");
    let covered = table.prune(mapped.range(), &mut owed).unwrap();
    assert_eq!(covered, 0, "the unmap left tables that it covered: {name}");
    let pruned = table.prune(table.input_range(), &mut owed).unwrap();
    assert_eq!(deep(&owed), pruned > 0, "pruned tables leave, and walk caches: {name}");
    pay_for(&table, &mut owed);
    assert_eq!((table.pages(), table.memory().live()), (1, 1), "{name}");
}

/// Lengths around a size, and places around an edge.
const AROUND: [i64; 5] = [-(MEGABYTES as i64), -(PAGE as i64), 0, PAGE as i64, MEGABYTES as i64];

fn each_edge<F: Format + Debug + Copy>(format: F) {
    let end = 1u128 << format.input_lg2();
    let largest = format.page_sizes().iter().last().unwrap().bytes();
    // Alignment of memory beyond that of the addresses.
    let memory = [0, PAGE, MEGABYTES, GIGABYTE];
    for (edge, size) in [(GIGABYTE, MEGABYTES), (HUGE, GIGABYTE), (2 * HUGE, HUGE), (HUGE, HUGE)] {
        for place in AROUND {
            for longer in AROUND {
                for off in memory {
                    let at = edge.wrapping_add_signed(place);
                    let bytes = size.wrapping_add_signed(longer);
                    let mapped = Mapped { at, pa: (4 * HUGE) + (at % HUGE) + off, bytes };
                    // No more leaves than a test has time for.
                    let step = 1 << (mapped.at | mapped.pa | largest).trailing_zeros();
                    if bytes != 0 && bytes / step <= 1024 {
                        alone(format, mapped);
                    }
                }
            }
        }
    }
    // The last addresses that there are.
    for bytes in [PAGE, MEGABYTES, MEGABYTES + PAGE, GIGABYTE, GIGABYTE + MEGABYTES, HUGE] {
        let at = (end - u128::from(bytes)) as u64;
        for off in [0, MEGABYTES] {
            if off == 0 || bytes <= GIGABYTE {
                alone(format, Mapped { at, pa: (4 * HUGE) + (at % HUGE) + off, bytes });
            }
        }
    }
}

#[test]
fn vtd_ranges_have_the_largest_leaves_that_fit() {
    each_edge(VTD);
}

#[test]
fn amd_ranges_have_the_largest_leaves_that_fit() {
    each_edge(AMD);
    each_edge(AmdV1 { sizes: AmdSizes::Between, ..AMD });
}

#[test]
fn riscv_ranges_have_the_largest_leaves_that_fit() {
    each_edge(RISCV);
}

#[test]
fn arm_ranges_have_the_largest_leaves_that_fit() {
    each_edge(arm());
}

/// Leaf tables, full to the last page, on both sides of an edge.
#[test]
fn whole_tables_on_both_sides_of_an_edge_are_unmapped() {
    for edge in [GIGABYTE, HUGE] {
        for tables in 1..4 {
            let bytes = 2 * tables * MEGABYTES;
            let at = edge - tables * MEGABYTES;
            let mapped = Mapped { at, pa: at + PAGE, bytes };
            alone(VTD, mapped);
            alone(AMD, mapped);
        }
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 5) % bound
    }

    fn of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len() as u64) as usize]
    }
}

struct Game<F: Format> {
    table: Table<F>,
    mapped: Vec<Mapped>,
    owed: Gather,
    random: Random,
    seed: u64,
}

impl<F: Format> Game<F> {
    /// A range at an edge, of a length around a size.
    fn any(&mut self) -> Mapped {
        let end = 1u128 << self.table.format().input_lg2();
        let size = self.random.of(&[PAGE, MEGABYTES, MEGABYTES, GIGABYTE, HUGE]);
        let ends = [GIGABYTE, 2 * GIGABYTE, HUGE, HUGE + GIGABYTE, (end - 1) as u64 & !(PAGE - 1)];
        let edge = self.random.of(&ends);
        let unit = self.random.of(&[PAGE, MEGABYTES, size]);
        let below = self.random.below(4) * unit;
        let at = edge.saturating_sub(below);
        let most = (end - u128::from(at)).min(u128::from(u64::MAX)) as u64 & !(PAGE - 1);
        let bytes = size.wrapping_add_signed(self.random.of(&AROUND)).min(most).max(PAGE);
        // Memory that allows leaves of the size, or of the one below.
        let unit = self.random.of(&[size, MEGABYTES.min(size), size.min(GIGABYTE)]);
        let pa = (4 * HUGE) + at % HUGE + self.random.below(3) * unit;
        Mapped { at, pa, bytes }
    }

    /// Checks the mappings, one piece where neighbours lead to neighbours.
    fn audit(&self) {
        let mut found: Vec<(u64, u64, u64)> = Vec::new();
        for run in self.table.mappings(self.table.input_range()) {
            let (at, pa, bytes) = leaf(&run);
            assert!(at % bytes == 0 && pa % bytes == 0, "{at:x} {pa:x} {bytes:x}");
            match found.last_mut() {
                Some(last) if last.0 + last.2 == at && last.1 + last.2 == pa => last.2 += bytes,
                _ => found.push((at, pa, bytes)),
            }
        }
        let mut wanted: Vec<(u64, u64, u64)> = Vec::new();
        let mut mapped = self.mapped.clone();
        mapped.sort_by_key(|mapped| mapped.at);
        for one in mapped {
            match wanted.last_mut() {
                Some(last) if last.0 + last.2 == one.at && last.1 + last.2 == one.pa => {
                    last.2 += one.bytes;
                }
                _ => wanted.push((one.at, one.pa, one.bytes)),
            }
        }
        assert_eq!(found, wanted, "seed {}", self.seed);
    }

    fn step(&mut self) {
        if !self.mapped.is_empty() && self.random.below(5) < 2 {
            let at = self.random.below(self.mapped.len() as u64) as usize;
            let gone = self.mapped.swap_remove(at);
            self.table.unmap(gone.range(), &mut self.owed).unwrap();
        } else {
            let new = self.any();
            let step = 1u64 << (new.at | new.pa | new.bytes).trailing_zeros();
            if new.bytes / step > 2048 {
                return;
            }
            let taken = self.mapped.iter().any(|one| one.range().overlaps(new.range()));
            match new.map(&self.table, &mut self.owed) {
                Ok(range) => {
                    assert!(!taken && range == new.range(), "seed {}: {new:x?}", self.seed);
                    self.mapped.push(new);
                }
                Err(TableMapError::AlreadyMapped { .. }) => assert!(taken, "seed {}", self.seed),
                Err(error) => panic!("seed {}: {new:x?}: {error}", self.seed),
            }
        }
        if self.random.below(3) == 0 {
            pay_for(&self.table, &mut self.owed);
        }
        self.audit();
    }
}

fn play<F: Format>(format: impl Fn() -> F) {
    for seed in 1..9 {
        let mut game = Game {
            table: table(format(), 4000),
            mapped: Vec::new(),
            owed: Gather::new(),
            random: Random(seed * 0x9e37_79b9),
            seed,
        };
        for _ in 0..120 {
            game.step();
        }
        while let Some(one) = game.mapped.pop() {
            game.table.unmap(one.range(), &mut game.owed).unwrap();
            pay_for(&game.table, &mut game.owed);
        }
        let all = game.table.input_range();
        game.table.prune(all, &mut game.owed).unwrap();
        pay_for(&game.table, &mut game.owed);
        assert_eq!(game.table.pages(), 1, "seed {seed}");
    }
}

#[test]
fn random_ranges_at_edges_agree_with_a_list() {
    play(|| VTD);
    play(|| AMD);
    play(|| RISCV);
    play(arm);
}
