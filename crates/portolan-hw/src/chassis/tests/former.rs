//! Tests of a driver that takes a unit over from a kernel that crashed, without a record, while devices are at work.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use std::sync::Mutex;

use portolan::addr::{PhysAddr, StreamId};
use portolan::iommu::{Attach as _, Domain as _, Iommu as _, IommuError};
use portolan::platform::FormerMemory;

use super::hostile::Hosted;
use super::suite::{BASE, PAGE, map};
use crate::promise::tests::crashed;

/// Pages that are mapped for the stream that is kept, and for the other.
const PAGES: [u64; 2] = [3, 1];

/// A machine whose unit is taken over from a kernel that crashed.
pub(crate) trait TakesOver: Hosted {
    /// Changes the entry of a stream as another driver may have written it: the stream reaches the same memory.
    fn make_foreign(&self, stream: StreamId);

    /// The unit, and the streams of `keep` that were kept.
    fn take_over(
        &self,
        keep: &[StreamId],
        former: FormerMemory<'_>,
    ) -> Result<(Self::Unit, Vec<StreamId>), IommuError>;
}

/// A unit whose kernel crashed with two streams at work.
fn left<H: TakesOver>() -> H {
    let hosted = H::new();
    let (unit, domain) = hosted.attached();
    let other = Arc::new(H::tables(&unit).unwrap());
    unit.attach(H::STREAMS[1], &other).unwrap();
    domain.sync(&mut map(&*domain, PAGES[0])).unwrap();
    other.sync(&mut map(&*other, PAGES[1])).unwrap();
    hosted.make_foreign(H::STREAMS[0]);
    // Something is cached.
    for (stream, pages) in H::STREAMS.into_iter().zip(PAGES) {
        assert_eq!(reached(&hosted, stream), expected(pages));
    }
    core::mem::forget((unit, domain, other));
    hosted
}

fn reached<H: TakesOver>(hosted: &H, stream: StreamId) -> Vec<Option<u64>> {
    let pages = (0..=PAGES[0]).map(|page| BASE.get() + page * PAGE);
    pages.map(|iova| hosted.read(stream, iova)).collect()
}

fn expected(mapped: u64) -> Vec<Option<u64>> {
    let page = |page: u64| (page < mapped).then_some(0x1000 + page * PAGE);
    (0..=PAGES[0]).map(page).collect()
}

/// Judges each access of both streams behind each write of a register: those of the first are as before, those of the
/// other as before or blocked. Tells how often.
fn judged<H: TakesOver + Send + 'static>(hosted: &H) -> Arc<Mutex<u64>> {
    let count = Arc::new(Mutex::new(0));
    let (told, seen) = (count.clone(), H::from(hosted.machine().clone()));
    hosted.machine().judge(Some(Box::new(move || {
        assert_eq!(reached(&seen, H::STREAMS[0]), expected(PAGES[0]));
        let other = reached(&seen, H::STREAMS[1]);
        assert!([expected(PAGES[1]), expected(0)].contains(&other), "{other:x?}");
        *told.lock().unwrap() += 1;
    })));
    count
}

/// A stream that is kept reaches the same memory before, between any two writes of the next kernel, and afterwards,
/// until its driver opens it; the other is blocked.
pub(crate) fn a_kept_stream_reaches_the_same_at_each_write<H: TakesOver + Send + 'static>() {
    let hosted = left::<H>();
    let [stream, other] = H::STREAMS;
    let count = judged(&hosted);
    let memory = hosted.machine().clone();
    let (unit, kept) =
        hosted.take_over(&[stream, stream], crashed(&|at| Some(memory.word(at.get())))).unwrap();
    assert!(*count.lock().unwrap() >= 3);
    hosted.machine().judge(None);
    assert_eq!(kept, [stream]);
    assert_eq!(reached(&hosted, stream), expected(PAGES[0]));
    assert_eq!(reached(&hosted, other), expected(0));
    // Domains of this kernel share nothing with what it keeps.
    for _ in 0..3 {
        let fresh = Arc::new(H::tables(&unit).unwrap());
        unit.attach(other, &fresh).unwrap();
        assert_eq!(reached(&hosted, other), expected(0));
        fresh.sync(&mut map(&*fresh, 2)).unwrap();
        assert_eq!(reached(&hosted, other), expected(2));
        assert_eq!(reached(&hosted, stream), expected(PAGES[0]));
        core::mem::forget(fresh);
    }
    // Its driver opens it.
    let fresh = Arc::new(H::tables(&unit).unwrap());
    unit.attach(stream, &fresh).unwrap();
    assert_eq!(reached(&hosted, stream), expected(0));
    fresh.sync(&mut map(&*fresh, 1)).unwrap();
    assert_eq!(reached(&hosted, stream), expected(1));
    unit.block(stream).unwrap();
    assert_eq!(reached(&hosted, stream), expected(0));
    hosted.machine().expect_obedience();
}

/// Streams whose old entries cannot be read are blocked, with all others.
pub(crate) fn a_stream_whose_entry_cannot_be_read_is_blocked<H: TakesOver>() {
    let hosted = left::<H>();
    let far = StreamId::new(u32::MAX);
    let (unit, kept) = hosted.take_over(&[H::STREAMS[0], far], crashed(&|_| None)).unwrap();
    assert_eq!(kept, []);
    for stream in H::STREAMS {
        assert_eq!(reached(&hosted, stream), expected(0));
    }
    drop(unit);
}

/// Behind any bits that are turned over in words that are read, a kept stream reaches what it did, or the unit
/// refuses: no other stream reaches anything.
pub(crate) fn old_memory_that_lies_lets_no_other_stream_through<H: TakesOver>() {
    for bit in 0..64 {
        let hosted = left::<H>();
        let memory = hosted.machine().clone();
        let lying = |at: PhysAddr| Some(memory.word(at.get()) ^ 1 << bit);
        let taken = hosted.take_over(&H::STREAMS[..1], crashed(&lying));
        assert_eq!(reached(&hosted, H::STREAMS[1]), expected(0), "{bit}");
        drop(taken);
    }
}

/// Without memory the unit goes on as it did, and nothing is lost.
pub(crate) fn without_memory_nothing_has_changed<H: TakesOver>() {
    let [stream, other] = H::STREAMS;
    for nth in 1.. {
        let hosted = left::<H>();
        let memory = hosted.machine().clone();
        let live = memory.live();
        memory.fail_in(nth);
        match hosted.take_over(&[stream], crashed(&|at| Some(memory.word(at.get())))) {
            Ok((unit, _)) => {
                assert!(nth > 3);
                drop(unit);
                break;
            }
            Err(error) => {
                assert!(matches!(error, IommuError::Memory(_)), "{error}");
                assert_eq!(memory.live(), live, "{nth}");
                assert_eq!(reached(&hosted, stream), expected(PAGES[0]), "{nth}");
                assert_eq!(reached(&hosted, other), expected(PAGES[1]), "{nth}");
            }
        }
    }
}

/// Tests of a unit that is taken over from a kernel that crashed.
macro_rules! takes_over {
    ($machine:ty) => {
        mod takes_over {
            use crate::chassis::tests::former as suite;

            #[test]
            fn a_kept_stream_reaches_the_same_at_each_write() {
                suite::a_kept_stream_reaches_the_same_at_each_write::<$machine>();
            }

            #[test]
            fn a_stream_whose_entry_cannot_be_read_is_blocked() {
                suite::a_stream_whose_entry_cannot_be_read_is_blocked::<$machine>();
            }

            #[test]
            fn without_memory_nothing_has_changed() {
                suite::without_memory_nothing_has_changed::<$machine>();
            }

            #[test]
            fn old_memory_that_lies_lets_no_other_stream_through() {
                suite::old_memory_that_lies_lets_no_other_stream_through::<$machine>();
            }
        }
    };
}
pub(crate) use takes_over;
