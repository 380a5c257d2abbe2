//! Promises of all formats: accesses that come back, entries that are told apart, marks.

use super::*;
use alloc::vec::Vec;

mod edges;
mod random;
mod walked;

const R: Access = Access::READ;
const W: Access = Access::WRITE;
const RW: Access = R.union(W);
const D: Access = Access::DEVICE;
const X: Access = Access::EXECUTE;

const AMD: AmdV1 = AmdV1::new(AmdLevels::Four, 48);
const SECOND: VtdSecondStage =
    VtdSecondStage { levels: VtdLevels::Four, output_lg2: 46, dirty: DirtyTracking::Hardware };
const FIRST: VtdFirstStage =
    VtdFirstStage { levels: VtdFirstLevels::Four, output_lg2: 46, dirty: DirtyTracking::Hardware };
const RISCV: RiscvFirstStage = Riscv {
    levels: RiscvLevels::Four,
    output_lg2: 56,
    memory_types: RiscvMemoryTypes::Svpbmt,
    contiguity: RiscvContiguity::Absent,
    dirty: DirtyTracking::Hardware,
};
const RISCV_SECOND: RiscvSecondStage = Riscv {
    levels: RiscvLevels::Three,
    output_lg2: 56,
    memory_types: RiscvMemoryTypes::Absent,
    contiguity: RiscvContiguity::Svnapot,
    dirty: DirtyTracking::Off,
};
const TEGRA: Tegra = Tegra { memory: TegraMemory::Bits34 };

const CONFIG: Armv8Config = Armv8Config {
    input_lg2: 48,
    output_lg2: 48,
    split: SplitRule::BreakBeforeMake,
    dirty: DirtyTracking::Off,
};

fn stage1() -> Armv8Stage1<12> {
    Armv8Stage1::new(CONFIG).unwrap()
}

fn stage2() -> Armv8Stage2<12> {
    Armv8Stage2::new(CONFIG).unwrap()
}

/// Checks the access that each of `asked` becomes on every level, and that `refused` are refused.
fn accesses<F: Format>(format: F, asked: &[(Access, Access)], refused: &[Access]) {
    let pa = PhysAddr::new(0x4000_0000);
    for level in 0..format.levels().min(3) {
        for &(access, granted) in asked {
            let raw = F::leaf(format.template(access, level).unwrap(), pa);
            assert_eq!(format.access(raw, level), granted, "{access:?} {level}");
            let leaf = format.page_sizes().bits() >> span_lg2::<F>(level) & 1 != 0;
            assert!(!leaf || F::classify(raw, level) == Entry::Leaf(pa));
            if level > 0 && leaf {
                let below = format.template(access, level - 1).unwrap();
                assert_eq!(F::demote(raw, level), below, "{access:?} {level}");
            }
        }
        for &access in refused {
            assert_eq!(format.template(access, level), Err(TableAccessError { access }));
        }
    }
}

#[test]
fn what_is_granted_is_what_was_asked_for_or_the_next_more() {
    let none = Access::empty();
    let same = |all: &[Access]| all.iter().map(|a| (*a, *a)).collect::<Vec<_>>();
    accesses(AMD, &same(&[R, W, RW, R | D, RW | D]), &[none, D, X, R | X]);
    accesses(SECOND, &same(&[R, W, RW]), &[none, D, X, RW | X]);
    let first = [(R, R), (W, RW), (RW, RW), (R | D, R | D), (W | D, RW | D)];
    accesses(FIRST, &first, &[none, D, X, RW | X]);
    accesses(TEGRA, &same(&[R, W, RW]), &[none, D, X, RW | X]);
    let more = [(R | X, R | X), (RW | X | D, RW | X | D)];
    accesses(stage1(), &[&first[..], &more].concat(), &[none, D, X]);
    accesses(RISCV, &[&first[..], &more].concat(), &[none, D, X]);
    // Without memory types a device's memory is memory.
    let plain = [(R, R), (W, RW), (R | X, R | X), (RW | D, RW)];
    accesses(RISCV_SECOND, &plain, &[none, D, X]);
    let all = same(&[R, W, RW, R | X, W | X, RW | D, RW | X | D]);
    accesses(stage2(), &all, &[none, D, X]);
}

/// Entries that are not leaves are told apart, on each level where they can be.
fn entries<F: Format>(levels: u32) {
    let pa = PhysAddr::new(0x2_3456_7000);
    for level in 0..levels {
        assert_eq!(F::classify(0, level), Entry::Empty);
        if level > 0 {
            assert_eq!(F::classify(F::table(pa, level), level), Entry::Table(pa));
        }
    }
    assert_eq!(F::unlink(F::link(pa)), pa);
}

/// The same of those that software remembers.
fn remembered<F: Format>() {
    let pa = PhysAddr::new(0x2_3456_7000);
    for level in [0, 1] {
        assert_eq!(F::classify(F::broken(pa), level), Entry::Broken(pa));
    }
}

/// Checks that the mark of a full table changes nothing for the hardware: neither the address nor
/// the access, and no reserved bit.
fn marks<F: Format>(format: F) {
    assert_eq!(F::FILLED.count_ones(), 1);
    for pa in (F::GRANULE.lg2()..format.output_lg2()).map(|bit| PhysAddr::new(1 << bit)) {
        let plain = F::table(pa, 1);
        assert_eq!(plain & F::FILLED, 0, "{pa:?}");
        let marked = plain | F::FILLED;
        assert_eq!(F::classify(marked, 1), Entry::Table(pa));
        assert_eq!(format.table_access(marked, 1), format.table_access(plain, 1));
        assert!(!format.is_reserved(marked, 1));
    }
}

/// Checks the step between the leaves of neighbours, in all of the memory that `format` reaches.
fn steps<F: Format>(format: F) {
    let template = format.template(R, 0).unwrap();
    let granule = F::GRANULE.bytes();
    for lg2 in F::GRANULE.lg2()..format.output_lg2() {
        for pa in [(1 << lg2) - granule, 1 << lg2] {
            let [here, there] = [pa, pa + granule].map(|pa| F::leaf(template, PhysAddr::new(pa)));
            let differ = there.wrapping_sub(here);
            assert!(F::LEAF_STEP == 0 || F::LEAF_STEP == differ, "{format:?} {pa:#x}");
        }
    }
}

#[test]
fn leaves_of_neighbours_differ_by_the_step_of_the_format() {
    steps(AMD);
    steps(SECOND);
    steps(FIRST);
    steps(RISCV);
    steps(RISCV_SECOND);
    steps(TEGRA);
    steps(stage1());
    steps(stage2());
    let wide = Armv8Config { output_lg2: 52, ..CONFIG };
    steps(Armv8Stage1::<14>::new(CONFIG).unwrap());
    steps(Armv8Stage1::<16>::new(wide).unwrap());
    steps(Armv8Stage2::<16>::new(wide).unwrap());
}

#[test]
fn entries_are_told_apart() {
    entries::<AmdV1>(4);
    entries::<VtdSecondStage>(4);
    entries::<VtdFirstStage>(4);
    entries::<Tegra>(2);
    entries::<RiscvFirstStage>(5);
    entries::<RiscvSecondStage>(5);
    entries::<Armv8Stage1<12>>(4);
    entries::<Armv8Stage2<12>>(4);
    remembered::<AmdV1>();
    remembered::<VtdSecondStage>();
    remembered::<RiscvFirstStage>();
    remembered::<VtdFirstStage>();
    remembered::<Armv8Stage1<12>>();
    remembered::<Armv8Stage2<12>>();
    marks(SECOND);
    marks(FIRST);
    marks(stage1());
    marks(stage2());
    let wide = Armv8Config { output_lg2: 52, ..CONFIG };
    marks(Armv8Stage1::<16>::new(wide).unwrap());
}

/// Words by hand, from the tables of the specifications.
#[test]
fn words_are_those_of_the_specifications() {
    let pa = PhysAddr::new(0x12_3456_7000);
    let word = |template: Result<u64, TableAccessError>| template.unwrap();
    assert_eq!(word(SECOND.template(R, 0)), 0x1);
    assert_eq!(word(SECOND.template(W, 0)), 0x2);
    assert_eq!(word(SECOND.template(RW, 1)), 0x83);
    assert_eq!(VtdSecondStage::table(pa, 1), 0x12_3456_7003);
    assert_eq!(VtdSecondStage::table(pa, 1) | VtdSecondStage::FILLED, 0x10_0012_3456_7003);
    // Execute alone makes an entry present.
    assert_eq!(VtdSecondStage::classify(4, 0), Entry::Leaf(PhysAddr::new(0)));
    assert_eq!(word(FIRST.template(R, 0)), 0x25);
    assert_eq!(word(FIRST.template(RW, 1)), 0xa7);
    assert_eq!(word(FIRST.template(RW | D, 0)), 0x3f);
    assert_eq!(VtdFirstStage::table(pa, 1), 0x12_3456_7027);
    assert_eq!(word(TEGRA.template(R, 0)), 0xa000_0000);
    assert_eq!(word(TEGRA.template(W, 0)), 0x6000_0000);
    let top = PhysAddr::new(0x3_ffff_f000);
    assert_eq!(Tegra::leaf(0xe000_0000, top), 0xe03f_ffff);
    assert_eq!(Tegra::table(PhysAddr::new(0x8000_1000), 1), 0xf008_0001);
    // A section: where a table's entry has its frame, without the bit that says that a table follows.
    assert_eq!(word(TEGRA.template(RW, 1)), 0xe000_0000);
    let section = PhysAddr::new(0x3_ffc0_0000);
    assert_eq!(Tegra::leaf(0xe000_0000, section), 0xe03f_fc00);
    assert_eq!(Tegra::classify(0xe03f_fc00, 1), Entry::Leaf(section));
    // The two-level tables have no marks of software, and an entry that points at no table is a leaf.
    let page = Entry::Leaf(PhysAddr::new(0x8000_1000));
    for raw in [0x8008_0001, 0x4008_0001, 0xe008_0001] {
        assert_eq!((Tegra::classify(raw, 0), Tegra::classify(raw, 1)), (page, page));
    }
    assert_eq!(Tegra::classify(0xf008_0001, 0), page);
    assert_eq!(Tegra::classify(0x2008_0001, 1), Entry::Empty);
    assert_eq!(Tegra::demote(0xe012_3456, 1), 0xe000_0000);
    assert_eq!(Tegra::broken(pa), 0);
    // The lowest level makes a leaf.
    assert_eq!(AmdV1::classify(AmdV1::table(pa, 1), 0), Entry::Leaf(pa));
}

/// A format without dirty state says of no leaf that it was written, and changes none.
fn never_dirty(format: impl Format) {
    assert_eq!(format.dirty_tracking(), DirtyTracking::Off);
    for raw in [0x1234_5678, u64::MAX] {
        assert_eq!((format.is_dirty(raw), format.cleaned(raw)), (false, raw));
    }
}

/// `marked` is the leaf as hardware leaves it when it writes through it.
fn dirty<F: Format>(format: F, marked: impl Fn(u64) -> u64) {
    assert_eq!(format.dirty_tracking(), DirtyTracking::Hardware);
    let clean = F::leaf(format.template(RW, 0).unwrap(), PhysAddr::new(0x7000));
    let written = marked(clean);
    assert!(written != clean && format.is_dirty(written) && !format.is_dirty(clean));
    assert_eq!([clean, written].map(|raw| format.cleaned(raw)), [clean; 2]);
    assert_eq!(format.access(clean, 0), format.access(written, 0));
    let read_only = F::leaf(format.template(R, 0).unwrap(), PhysAddr::new(0x7000));
    assert!(!format.is_dirty(read_only));
    assert_eq!(format.cleaned(read_only), read_only);
}

#[test]
fn written_leaves_are_found_and_made_clean() {
    never_dirty(TEGRA);
    assert!(!AMD.is_dirty(u64::MAX));
    dirty(AmdV1 { dirty: DirtyTracking::Hardware, ..AMD }, |raw| raw | 1 << 6);
    let plain = RISCV_SECOND.template(RW, 0).unwrap();
    assert!(!RISCV_SECOND.is_dirty(plain));
    dirty(SECOND, |raw| raw | 1 << 9);
    dirty(FIRST, |raw| raw | 1 << 6);
    dirty(RISCV, |raw| raw | 1 << 7);
    let off = VtdSecondStage { dirty: DirtyTracking::Off, ..SECOND };
    assert!(!off.is_dirty(u64::MAX));
    let config = Armv8Config { dirty: DirtyTracking::Hardware, ..CONFIG };
    // Stage 1 clears AP[2], stage 2 sets S2AP[1].
    let first = Armv8Stage1::<12>::new(config).unwrap();
    dirty(first, |raw| raw & !(1 << 7));
    let second = Armv8Stage2::<12>::new(config).unwrap();
    dirty(second, |raw| raw | 1 << 7);
}
