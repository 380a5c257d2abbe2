//! Mappings that are cut in two.

use alloc::vec::Vec;

use super::buffers::unowned;
use super::rig::{Rig, TIMED_OUT, device_of, range};
use crate::addr::{Iova, PageSize, PhysAddr, PhysRange, StreamId};
use crate::dma::{
    Buffer, Constraints, Deferred, Device, Direction, DivideError, DivisibleMapping, NotUnmapped,
    Pieces, Policy, SplitBuffer, UnmapError, Unowned,
};
use crate::platform::promised::all_memory;

type Cpus = super::rig::Cpus;

fn memory(start: u64, bytes: u64) -> Unowned {
    unowned(PhysRange::from_len(PhysAddr::new(start), bytes).unwrap())
}

/// Pieces of no memory.
#[derive(Debug)]
struct List(Vec<PhysRange>);

impl List {
    fn new(pieces: &[(u64, u64)]) -> Self {
        Self(pieces.iter().map(|&(at, bytes)| memory(at, bytes).memory()).collect())
    }
}

#[allow(unsafe_code)]
// SAFETY: the addresses are names: no memory of the test is behind them.
unsafe impl Buffer for List {
    fn pieces(&self) -> Pieces<'_> {
        Pieces::List(&self.0)
    }

    fn device_may_write(&self) -> bool {
        true
    }
}

#[allow(unsafe_code)]
// SAFETY: pieces before the cut are the first's, others the second's.
unsafe impl SplitBuffer for List {
    fn split_at(self, at: u64) -> (Self, Self) {
        let (mut low, mut high, mut begin) = (Vec::new(), Vec::new(), 0);
        for piece in self.0 {
            let (start, bytes) = (piece.start().get(), piece.len_minus_one() + 1);
            let before = at.saturating_sub(begin).min(bytes);
            low.extend(PhysRange::from_len(PhysAddr::new(start), before));
            high.extend(PhysRange::from_len(PhysAddr::new(start + before), bytes - before));
            begin += bytes;
        }
        (Self(low), Self(high))
    }
}

fn divisible<B: SplitBuffer>(
    device: &Device<Cpus>,
    buffer: B,
) -> DivisibleMapping<Cpus, B, Direction> {
    device.map(buffer, Direction::Bidirectional).unwrap().divisible().unwrap()
}

fn all_free(rig: &Rig) {
    rig.space.flush().unwrap();
    assert_eq!(rig.space.reserve(range(0x10_0000, 0xffff_ffff)), Ok(()));
}

#[test]
fn each_half_ends_by_itself_and_the_addresses_go_back_with_the_last() {
    for policy in [Policy::Strict, Policy::Deferred, Policy::Lazy] {
        let rig = Rig::policy(policy);
        let device = device_of(&rig, 1, Constraints::trusted());
        let whole = divisible(&device, memory(0x5000, 0x5000));
        let first = whole.iova().get();
        let (low, high) = whole.split(0x3000).unwrap();
        assert_eq!((low.iova().get(), high.iova().get()), (first, first + 0x3000));
        let found = |at| rig.space.domain.translate(Iova::new(at)).map(|found| found.pa.get());
        let back = low.unmap().unwrap().into_buffer();
        assert_eq!(back.memory(), memory(0x5000, 0x3000).memory());
        // The other half is as it was, and no other mapping gets the addresses.
        assert_eq!((found(first), found(first + 0x3000)), (None, Some(0x8000)));
        let other = device.map(memory(0x2_0000, 0x3000), Direction::ToDevice).unwrap();
        assert!(!(first..first + 0x8000).contains(&other.iova().get()), "{policy:?}");
        let back = high.defer().unwrap().reclaim().unwrap().into_buffer();
        assert_eq!(back.memory(), memory(0x8000, 0x2000).memory());
        drop(other.unmap());
        all_free(&rig);
    }
}

#[test]
fn a_half_is_cut_again_and_a_list_between_its_pieces() {
    let rig = Rig::policy(Policy::Strict);
    let device = device_of(&rig, 1, Constraints::trusted());
    let whole =
        divisible(&device, List::new(&[(0x5800, 0x800), (0x9000, 0x2000), (0x1000, 0x100)]));
    let segments = |mapping: &DivisibleMapping<_, List, _>| {
        let all = mapping.segments().map(|one| (one.iova.get(), one.bytes.get()));
        all.collect::<Vec<_>>()
    };
    let expected = segments(&whole);
    let (one, rest) = whole.split(0x800).unwrap();
    let (two, three) = rest.split(0x1000).unwrap();
    let (three, four) = three.split(0x1000).unwrap();
    let [first, last] = [expected[0], expected[expected.len() - 1]];
    assert_eq!(segments(&one), [(first.0, 0x800)]);
    assert_eq!(segments(&two), [(first.0 + 0x800, 0x1000)]);
    assert_eq!(segments(&three), [(first.0 + 0x1800, 0x1000)]);
    assert_eq!(segments(&four), [(first.0 + 0x2800, 0x100)]);
    assert_eq!(last.0 + last.1, first.0 + 0x2900);
    for half in [three, one, four, two] {
        assert!(half.unmap().is_ok());
    }
    all_free(&rig);
}

#[test]
fn a_cut_inside_a_page_or_at_an_end_is_refused_with_the_mapping() {
    let rig = Rig::policy(Policy::Strict);
    let device = device_of(&rig, 1, Constraints::trusted());
    let mut whole = divisible(&device, memory(0x5800, 0x2000));
    for at in [0, 0x100, 0x1000, 0x2000, 0x2001, u64::MAX] {
        let failed = whole.split(at).err().unwrap();
        assert_eq!(failed.error, DivideError::NotThere { at });
        whole = failed.value;
    }
    let (low, high) = whole.split(0x800).unwrap();
    assert!(low.unmap().is_ok() && high.unmap().is_ok());
    all_free(&rig);
}

#[test]
fn what_is_copied_or_may_lie_apart_is_not_divisible() {
    let copier = super::copies::Copier::new();
    let device = copier.device(crate::dma::Trust::Trusted, crate::dma::CopyWhen::Always);
    let mapping = device.map(memory(0x3000, 0x2000), Direction::ToDevice).unwrap();
    let failed = mapping.divisible().err().unwrap();
    assert_eq!(failed.error, DivideError::Copied);
    assert!(failed.value.unmap().is_ok());
    let rig = Rig::policy(Policy::Strict);
    let limits = Constraints { min_align_mask: PageSize::of_lg2(14), ..Constraints::trusted() };
    let device = device_of(&rig, 1, limits);
    let mapping = device.map(memory(0x3000, 0x2000), Direction::ToDevice).unwrap();
    let failed = mapping.divisible().err().unwrap();
    assert_eq!(failed.error, DivideError::Apart);
    assert!(failed.value.unmap().is_ok());
}

#[test]
fn a_device_that_is_passed_through_has_halves_at_their_own_addresses() {
    let rig = Rig::policy(Policy::Strict);
    let limits = Constraints::trusted();
    let unit = rig.hardware.clone();
    let device = Device::identity(rig.cpus.clone(), unit, StreamId::new(2), limits, all_memory());
    let whole = divisible(&device.unwrap(), memory(0x5000, 0x2000));
    let (low, high) = whole.split(0x1000).unwrap();
    assert_eq!((low.iova(), high.iova()), (Iova::new(0x5000), Iova::new(0x6000)));
    assert!(low.unmap().is_ok() && high.unmap().is_ok());
}

#[test]
fn hardware_that_fails_keeps_a_half_and_all_addresses() {
    let rig = Rig::policy(Policy::Strict);
    let device = device_of(&rig, 1, Constraints::trusted());
    let whole = divisible(&device, memory(0x5000, 0x4000));
    let first = whole.iova();
    let (low, high) = whole.split(0x2000).unwrap();
    rig.set_broken(1);
    let failed = low.unmap().err().unwrap();
    assert_eq!(failed.error, UnmapError::Iommu(TIMED_OUT));
    let NotUnmapped::Deferred(low) = failed.value else { panic!("it is unmapped") };
    let high = high.defer().unwrap();
    assert!(!low.is_quiet() && !high.is_quiet());
    assert!(rig.space.reserve(range(first.get(), first.get() + 0xfff)).is_err());
    rig.set_broken(0);
    rig.space.recover().unwrap();
    let back = [low, high].map(Deferred::try_reclaim);
    assert!(back.iter().all(Result::is_ok));
    drop(back);
    all_free(&rig);
}

#[test]
fn a_half_that_is_dropped_keeps_the_addresses_for_good() {
    let rig = Rig::policy(Policy::Strict);
    let device = device_of(&rig, 1, Constraints::trusted());
    let whole = divisible(&device, memory(0x5000, 0x2000));
    let first = whole.iova().get();
    let (low, high) = whole.split(0x1000).unwrap();
    drop(high);
    assert!(low.unmap().is_ok());
    assert_eq!(rig.space.quarantine().dropped, 1);
    assert!(rig.space.reserve(range(first, first + 0xfff)).is_err());
}
