//! Entries by hand: parts of a former kernel's that go on.

use alloc::collections::BTreeMap;
use portolan::addr::{PhysAddr, StreamId};
use portolan_spec::smmuv3::{cd, ste};

use super::{FormerShape, FormerStreams, KeptStream, KeptTags};
use crate::promise::tests::crashed;

const ROOT: u64 = 0x7000_0000;
const DESCRIPTORS: u64 = 0x7100_0000;
/// Table of the second level below [`DESCRIPTORS`].
const LOWER: u64 = 0x7200_0000;
const ASID: u64 = 9;

/// Fields of an entry, with their values.
type Fields<'f> = &'f [(portolan_spec::smmuv3::Field, u64)];

fn entry(fields: Fields<'_>) -> ste::Ste {
    let mut entry = [0; ste::WORDS];
    ste::V.set(&mut entry, 1);
    ste::S1CONTEXTPTR.set(&mut entry, DESCRIPTORS >> 6);
    fields.iter().for_each(|(field, value)| field.set(&mut entry, *value));
    entry
}

/// The first stream of a linear table with `entry`, whose descriptor 0 is at `at`.
fn kept(entry: ste::Ste, at: u64) -> Option<KeptStream> {
    let mut memory: BTreeMap<u64, u64> = (ROOT..).step_by(8).zip(entry).collect();
    memory.insert(DESCRIPTORS, LOWER | 1);
    memory.insert(at, cd::V.at(1) | cd::ASID.at(ASID));
    let read = |at: PhysAddr| memory.get(&at.get()).copied();
    let shape = FormerShape { root: PhysAddr::new(ROOT), lg2: 4, split: None };
    FormerStreams { shape, memory: crashed(&read) }.kept(StreamId::new(0))
}

const FIRST: (portolan_spec::smmuv3::Field, u64) = (ste::CONFIG, ste::config::STAGE1);

#[test]
fn a_first_stage_goes_on_without_its_substreams() {
    let tags = Some(KeptTags { asid: ASID as u16, vmid: 0 });
    let first = (ste::S1DSS, ste::s1dss::SSID0);
    let formats = [
        (ste::s1fmt::LINEAR, DESCRIPTORS),
        (ste::s1fmt::TWO_LEVEL_4K, LOWER),
        (ste::s1fmt::TWO_LEVEL_64K, LOWER),
    ];
    for (format, at) in formats {
        let old = entry(&[FIRST, first, (ste::S1FMT, format), (ste::S1CDMAX, 8)]);
        let new = entry(&[FIRST, first, (ste::S1CONTEXTPTR, at >> 6)]);
        let found = kept(old, at).unwrap();
        assert_eq!((found.entry, found.tags), (new, tags), "{format}");
        // Only word 0 of a table in place has to change.
        assert_eq!(found.entry[1..], old[1..]);
    }
    // One descriptor, wherever it is.
    let one = entry(&[FIRST, (ste::S1CONTEXTPTR, (DESCRIPTORS + 0x40) >> 6)]);
    assert_eq!(kept(one, DESCRIPTORS + 0x40).map(|kept| kept.entry), Some(one));
    // Without the descriptor.
    assert_eq!(kept(one, LOWER), None);
}

#[test]
fn accesses_without_a_substream_that_pass_go_on_passing() {
    let dss = (ste::S1DSS, ste::s1dss::BYPASS);
    let old = entry(&[FIRST, dss, (ste::S1CDMAX, 8)]);
    let found = kept(old, DESCRIPTORS).unwrap();
    assert_eq!(found.tags, None);
    assert_eq!(ste::CONFIG.get(&found.entry), ste::config::BYPASS);
    assert_eq!(found.entry[1..], old[1..]);
    // Translation requests would be refused.
    let ats = entry(&[FIRST, dss, (ste::S1CDMAX, 8), (ste::EATS, ste::eats::FULL)]);
    assert_eq!(kept(ats, DESCRIPTORS), None);
    // Those that are terminated have nothing to keep.
    let none = entry(&[FIRST, (ste::S1CDMAX, 8), (ste::S1DSS, ste::s1dss::TERMINATE)]);
    assert_eq!(kept(none, DESCRIPTORS), None);
}

#[test]
fn second_stages_go_on_whole() {
    for config in [ste::config::STAGE2, ste::config::NESTED] {
        let fields = [(ste::CONFIG, config), (ste::S2VMID, 7), (ste::S1CDMAX, 8)];
        let old = entry(&fields);
        let found = kept(old, LOWER).unwrap();
        assert_eq!((found.entry, found.tags), (old, Some(KeptTags { asid: 0, vmid: 7 })));
        // VMID 0 is that of first stages alone.
        assert_eq!(kept(entry(&[(ste::CONFIG, config)]), LOWER), None);
    }
}

#[test]
fn what_blocks_or_means_nothing_is_not_kept() {
    for config in 0..4 {
        assert_eq!(kept(entry(&[(ste::CONFIG, config)]), DESCRIPTORS), None);
    }
    let invalid = entry(&[(ste::V, 0), (ste::CONFIG, ste::config::BYPASS)]);
    assert_eq!(kept(invalid, DESCRIPTORS), None);
    let reserved = [FIRST, (ste::S1DSS, ste::s1dss::SSID0), (ste::S1CDMAX, 8), (ste::S1FMT, 3)];
    assert_eq!(kept(entry(&reserved), DESCRIPTORS), None);
}

#[test]
fn no_memory_is_read_twice_or_without_end() {
    for word in [0, !0, 0x5555_5555_5555_5555, !0 >> 1] {
        let count = core::cell::Cell::new(0);
        let read = |_: PhysAddr| {
            count.set(count.get() + 1);
            Some(word)
        };
        for split in [None, Some(6), Some(8), Some(10)] {
            count.set(0);
            let shape = FormerShape { root: PhysAddr::new(ROOT), lg2: 32, split };
            FormerStreams { shape, memory: crashed(&read) }.kept(StreamId::new(!0));
            assert!(count.get() <= 11, "{split:?} {}", count.get());
        }
    }
}
