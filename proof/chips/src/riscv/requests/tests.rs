//! Page requests and kept translations by hand-encoded words.

use portolan::addr::{Iova, Pasid, PhysAddr};
use portolan::iopf::{GroupId, ReplyName};
use portolan::platform::Mmio;

use super::super::RiscvIdentification;
use super::super::tests::{Bench, CONTEXT, DEVICE, FENCE, FIRST, IOVA, L1, PA, VMA_PAGE};
use super::*;
use portolan_sim::decode::AccessKind;

const REQUESTS: u64 = 0x10_4000;
const STREAM: StreamId = StreamId::new(DEVICE as u32);
/// `EN_ATS` and `EN_PRI`.
const BOTH: u64 = 6;
/// ATS.INVAL of all, and of the page at [`IOVA`].
const FORGET: [u64; 2] = [4 | DEVICE << 40, 0x7fff_ffff_ffff_f800];
const FORGET_PAGE: [u64; 2] = [4 | DEVICE << 40, IOVA];

fn bench(more: u64) -> Bench {
    let [control, rest @ ..] = FIRST;
    let [second, attributes, first] = rest;
    let context = [control | more, second, attributes, first];
    let bench = Bench::new(RiscvIdentification::able().ats(), context);
    // 256 requests.
    bench.unit.write64(56, REQUESTS >> 12 << 10 | 7);
    bench.unit.write32(64, 0);
    bench.unit.write32(80, 1);
    bench
}

fn kept(bench: &Bench) -> Option<u64> {
    let at = Iova::new(IOVA);
    let pa = bench.unit.ats_access(STREAM, None, at, AccessKind::Write);
    pa.map(PhysAddr::get)
}

fn request(group: u16, place: Place) -> RawPageRequest {
    let group = GroupId::new(group);
    RawPageRequest {
        stream: STREAM,
        pasid: Some(Pasid::new(6)),
        iova: Iova::new(IOVA),
        wants: Permissions::READ | Permissions::EXECUTE,
        kind: RequestKind::Pri { group, place },
    }
}

fn told(bench: &Bench) -> Vec<(Option<u32>, Response)> {
    let told = bench.unit.told().into_iter();
    told.map(|(to, response)| (to.pasid.map(Pasid::get), response)).collect()
}

#[test]
fn devices_keep_translations_until_they_are_told_in_the_right_order() {
    assert_eq!(kept(&bench(0)), None);
    let bench = bench(2);
    assert_eq!(kept(&bench), Some(PA));
    bench.set(L1 + 3 * 8, 0);
    // The unit alone is not enough; nor is the device first, which asks again.
    bench.queue(&[VMA_PAGE, FENCE]);
    assert_eq!(kept(&bench), Some(PA));
    bench.queue(&[FORGET_PAGE, FENCE]);
    assert_eq!(kept(&bench), None);
    bench.set(L1 + 3 * 8, PA >> 12 << 10 | 0xd7);
    assert_eq!(kept(&bench), Some(PA));
    bench.set(L1 + 3 * 8, 0);
    bench.queue(&[FORGET_PAGE, VMA_PAGE, FENCE]);
    assert_eq!(kept(&bench), Some(PA));
    bench.queue(&[FORGET, FENCE]);
    assert_eq!(kept(&bench), None);
    assert_eq!(bench.unit.violations(), []);
}

#[test]
fn a_device_that_may_not_translate_does_not_answer() {
    let bench = bench(2);
    assert_eq!(kept(&bench), Some(PA));
    bench.context(FIRST);
    bench.queue(&[CONTEXT, FENCE]);
    assert_eq!(kept(&bench), None);
    bench.queue(&[FORGET, FENCE]);
    assert_eq!(bench.unit.read32(72), 0x1_0201);
    bench.unit.write32(72, 1 | 1 << 9);
    assert_eq!(bench.unit.read32(72), 0x1_0001);
    // Translations that it kept count again once it may have them.
    let [control, rest @ ..] = FIRST;
    bench.context([control | 2, rest[0], rest[1], rest[2]]);
    bench.queue(&[CONTEXT, FENCE]);
    bench.set(L1 + 3 * 8, 0);
    assert_eq!(kept(&bench), Some(PA));
}

#[test]
fn page_requests_are_recorded_lost_and_answered() {
    let bench = bench(BOTH);
    let unit = &bench.unit;
    unit.ask(request(0x101, Place::Last));
    let who = 6 << 12 | 1 << 32 | 1 << 34 | DEVICE << 40;
    let record = [0, 8].map(|at| bench.get(REQUESTS + at));
    assert_eq!(record, [who, IOVA | 0x101 << 3 | 0b101]);
    assert_eq!(unit.read32(68), 1);
    for _ in 1..255 {
        unit.ask(request(2, Place::More));
    }
    assert_eq!((unit.read32(68), unit.read32(80)), (255, 0x1_0001));
    // One slot stays free.
    unit.ask(request(2, Place::Last));
    assert_eq!((unit.read32(68), unit.read32(80)), (255, 0x1_0201));
    assert_eq!(told(&bench), [(None, Response::Success)]);
    // Room alone is not enough.
    unit.write32(64, 255);
    unit.ask(request(3, Place::Last));
    assert_eq!(told(&bench), [(None, Response::Success)]);
    unit.write32(80, 1 | 1 << 9);
    unit.ask(request(4, Place::Last));
    assert_eq!((unit.read32(68), told(&bench)), (0, Vec::new()));
    assert_eq!(unit.counts().lost_requests, 2);
    // ATS.PRGR of group 4: Invalid Request.
    let answer = 0x84 | 6 << 12 | 1 << 32 | DEVICE << 40;
    bench.queue(&[[answer, 0x1004 << 32]]);
    assert_eq!(told(&bench), [(Some(6), Response::Invalid)]);
    let open = [(STREAM, ReplyName::Group(GroupId::new(0x101)))];
    assert_eq!(unit.unanswered(), open);
    assert_eq!(unit.counts().stray_responses, 0);
}

#[test]
fn who_may_not_ask_is_told_so() {
    let asked = |bench: &Bench| {
        bench.unit.ask(request(1, Place::More));
        bench.unit.ask(request(1, Place::Last));
        told(bench)
    };
    // Without leave; without a valid context; without memory for it.
    assert_eq!(asked(&bench(2)), [(None, Response::Invalid)]);
    let none = bench(BOTH);
    none.context([0; 4]);
    assert_eq!(asked(&none), [(Some(6), Response::Failure)]);
    let far = bench(BOTH);
    far.unit.write32(80, 0);
    assert_eq!(asked(&far), [(Some(6), Response::Failure)]);
    far.unit.write64(56, 7);
    far.unit.write32(64, 0);
    far.unit.write32(80, 1);
    assert_eq!(asked(&far), [(Some(6), Response::Failure)]);
    assert_eq!(far.unit.read32(80), 0x1_0101);
    // Requests without translations, and either without a unit that has them, are malformed.
    assert_eq!(asked(&bench(4)), [(Some(6), Response::Failure)]);
    let [control, rest @ ..] = FIRST;
    let plain = Bench::new(RiscvIdentification::able(), [control | 2, rest[0], rest[1], rest[2]]);
    assert_eq!(plain.read(IOVA), Err(259));
}
