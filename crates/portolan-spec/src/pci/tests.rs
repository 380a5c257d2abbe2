//! Lists of capabilities, in order and hostile.

use super::*;

/// Reader of a space that is zero but for these words, in which `read` counts.
fn space<'s>(words: &'s [(u16, u32)], reads: &'s mut u32) -> impl FnMut(u16) -> Option<u32> + 's {
    move |at| {
        assert!(at % 4 == 0 && at < 0x1000, "{at:#x}");
        *reads += 1;
        let found = words.iter().find(|(offset, _)| *offset == at);
        Some(found.map_or(0, |(_, word)| *word))
    }
}

#[test]
fn capabilities_are_found_in_the_order_of_the_list() {
    let words = [(4, 1 << 20), (0x34, 0x73), (0x70, 0x0080_5005), (0x50, 0x0142_0010)];
    let found: [Option<Capability>; 3] = {
        let mut reads = 0;
        let mut all = capabilities(space(&words, &mut reads));
        [all.next(), all.next(), all.next()]
    };
    let msi = Capability { id: id::MSI, at: 0x70, head: 0x0080_5005 };
    let express = Capability { id: id::EXPRESS, at: 0x50, head: 0x0142_0010 };
    assert_eq!(found, [Some(msi), Some(express), None]);
    assert_eq!(capabilities(space(&words, &mut 0)).first(id::EXPRESS), Some(express));
    assert_eq!(capabilities(space(&words, &mut 0)).first(id::VENDOR), None);

    let words = [(0x100, 0x1481_0001), (0x148, 0x0001_000d)];
    let acs = Capability { id: extended_id::ACS, at: 0x148, head: 0x0001_000d };
    let mut reads = 0;
    assert_eq!(extended_capabilities(space(&words, &mut reads)).first(acs.id), Some(acs));
    assert_eq!(extended_capabilities(space(&words, &mut 0)).count(), 2);
}

/// Without the bit of the status register the pointer means nothing.
#[test]
fn a_function_that_says_it_has_no_capabilities_is_not_searched() {
    let words = [(4, 0xffef_ffff), (0x34, 0x40), (0x40, 0x10)];
    assert_eq!(capabilities(space(&words, &mut 0)).next(), None);
}

#[test]
fn a_list_that_goes_round_ends_in_bounded_time() {
    let mut reads = 0;
    let words = [(4, 1 << 20), (0x34, 0x40), (0x40, 0x4405), (0x44, 0x4005)];
    assert_eq!(capabilities(space(&words, &mut reads)).first(id::EXPRESS), None);
    assert_eq!(reads, 2 + 48);
    let mut reads = 0;
    let words = [(0x100, 0x1001_0001)];
    assert_eq!(extended_capabilities(space(&words, &mut reads)).count(), 480);
    assert_eq!(reads, 480);
}

#[test]
fn a_list_that_leads_into_the_header_ends_there() {
    let words = [(4, 1 << 20), (0x34, 0x40), (0x40, 0x3005), (0x30, 0x10)];
    assert_eq!(capabilities(space(&words, &mut 0)).count(), 1);
    let words = [(0x100, 0x0401_0001), (0x40, 0x0001_000d)];
    assert_eq!(extended_capabilities(space(&words, &mut 0)).count(), 1);
}

#[test]
fn a_function_that_is_gone_has_no_capabilities() {
    for gone in [None, Some(u32::MAX)] {
        assert_eq!(capabilities(|_| gone).next(), None);
        assert_eq!(extended_capabilities(|_| gone).next(), None);
    }
    // It goes while the list is read.
    let going = |at| if at == 0x40 { Some(0x4405) } else { None };
    assert_eq!(extended_capabilities(going).next(), None);
    let going = |at| [(4, 1 << 20), (0x34, 0x40), (0x40, 0x4405)].iter().find(|w| w.0 == at);
    assert_eq!(capabilities(|at| going(at).map(|(_, word)| *word)).count(), 1);
}

/// Any words: the walk ends, within the space and aligned (`space` checks).
#[test]
fn any_space_is_walked_within_its_bounds() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..200 {
        let words = core::array::from_fn::<u32, 1024, _>(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 32) as u32
        });
        let read = |at: u16| {
            assert!(at % 4 == 0, "{at:#x}");
            words.get(usize::from(at / 4)).copied()
        };
        assert!(capabilities(read).count() <= 48);
        assert!(extended_capabilities(read).count() <= 480);
    }
}
