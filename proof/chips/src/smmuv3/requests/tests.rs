//! Stalls, page requests and kept translations by hand-encoded words.

use portolan::iopf::GroupId;
use portolan::platform::Mmio;

use super::super::tests::{Bench, CD, EVENTQ, L3, PA, PAGE, SID, SPARE, STRTAB, VA};
use super::super::{SmmuIdentification, SmmuSetup};
use super::*;

const STREAM: StreamId = StreamId::new(SID);
const SYNC: [u64; 2] = [0x46, 0];

fn bench(identification: SmmuIdentification) -> Bench {
    Bench::on(SmmuSetup { identification, ..SmmuSetup::default() })
}

/// A unit whose stream stalls at a page that is not there.
fn stalling() -> Bench {
    let bench = bench(SmmuIdentification::able().stalls());
    bench.set(CD, bench.get(CD) | 1 << 44);
    bench.set(L3 + 3 * 8, 0);
    bench
}

fn reach(bench: &Bench) -> Transfer {
    let (read, bytes) = (AccessKind::Read, 4);
    bench.smmu.transfer(STREAM, None, Iova::new(VA), read, bytes)
}

fn stalled(tag: u16) -> Transfer {
    Transfer::Stalled(StallTag::new(tag))
}

fn resume(tag: u64, action: u64) -> [u64; 2] {
    [0x44 | u64::from(SID) << 32 | action << 12, tag]
}

#[test]
fn stalls_wait_until_they_are_answered_and_their_events_for_room() {
    let bench = stalling();
    // The queue has room for two.
    assert_eq!([(); 3].map(|()| reach(&bench)), [0, 1, 2].map(stalled));
    let event = |slot: u64| [0, 8, 16].map(|word| bench.get(EVENTQ + slot * 32 + word));
    let who = 0x10 | u64::from(SID) << 32;
    let what = 1 << 31 | 1 << 35 | 2 << 40;
    assert_eq!(event(0), [who, what, VA]);
    assert_eq!(event(1), [who, what | 1, VA]);
    bench.smmu.write32(0x1_00ac, 1);
    assert_eq!(event(0), [who, what | 2, VA]);
    assert_eq!(bench.smmu.counts().lost_events, 0);
    // One ends, one stalls again with its own number, one is another device's.
    bench.commands(&[resume(1, 2), resume(0, 1), resume(7, 1)]);
    let finished = bench.smmu.finished();
    assert!(matches!(finished[0], (tag, Transfer::Refused(_)) if tag.get() == 1));
    assert_eq!(finished[1], (StallTag::new(0), stalled(0)));
    assert_eq!(bench.smmu.counts().stray_responses, 1);
    bench.set(L3 + 3 * 8, PA | PAGE);
    bench.commands(&[resume(2, 1), resume(0, 1)]);
    let finished = bench.smmu.finished();
    for (_, transfer) in &finished {
        let Transfer::Done(pieces) = transfer else {
            panic!("{transfer:?}");
        };
        assert_eq!(pieces[0].pa, PhysAddr::new(PA));
    }
    assert_eq!((finished.len(), bench.smmu.unanswered().len()), (2, 0));
}

#[test]
fn what_may_not_stall_is_malformed() {
    const BAD_CD: u32 = 0x0a;
    let bench = bench(SmmuIdentification::able());
    bench.set(CD, bench.get(CD) | 1 << 44);
    assert_eq!(bench.read(VA), Err(BAD_CD));
    let bench = stalling();
    bench.set(STRTAB + u64::from(SID) * 64 + 8, 1 << 27);
    assert_eq!(bench.read(VA), Err(BAD_CD));
    // A unit without stalls does not know the command to resume.
    let bench = self::bench(SmmuIdentification::able());
    bench.commands(&[resume(0, 1)]);
    assert_eq!(bench.smmu.read32(0x60) & 1, 1);
}

fn request(group: u16, place: Place) -> RawPageRequest {
    let group = GroupId::new(group);
    RawPageRequest {
        stream: STREAM,
        pasid: Some(Pasid::new(0xabcde)),
        iova: Iova::new(VA),
        wants: Permissions::READ | Permissions::EXECUTE,
        kind: RequestKind::Pri { group, place },
    }
}

#[test]
fn page_requests_are_recorded_lost_and_answered() {
    let bench = bench(SmmuIdentification::able().page_requests());
    let smmu = &bench.smmu;
    smmu.ask(request(1, Place::Last));
    // Not enabled: the unit answers.
    assert_eq!(smmu.told()[0].1, Response::Failure);
    smmu.write64(0xc0, SPARE | 1);
    smmu.write32(0x20, 0b1111);
    smmu.ask(request(0x101, Place::More));
    smmu.ask(request(0x101, Place::Last));
    let who = u64::from(SID) | 0xabcde << 32 | 1 << 63;
    let first = who | 1 << 59 | 1 << 60;
    assert_eq!([bench.get(SPARE), bench.get(SPARE + 8)], [first, VA | 0x101]);
    assert_eq!(bench.get(SPARE + 16), first | 1 << 62);
    for place in [Place::More, Place::Last] {
        smmu.ask(request(2, place));
    }
    assert_eq!(smmu.read32(0x1_00c8), 1 << 31 | 2);
    let told = smmu.told();
    assert_eq!((told.len(), told[0].1), (1, Response::Success));
    assert_eq!(smmu.unanswered().len(), 1);
    let response = |code: u64| {
        let to = 0x41 | 1 << 11 | 0xabcde << 12 | u64::from(SID) << 32;
        [to, 0x101 | code << 12]
    };
    bench.commands(&[response(1), response(2)]);
    let told = smmu.told();
    let expected = [Response::Invalid, Response::Success];
    assert_eq!(told.iter().map(|told| told.1).collect::<Vec<_>>(), expected);
    assert_eq!(told[0].0, request(0x101, Place::Last).reply_to());
    assert_eq!(smmu.counts().stray_responses, 1);
    bench.commands(&[response(3)]);
    assert_eq!(smmu.read32(0x60) & 1, 1, "there is no such response");
}

#[test]
fn kept_translations_stay_until_the_device_is_told() {
    let bench = bench(SmmuIdentification::able().page_requests());
    let reach = || {
        let iova = Iova::new(VA + 4);
        let access = AccessKind::Write;
        bench.smmu.ats_access(STREAM, None, iova, access)
    };
    assert_eq!(reach(), None, "the entry does not allow it");
    bench.set(STRTAB + u64::from(SID) * 64 + 8, 1 << 28);
    bench.commands(&[[3 | u64::from(SID) << 32, 1], SYNC]);
    assert_eq!(reach(), Some(PhysAddr::new(PA + 4)));
    bench.set(L3 + 3 * 8, 0);
    bench.commands(&[[0x30, 0], SYNC]);
    assert_eq!(reach(), Some(PhysAddr::new(PA + 4)));
    // Its neighbour, another address space, and the page itself.
    let device = 0x40 | u64::from(SID) << 32;
    bench.commands(&[[device, VA + 0x1000], [device | 1 << 11, VA], SYNC]);
    assert_eq!(reach(), Some(PhysAddr::new(PA + 4)));
    bench.commands(&[[device, VA]]);
    assert_eq!(reach(), Some(PhysAddr::new(PA + 4)), "not before the sync");
    bench.commands(&[SYNC]);
    assert_eq!(reach(), None);
}

#[test]
fn kept_translations_count_while_the_entry_allows_them_if_the_unit_looks() {
    // CR0.ATSCHK: trusted without it.
    for (check, left) in [(0, Some(PhysAddr::new(PA))), (1 << 4, None)] {
        let bench = bench(SmmuIdentification::able().page_requests());
        bench.smmu.write32(0x20, 0b1101 | check);
        let reach = || {
            let (iova, access) = (Iova::new(VA), AccessKind::Write);
            bench.smmu.ats_access(STREAM, None, iova, access)
        };
        let allows = |eats: u64| {
            bench.set(STRTAB + u64::from(SID) * 64 + 8, eats << 28);
            bench.commands(&[[3 | u64::from(SID) << 32, 1], SYNC]);
        };
        allows(1);
        assert_eq!(reach(), Some(PhysAddr::new(PA)));
        allows(0);
        assert_eq!(reach(), left);
        // Nothing but an invalidation takes it away.
        bench.set(L3 + 3 * 8, 0);
        allows(1);
        assert_eq!(reach(), Some(PhysAddr::new(PA)));
    }
}
