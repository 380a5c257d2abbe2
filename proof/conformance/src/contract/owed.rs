//! Invalidations that a map and an unmap owe, by the machine's abilities.

use portolan::addr::{InvalTag, Iova, IovaRange};
use portolan::inval::{
    Caching, Capabilities, Command, Depth, Gather, LeafOnly, PageForm, Quirks, RangeForm, Step,
    Walker, WriteBuffer, plan,
};
use portolan::table::format::Format;

use super::ground::{BOTH, Ground, range};

/// The context that the plans are for.
const CONTEXT: InvalTag = InvalTag::new(7);

/// Every combination of the capabilities that decide if there is a debt, and which.
fn machines<F: Format>() -> Vec<Capabilities> {
    let forms = [
        (PageForm::Absent, RangeForm::Absent),
        (PageForm::Granule, RangeForm::Absent),
        (PageForm::Granule, RangeForm::PowerOfTwo { max_lg2_pages: 40 }),
        (PageForm::Granule, RangeForm::NumScale { max_num: 32, max_scale: 31 }),
    ];
    let mut all = Vec::new();
    for (page, range) in forms {
        for walker in [Walker::Coherent, Walker::NonCoherent] {
            for caching in [Caching::PresentOnly, Caching::NotPresentToo] {
                for write_buffer in [WriteBuffer::Absent, WriteBuffer::MustFlush] {
                    all.push(Capabilities {
                        granule: F::GRANULE,
                        page,
                        range,
                        leaf_only: LeafOnly::Present,
                        walker,
                        caching,
                        write_buffer,
                    });
                }
            }
        }
    }
    all
}

/// Operation whose debt is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    Map,
    Unmap,
}

impl<F: Format> Ground<'_, F> {
    pub(super) fn owed(&mut self) {
        for leaf in self.leaves() {
            let size = leaf.size.bytes();
            for at in self.places(leaf, 3) {
                let all = range(at, 3 * size);
                // Out of step in memory, so that no two leaves are one.
                let to = (12 + (at / size + 1) % 2) * size;
                self.map(at, to, 3 * size, BOTH);
                let map = std::mem::take(&mut self.subject.owed);
                check::<F>(&map, all, After::Map);
                self.subject.owed = map;
                self.subject.settle();

                // Neither the first nor the last page: the table stays.
                let middle = range(at + size, size);
                self.subject.unmap(middle).expect("it is mapped");
                let unmap = std::mem::take(&mut self.subject.owed);
                check::<F>(&unmap, middle, After::Unmap);
                assert!(!unmap.holds_tables(), "the table is not empty");
                let leaf_only = unmap.unmapped().iter().all(|s| s.depth == Depth::LeafOnly);
                assert!(leaf_only, "no table left the tree: {unmap:?}");
                self.subject.owed = unmap;
                self.subject.settle();

                for rest in [range(at, size), range(at + 2 * size, size)] {
                    self.subject.unmap(rest).expect("it is mapped");
                    let mut unmap = std::mem::take(&mut self.subject.owed);
                    check::<F>(&unmap, rest, After::Unmap);
                    if unmap.holds_tables() {
                        let mut spans = unmap.unmapped().iter();
                        let deep = spans.any(|span| span.depth == Depth::AllLevels);
                        assert!(deep, "a table left the tree: {unmap:?}");
                    }
                    self.subject
                        .table
                        .absorb(&mut self.subject.owed, &mut unmap)
                        .expect("debts of this table");
                }
                self.subject.clear();
            }
        }
        // A refused operation owes nothing; see `refused`.
        assert!(plan(CONTEXT, &machines::<F>()[0], &Quirks::default(), &Gather::new()).is_empty());
    }
}

/// The plans for `gather`, which is the debt of `all`, on every machine.
fn check<F: Format>(gather: &Gather, all: IovaRange, after: After) {
    for caps in machines::<F>() {
        let quirks = Quirks::default();
        let plan = plan(CONTEXT, &caps, &quirks, gather);
        let steps: Vec<Step> = plan.steps().collect();
        let count = |what: fn(&Step) -> bool| steps.iter().filter(|step| what(step)).count() as u64;
        let invalidates = after == After::Unmap || caps.caching == Caching::NotPresentToo;
        let commands = count(|step| matches!(step, Step::Invalidate(_)));
        let counts = plan.counts();
        assert_eq!(commands, counts.page + counts.range + counts.context, "{steps:?}");
        assert_eq!(commands > 0, invalidates, "{after:?} on {caps:?}: {steps:?}");
        assert_eq!(counts.syncs, u64::from(invalidates), "{after:?} on {caps:?}");
        assert_eq!(count(|step| matches!(step, Step::Sync)), counts.syncs);
        if invalidates {
            assert_eq!(steps.last(), Some(&Step::Sync), "the sync comes last");
            covered(&steps, all);
        }
        let flushes = count(|step| matches!(step, Step::FlushWriteBuffer));
        let wanted = u64::from(caps.write_buffer == WriteBuffer::MustFlush);
        assert_eq!(flushes, wanted, "{after:?} on {caps:?}");
        let needless =
            caps.caching == Caching::PresentOnly && caps.write_buffer == WriteBuffer::Absent;
        assert_eq!(plan.is_empty(), after == After::Map && needless);
    }
}

/// Every leaf of `all` is named by a command of the right context.
fn covered(steps: &[Step], all: IovaRange) {
    let covers = |step: &Step, iova: Iova| match *step {
        Step::Invalidate(Command::Page { context, iova: page, size, .. }) => {
            context == CONTEXT && IovaRange::page(page, size).contains(iova)
        }
        Step::Invalidate(Command::Range { context, run, granule, .. }) => {
            context == CONTEXT && run.range(granule).contains(iova)
        }
        Step::Invalidate(Command::Context { context }) => context == CONTEXT,
        Step::Invalidate(Command::Global) => true,
        _ => false,
    };
    let bytes = all.len_minus_one() / 8 + 1;
    for eighth in 0..8 {
        let iova = Iova::new(all.start().get() + eighth * bytes);
        assert!(steps.iter().any(|step| covers(step, iova)), "{iova} is not named: {steps:?}");
    }
    assert!(steps.iter().any(|step| covers(step, all.last())));
}
