//! Debts, proofs and splits name the table they are of.

use crate::addr::{InvalTag, Iova, IovaRange, PageSize, PhysAddr};
use crate::inval::{Gather, Quirks, SyncError, WrongTable};
use crate::platform::SlabTables;
use crate::table::format::{VtdLevels, VtdSecondStage};
use crate::table::{Access, PageTable, SplitError, TableMapError, TableUnmapError};
use core::sync::atomic::AtomicU64;

use super::kept::{CAPS, Willing};

type Table = PageTable<VtdSecondStage, SlabTables<AtomicU64>>;

const BLOCK: PageSize = PageSize::SIZE_2M;
const PAGE: PageSize = PageSize::SIZE_4K;
const TAG: InvalTag = InvalTag::new(1);

fn table() -> Table {
    let format = VtdSecondStage::new(VtdLevels::Four, 46);
    let memory = SlabTables::new(PhysAddr::new(0x8000_0000), PAGE, 32);
    PageTable::new(format, memory).unwrap()
}

fn map(table: &Table, at: Iova, size: PageSize) -> IovaRange {
    let mut owed = Gather::new();
    let pa = PhysAddr::new(BLOCK.bytes() * 5);
    let access = Access::READ | Access::WRITE;
    table.map(at, pa, size.bytes(), access, &mut owed).unwrap()
}

fn pay(table: &Table, owed: &mut Gather) -> crate::inval::Quiesced {
    table.sync(&Willing, TAG, &CAPS, &Quirks::default(), owed).unwrap()
}

#[test]
fn a_debt_of_one_table_is_not_paid_through_another() {
    let (one, other) = (table(), table());
    let at = Iova::new(BLOCK.bytes());
    let range = map(&one, at, PAGE);
    map(&other, at, PAGE);
    let mut owed = Gather::new();
    assert_eq!(owed.table_pages(), 0);
    one.unmap(range, &mut owed).unwrap();
    one.prune(IovaRange::page(at, BLOCK), &mut owed).unwrap();
    let pages = owed.table_pages();
    assert_ne!(pages, 0);

    let wrong = WrongTable { of: one.id(), here: other.id() };
    let paid = other.sync(&Willing, TAG, &CAPS, &Quirks::default(), &mut owed);
    assert!(matches!(paid, Err(SyncError::WrongTable(error)) if error == wrong));
    assert_eq!(owed.table_pages(), pages, "the debt is still owed");

    let mut into = Gather::new();
    assert_eq!(other.absorb(&mut into, &mut owed), Err(wrong));
    assert_eq!((into.table(), owed.table_pages()), (None, pages));
    assert_eq!(other.unmap(range, &mut owed), Err(wrong.into()));
    let mapped = other.map(at, PhysAddr::new(0), 0x1000, Access::READ, &mut owed);
    assert_eq!(mapped, Err(TableMapError::WrongTable(wrong)));
    assert_eq!(other.split(at, &mut owed), Err(SplitError::WrongTable(wrong)));
    assert_eq!(other.prune(other.input_range(), &mut owed), Err(wrong));
    assert_ne!(other.translate(at), None, "nothing of the other table has changed");

    let quiesced = pay(&one, &mut owed);
    assert!(owed.is_empty());
    let kept = other.reclaim(quiesced).unwrap_err();
    assert_eq!((kept.error, kept.quiesced.table_pages()), (wrong, pages));
    let before = one.pages();
    one.reclaim(kept.quiesced).unwrap();
    assert_eq!(one.pages(), before - pages);
    assert_ne!(other.translate(at), None);
}

#[test]
fn a_split_is_not_completed_by_a_proof_of_another_table() {
    let (one, other) = (table(), table());
    let at = Iova::new(BLOCK.bytes());
    map(&one, at, BLOCK);
    let mut owed = Gather::new();
    let pending = one.split(at, &mut owed).unwrap();
    let foreign = pay(&other, &mut Gather::new());
    let refused = one.complete_split(pending, &foreign, &mut owed).unwrap_err();
    assert_eq!(refused.pending.block(), IovaRange::page(at, BLOCK));
    let own = pay(&one, &mut owed);
    let refused = other.complete_split(refused.pending, &own, &mut owed);
    let pending = refused.unwrap_err().pending;
    assert_eq!(one.complete_split(pending, &own, &mut owed), Ok(()));
}

#[test]
fn a_part_of_a_block_is_not_unmapped_before_the_whole_block_is_owed() {
    let table = table();
    let at = Iova::new(BLOCK.bytes());
    let block = map(&table, at, BLOCK);
    let part = IovaRange::page(at, PAGE);
    let mut owed = Gather::new();
    let cut = table.unmap(part, &mut owed);
    assert_eq!(cut, Err(TableUnmapError::NeedsSplit { block }));
    assert!(owed.is_empty());

    let pending = table.split(at, &mut owed).unwrap();
    assert_eq!(owed.unmapped()[0].range, block);
    let quiesced = pay(&table, &mut owed);
    table.complete_split(pending, &quiesced, &mut owed).unwrap();
    table.reclaim(quiesced).unwrap();
    assert_eq!(table.unmap(part, &mut owed), Ok(()));
    assert_eq!(table.translate(at), None);
    let rest = Iova::new(at.get() + PAGE.bytes());
    assert_eq!(table.translate(rest).map(|found| found.size), Some(PAGE));
}
