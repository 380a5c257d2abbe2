//! Tables of a former kernel: sound ones, and each entry replaced by what it must not be.

use alloc::sync::Arc;
use core::sync::atomic::AtomicU64;

use super::*;
use crate::addr::IovaRange;
use crate::inval::Gather;
use crate::platform::SlabTables;
use crate::platform::promised::preserved;
use crate::table::Access;
use crate::table::format::{VtdLevels, VtdSecondStage};

const FORMAT: VtdSecondStage = VtdSecondStage::new(VtdLevels::Three, 46);
const BASE: PhysAddr = PhysAddr::new(0x10_0000);
const TABLES: [PhysRange; 1] = [PhysRange::page(BASE, PageSize::of_lg2(16))];
const BUFFERS: [PhysRange; 1] = [PhysRange::page(PhysAddr::new(0x4000_0000), PageSize::of_lg2(28))];

type Mem = Arc<SlabTables<AtomicU64>>;
type Table = PageTable<VtdSecondStage, Mem>;

/// Two pages, and two blocks of 2 MiB further on.
fn former() -> (Mem, Table) {
    let mem = Arc::new(SlabTables::new(BASE, PageSize::SIZE_4K, 16));
    let table = PageTable::new(FORMAT, mem.clone()).unwrap();
    let mut owed = Gather::new();
    for (iova, pa, bytes) in [(0x1000, 0x4000_1000, 0x2000), (0x60_0000, 0x4020_0000, 0x40_0000)] {
        table
            .map(Iova::new(iova), PhysAddr::new(pa), bytes, Access::READ_WRITE, &mut owed)
            .unwrap();
    }
    (mem, table)
}

fn adopted(
    mem: &Mem,
    root: PhysAddr,
) -> Result<AdoptedTable<VtdSecondStage, Mem>, AdoptTableError> {
    let mut claims = TableClaims::new(preserved(&TABLES, &BUFFERS));
    FormerTable::new(FORMAT, mem.clone(), root).check(&mut claims)
}

#[test]
fn sound_tables_are_the_next_kernel_s() {
    let (mem, mut table) = former();
    let (root, pages) = (table.root(), table.pages());
    table.keep();
    drop(table);
    let adopted = adopted(&mem, root).unwrap();
    assert_eq!((adopted.pages(), pages), (3, 3));
    let table = adopted.own();
    let runs = table.mappings(table.input_range());
    let runs: alloc::vec::Vec<_> =
        runs.map(|run| (run.range.start().get(), run.pa.get())).collect();
    let pages = [(0x1000, 0x4000_1000), (0x2000, 0x4000_2000)];
    assert_eq!(runs[..2], pages);
    assert_eq!(runs[2..], [(0x60_0000, 0x4020_0000), (0x80_0000, 0x4040_0000)]);
    let mut owed = Gather::new();
    table.unmap(IovaRange::from_len(Iova::new(0x1000), 0x1000).unwrap(), &mut owed).unwrap();
    drop(table);
    // All three pages are there again.
    let all = (0..16).map(|_| mem.alloc(PageSize::SIZE_4K));
    assert!(all.into_iter().all(|page| page.is_ok()));
}

#[test]
fn tables_that_are_refused_stay_allocated() {
    let (mem, mut table) = former();
    table.keep();
    let root = table.root();
    let nowhere = [PhysRange::page(BASE, PageSize::SIZE_4K)];
    let mut claims = TableClaims::new(preserved(&TABLES, &nowhere));
    let refused = FormerTable::new(FORMAT, mem.clone(), root).check(&mut claims);
    let (iova, pa) = (Iova::new(0x1000), PhysAddr::new(0x4000_1000));
    assert_eq!(refused.map(drop), Err(AdoptTableError::Leaf { iova, pa }));
    assert!(table.translate(iova).is_some());
    let free = (0..16).filter(|_| mem.alloc(PageSize::SIZE_4K).is_ok());
    assert_eq!(free.count(), 13);
}

#[test]
fn each_entry_that_is_replaced_is_refused() {
    let (mem, table) = former();
    let root = table.root();
    let entry = |table: PhysAddr, index: usize| &mem.table(table, PageSize::SIZE_4K)[index];
    let address = |word: &AtomicU64| PhysAddr::new(Word::load(word) & 0xf_ffff_f000);
    let middle = address(entry(root, 0));
    let leaves = address(entry(middle, 0));
    let places = [(root, 0, 2), (root, 511, 2), (middle, 0, 1), (middle, 3, 1), (leaves, 1, 0)];
    for (place, index, level) in places {
        let word = entry(place, index);
        let before = Word::load(word);
        let to_tables = [root, middle, leaves].map(|table| table.get() | 3);
        // A loop or a second place, somewhere else, an empty table that is said to be full, a leaf too high or
        // unaligned, a broken block.
        let full = BASE.get() | 0xf000 | VtdSecondStage::FILLED | 3;
        let wrong = [0x20_0003, full, 0x4000_1083, 0x5000_0083, 0x4000_0400];
        for value in to_tables.into_iter().chain(wrong) {
            // As leaves, all of these that are large enough lie in the memory of buffers, or not.
            let leaf = level == 0 && value & 0x4000_0000 != 0 && value & 3 != 0;
            if value == before || leaf && BUFFERS[0].contains(PhysAddr::new(value & !0xfff)) {
                continue;
            }
            Word::store(word, value);
            let refused = adopted(&mem, root).map(drop);
            assert!(refused.is_err(), "{value:#x} in entry {index} of level {level}");
        }
        Word::store(word, before);
    }
    assert!(adopted(&mem, root).is_ok());
}

#[test]
fn a_claim_is_of_a_page_once() {
    let mut claims = TableClaims::new(preserved(&TABLES, &BUFFERS));
    let (page, large) = (PageSize::SIZE_4K, PageSize::of_lg2(13));
    let at = |offset: u64| PhysAddr::new(BASE.get() + offset);
    assert_eq!(claims.claim(at(0x2000), large), Ok(()));
    for inside in [0x2000, 0x3000] {
        assert_eq!(claims.claim(at(inside), page), Err(ClaimError::Twice { at: at(inside) }));
    }
    assert_eq!(claims.claim(at(0x1000), page), Ok(()));
    assert_eq!(claims.claim(at(0), large), Err(ClaimError::Twice { at: at(0) }));
    let size = large;
    let unaligned = at(0x5000);
    assert_eq!(claims.claim(unaligned, size), Err(ClaimError::Unaligned { at: unaligned, size }));
    let outside = at(0x1_0000);
    assert_eq!(claims.claim(outside, size), Err(ClaimError::Outside { at: outside, size }));
    let claimed: alloc::vec::Vec<_> = claims.claimed().map(|page| page.start()).collect();
    assert_eq!(claimed, [at(0x1000), at(0x2000)]);
}
