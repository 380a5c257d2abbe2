//! A controller that answers as a test tells it to.

extern crate std;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use portolan::addr::Iova;
use portolan::platform::{Clock, Mmio, Nanos};

use super::spec::reg::{CAP, CC, CSTS, DOORBELLS};
use super::spec::{CAP_NVM, COMMAND, COMPLETION, CSTS_FATAL, CSTS_READY, Command};
use super::{Access, Controller, NvmeError, Ring, RingMemory, RingState};

const LIMIT: Nanos = Nanos::from_millis(5);
/// Entries of the queues.
const ENTRIES: usize = 5;
/// The NVM command set, and queues of up to 8 entries.
const GOOD: u64 = CAP_NVM | 7;

#[derive(Clone)]
struct Words(Arc<[AtomicU64]>);

impl Words {
    /// Memory that has the phase of a new completion all over.
    fn new(count: usize) -> Self {
        Self((0..count).map(|_| AtomicU64::new(u64::MAX)).collect())
    }
}

impl RingMemory for Words {
    fn iova(&self) -> Iova {
        Iova::new(0)
    }

    fn words(&self) -> &[AtomicU64] {
        &self.0
    }
}

/// Time that goes on with each look.
#[derive(Default)]
struct Looks(AtomicU64);

impl Clock for Looks {
    fn now(&self) -> Nanos {
        Nanos::from_millis(self.0.fetch_add(1, Ordering::Relaxed))
    }
}

/// Answer to a command.
#[derive(Clone, Copy)]
enum Answer {
    Done,
    Failed,
    OtherId,
    Silence,
    Fatal,
    Gone,
}

struct Chip {
    capabilities: u64,
    answer: Answer,
    status: AtomicU32,
    memory: [Words; 2],
    /// Commands so far.
    count: AtomicU64,
}

impl Mmio for Chip {
    fn read32(&self, offset: usize) -> u32 {
        match offset {
            CSTS => self.status.load(Ordering::Relaxed),
            _ => 0,
        }
    }

    fn read64(&self, offset: usize) -> u64 {
        assert_eq!(offset, CAP);
        self.capabilities
    }

    fn write64(&self, _: usize, _: u64) {}

    fn write32(&self, offset: usize, value: u32) {
        match offset {
            CC => self.status.store(value & CSTS_READY, Ordering::Relaxed),
            DOORBELLS => self.answer(),
            _ => {}
        }
    }
}

impl Chip {
    fn answer(&self) {
        let count = self.count.fetch_add(1, Ordering::Relaxed);
        let (round, at) = (count / ENTRIES as u64, count as usize % ENTRIES);
        let [commands, completions] = &self.memory;
        let word = commands.0[at * COMMAND].load(Ordering::Relaxed);
        let id = u64::from(u64::from_le(word) as u32 >> 16);
        let (id, status) = match self.answer {
            Answer::Done => (id, 0),
            Answer::Failed => (id, 0x80),
            Answer::OtherId => (id ^ 1, 0),
            Answer::Silence => return,
            Answer::Fatal => return self.status.store(CSTS_FATAL, Ordering::Relaxed),
            Answer::Gone => return self.status.store(u32::MAX, Ordering::Relaxed),
        };
        let phase = !round & 1;
        let [first, second] = [count, id << 32 | phase << 48 | status << 49];
        completions.0[at * COMPLETION].store(first.to_le(), Ordering::Relaxed);
        completions.0[at * COMPLETION + 1].store(second.to_le(), Ordering::Release);
    }
}

fn start(
    capabilities: u64,
    entries: usize,
    answer: Answer,
) -> Result<Controller<Arc<Chip>, Arc<Looks>, Words>, NvmeError> {
    // The queue of completions has room for more.
    let memory = [Words::new(entries * COMMAND), Words::new((entries + 2) * COMPLETION)];
    let status = AtomicU32::new(0);
    let count = AtomicU64::new(0);
    let chip = Chip { capabilities, answer, status, memory: memory.clone(), count };
    let access = Access { registers: Arc::new(chip), clock: Arc::default(), limit: LIMIT };
    Controller::start(access, memory)
}

#[test]
fn rings_go_round_with_as_many_entries_as_both_have_room_for() {
    let mut controller = start(GOOD, ENTRIES, Answer::Done).unwrap();
    let results = (0..4 * ENTRIES).map(|_| controller.execute(&Command::default()));
    let results: Result<Vec<u32>, NvmeError> = results.collect();
    assert_eq!(results, Ok((0..4 * ENTRIES as u32).collect()));
}

#[test]
fn a_ring_goes_on_where_another_kernel_left_it() {
    let count = AtomicU64::new(0);
    let memory = [Words::new(ENTRIES * COMMAND), Words::new(ENTRIES * COMPLETION)];
    let status = AtomicU32::new(CSTS_READY);
    let chip = Chip { capabilities: GOOD, answer: Answer::Done, status, memory, count };
    let memory = chip.memory.clone();
    let access = Access { registers: Arc::new(chip), clock: Arc::<Looks>::default(), limit: LIMIT };
    let mut ring = Ring::new(access.clone(), 0, memory.clone()).unwrap();
    for number in 0..4 * ENTRIES as u32 {
        ring.put(number as u16, &Command::default());
        ring.announce();
        // The completion is the next kernel's to take, in the odd rounds with the other phase.
        let state = ring.state();
        ring = Ring::resume(access.clone(), memory.clone(), state).unwrap();
        assert_eq!(ring.state(), state);
        assert_eq!(ring.take().map(|done| done.result()), Some(Ok(number)));
    }
    for (tail, head) in [(ENTRIES as u16, 0), (0, ENTRIES as u16)] {
        let state = RingState { number: 0, tail, head, phase: true };
        let error = Ring::resume(access.clone(), memory.clone(), state).err();
        assert_eq!(error, Some(NvmeError::ShortQueue { entries: ENTRIES as u16 }));
    }
}

#[test]
fn each_wrong_answer_to_a_command_is_an_error_and_so_is_none() {
    let error = |answer| {
        let mut controller = start(GOOD, ENTRIES, answer).unwrap();
        controller.execute(&Command::default()).unwrap_err()
    };
    assert_eq!(error(Answer::Failed), NvmeError::Command { status: 0x80 });
    assert_eq!(error(Answer::OtherId), NvmeError::Stray { id: 1 });
    assert_eq!(error(Answer::Silence), NvmeError::TimedOut { status: CSTS_READY });
    assert_eq!(error(Answer::Fatal), NvmeError::Fatal { status: CSTS_FATAL });
    assert_eq!(error(Answer::Gone), NvmeError::Gone);
}

#[test]
fn a_controller_that_lacks_something_is_not_started() {
    let error = |capabilities, entries| start(capabilities, entries, Answer::Done).err();
    assert_eq!(error(u64::MAX, ENTRIES), Some(NvmeError::Gone));
    assert_eq!(error(7, ENTRIES), Some(NvmeError::Unsupported { capabilities: 7 }));
    assert_eq!(error(CAP_NVM, ENTRIES), Some(NvmeError::ShortQueue { entries: 1 }));
    assert_eq!(error(GOOD, 0), Some(NvmeError::ShortQueue { entries: 0 }));
}
