//! Walks of tables that were written by hand.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::addr::{Iova, PageSize, PhysAddr};
use crate::platform::FormerMemory;
use crate::platform::promised::crashed;
use crate::table::Access;
use crate::table::format::{
    AmdLevels, AmdSizes, AmdV1, Armv8Config, Armv8Stage1, DirtyTracking, SplitRule, VtdLevels,
    VtdSecondStage,
};

const ROOT: PhysAddr = PhysAddr::new(0x10_0000);

fn walk(
    words: &[(u64, u64)],
    of: impl Fn(FormerMemory<'_>) -> Option<(u64, u32)>,
) -> Option<(u64, u32)> {
    let words: BTreeMap<u64, u64> = words.iter().copied().collect();
    let read = |at: PhysAddr| words.get(&at.get()).copied();
    of(crashed(&read))
}

/// The tables of an arm64 kernel: 48 bits of addresses, pages and blocks as it writes them.
#[test]
fn pages_and_blocks_of_an_arm_kernel_are_found() {
    let config = Armv8Config {
        input_lg2: 48,
        output_lg2: 44,
        split: SplitRule::BreakBeforeMake,
        dirty: DirtyTracking::Off,
    };
    let format = Armv8Stage1::<12>::new(config).unwrap();
    let words = [
        (ROOT.get(), 0x20_0003),
        (0x20_0018, 0x30_0003),
        (0x30_0ff8, 0x40_0003),
        (0x40_0fe8, 0x0068_0000_43eb_ef47),
        (0x30_0ff0, 0x0068_0000_4420_0f45),
        // No such encoding at this level.
        (0x40_0fe0, 0x0068_0000_43eb_ef45),
    ];
    let at = |iova| {
        walk(&words, |memory| {
            let found = memory.translate(&format, ROOT, Iova::new(iova))?;
            assert!(found.access.contains(Access::READ));
            Some((found.pa.get(), found.size.lg2()))
        })
    };
    assert_eq!(at(0xffff_d123), Some((0x43eb_e123, 12)));
    assert_eq!(at(0xffc0_0000 | 0x1_2345), Some((0x4421_2345, 21)));
    for none in [0xffff_c000, 0xffff_e000, 0xffff_d000 | 1 << 48, 0x4000_0000] {
        assert_eq!(at(none), None, "{none:#x}");
    }
}

/// Another table that is read as long as it leads to itself ends at the lowest level.
#[test]
fn a_table_that_leads_to_itself_ends() {
    let format = VtdSecondStage::new(VtdLevels::Three, 39);
    let words: Vec<(u64, u64)> = (0..512).map(|n| (ROOT.get() + n * 8, ROOT.get() | 3)).collect();
    let found = walk(&words, |memory| {
        let found = memory.translate(&format, ROOT, Iova::new(0x1234))?;
        Some((found.pa.get(), found.size.lg2()))
    });
    // At the lowest level an entry is a page.
    assert_eq!(found, Some((ROOT.get() | 0x234, PageSize::SIZE_4K.lg2())));
}

/// Linux maps sizes between those of the levels behind AMD-Vi.
#[test]
fn a_size_between_the_levels_is_found() {
    let format = AmdV1 { sizes: AmdSizes::Between, ..AmdV1::new(AmdLevels::Three, 52) };
    let (read_write, next) = (3 << 61, |level: u64| level << 9);
    let words: Vec<(u64, u64)> = [
        (ROOT.get(), 0x20_0000 | read_write | next(2) | 1),
        (0x20_0000, 0x30_0000 | read_write | next(1) | 1),
    ]
    .into_iter()
    // 32 KiB at 0x50_0000: bits of the address below its size are ones but for the highest.
    .chain((0..8).map(|n| (0x30_0000 + n * 8, 0x50_0000 | 0x3000 | read_write | next(7) | 1)))
    .collect();
    let found = walk(&words, |memory| {
        let found = memory.translate(&format, ROOT, Iova::new(0x5678))?;
        Some((found.pa.get(), found.size.lg2()))
    });
    assert_eq!(found, Some((0x50_5678, 15)));
}
