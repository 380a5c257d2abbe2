//! Misses, and a front-end's answers to them.

use std::io::Write;
use std::net::Shutdown;
use std::time::Duration;

use portolan_vmm::{Replacement, VhostIotlb};
use vm_memory::Permissions;
use vm_memory::iommu::Iommu;

use crate::frontend::{Frontend, Question};
use crate::{PAGE, iotlb, map, options, page, pieces};

const READ: Permissions = Permissions::Read;
const WRITE: Permissions = Permissions::Write;

fn large() -> VhostIotlb {
    iotlb(options(1024, Replacement::InSets))
}

/// The page that a question is for.
fn number(question: Question) -> u64 {
    question.at / PAGE
}

#[test]
fn each_missing_page_is_asked_for_once() {
    let iotlb = large();
    let mut frontend = Frontend::of(&iotlb);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // The reply may come before the message on the other socket is read, or after it.
            for late in [false, true, false, true] {
                let question = frontend.question().unwrap();
                assert_eq!((question.access, question.flags), (1, 1 | 1 << 3));
                if late {
                    frontend.reply(0);
                }
                map(&iotlb, number(question), 100 + number(question), READ);
                if !late {
                    frontend.reply(0);
                }
            }
        });
        let bytes = 4 * PAGE as usize - 0x20;
        let found = pieces(&iotlb, 3 * PAGE + 0x10, bytes, READ).unwrap();
        let sum: usize = found.iter().map(|(_, length)| length).sum();
        assert_eq!((found[0].0, sum), (103 * PAGE + 0x10, bytes));
    });
    let counts = iotlb.counts();
    assert_eq!((counts.hits, counts.misses, counts.updates), (0, 4, 4));
    assert!(pieces(&iotlb, 5 * PAGE, 1, READ).is_some());
    assert_eq!((iotlb.counts().hits, iotlb.counts().misses), (1, 4));
}

#[test]
fn a_write_where_only_reads_are_allowed_is_a_miss() {
    let iotlb = large();
    let mut frontend = Frontend::of(&iotlb);
    map(&iotlb, 7, 7, READ);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let question = frontend.question().unwrap();
            assert_eq!((number(question), question.access), (7, 2));
            map(&iotlb, 7, 8, Permissions::ReadWrite);
            frontend.reply(0);
        });
        assert_eq!(pieces(&iotlb, 7 * PAGE, 1, WRITE), Some(vec![(8 * PAGE, 1)]));
    });
    assert_eq!(iotlb.counts().misses, 1);
}

#[test]
fn what_the_front_end_refuses_is_an_error_at_once() {
    let iotlb = large();
    let mut frontend = Frontend::of(&iotlb);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            frontend.question().unwrap();
            frontend.reply(1);
        });
        let refused = iotlb.translate(vm_memory::GuestAddress(0), 1, READ);
        let why = refused.unwrap_err().to_string();
        assert!(why.contains("refuses"), "{why}");
    });
    assert_eq!(iotlb.counts().failures, 1);
}

#[test]
fn a_translation_that_does_not_stay_is_asked_for_again() {
    let iotlb = large();
    let mut frontend = Frontend::of(&iotlb);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..5 {
                let question = frontend.question().unwrap();
                // Invalidated before any thread could look.
                iotlb.invalidate(page(number(question))).unwrap();
                frontend.reply(0);
            }
            let question = frontend.question().unwrap();
            map(&iotlb, number(question), 1, READ);
            frontend.reply(0);
        });
        assert!(pieces(&iotlb, 0, 1, READ).is_some());
    });
    assert_eq!(iotlb.counts().misses, 6);
}

/// Four threads miss while `frontend` does something: all get errors.
fn all_fail(iotlb: &VhostIotlb, frontend: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        scope.spawn(frontend);
        let asking = [1, 2, 3, 4].map(|number| {
            scope.spawn(move || assert_eq!(pieces(iotlb, number * PAGE, 1, READ), None))
        });
        asking.into_iter().for_each(|thread| thread.join().unwrap());
    });
    assert_eq!(iotlb.counts().failures, 4);
    assert_eq!(iotlb.counts().hits, 0);
}

#[test]
fn a_front_end_that_goes_away_leaves_nobody_waiting() {
    // The limit is a minute, and would fail the test by the assertion of none.
    let one = large();
    let mut frontend = Frontend::of(&one);
    all_fail(&one, move || {
        frontend.take(4);
        frontend.0.shutdown(Shutdown::Both).unwrap();
    });
    // Its other socket ends, as its reader says.
    let other = large();
    let mut frontend = Frontend::of(&other);
    all_fail(&other, || {
        frontend.take(4);
        other.disconnect();
    });
    assert_eq!(frontend.question(), None, "the channel is closed");
    assert_eq!(pieces(&other, 0, 1, READ), None, "nor does anybody wait later");
}

#[test]
fn replies_that_make_no_sense_end_the_channel() {
    let good = [1u32, 1 | 1 << 2, 8];
    let with = |at: usize, word: u32| {
        let mut words = good;
        words[at] = word;
        [words.map(u32::to_le_bytes).concat(), vec![0; 8]].concat()
    };
    for reply in [with(0, 2), with(1, 1), with(1, 6), with(2, 0), with(2, u32::MAX)] {
        let iotlb = large();
        let mut frontend = Frontend::of(&iotlb);
        all_fail(&iotlb, move || {
            frontend.take(4);
            frontend.0.write_all(&reply).unwrap();
            assert_eq!(frontend.question(), None);
        });
    }
    // A reply to no question.
    let iotlb = large();
    let mut frontend = Frontend::of(&iotlb);
    frontend.reply(0);
    assert_eq!(frontend.question(), None);
}

#[test]
fn a_front_end_that_answers_nothing_is_waited_for_no_longer_than_the_limit() {
    let mut options = options(64, Replacement::InSets);
    options.miss_limit = Duration::ZERO;
    let iotlb = iotlb(options);
    let mut frontend = Frontend::of(&iotlb);
    // More than may be under way: the rest is refused without being sent.
    for number in 0..200 {
        assert_eq!(pieces(&iotlb, number * PAGE, 1, READ), None);
    }
    frontend.0.set_nonblocking(true).unwrap();
    let mut sent = 0;
    while frontend.question().is_some() {
        sent += 1;
    }
    assert_eq!(sent, 64);
    assert_eq!(iotlb.counts().failures, 200);
}

#[test]
fn a_front_end_without_replies_answers_by_translations() {
    let iotlb = large();
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    iotlb.connect_without_replies(theirs).unwrap();
    let mut frontend = Frontend(ours);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let question = frontend.question().unwrap();
            assert_eq!(question.flags, 1);
            map(&iotlb, number(question), 5, READ);
        });
        assert_eq!(pieces(&iotlb, 0, 1, READ), Some(vec![(5 * PAGE, 1)]));
    });
}

#[test]
fn who_has_no_channel_gets_an_error() {
    let iotlb = large();
    assert_eq!(pieces(&iotlb, 0, 1, READ), None);
    let mut frontend = Frontend::of(&iotlb);
    // A second channel takes the place of the first.
    let second = Frontend::of(&iotlb);
    assert_eq!(frontend.question(), None);
    drop(iotlb);
    let Frontend(stream) = second;
    assert_eq!(Frontend(stream).question(), None, "closed with the IOTLB");
}
