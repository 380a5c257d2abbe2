//! `DmaApi`, by functions that drivers of `dma-api` use.

use dma_api::{DeviceDma, DmaDirection, DmaError};
use portolan::dma::Trust;
use portolan_virtio::DmaApi;

use super::{Bench, PAGE, PAGES, SECRET, bytes, part};

fn of(bench: &Bench, trust: Trust) -> DeviceDma {
    let operations = DmaApi::new(bench.device(trust), &PAGES);
    let operations = Box::leak(Box::new(operations));
    DeviceDma::new(operations.info(), operations)
}

#[test]
fn a_ring_is_reached_as_long_as_it_lives() {
    let bench = Bench::new();
    let mut ring = of(&bench, Trust::Untrusted).coherent_array_zero::<u32>(100).unwrap();
    let at = ring.dma_addr().as_u64();
    assert_eq!(bench.read(at + 396), Some(0));
    ring.set_cpu(99, 0x0102_0304);
    assert_eq!(bench.read(at + 396), Some(4));
    assert_eq!(bench.write(at + 397, 9), Some(()));
    assert_eq!(ring.read_cpu(99), Some(0x0102_0904));
    drop(ring);
    assert_eq!(bench.read(at), None);
}

#[test]
fn an_untrusted_device_reaches_a_buffer_and_not_what_lies_beside_it() {
    for (trust, finds) in [(Trust::Untrusted, false), (Trust::Trusted, true)] {
        let bench = Bench::new();
        let page = bench.page();
        let header = part(page, 0x208, 24);
        bytes(header).fill(1);
        let dma = of(&bench, trust);
        let map = dma.map_streaming_slice_for_device(bytes(header), 1, DmaDirection::Bidirectional);
        let map = map.unwrap();
        let at = map.dma_addr().as_u64();
        assert_eq!((bench.read(at), bench.read(at + 23)), (Some(1), Some(1)));
        assert_eq!(bench.finds_secrets(at), finds, "{trust:?}");

        // Each side sees the other's writes once it is told so.
        bench.write(at + 5, 6).unwrap();
        map.complete_for_cpu(4..8);
        assert_eq!(map.to_vec_cpu()[..8], [1, 1, 1, 1, 1, 6, 1, 1]);
        bytes(header)[9] = 10;
        map.prepare_for_device(8..16);
        assert_eq!(bench.read(at + 9), Some(10));
        drop(map);
        assert_eq!(bench.read(at), None);
        assert!(bytes(page)[0x208 + 24..].iter().all(|byte| *byte == SECRET));
    }
}

#[test]
fn what_cannot_be_mapped_is_an_error() {
    let bench = Bench::new();
    let dma = of(&bench, Trust::Trusted);
    let page = bench.page();
    // Not at the address that is wanted, not in known memory, and far too large.
    let odd = bytes(part(page, 8, 8));
    let odd = dma.map_streaming_slice(odd, 64, DmaDirection::ToDevice);
    assert!(matches!(odd, Err(DmaError::AlignMismatch { required: 64, .. })));
    let unknown = dma.map_streaming_slice(&mut [0u8; 8], 1, DmaDirection::ToDevice);
    assert_eq!(unknown.err(), Some(DmaError::NullPointer));
    let large = dma.coherent_array_zero::<u8>(1 << 40);
    assert_eq!(large.err(), Some(DmaError::NoMemory));
    // All of it was taken back.
    let whole = dma.map_streaming_slice(bytes(page), PAGE, DmaDirection::ToDevice);
    assert!(whole.is_ok());
}
