//! Every interleaving, and every order that C11 allows, of CPUs that have commands carried out by one unit: with
//! all the time in the world, and with none.

#[path = "../../../../portolan/tests/support/loom_cpus.rs"]
mod loom_cpus;

use super::*;
use loom::sync::Arc;
use loom_cpus::{HastyCpus, LoomCpus, TellingCpus, explore, on_cpu};
use portolan::addr::PageSize;
use portolan::platform::{Nanos, SlabTables};
use spin::Mutex;

const SYNC_CODE: u64 = 0x51;
const HARMLESS: u64 = 0x40;
/// A command that the unit refuses, with this code.
const BAD: u64 = 0x99;
const CODE: u32 = 9;

/// The unit's registers, between two switches of CPUs.
#[derive(Debug, Default)]
struct Script {
    head: u64,
    tail: u64,
    /// Commands written so far.
    written: u64,
    /// Position of the bad command, until the unit has been set going again.
    stop: Option<u64>,
}

/// A unit that carries out all commands that it meets whenever a CPU looks at it.
struct Prompt<C> {
    mem: SlabTables<AtomicU64>,
    cpus: C,
    script: Mutex<Script>,
}

const MASK: u64 = 0xff;

impl<C: Cpus> Unit for Prompt<C> {
    type Memory = SlabTables<AtomicU64>;
    type Cpus = C;
    type Command = u64;

    const TURN_BITS: u32 = 0;
    const INDEX_COMPLETES: bool = true;
    const ABORTS_SYNCS: bool = false;
    const HEAD: usize = 0x10;
    const OVERWRITTEN: u32 = 0xff;

    fn machine(&self) -> (&Self::Memory, &C, Nanos) {
        (&self.mem, &self.cpus, Nanos::from_millis(10))
    }

    fn words(command: &u64) -> crate::chassis::Words {
        [*command, !*command]
    }

    fn count(&self, command: &u64) {
        let mut script = self.script.lock();
        match *command {
            BAD => script.stop = Some(script.written),
            HARMLESS => return,
            _ => {}
        }
        script.written += 1;
    }

    fn sync(_at: Option<PhysAddr>, _number: u32) -> u64 {
        SYNC_CODE
    }

    fn harmless(_spare: Option<PhysAddr>) -> u64 {
        HARMLESS
    }

    fn head(&self) -> Result<u64, IommuError> {
        let mut script = self.script.lock();
        script.head = script.stop.unwrap_or(script.tail).min(script.tail);
        Ok(script.head)
    }

    fn index(head: u64, _shape: RingShape) -> u64 {
        head & MASK
    }

    fn set_tail(&self, index: u64, _shape: RingShape) {
        self.script.lock().tail = index;
    }

    fn stopped(&self, head: u64) -> Result<Option<Stop>, IommuError> {
        let stop = Stop { seen: 1, refused: Some(CODE), silent: None };
        Ok((self.script.lock().stop == Some(head)).then_some(stop))
    }

    fn resume(&self, _: Stop, _: RingShape, _: u64, _: u64) -> Result<(), IommuError> {
        self.script.lock().stop = None;
        Ok(())
    }
}

/// A unit and its ring, whose syncs write no numbers.
struct Rig<C: Cpus> {
    unit: Prompt<C>,
    ring: Ring<C>,
}

impl<C: Cpus> Rig<C> {
    fn new(cpus: C) -> Arc<Self> {
        let mem = SlabTables::new(PhysAddr::new(0x1_0000), PageSize::SIZE_4K, 1);
        let shape = RingShape { lg2_slots: 8, lg2_bytes: 4 };
        let ring = Ring::new(&mem, shape, u64::MAX, false).unwrap();
        let script = Mutex::default();
        let unit = Prompt { mem, cpus, script };
        Arc::new(Self { unit, ring })
    }

    fn run(&self, command: u64) -> Result<Outcome, IommuError> {
        let commands = core::iter::once(command);
        self.ring.run(&self.unit, commands, &|_| false)
    }
}

const REFUSED: Result<Outcome, IommuError> = Err(IommuError::Refused { code: CODE });

/// A CPU that finds its commands done by the word that is read without the lock finds out as well that one of
/// them was refused.
#[test]
fn a_refusal_is_known_to_who_finds_the_command_done() {
    // One switch to the other CPU, one back to place the command, and one to have it carried out
    // before this CPU looks: with two, the test passes whatever the orders are.
    explore(3, || {
        let rig = Rig::new(TellingCpus(LoomCpus::new(2)));
        let other = Arc::clone(&rig);
        let beside = on_cpu(1, move || other.run(1));
        assert_eq!(rig.run(BAD), REFUSED);
        assert_eq!(beside.join().unwrap(), Ok(Outcome::Done));
    });
}

#[test]
fn a_cpu_whose_time_runs_out_is_not_told_that_a_refused_command_is_done() {
    explore(2, || {
        let rig = Rig::new(HastyCpus(LoomCpus::new(2)));
        let other = Arc::clone(&rig);
        let beside = on_cpu(1, move || other.run(1));
        let mine = rig.run(BAD);
        let timed_out = |outcome| matches!(outcome, Err(IommuError::TimedOut { .. }));
        assert!(mine == REFUSED || timed_out(mine), "{mine:?}");
        let theirs = beside.join().unwrap();
        assert!(theirs == Ok(Outcome::Done) || timed_out(theirs));
        assert_eq!(rig.run(2), Ok(Outcome::Done));
    });
}
