//! The forms in which tools print an event.

use super::*;

#[test]
fn lists_as_libtraceevent_prints_them_are_read() {
    let pas = "ARRAY[00, 10, 1c, 18, 00, 00, 00, 00, 00, a0, cf, 19, 00, 00, 00, 00]";
    let text = format!(
        "  fio-1  [000]     1.000000: dma_map_sg:           [FAILED TO PARSE] device=0000:00:01.0 full_nents=2 \
         full_ents=1 truncated=0 phys_addrs={pas} dma_addrs=ARRAY[00, 00, d0, bc, 00, 00, 00, 00] \
         lengths=ARRAY[00, 20, 00, 00] dir=1 attrs=0x0\n  \
         fio-1  [000]     1.000500: dma_unmap_sg:         [FAILED TO PARSE] device=0000:00:01.0 addrs={pas} dir=1 \
         attrs=0x0\n"
    );
    let mut reader = Reader::new(Box::new(std::io::Cursor::new(text.into_bytes()))).unwrap();
    let op = reader.next_op().unwrap();
    let OpKind::Map {
        pieces,
        dma,
        bytes,
        direction,
        ..
    } = op.kind
    else {
        panic!("no map")
    };
    assert_eq!(
        (dma, bytes, direction),
        (0xbcd0_0000, 8192, Direction::ToDevice)
    );
    let pas: Vec<_> = pieces.iter().map(|piece| piece.pa.get()).collect();
    assert_eq!(pas, [0x181c_1000, 0x19cf_a000]);
    let sum = drain(reader);
    assert_eq!((sum.maps, sum.unmaps, sum.bad_lines), (1, 1, 0));
}

#[test]
fn a_list_whose_map_was_cut_finds_its_unmap() {
    let pieces = |count: u64| {
        let all = (0..count).map(|n| format!("{:#x}", 0x100_0000 + n * 8192));
        all.collect::<Vec<_>>().join(",")
    };
    let text = format!(
        "  fio-1  [000] ..... 1.000000: dma_map_sg: 0000:00:01.0 dir=FROM_DEVICE nents=128/130 ents=1/1 [TRUNCATED] \
         dma_addrs={{0xff000000}} sizes={{0x82000}} phys_addrs={{{}}} attrs=\n  \
         fio-1  [000] ..... 1.000500: dma_unmap_sg: 0000:00:01.0 dir=FROM_DEVICE phys_addrs={{{}}} attrs=\n",
        pieces(128),
        pieces(130)
    );
    let sum = read(&text).unwrap();
    assert_eq!((sum.unmaps, sum.orphan_unmaps, sum.left_mapped), (1, 0, 0));
    // Two of its pages are not told.
    let understood = sum.understood;
    let missing = understood.bytes - understood.bytes_understood;
    assert_eq!((understood.events_pct(), missing), (100.0, 8192));
}

#[test]
fn allocations_without_a_direction_are_read() {
    let text = "  a-1 [010] ..... 4.878079: dma_alloc: 0000:c2:00.0 dma_addr=fe980000 size=524288 \
                virt_addr=000000006cadbcb1 flags=GFP_KERNEL attrs=\n  \
                a-1 [011] ..... 327.747763: dma_free: 0000:c2:00.0 dma_addr=fe980000 size=524288 \
                virt_addr=000000006cadbcb1 attrs=\n";
    let sum = read(text).unwrap();
    assert_eq!((sum.coherent_allocs, sum.coherent_frees), (1, 1));
}
