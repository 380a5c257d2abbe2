//! Tables full of anything, beside the naive walk of `portolan_sim::decode`, which shares nothing with the library's
//! formats.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use fastrand::Rng;
use portolan::addr::{InvalTag, Iova, PageSize, PhysAddr};
use portolan::table::format::span_lg2;
use portolan::table::{Access, Format};
use portolan_chips::fixture::seed;
use portolan_sim::decode::{AccessKind, TableFormat, TableRoot, WalkFault, WalkMemory, walk};
use portolan_vmm::Endpoint;
use portolan_vmm::emulated::{Context, FaultKind, Scope};
use vm_memory::{Bytes, GuestAddress, Permissions};

use crate::{
    AMD, ENDPOINT, Guest, LONG, Unit, VTD, VTD_FIRST, guest, reach, riscv, stage1, stage2, unit,
};

/// Tables in the guest's memory, which is a little longer.
const TABLES: u64 = 12;
const TAG: InvalTag = InvalTag::new(3);

/// The guest's memory, as the naive walk reads it.
struct Words(Guest);

impl WalkMemory for Words {
    fn read_u64(&self, pa: PhysAddr) -> Option<u64> {
        self.0.read_obj(GuestAddress(pa.get())).ok()
    }

    fn read_u32(&self, pa: PhysAddr) -> Option<u32> {
        self.0.read_obj(GuestAddress(pa.get())).ok()
    }
}

struct Game<F> {
    format: F,
    naive: TableRoot,
    words: Words,
    unit: Unit,
    endpoint: Endpoint,
    rng: Rng,
    /// Number of walks with each result.
    seen: [u64; 5],
}

impl<F: Format<Word = AtomicU64>> Game<F> {
    fn new(format: F, naive: TableFormat, seed: u64) -> Self {
        let bytes = F::GRANULE.bytes();
        let guest = guest((bytes * (TABLES + 4)) as usize);
        let (unit, endpoint) = unit(&guest, 64, LONG);
        let root = PhysAddr::new(0);
        unit.attach(ENDPOINT, Context::tables(format, root, TAG).unwrap()).unwrap();
        Self {
            format,
            naive: TableRoot { root, format: naive },
            words: Words(guest),
            unit,
            endpoint,
            rng: Rng::with_seed(seed),
            seen: [0; 5],
        }
    }

    /// Some entry: a table's, a leaf's, nothing, or either with some bits turned; seldom anything.
    fn entry(&mut self, level: u32) -> u64 {
        let granule = F::GRANULE.bytes();
        // Some of them past the end of memory.
        let table = PhysAddr::new(self.rng.u64(..TABLES + 6) * granule);
        let access = [Access::READ, Access::WRITE, Access::READ_WRITE];
        let access = self.rng.choice(access).unwrap();
        let template = self.format.template(access, level).unwrap();
        let leaf = PhysAddr::new(self.rng.u64(..4) << span_lg2::<F>(level));
        let raw = match self.rng.u32(..12) {
            0 => 0,
            1 => self.rng.u64(..),
            2..5 => F::leaf(template, leaf),
            _ if level == 0 => F::leaf(template, leaf),
            _ => F::table(table, level),
        };
        match self.rng.u32(..4) {
            0 => raw ^ 1 << self.rng.u32(..64),
            1 => raw ^ 1 << self.rng.u32(..12) ^ 1 << self.rng.u32(52..64),
            _ => raw,
        }
    }

    /// Few of each table's entries, so that walks meet them.
    fn index(&mut self) -> u64 {
        let last = (1 << F::INDEX_LG2) - 1;
        self.rng.choice([0, 1, 2, last]).unwrap()
    }

    fn edit(&mut self) {
        let table = self.rng.u64(..TABLES) * F::GRANULE.bytes();
        let at = table + self.index() * 8;
        let levels = self.format.levels();
        // Tables near the root hold entries for upper levels, so that walks get down.
        let level = match self.rng.u32(..4) {
            0 => self.rng.u32(..levels),
            _ => levels - 1 - (table / F::GRANULE.bytes()) as u32 % levels,
        };
        let raw = self.entry(level);
        self.words.0.write_obj(raw, GuestAddress(at)).unwrap();
    }

    fn address(&mut self) -> u64 {
        let levels = self.format.levels();
        let iova = (0..levels).fold(0, |iova, level| {
            let wide = self.index() << span_lg2::<F>(level);
            iova | wide
        });
        let iova = iova | self.rng.u64(..F::GRANULE.bytes());
        match self.rng.u32(..16) {
            0 => iova,
            _ => iova & ((1 << self.format.input_lg2()) - 1),
        }
    }

    fn compare(&mut self) {
        let at = self.address();
        let (access, kind) = match self.rng.bool() {
            true => (Permissions::Read, AccessKind::Read),
            false => (Permissions::Write, AccessKind::Write),
        };
        let naive = walk(&self.words, &self.naive, Iova::new(at));
        let found = reach(&self.endpoint, at, 1, access);
        let sizes = self.format.page_sizes().bits();
        if naive.is_ok_and(|leaf| sizes & leaf.size.bytes() == 0) {
            // A page of 512 GiB of AMD-Vi's, which the emulated unit takes for reserved.
            assert_eq!(found, None);
            assert!(
                matches!(self.unit.next_fault(), Some(fault) if matches!(fault.kind, FaultKind::Reserved { .. }))
            );
            return;
        }
        let allowed = naive.ok().filter(|leaf| leaf.permissions.allow(kind));
        let wanted = allowed.map(|leaf| vec![(leaf.address(Iova::new(at)).get(), 1)]);
        assert_eq!(found, wanted, "{at:#x} {access:?} {naive:?}");
        let fault = self.unit.next_fault();
        assert_eq!(self.unit.next_fault(), None);
        let number = match (naive, fault.map(|fault| fault.kind)) {
            (Ok(leaf), None) => {
                assert!(leaf.permissions.allow(kind));
                0
            }
            (Ok(leaf), Some(FaultKind::Permission { level, .. })) => {
                assert_eq!(self.naive.format.span(level as u8), leaf.size);
                1
            }
            (Err(WalkFault::NoTranslation { level }), Some(found)) => {
                let top = self.format.levels() - 1;
                match found {
                    FaultKind::Input => assert!(u32::from(level) == top),
                    FaultKind::NotPresent { level: of, .. } => assert_eq!(u32::from(level), of),
                    other => panic!("{at:#x}: {other:?}"),
                }
                2
            }
            (
                Err(WalkFault::Unreadable { entry, level }),
                Some(FaultKind::Unreadable { entry: at, level: of }),
            ) => {
                assert_eq!((at, of), (entry, level.into()));
                3
            }
            (
                Err(WalkFault::BadEntry { level, raw }),
                Some(FaultKind::Reserved { level: of, raw: its, .. }),
            ) => {
                assert_eq!((of, its), (level.into(), raw));
                4
            }
            (naive, found) => panic!("{at:#x}: {found:?} is not {naive:?}"),
        };
        self.seen[number] += 1;
    }
}

fn play<F: Format<Word = AtomicU64>>(format: F, naive: TableFormat, seed: u64) {
    let mut game = Game::new(format, naive, seed);
    for _ in 0..2000 {
        (0..8).for_each(|_| game.edit());
        let scope = game.rng.choice([Scope::All, Scope::Tag(TAG)]).unwrap();
        game.unit.invalidate(scope, None).unwrap();
        (0..16).for_each(|_| game.compare());
    }
    println!("{format:?}: {:?}", game.seen);
    assert!(game.seen.iter().all(|seen| *seen > 0), "{:?}", game.seen);
}

#[test]
fn walks_are_those_of_the_naive_walker() {
    let seed = seed();
    let (small, medium, large) = (PageSize::SIZE_4K, PageSize::of_lg2(14), PageSize::SIZE_64K);
    play(VTD, TableFormat::vtd_second_stage(3).unwrap(), seed);
    play(VTD_FIRST, TableFormat::vtd_first_stage(4).unwrap(), seed);
    play(AMD, TableFormat::amd_v1(4).unwrap(), seed);
    play(stage1::<12>(39), TableFormat::armv8_stage1(small, 39, 48).unwrap(), seed);
    play(stage1::<14>(36), TableFormat::armv8_stage1(medium, 36, 48).unwrap(), seed);
    play(stage1::<16>(42), TableFormat::armv8_stage1(large, 42, 48).unwrap(), seed);
    play(stage2::<12>(48), TableFormat::armv8_stage2(small, 48, 48).unwrap(), seed);
}

#[test]
fn an_entry_that_is_not_invalidated_is_kept() {
    let guest = guest(0x8000);
    let (unit, endpoint) = unit(&guest, 64, LONG);
    unit.attach(ENDPOINT, Context::tables(VTD, PhysAddr::new(0x1000), TAG).unwrap()).unwrap();
    let write = |at: u64, raw: u64| guest.write_obj(raw, GuestAddress(at)).unwrap();
    write(0x1000, 0x2003);
    write(0x2000, 0x3003);
    write(0x3000, 0x4001);
    write(0x3008, 0x5003);
    let read = |at| reach(&endpoint, at, 4, Permissions::Read);
    assert_eq!(read(0), Some(vec![(0x4000, 4)]));
    assert_eq!(reach(&endpoint, 0xffe, 4, Permissions::Read), Some(vec![(0x4ffe, 4)]));
    // More is allowed: the walk is done again, without an invalidation.
    assert_eq!(reach(&endpoint, 0, 4, Permissions::Write), None);
    write(0x3000, 0x4003);
    assert_eq!(reach(&endpoint, 0, 4, Permissions::Write), Some(vec![(0x4000, 4)]));
    write(0x3000, 0x6003);
    assert_eq!(read(0), Some(vec![(0x4000, 4)]), "kept");
    let page = |at| Some(crate::range(at, at + 0xfff));
    let other = Scope::Tag(InvalTag::new(4));
    unit.invalidate(other, page(0)).unwrap();
    unit.invalidate(Scope::Tag(TAG), page(0x1000)).unwrap();
    assert_eq!(read(0), Some(vec![(0x4000, 4)]), "another's, and another page");
    unit.invalidate(Scope::Tag(TAG), page(0)).unwrap();
    assert_eq!(read(0), Some(vec![(0x6000, 4)]));
    // The next context has nothing of it.
    unit.attach(ENDPOINT, Context::pass_through()).unwrap();
    assert_eq!(read(0x7000), Some(vec![(0x7000, 4)]));
    unit.attach(ENDPOINT, Context::blocked()).unwrap();
    assert_eq!(read(0), None);
    let kinds = std::iter::from_fn(|| unit.next_fault());
    let kinds: Vec<_> = kinds.map(|fault| fault.kind).collect();
    let entry = PhysAddr::new(0x3000);
    assert_eq!(kinds, [FaultKind::Permission { level: 0, entry }, FaultKind::Blocked]);
    unit.remove(ENDPOINT).unwrap();
    assert_eq!(read(0), None);
    drop((unit, Arc::clone(&guest)));
}

#[test]
fn riscv_walks_are_those_of_the_naive_walker() {
    let seed = seed();
    play(riscv::<12>(), TableFormat::riscv_first_stage(3).unwrap(), seed);
    play(riscv::<14>(), TableFormat::riscv_second_stage(3).unwrap(), seed);
}
