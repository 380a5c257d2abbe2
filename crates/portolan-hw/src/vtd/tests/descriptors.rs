//! Words of descriptors.

use portolan::iommu::DeviceTlb;
use portolan::iopf::Response;

use crate::vtd::command::{
    Contexts, Drain, Extent, Hint, InterruptEntries, Iotlb, Request, wait_words,
};
use crate::vtd::features::Features;
use portolan_spec::vtd::descriptor::Words;

const CAP: u64 = 0x00d2_008c_222f_0606;
const ECAP: u64 = 0x00f0_0f4a;
/// Device TLBs, and their invalidations throttled by physical function.
const THROTTLED: u64 = ECAP | 1 << 2 | 1 << 41;

fn words(request: Request) -> Words {
    request.words(&Features::check(CAP, THROTTLED).unwrap())
}

#[test]
fn without_throttling_the_field_of_the_physical_function_is_zero() {
    let features = Features::check(CAP, ECAP | 1 << 2).unwrap();
    let device = DeviceTlb { depth: 4, physical: 0xffff, twice: false };
    let (stream, extent) = (0x0124, Extent::All);
    let of = |pasid| {
        let request = Request::DeviceTlb { stream, device, pasid, extent };
        request.words(&features)[0]
    };
    assert_eq!(of(None), 0x0124_0004_0003);
    assert_eq!(of(Some(5)), 0x5_0124_0048);
}

#[test]
fn golden_words_of_interrupt_entries() {
    let of = |index, lg2_count| InterruptEntries::Some { index, lg2_count };
    let one = words(Request::InterruptEntries(of(0x1235, 0)));
    assert_eq!(one, [0x1235_0000_0014, 0]);
    let eight = words(Request::InterruptEntries(of(0x1235, 3)));
    assert_eq!(eight, [0x1230_1800_0014, 0]);
    let all = [InterruptEntries::All, of(0x1235, 16), of(0, 255)];
    for which in all {
        assert_eq!(words(Request::InterruptEntries(which)), [4, 0]);
    }
}

#[test]
fn golden_words() {
    let hint = Hint::LeavesOnly;
    let pages = Iotlb::Pages { domain: 0x1234, start: 0x20_0000, lg2_pages: 9, hint };
    assert_eq!(words(Request::Iotlb(pages)), [0x1234_00f2, 0x20_0049]);
    assert_eq!(words(Request::Iotlb(Iotlb::All)), [0xd2, 0]);
    let domain = Iotlb::Domain { domain: 7 };
    assert_eq!(words(Request::Iotlb(domain)), [0x7_00e2, 0]);
    assert_eq!(words(Request::Contexts(Contexts::All)), [0x11, 0]);
    let device = Contexts::Device { domain: 2, stream: 0x0100 };
    assert_eq!(words(Request::Contexts(device)), [0x0100_0002_0031, 0]);
    assert_eq!(words(Request::PasidCacheAll), [0x37, 0]);
    let cache = Request::PasidCache { domain: 3, pasid: 5 };
    assert_eq!(words(cache), [0x5_0003_0017, 0]);
    let wait = |ending| wait_words(0x1000, 7, ending);
    assert_eq!(wait(Drain::Nothing), [0x7_0000_0065, 0x1000]);
    assert_eq!(wait(Drain::PageRequests), [0x7_0000_00e5, 0x1000]);
}

#[test]
fn golden_words_of_pasids_and_devices() {
    let of = |extent| words(Request::PasidIotlb { domain: 1, pasid: 5, extent });
    assert_eq!(of(Extent::All), [0x5_0001_0026, 0]);
    let hint = Hint::AllLevels;
    let pages = Extent::Pages { start: 0x4000, lg2_pages: 2, hint };
    assert_eq!(of(pages), [0x5_0001_0036, 0x4002]);
    let device = DeviceTlb { depth: 32, physical: 0x0123, twice: false };
    let (stream, all) = (0x0124, Extent::All);
    let of = |pasid, extent| words(Request::DeviceTlb { stream, device, pasid, extent });
    assert_eq!(of(None, all), [0x0120_0124_0000_3003, 0x7fff_ffff_ffff_f001]);
    assert_eq!(of(None, pages)[1], 0x5001);
    assert_eq!(of(Some(5), pages), [0x0120_0005_0124_3008, 0x5800]);
    let one = Extent::Pages { start: 0x7000, lg2_pages: 0, hint };
    assert_eq!(of(None, one)[1], 0x7000);
    let response = Response::Invalid;
    let (pasid, group) = (Some(5), 3);
    let request = Request::Response { stream, pasid, group, response };
    assert_eq!(words(request), [0x5_0124_1019, 0x1c]);
}
