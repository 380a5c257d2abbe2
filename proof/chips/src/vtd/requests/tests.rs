//! Page requests and kept translations by hand-encoded words.

use portolan::addr::{Iova, Pasid};
use portolan::iopf::GroupId;
use portolan::platform::Mmio;

use super::super::tests::{Bench, CONTEXTS, DOMAIN, F, HAND, IOVA, SOURCE, WAIT, scalable_of};
use super::*;
use portolan_sim::decode::AccessKind;

const STREAM: StreamId = StreamId::new(SOURCE);
const REQUESTS: u64 = 0x10_d000;
/// Device-TLB bit of a context entry: translations and page requests are allowed.
const DTE: u64 = 1 << 2;
const PRE: u64 = 1 << 4;

fn bench(more: u64) -> Bench {
    scalable_of(HAND.scalable().page_requests(), more)
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

fn responses(bench: &Bench) -> Vec<Response> {
    let told = bench.vtd.told().into_iter();
    told.map(|(_, response)| response).collect()
}

#[test]
fn who_may_not_ask_is_told_so() {
    let bench = bench(DTE);
    bench.vtd.write64(0xd0, REQUESTS);
    bench.vtd.ask(request(1, Place::More));
    assert_eq!(responses(&bench), []);
    bench.vtd.ask(request(1, Place::Last));
    assert_eq!(responses(&bench), [Response::Failure]);
    // A device that may, without a queue.
    let bench = self::bench(DTE | PRE);
    bench.vtd.ask(request(1, Place::Last));
    assert_eq!(responses(&bench), [Response::Failure]);
    assert_eq!(bench.vtd.unanswered(), []);
}

#[test]
fn page_requests_are_recorded_lost_and_answered() {
    let bench = bench(DTE | PRE);
    let vtd = &bench.vtd;
    vtd.write64(0xd0, REQUESTS);
    vtd.ask(request(0x101, Place::Last));
    let word = |at: u64| bench.get(REQUESTS + at);
    let who = 1 | 1 << 8 | u64::from(SOURCE) << 16 | 6 << 32 | 1 << 52;
    assert_eq!([word(0), word(8)], [who, IOVA | 0x101 << 3 | 1 << 2 | 1]);
    assert_eq!((vtd.read64(0xc8), vtd.read32(0xdc)), (0x20, 1));
    // One slot stays free, so that a full queue is not an empty one.
    for _ in 1..127 {
        vtd.ask(request(2, Place::More));
    }
    assert_eq!((vtd.read64(0xc8), vtd.read32(0xdc)), (0xfe0, 1));
    vtd.ask(request(2, Place::Last));
    assert_eq!(vtd.read32(0xdc), 0b11);
    assert_eq!(responses(&bench), [Response::Success]);
    // Room alone is not enough.
    vtd.write64(0xc0, 0xfe0);
    vtd.ask(request(3, Place::Last));
    assert_eq!(responses(&bench), [Response::Success]);
    vtd.write32(0xdc, 0b10);
    vtd.ask(request(4, Place::Last));
    assert_eq!((vtd.read64(0xc8), responses(&bench)), (0, [].into()));
    assert_eq!(vtd.counts().lost_requests, 2);
    let response = |code: u64| {
        let who = 9 | 1 << 4 | code << 12 | u64::from(SOURCE) << 16 | 6 << 32;
        [who, 0x101 << 3 | 1 << 2]
    };
    bench.queue(&[response(1), response(0), WAIT]);
    let told = vtd.told();
    assert_eq!(told[0].0, request(0x101, Place::Last).reply_to());
    assert_eq!((told[0].1, told[1].1), (Response::Invalid, Response::Success));
    assert_eq!(vtd.counts().stray_responses, 1);
    assert_eq!(vtd.unanswered().len(), 1, "the fourth");
}

#[test]
fn kept_translations_stay_until_the_device_is_told() {
    let reach = |bench: &Bench| {
        let (pasid, iova) = (Some(Pasid::new(6)), Iova::new(IOVA + 4));
        bench.vtd.ats_access(STREAM, pasid, iova, AccessKind::Read)
    };
    assert_eq!(reach(&bench(PRE)), None, "the entry does not allow it");
    let bench = bench(DTE);
    let there = Some(PhysAddr::new(IOVA + 4));
    let forget = |word: u64| [8 | u64::from(SOURCE) << 16 | 6 << 32, word];
    let unit = [0x26 | DOMAIN << 16 | 6 << 32, 0];
    // The page, its pair, and everything.
    let all = (u64::MAX >> 1) & !0xfff | 1 << 11;
    for word in [IOVA, IOVA & !0x1fff | 1 << 11, all] {
        bench.set(F[0] + 3 * 8, IOVA | 7);
        assert_eq!(reach(&bench), there);
        bench.set(F[0] + 3 * 8, 0);
        bench.queue(&[unit, WAIT]);
        assert_eq!(reach(&bench), there);
        // Its neighbour, and an invalidation without a PASID.
        let plain = [3 | u64::from(SOURCE) << 32, IOVA];
        bench.queue(&[forget(IOVA + 0x1000), plain, WAIT]);
        assert_eq!(reach(&bench), there);
        bench.queue(&[forget(word)]);
        assert_eq!(reach(&bench), there, "not before the wait");
        bench.queue(&[WAIT]);
        assert_eq!(reach(&bench), None);
    }
}

#[test]
fn kept_translations_count_while_the_entry_allows_them() {
    let bench = bench(DTE);
    let reach = || {
        let (pasid, iova) = (Some(Pasid::new(6)), Iova::new(IOVA));
        bench.vtd.ats_access(STREAM, pasid, iova, AccessKind::Read)
    };
    let at = CONTEXTS + u64::from(SOURCE & 0x7f) * 32;
    let entry = bench.get(at);
    let change = |entry| {
        bench.set(at, entry);
        bench.queue(&[[0x11, 0], WAIT]);
    };
    assert_eq!(reach(), Some(PhysAddr::new(IOVA)));
    for refuses in [entry & !DTE, 0] {
        change(refuses);
        assert_eq!(reach(), None);
    }
    // Nothing but an invalidation takes it away.
    bench.set(F[0] + 3 * 8, 0);
    change(entry);
    assert_eq!(reach(), Some(PhysAddr::new(IOVA)));
}
