//! Virtual and extended functions, behind units that name the function that they belong to.

extern crate std;

use std::string::ToString;
use std::vec::Vec;

use portolan::addr::{PciFunction, StreamId};

use super::build::{at, dmar, drhd, endpoint, ivhd, ivrs, survey, words};
use crate::topology::pci::tests::{Fake, Has, Is};
use crate::topology::pci::{PciOverrides, VirtualFunctions};
use crate::topology::{Remark, Topology, TopologyError};

/// A port of buses 1 to 3, and behind it a card with virtual functions.
const PORT: PciFunction = at(0, 1, 0);
const CARD: PciFunction = at(1, 0, 0);
/// A card on the root complex's own bus, where another card is as well.
const INSIDE: PciFunction = at(0, 5, 0);
const BESIDE: PciFunction = at(0, 6, 0);

/// Number of functions that there are and that there can be, offset of the first, and distance
/// between them.
type Numbers = (u16, u16, u16, u16);

/// The capability, behind the ACS that [`Fake`] has at 0x148.
fn with(fake: Fake, of: PciFunction, enabled: u32, (count, most, offset, stride): Numbers) -> Fake {
    fake.with(of, Is::Endpoint, None, Has::Nothing)
        .several()
        .word(0x100, 0x2001_000b)
        .word(0x200, 0x1_0010)
        .word(0x208, enabled)
        .word(0x20c, u32::from(most) << 16 | u32::from(most))
        .word(0x210, count.into())
        .word(0x214, u32::from(stride) << 16 | u32::from(offset))
        .word(0x218, 0x1520_0000)
}

fn machine(enabled: u32, card: Numbers, inside: Numbers) -> Fake {
    let port = Fake::default().with(PORT, Is::RootPort, Some((1, 3)), Has::On);
    let fake = with(with(port, CARD, enabled, card), INSIDE, enabled, inside);
    fake.with(BESIDE, Is::Endpoint, None, Has::Nothing)
}

/// The card is named by a path through its port, as an endpoint; so is the other one.
fn table() -> Vec<u8> {
    let path = [1, 10, 0, 0, 0, 0, 1, 0, 0, 0].to_vec();
    let first = drhd(0, 0xfed9_0000, &[path]);
    let second = drhd(0, 0xfed9_1000, &[endpoint(0, 5, 0)]);
    dmar(38, 0, &[first, second, drhd(1, 0xfed9_2000, &[])])
}

/// The number of the unit that serves a function, once `now` is configuration space.
fn unit(before: &Fake, now: &Fake, of: PciFunction) -> Result<Option<usize>, TopologyError> {
    let table = table();
    let topology = Topology::from_acpi([&table[..]]).unwrap();
    let found = topology.survey(PciOverrides::KNOWN, |of, at| before.read(of, at));
    let found = topology.find(&found, &|of, at| now.read(of, at), of)?;
    Ok(found.map(|(unit, stream)| {
        assert_eq!(stream, of.requester.stream(), "{of} is known by its own");
        unit
    }))
}

const CARDS: Numbers = (130, 200, 0x80, 2);
const INSIDES: Numbers = (3, 3, 0xf0, 1);

#[test]
fn virtual_functions_are_behind_the_unit_of_their_physical_function() {
    // They are switched on after the functions were looked for.
    let before = machine(0, CARDS, INSIDES);
    let now = machine(1, CARDS, INSIDES);
    let of = |function| unit(&before, &now, function);
    // Of the card: on its own bus, on the next, the last; functions between and behind them are
    // none.
    let card = [CARD, at(1, 16, 0), at(1, 31, 6), at(2, 0, 0), at(2, 16, 2)];
    assert_eq!(card.map(of), [Ok(Some(0)); 5]);
    let others = [at(2, 0, 1), at(2, 16, 4), BESIDE, PORT];
    assert_eq!(others.map(of), [Ok(Some(2)); 4]);
    // Of the one inside: on bus 1, which a port leads to, and so not its own.
    let virtuals = VirtualFunctions {
        physical: INSIDE,
        count: 3,
        most: 3,
        offset: 0xf0,
        stride: 1,
        device: 0x1520,
    };
    let refused = Err(TopologyError::VirtualFunctions(virtuals));
    assert_eq!(of(INSIDE), Ok(Some(1)));
    assert_eq!(of(at(1, 3, 1)), refused);
    let near = machine(1, CARDS, (3, 3, 8, 8));
    let of = |function| unit(&before, &near, function);
    // The function that is there is no virtual one, even if another claims it.
    let found = [BESIDE, at(0, 7, 0), at(0, 8, 0), at(0, 9, 0)].map(of);
    assert_eq!(found, [Ok(Some(2)), Ok(Some(1)), Ok(Some(1)), Ok(Some(2))]);
    // While they are off, what answers there belongs to whom the rest does.
    let off = |function| unit(&before, &before, function);
    assert_eq!(off(at(2, 0, 0)), Ok(Some(2)));
}

#[test]
fn virtual_functions_that_are_on_are_listed_with_their_units() {
    let list = |fake: &Fake| {
        let table = table();
        let topology = Topology::from_acpi([&table[..]]).unwrap();
        let found = survey(&table, fake);
        let read = |of, at| fake.read(of, at);
        let all = found.virtual_functions(&topology, &read);
        let all = all.map(|one| {
            let (virtuals, served) = one?;
            assert_eq!(served.streams, [served.function.requester.stream()]);
            Ok((virtuals.physical, served.function, served.unit))
        });
        all.collect::<Vec<Result<_, TopologyError>>>()
    };
    assert_eq!(list(&machine(0, CARDS, INSIDES)), []);
    let few = machine(1, (3, 8, 0x80, 0x40), (2, 2, 8, 8));
    // 0:6.0 is a function of its own.
    let inside = (INSIDE, at(0, 7, 0), Some(1));
    let card = [at(1, 16, 0), at(1, 24, 0), at(2, 0, 0)].map(|of| Ok((CARD, of, Some(0))));
    let mut expected = std::vec![Ok(inside)];
    expected.extend(card);
    assert_eq!(list(&few), expected);
    // Those that make no sense are left out; a function that two claim belongs to neither.
    let odd = machine(1, (9, 8, 0x80, 1), (2, 2, 8, 8));
    assert_eq!(list(&odd), [Ok(inside)]);
    let both = with(few, at(1, 0, 1), 1, (1, 1, 0x7f, 1));
    let refused = list(&both).into_iter().filter(Result::is_err).count();
    assert_eq!(refused, 2);
}

#[test]
fn extended_functions_are_behind_the_unit_of_function_0() {
    let fake = machine(0, CARDS, INSIDES).with(at(1, 1, 0), Is::Endpoint, None, Has::Nothing);
    let of = |function| unit(&fake, &fake, function);
    assert_eq!([at(1, 1, 0), at(1, 4, 3)].map(of), [Ok(Some(0)); 2]);
    // Functions below 8 are named themselves, and only a link has one device.
    assert_eq!([at(1, 0, 1), at(2, 1, 0)].map(of), [Ok(Some(2)); 2]);
}

#[test]
fn virtual_functions_that_make_no_sense_are_remarked_on_and_refused() {
    let before = machine(0, CARDS, INSIDES);
    for (numbers, asked) in [
        ((5, 4, 0x80, 2), at(1, 16, 0)),
        ((u16::MAX, 4, 0x80, 1), at(3, 0, 0)),
        ((u16::MAX, u16::MAX, 0x80, u16::MAX), at(1, 16, 0)),
        ((2, 2, 0x80, 0), at(1, 16, 0)),
        ((4, 4, 0xff00 - 2, 1), at(0xff, 31, 7)),
        ((2, 2, 0, 1), at(1, 0, 1)),
    ] {
        let now = machine(1, numbers, INSIDES);
        let Err(TopologyError::VirtualFunctions(odd)) = unit(&before, &now, asked) else {
            panic!("{numbers:?} is believed");
        };
        assert_eq!((odd.physical, odd.count), (CARD, numbers.0));
        let found = survey(&table(), &now);
        assert!(found.remarks().contains(&Remark::OddVirtualFunctions(odd)));
        assert!(found.remarks().iter().all(Remark::is_wrong));
        // A function that is not among them goes on.
        assert_eq!(unit(&before, &now, BESIDE), Ok(Some(2)));
        assert_eq!(unit(&before, &now, CARD), Ok(Some(0)));
    }
    // One virtual function needs no stride, and none is no error. All ones: the card is gone.
    let one = machine(1, (1, 1, 0x180, 0), INSIDES);
    assert_eq!(unit(&before, &one, at(2, 16, 0)), Ok(Some(0)));
    let none = machine(1, (0, 4, 0x180, 0), INSIDES);
    assert_eq!(unit(&before, &none, at(2, 16, 0)), Ok(Some(2)));
    let gone = machine(u32::MAX, CARDS, INSIDES);
    assert_eq!(unit(&before, &gone, at(2, 16, 0)), Ok(Some(2)));
    let text = survey(&table(), &machine(1, (5, 4, 0x80, 2), INSIDES));
    assert_eq!(
        text.remarks()[0].to_string(),
        "0000:01:00.0 says that it has 5 of 4 virtual functions, 0x80 behind it and 0x2 apart, which \
         makes no sense"
    );
}

#[test]
fn two_cards_that_say_they_have_the_same_virtual_function_are_both_refused_it() {
    let other = with(machine(1, CARDS, INSIDES), at(1, 0, 1), 1, (1, 1, 0x7f, 1));
    let found = unit(&other, &other, at(1, 16, 0));
    assert!(matches!(found, Err(TopologyError::VirtualFunctions(_))));
    assert_eq!(unit(&other, &other, at(1, 16, 2)), Ok(Some(0)));
}

#[test]
fn a_capability_that_does_not_fit_into_configuration_space_is_none() {
    let fake = machine(1, CARDS, INSIDES);
    let at_end = fake.with(at(1, 0, 1), Is::Endpoint, None, Has::Nothing);
    let at_end = at_end.word(0x100, 0xff01_000b).word(0xff0, 0x1_0010);
    let tree = at_end.tree(PciOverrides::KNOWN);
    assert_eq!(tree.node(at(1, 0, 1)).unwrap().virtual_functions, None);
    assert_eq!(tree.node(CARD).unwrap().virtual_functions, Some(0x200));
}

/// IVRS names requester identifiers: a virtual function is served if a range has its own.
#[test]
fn a_virtual_function_behind_amd_vi_is_known_by_its_own_identifier() {
    let named = ivhd(0x10, 0, 0xfeb8_0000, 0, &[words(&[0x0001_0003, 0x0001_ff04])]);
    let table = ivrs(0, &[named]);
    let topology = Topology::from_acpi([&table[..]]).unwrap();
    let fake = machine(1, CARDS, INSIDES);
    let read = |of, at| fake.read(of, at);
    let survey = topology.survey(PciOverrides::KNOWN, read);
    let of = |function| topology.find(&survey, &read, function).unwrap();
    let virtual_function = at(1, 16, 0);
    let stream = StreamId::new(0x180);
    assert_eq!(of(virtual_function), Some((0, stream)));
    assert_eq!(of(at(2, 16, 0)), None);
}
