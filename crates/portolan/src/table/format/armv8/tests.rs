//! Descriptors by hand, and the widths that granules allow.

use super::*;

const RW: Access = Access::READ.union(Access::WRITE);

fn config(input_lg2: u32, output_lg2: u32) -> Armv8Config {
    Armv8Config {
        input_lg2,
        output_lg2,
        split: SplitRule::BreakBeforeMake,
        dirty: DirtyTracking::Off,
    }
}

const fn tracked() -> Armv8Config {
    Armv8Config {
        input_lg2: 48,
        output_lg2: 48,
        split: SplitRule::Direct,
        dirty: DirtyTracking::Hardware,
    }
}

#[test]
fn widths_are_those_of_two_levels_to_what_the_granule_has() {
    fn widths<const G: u32>(narrowest: u32, widest: u32) {
        let make = |input, output| Armv8Stage1::<G>::new(config(input, output)).map(|_| ());
        for input in [narrowest, widest] {
            for output in [G + 1, widest] {
                assert_eq!(make(input, output), Ok(()));
            }
        }
        for input in [0, narrowest - 1, widest + 1] {
            assert_eq!(make(input, widest), Err(Armv8ConfigError::Input(input)));
        }
        for output in [0, G, widest + 1] {
            assert_eq!(make(widest, output), Err(Armv8ConfigError::Output(output)));
        }
    }
    widths::<12>(22, 48);
    widths::<14>(26, 48);
    widths::<16>(30, 52);
}

#[test]
fn descriptors_of_stage_1() {
    let plain = Armv8Stage1::<12>::new(config(48, 48)).unwrap();
    let tracked = Armv8Stage1::<12>::new(tracked()).unwrap();
    for (format, access, level, raw) in [
        (plain, RW, 0, 0x0060_0000_0000_0f43),
        (plain, Access::READ, 0, 0x0060_0000_0000_0fc3),
        (plain, RW, 1, 0x0060_0000_0000_0f41),
        (plain, RW | Access::EXECUTE, 0, 0x0f43),
        (plain, RW | Access::DEVICE, 0, 0x0060_0000_0000_0f47),
        (tracked, RW, 0, 0x0068_0000_0000_0fc3),
        (tracked, Access::READ, 0, 0x0060_0000_0000_0fc3),
    ] {
        assert_eq!(format.template(access, level), Ok(raw), "{access:?}");
    }
    let written = 0x0068_0000_0000_0f43;
    assert!(tracked.is_dirty(written));
    assert_eq!(tracked.cleaned(written), 0x0068_0000_0000_0fc3);
    assert!(tracked.access(0x0068_0000_0000_0fc3, 0).contains(Access::WRITE));
}

#[test]
fn descriptors_of_stage_2() {
    let plain = Armv8Stage2::<12>::new(config(48, 48)).unwrap();
    let tracked = Armv8Stage2::<12>::new(tracked()).unwrap();
    for (format, access, level, raw) in [
        (plain, RW, 0, 0x0040_0000_0000_07ff),
        (plain, Access::READ, 0, 0x0040_0000_0000_077f),
        (plain, Access::WRITE, 0, 0x0040_0000_0000_07bf),
        (plain, RW, 1, 0x0040_0000_0000_07fd),
        (plain, RW | Access::EXECUTE, 0, 0x07ff),
        (plain, RW | Access::DEVICE, 0, 0x0040_0000_0000_07c7),
        (tracked, RW, 0, 0x0048_0000_0000_077f),
    ] {
        assert_eq!(format.template(access, level), Ok(raw), "{access:?}");
    }
    let written = 0x0048_0000_0000_07ff;
    assert!(tracked.is_dirty(written));
    assert_eq!(tracked.cleaned(written), 0x0048_0000_0000_077f);
    assert!(tracked.access(0x0048_0000_0000_077f, 0).contains(Access::WRITE));
}

#[test]
fn addresses_have_their_places() {
    type Large = Armv8Stage1<16>;
    // Bits 51:48 are in bits 15:12 where the granule is 64 KiB.
    let high = PhysAddr::new(0x000a_1234_5678_0000);
    assert_eq!(Large::leaf(0, high), 0x1234_5678_a000);
    assert_eq!(Large::classify(0x1234_5678_a003, 1), Entry::Table(high));
    assert_eq!(Large::classify(0x1234_5678_a003, 0), Entry::Leaf(high));
    let low = PhysAddr::new(0xffff_ffff_f000);
    assert_eq!(Armv8Stage1::<12>::leaf(0, low), low.get());
    assert_eq!(Armv8Stage1::<12>::classify(low.get() | 1, 0), Entry::Leaf(low));
}
