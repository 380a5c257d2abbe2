//! Events for the platform's tracer.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::buffers::Pages;
use super::rig::{Rig, device_of};
use crate::addr::{Iova, Pasid, StreamId};
use crate::dma::{Constraints, FromDevice, Policy, ToDevice};
use crate::iommu::{FaultAccess, FaultEvent, FaultReason, FaultRecord};

fn sorted<const N: usize>(lines: [String; N]) -> Vec<String> {
    let mut lines = Vec::from(lines);
    lines.sort();
    lines
}

fn told(rig: &Rig) -> Vec<String> {
    let mut lines = rig.hardware.lines.take();
    lines.sort();
    lines
}

fn table_map(at: Iova, pa: u64, bytes: u64) -> String {
    let (start, after) = (at.get(), at.get() + bytes);
    format!("map: IOMMU: iova={start:#018x} - {after:#018x} paddr={pa:#018x} size={bytes}")
}

fn table_unmap(at: Iova, bytes: u64) -> String {
    let (start, after) = (at.get(), at.get() + bytes);
    format!("unmap: IOMMU: iova={start:#018x} - {after:#018x} size={bytes} unmapped_size={bytes}")
}

fn flush() -> String {
    "iotlb_flush: ranges=1".into()
}

fn page_of(at: Iova) -> Iova {
    Iova::new(at.get() & !0xfff)
}

#[test]
fn a_buffer_of_one_piece_is_told_with_its_address() {
    let rig = Rig::policy(Policy::Strict);
    let device = device_of(&rig, 0x1f, Constraints::trusted());
    rig.hardware.lines.begin();
    let buffer = Pages::new(&Arc::default(), &[(0x5800, 0x300)]);
    let mapping = device.map(buffer, ToDevice).ok().unwrap();
    let at = mapping.iova();
    let fields = format!("stream-1f dir=TO_DEVICE dma_addr={:x} size=768", at.get());
    let mapped = format!("dma_map_phys: {fields} phys_addr=5800 attrs=");
    let page = page_of(at);
    assert_eq!(told(&rig), sorted([mapped, table_map(page, 0x5000, 0x1000)]));
    mapping.unmap().ok().unwrap();
    let unmapped = format!("dma_unmap_phys: {fields} attrs=");
    let expected = sorted([unmapped, table_unmap(page, 0x1000), flush()]);
    assert_eq!(told(&rig), expected);
}

#[test]
fn a_list_is_told_with_all_its_pieces() {
    let rig = Rig::policy(Policy::Strict);
    let device = device_of(&rig, 0x1f, Constraints::trusted());
    rig.hardware.lines.begin();
    let buffer = Pages::new(&Arc::default(), &[(0x5800, 0x300), (0x9000, 0x1800)]);
    let mapping = device.map(buffer, FromDevice).ok().unwrap();
    let [one, two] = [0, 1].map(|n| mapping.segments().nth(n).unwrap().iova);
    let mapped = format!(
        "dma_map_sg: stream-1f dir=FROM_DEVICE nents=2/2 ents=2/2 dma_addrs={{{:#x},{:#x}}} \
         sizes={{0x300,0x1800}} phys_addrs={{0x5800,0x9000}} attrs=",
        one.get(),
        two.get()
    );
    let pages = [table_map(page_of(one), 0x5000, 0x1000), table_map(two, 0x9000, 0x2000)];
    let [first, second] = pages;
    assert_eq!(told(&rig), sorted([mapped, first, second]));
    mapping.unmap().ok().unwrap();
    let unmapped = "dma_unmap_sg: stream-1f dir=FROM_DEVICE phys_addrs={0x5800,0x9000} attrs=";
    let gone = table_unmap(page_of(one), 0x3000);
    assert_eq!(told(&rig), sorted([unmapped.into(), gone, flush()]));
}

#[test]
fn coherent_memory_is_told_when_it_comes_and_goes() {
    let rig = Rig::policy(Policy::Strict);
    let device = device_of(&rig, 0x1f, Constraints::trusted());
    rig.hardware.lines.begin();
    let ring = device.coherent(0x2001).unwrap();
    let (at, pa) = (ring.iova(), ring.memory().start().get());
    let fields = format!(
        "stream-1f dir=BIDIRECTIONAL dma_addr={:x} size=12288 phys_addr={pa:x} flags= attrs=",
        at.get()
    );
    let expected = sorted([format!("dma_alloc: {fields}"), table_map(at, pa, 0x3000)]);
    assert_eq!(told(&rig), expected);
    drop(ring);
    let freed = format!("dma_free: {fields}");
    assert_eq!(told(&rig), sorted([freed, table_unmap(at, 0x3000), flush()]));
}

#[test]
fn a_refused_access_is_handed_over_and_told() {
    let rig = Rig::policy(Policy::Strict);
    rig.hardware.lines.begin();
    let fault = |pasid, iova, access| {
        FaultEvent::Fault(FaultRecord {
            stream: StreamId::new(0x1f),
            pasid,
            iova,
            access,
            reason: FaultReason::NotMapped,
        })
    };
    let at = Some(Iova::new(0x1234_5000));
    for (event, line) in [
        (
            fault(Some(Pasid::new(0xa)), at, Some(FaultAccess::Write)),
            Some("stream-1f.a iova=0x0000000012345000 flags=0x0001"),
        ),
        (
            fault(None, None, Some(FaultAccess::Read)),
            Some("stream-1f iova=0x0000000000000000 flags=0x0000"),
        ),
        (FaultEvent::Lost, None),
    ] {
        rig.hardware.faults.lock().push(event);
        assert_eq!(rig.space.next_fault(), Ok(Some(event)));
        let line = line.map(|line| format!("io_page_fault: IOMMU:portolan {line}"));
        assert_eq!(told(&rig), Vec::from_iter(line));
    }
    assert_eq!(rig.space.next_fault(), Ok(None));
}
