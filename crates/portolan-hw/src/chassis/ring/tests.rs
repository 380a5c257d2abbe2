//! The ring over a unit that does as it is told.

use super::*;
use portolan::addr::{PageSize, StreamId};
use portolan::iommu::Awaited;
use portolan::platform::{Nanos, SlabTables};
use portolan_chips::fixture::Ticks;
use spin::Mutex;

const SYNC_CODE: u64 = 0x51;
const HARMLESS: u64 = 0x40;
/// A stop at a command that is refused with code 9.
const REFUSED: Stop = Stop { seen: 1, refused: Some(9), silent: None };

#[derive(Debug, Default)]
struct Script {
    head: u64,
    tail: u64,
    /// Commands fetched at each look at the head.
    pace: u64,
    /// At this index the unit stops, so.
    stop: Option<(u64, Stop)>,
    /// The stop is over by the time a caller has found its reason.
    cured: bool,
    /// Numbers of reads of the head, and of the stop.
    looks: (u32, u32),
    resumed: u32,
    cleaned: Vec<(u64, u64)>,
    written: Vec<u64>,
}

/// A unit with so many bits that tell turns of its ring apart.
#[derive(Debug)]
struct Fake<const TURN: u32> {
    mem: SlabTables<AtomicU64>,
    clock: Ticks,
    script: Mutex<Script>,
}

const MASK: u64 = 0xff;

impl<const TURN: u32> Unit for Fake<TURN> {
    type Memory = SlabTables<AtomicU64>;
    type Cpus = Ticks;
    type Command = u64;

    const TURN_BITS: u32 = TURN;
    const INDEX_COMPLETES: bool = TURN == 0;
    const ABORTS_SYNCS: bool = false;
    const HEAD: usize = 0x10;
    const OVERWRITTEN: u32 = 0xff;

    fn machine(&self) -> (&Self::Memory, &Ticks, Nanos) {
        (&self.mem, &self.clock, Nanos::from_millis(10))
    }

    fn words(command: &u64) -> crate::chassis::Words {
        [*command, !*command]
    }

    fn count(&self, command: &u64) {
        self.script.lock().written.push(*command);
    }

    fn sync(_at: Option<PhysAddr>, number: u32) -> u64 {
        SYNC_CODE | u64::from(number) << 32
    }

    fn harmless(_spare: Option<PhysAddr>) -> u64 {
        HARMLESS
    }

    fn clean(&self, at: PhysAddr, bytes: u64) {
        self.script.lock().cleaned.push((at.get(), bytes));
    }

    fn head(&self) -> Result<u64, IommuError> {
        let mut script = self.script.lock();
        script.looks.0 += 1;
        for _ in 0..script.pace {
            let stops = script.stop.is_some_and(|(at, _)| at == script.head);
            if script.head == script.tail || stops {
                break;
            }
            script.head = (script.head + 1) & MASK;
        }
        Ok(script.head)
    }

    fn index(head: u64, shape: RingShape) -> u64 {
        head & ((shape.slots() << TURN) - 1)
    }

    fn set_tail(&self, index: u64, _shape: RingShape) {
        self.script.lock().tail = index;
    }

    fn stopped(&self, head: u64) -> Result<Option<Stop>, IommuError> {
        let mut script = self.script.lock();
        script.looks.1 += 1;
        let stop = script.stop.filter(|(at, _)| *at == head);
        Ok(stop.map(|(_, stop)| stop))
    }

    fn why(&self, code: u32, _at: PhysAddr) -> u32 {
        let mut script = self.script.lock();
        if script.cured {
            script.stop = None;
        }
        code
    }

    fn resume(
        &self,
        _stop: Stop,
        _shape: RingShape,
        _head: u64,
        _tail: u64,
    ) -> Result<(), IommuError> {
        let mut script = self.script.lock();
        script.resumed += 1;
        script.stop = None;
        Ok(())
    }
}

/// A unit, and its ring of `2^lg2_slots` commands of 16 bytes with a sync after `most_unsynced`; syncs
/// write their numbers where turns can be told apart.
fn ring<const TURN: u32>(lg2_slots: u32, most_unsynced: u64) -> (Fake<TURN>, Ring<Ticks>) {
    let unit = Fake {
        mem: SlabTables::new(PhysAddr::new(0x8000_0000), PageSize::SIZE_4K, 4),
        clock: Ticks::default(),
        script: Mutex::default(),
    };
    let shape = RingShape { lg2_slots, lg2_bytes: 4 };
    let numbers = TURN == 1;
    let ring = Ring::new(&unit.mem, shape, most_unsynced, numbers).unwrap();
    (unit, ring)
}

fn place<const TURN: u32>(
    (unit, ring): &(Fake<TURN>, Ring<Ticks>),
    commands: &[u64],
    ending: BatchEnd,
) -> Result<(Ticket, Option<Sync>), IommuError> {
    ring.place(unit, &mut None, commands, ending)
}

#[test]
fn a_sync_is_complete_once_its_word_has_its_number_or_one_of_a_later_turn() {
    let done = |word: u32| {
        let both = ring::<1>(4, u64::MAX);
        let (ticket, sync) = place(&both, &[1], BatchEnd::Sync).unwrap();
        let (unit, ring) = &both;
        // The first sync has the number 1, and the word behind the first.
        Word::store(&ring.numbers.unwrap().words(&unit.mem)[1], word.into());
        ring.complete(unit, &ticket, sync.unwrap(), &|_| false)
    };
    for word in [1, 0x101, 0x1_0001] {
        assert_eq!(done(word), Ok(Outcome::Done), "{word:#x}");
    }
    // Nothing yet, a number of a turn before, and two that no sync writes there.
    for word in [0, 0xffff_ff01, 2, 0x102] {
        let late = done(word);
        assert!(matches!(late, Err(IommuError::TimedOut { .. })), "{word:#x}");
    }
}

#[test]
fn a_sync_comes_after_as_many_commands_as_the_unit_bears_and_no_sooner() {
    let both = ring::<1>(4, 3);
    place(&both, &[1, 2, 3, 4, 5, 6, 7], BatchEnd::More).unwrap();
    let (first, second) = (SYNC_CODE | 1 << 32, SYNC_CODE | 2 << 32);
    let expected = [1, 2, 3, first, 4, 5, 6, second, 7];
    assert_eq!(both.0.script.lock().written, expected);
    // As the unit finds them in memory.
    let words = both.1.commands().words(&both.0.mem);
    for (number, command) in expected.into_iter().enumerate() {
        let found = [0, 1].map(|word| Word::load(&words[2 * number + word]));
        assert_eq!(found, [command, !command]);
    }
}

#[test]
fn each_command_is_cleaned_in_its_own_slot_and_the_slots_are_used_in_turns() {
    let both = ring::<1>(2, u64::MAX);
    both.0.script.lock().pace = 4;
    place(&both, &[1, 2, 3, 4, 5], BatchEnd::More).unwrap();
    let start = both.1.commands().at.get();
    let slots = [0, 16, 32, 48, 0].map(|offset| (start + offset, 16));
    assert_eq!(both.0.script.lock().cleaned, slots);
}

#[test]
fn a_unit_is_looked_at_only_when_its_ring_is_full_as_far_as_is_known() {
    let both = ring::<1>(2, u64::MAX);
    both.0.script.lock().pace = 4;
    place(&both, &[1, 2, 3], BatchEnd::More).unwrap();
    place(&both, &[4], BatchEnd::More).unwrap();
    assert_eq!(both.0.script.lock().looks, (0, 0));
    place(&both, &[5], BatchEnd::More).unwrap();
    assert_eq!(both.0.script.lock().looks, (1, 0));
}

#[test]
fn a_command_behind_a_sync_that_is_due_waits_for_room_for_both_and_not_for_ever() {
    let both = ring::<1>(2, 3);
    let full = place(&both, &[1, 2, 3, 4], BatchEnd::More);
    let awaited = Awaited::QueueRoom;
    assert!(matches!(full, Err(IommuError::TimedOut { awaited: of, .. }) if of == awaited));
    assert_eq!(both.0.script.lock().written, [1, 2, 3]);
    // No producer waits for a command that is never fetched.
    let late = both.1.drain(&both.0);
    let awaited = Awaited::Completion;
    assert!(matches!(late, Err(IommuError::TimedOut { awaited: of, .. }) if of == awaited));
    both.0.script.lock().pace = 1;
    assert_eq!(both.1.drain(&both.0), Ok(()));
}

#[test]
fn a_ring_without_a_turn_bit_is_full_with_one_slot_free_and_empty_after_draining() {
    let both = ring::<0>(2, u64::MAX);
    assert_eq!(both.1.post(&both.0, &1), Ok(true));
    assert!(place(&both, &[2, 3], BatchEnd::More).is_ok());
    assert_eq!(both.1.post(&both.0, &4), Ok(false));
    assert_eq!(both.0.script.lock().written, [1, 2, 3]);
    both.0.script.lock().pace = 1;
    assert_eq!(both.1.drain(&both.0), Ok(()));
    assert_eq!(both.0.script.lock().head, 3);
}

#[test]
fn a_full_ring_of_a_unit_that_has_stopped_is_set_going_before_a_command_is_given_up() {
    let both = ring::<1>(2, u64::MAX);
    both.0.script.lock().pace = 1;
    both.0.script.lock().stop = Some((0, REFUSED));
    let (ticket, _) = place(&both, &[1, 2, 3, 4], BatchEnd::More).unwrap();
    assert_eq!(both.1.post(&both.0, &5), Ok(true));
    let script = both.0.script.lock();
    assert_eq!((script.resumed, &script.written[4..]), (1, &[HARMLESS, 5][..]));
    drop(script);
    let sync = Sync { position: 5, number: 1 };
    let told = both.1.verdict::<Fake<1>>(&ticket, sync, &|_| false);
    assert_eq!(told, Err(IommuError::Refused { code: 9 }));
}

#[test]
fn a_unit_that_somebody_else_has_set_going_meanwhile_is_left_alone() {
    let both = ring::<1>(2, u64::MAX);
    both.0.script.lock().stop = Some((0, REFUSED));
    both.0.script.lock().cured = true;
    place(&both, &[1], BatchEnd::More).unwrap();
    assert_eq!(both.1.service(&both.0), Ok(()));
    let script = both.0.script.lock();
    assert_eq!((script.resumed, &script.written[..]), (0, &[1][..]));
}

#[test]
fn a_unit_that_refuses_a_command_where_there_is_none_is_set_going_and_nothing_is_written() {
    let both = ring::<1>(2, u64::MAX);
    both.0.script.lock().stop = Some((0, REFUSED));
    assert_eq!(both.1.service(&both.0), Ok(()));
    let script = both.0.script.lock();
    assert_eq!((script.resumed, &script.written[..]), (1, &[][..]));
}

#[test]
fn a_silent_device_is_told_to_whose_command_the_unit_waits_at_and_to_nobody_before() {
    let both = ring::<0>(4, u64::MAX);
    let (early, first) = place(&both, &[1, 2], BatchEnd::Sync).unwrap();
    let (asks, second) = place(&both, &[3], BatchEnd::Sync).unwrap();
    both.0.script.lock().pace = 1;
    let stop = Stop { seen: 0, refused: None, silent: Some(Some(7)) };
    both.0.script.lock().stop = Some((3, stop));
    let (unit, ring) = &both;
    let refused = ring.complete(unit, &asks, second.unwrap(), &|of| of == Some(7));
    assert_eq!(refused, Err(IommuError::DeviceSilent { stream: Some(StreamId::new(7)) }));
    let done = ring.complete(unit, &early, first.unwrap(), &|of| of == Some(7));
    assert_eq!(done, Ok(Outcome::Done));
}
