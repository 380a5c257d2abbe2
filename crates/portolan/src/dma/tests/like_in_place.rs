//! Copies mean the same as the buffer in place: each byte that a device reaches stands for one of
//! the buffer, and bytes that either side wrote are not lost.

extern crate std;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::num::NonZeroU64;

use super::copies::{Copier, POOL};
use super::rig::device_of;
use super::sequences::Random;
use crate::addr::{PageSize, PhysRange};
use crate::dma::{
    Coherency, Constraints, CopyWhen, DmaSegment, FromDevice, MapError, ToDevice, Trust,
};
use crate::platform::DataCache;
use crate::platform::promised::simulated;

#[test]
fn what_a_device_wrote_is_not_lost_when_a_copy_is_handed_back_to_it() {
    for when in [CopyWhen::Needed, CopyWhen::Always] {
        let copier = Copier::new();
        let device = copier.device(Trust::Trusted, when);
        let buffer = copier.buffer(&[(0x3000, 0x1000)]);
        let mut mapping = device.map(buffer, FromDevice).ok().unwrap();
        let (pa, _) = copier.reach(mapping.iova().get()).unwrap();
        copier.bytes.fill(pa, 0x1000, 5);
        // The driver looks at the header, and lets the device go on.
        mapping.sync_part_for_cpu(0, 0x40).unwrap();
        mapping.sync_for_device();
        mapping.unmap().ok().unwrap();
        let bytes = copier.bytes.at(0x3000, 0x1000);
        let lost = bytes.iter().filter(|byte| **byte != 5).count();
        assert_eq!(lost, 0, "{when:?}: bytes that the device wrote are gone");
    }
}

struct Lines;

impl DataCache for Lines {
    fn clean(&self, _memory: PhysRange) {}

    fn invalidate(&self, _memory: PhysRange) {}

    fn line(&self) -> PageSize {
        PageSize::of_lg2(6)
    }
}

fn not_coherent() -> Constraints {
    Constraints { coherency: Coherency::NotCoherent, ..Constraints::trusted() }
}

/// Two buffers of a driver in one cache line, of which one is a device's.
#[test]
fn a_device_that_does_not_snoop_shares_no_cache_line_with_a_cpu() {
    let copier = Copier::new();
    let device = device_of(&copier.rig, 3, not_coherent());
    let device = device.with_cache(Arc::new(Lines), simulated());
    let device = device.with_copies(copier.copying(CopyWhen::Needed));
    for (piece, copied) in [
        ((0x3020, 0x20), true),
        ((0x3040, 0x40), false),
        ((0x3040, 0x1fc1), true),
        ((0x3041, 0x1fbf), true),
        ((0x3040, 0x1fc0), false),
    ] {
        let buffer = copier.buffer(&[piece]);
        let mapping = device.map(buffer, FromDevice).ok().unwrap();
        assert_eq!(mapping.is_copied(), copied, "{piece:x?}");
        // However it is cut, the device sees one piece.
        assert_eq!(mapping.segments().count(), 1, "{piece:x?}");
        mapping.unmap().ok().unwrap();
        // A buffer that is only read is written back before.
        let read = device.map(copier.buffer(&[piece]), ToDevice).ok().unwrap();
        assert!(!read.is_copied(), "{piece:x?}");
        read.unmap().ok().unwrap();
    }
    assert_eq!(copier.used(), 0);
}

#[test]
fn without_a_pool_a_shared_cache_line_is_refused() {
    let copier = Copier::new();
    let device = device_of(&copier.rig, 3, not_coherent());
    let device = device.with_cache(Arc::new(Lines), simulated());
    let refused = device.map(copier.buffer(&[(0x3020, 0x20)]), FromDevice);
    let error = refused.err().map(|failed| failed.error);
    assert!(matches!(error, Some(MapError::SharedLine { .. })), "{error:?}");
    let whole = device.map(copier.buffer(&[(0x3040, 0x40)]), FromDevice);
    whole.ok().unwrap().unmap().ok().unwrap();
}

/// Bytes that one driver sent are not received by another one.
#[test]
fn a_slot_shows_no_owner_what_others_left() {
    let copier = Copier::new();
    let device = |stream| {
        let device = device_of(&copier.rig, stream, Constraints::trusted());
        device.with_copies(copier.copying(CopyWhen::Always))
    };
    let (sender, receiver) = (device(1), device(2));
    copier.bytes.fill(0x3000, 0x100, 0x5e);
    let sent = sender.map(copier.buffer(&[(0x3000, 0x100)]), ToDevice);
    sent.ok().unwrap().unmap().ok().unwrap();
    copier.bytes.fill(0x5000, 0x100, 0);
    // Its device writes nothing.
    let received = receiver.map(copier.buffer(&[(0x5000, 0x100)]), FromDevice);
    received.ok().unwrap().unmap().ok().unwrap();
    let secret = copier.bytes.at(0x5000, 0x100).contains(&0x5e);
    assert!(!secret, "the receiver has the sender's bytes");
}

const ROUNDS: u64 = 300;

/// Pieces that begin and end anywhere, some next to each other.
fn pieces(random: &mut Random) -> Vec<(u64, u64)> {
    let mut pieces = Vec::new();
    let mut at = 0x1000 + random.below(0x1000) as u64;
    for _ in 0..1 + random.below(6) {
        let bytes = 1 + match random.below(3) {
            0 => random.below(0x40) as u64,
            1 => random.below(0x2000) as u64,
            _ => 0xfff + 0x1000 * random.below(8) as u64,
        };
        if random.below(3) == 0 {
            at &= !0xfff;
        }
        pieces.push((at, bytes));
        at += bytes;
        if random.below(2) == 0 {
            at += random.below(0x3000) as u64;
        }
    }
    pieces
}

fn limits(random: &mut Random) -> Constraints {
    let boundary = PageSize::of_lg2(9 + random.below(12) as u32);
    Constraints {
        seg_boundary: random.of(&[None, Some(boundary), Some(boundary)]),
        min_align_mask: PageSize::of_lg2(random.below(15) as u32),
        align: PageSize::of_lg2(random.below(15) as u32),
        max_segment: NonZeroU64::new(1 + random.below(0x1_8000) as u64).unwrap(),
        trust: random.of(&[Trust::Trusted, Trust::Untrusted]),
        ..Constraints::trusted().address_bits(random.of(&[24, 32, 64]))
    }
}

/// No segment is longer than the device takes, crosses its boundary, or lies above its limit.
fn within(segments: &[DmaSegment], limits: &Constraints) -> bool {
    segments.iter().all(|segment| {
        let (first, bytes) = (segment.iova.get(), segment.bytes.get());
        let last = first + bytes - 1;
        let inside = limits.seg_boundary.map_or(0, |boundary| boundary.bytes() - 1);
        let crosses = inside != 0 && first & !inside != last & !inside;
        bytes <= limits.max_segment.get() && last <= limits.dma_mask.get() && !crosses
    })
}

/// Address for the device of the byte at `offset` of the buffer.
fn iova_of(segments: &[DmaSegment], mut offset: u64) -> u64 {
    for segment in segments {
        if offset < segment.bytes.get() {
            return segment.iova.get() + offset;
        }
        offset -= segment.bytes.get();
    }
    panic!("the segments end before the buffer");
}

/// Each byte of each segment leads to the byte of the buffer that it stands for, and the low bits
/// of a piece's address are as the device wants them.
#[test]
fn segments_lead_where_they_say() {
    // A device is in a space of devices that are trusted as it is.
    let copiers = [Copier::new(), Copier::new()];
    for seed in 0..ROUNDS {
        let mut random = Random::new(seed);
        let (limits, pieces) = (limits(&mut random), pieces(&mut random));
        let copier = &copiers[usize::from(limits.trust == Trust::Trusted)];
        if pieces.iter().any(|(at, bytes)| at + bytes >= POOL) {
            continue;
        }
        for byte in pieces.iter().flat_map(|&(start, bytes)| start..start + bytes) {
            copier.bytes.fill(byte, 1, (byte ^ byte >> 8 ^ seed) as u8);
        }
        let device = device_of(&copier.rig, 1000 + seed as u32, limits);
        let when = random.of(&[CopyWhen::Needed, CopyWhen::UpTo(0x1000)]);
        let device = device.with_copies(copier.copying(when));
        let Ok(mapping) = device.map(copier.buffer(&pieces), ToDevice) else {
            continue;
        };
        let segments: Vec<_> = mapping.segments().collect();
        assert!(within(&segments, &limits), "seed {seed}: {limits:?} {segments:?}");
        let mut reached = segments.iter().flat_map(|segment| {
            let first = segment.iova.get();
            first..first + segment.bytes.get()
        });
        let mut offset = 0;
        for &(start, bytes) in &pieces {
            for byte in start..start + bytes {
                let iova = reached.next().expect("as many bytes as the buffer has");
                let (pa, _) = copier.reach(iova).expect("mapped");
                assert_eq!(
                    copier.bytes.at(pa, 1),
                    copier.bytes.at(byte, 1),
                    "seed {seed}: {iova:#x}"
                );
                assert!(mapping.is_copied() || pa == byte, "seed {seed}: {iova:#x}");
            }
            let keep = limits.min_align_mask.bytes() - 1;
            let iova = iova_of(&segments, offset);
            assert_eq!(iova & keep, start & keep, "seed {seed}: {limits:?} {pieces:x?}");
            offset += bytes;
        }
        assert_eq!(reached.next(), None, "seed {seed}");
        drop(reached);
        mapping.unmap().ok().unwrap();
    }
    assert_eq!(copiers.map(|copier| copier.used()), [0, 0]);
}
