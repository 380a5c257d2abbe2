//! Invalidations and flushes that audits of other drivers found missing, as the table in
//! `docs/vtd.md` lists them: one test for each item.

use crate::promise::tests::{all_memory, crashed};
use alloc::sync::Arc;
use alloc::vec::Vec;

use portolan::addr::{PhysRange, StreamId};
use portolan::inval::{Preference, Quirks};
use portolan::iommu::{Attach, Awaited, Domain, FaultEvent, Iommu as _, IommuError, PagedDomain};
use portolan::platform::Mmio as _;
use portolan::table::format::VtdLevels;

use super::kit::{CAP, ECAP, Kit, SCALABLE, new_machine};
use super::{STREAM, attached, config, legacy, map, unmap};
use crate::chassis::tests::suite::Driven;
use crate::vtd::{Mode, VtdQueue};
use portolan_chips::inject::RegisterFaults;
use portolan_chips::machine::Event;
use portolan_chips::vtd::VtdMachine;
use portolan_spec::vtd::descriptor::{TYPE, kind};
use portolan_spec::vtd::entry::context;
use portolan_spec::vtd::reg::{self, command, fsts};

const COHERENT: u64 = 1;
const WRITE_BUFFER: u64 = 1 << 4;
const CACHING_MODE: u64 = 1 << 7;
const ROOT_INVALIDATES: u64 = 1 << 63;
const REQUIRED_WIDTH: u64 = 0b100 << 8;
const WIDTHS: u64 = 0x1f << 8;

/// Addresses of the root entry's and the context entry's first word.
fn entries(machine: &VtdMachine, stream: StreamId) -> (u64, u64) {
    let root = machine.reg(reg::RTADDR) + u64::from(stream.get() >> 8) * 16;
    let context = machine.word(root) & !0xfff;
    (root, context + u64::from(stream.get() & 0xff) * 16)
}

fn cleans(log: &[Event], at: u64) -> Vec<usize> {
    let covers = |range: &PhysRange| (range.start().get()..=range.last().get()).contains(&at);
    let which = |(n, event): (usize, &Event)| match event {
        Event::Clean(range) if covers(range) => Some(n),
        _ => None,
    };
    log.iter().enumerate().filter_map(which).collect()
}

fn global_commands(log: &[Event]) -> Vec<u32> {
    let which = |event: &Event| match *event {
        Event::Write(reg::GCMD, value) => Some(value as u32),
        _ => None,
    };
    log.iter().filter_map(which).collect()
}

#[test]
fn a_unit_that_does_not_snoop_gets_entries_cleaned_before_they_count() {
    for (ecap, cleaned) in [(ECAP, 1), (ECAP | COHERENT, 0)] {
        let machine = new_machine(CAP, ecap);
        let unit = machine.enable(legacy()).unwrap();
        let domain = Arc::new(unit.second_stage().unwrap());
        machine.take();
        unit.attach(STREAM, &domain).unwrap();
        let log = machine.take();
        let (root, entry) = entries(&machine, STREAM);
        // The entry twice: its words, then the present bit. Each is in memory before the next.
        let of_entry = cleans(&log, entry);
        assert_eq!(cleans(&log, root).len(), cleaned);
        assert_eq!(of_entry.len(), 2 * cleaned);
        for at in of_entry {
            assert_eq!(log.get(at + 1), Some(&Event::Barrier));
        }
        let mut owed = map(&*domain, 1);
        machine.take();
        domain.sync(&mut owed).unwrap();
        let mapped = machine.take();
        let is_clean = |event: &&Event| matches!(event, Event::Clean(_));
        assert_eq!(mapped.iter().any(|event| is_clean(&event)), cleaned == 1);
        assert_eq!(mapped.last() == Some(&Event::Barrier), cleaned == 1);
    }
}

#[test]
fn a_write_buffer_is_flushed_before_a_mapping_is_used() {
    for (cap, flushes) in [(CAP, 0), (CAP | WRITE_BUFFER, 1)] {
        let machine = new_machine(cap, ECAP);
        let (_unit, domain) = attached(&machine, legacy());
        domain.sync(&mut map(&*domain, 1)).unwrap();
        let commands = global_commands(&machine.take());
        let of = commands.iter().filter(|c| *c & command::WBF != 0);
        assert_eq!(of.count(), flushes);
        // Repeats the bits that are on, or they would go off.
        let all_on = command::TE | command::QIE;
        assert!(commands.iter().all(|c| c & all_on == all_on));
    }
}

#[test]
fn a_mapping_costs_an_invalidation_with_caching_mode_and_nothing_without() {
    for (cap, wanted) in [(CAP, 0), (CAP | CACHING_MODE, 1)] {
        let machine = new_machine(cap, ECAP);
        let (_unit, domain) = attached(&machine, legacy());
        domain.sync(&mut map(&*domain, 1)).unwrap();
        let sent = machine.commands();
        assert_eq!(sent.len(), wanted, "{sent:x?}");
        assert!(sent.iter().all(|words| TYPE.of(words[0]) == kind::IOTLB));
    }
}

#[test]
fn domain_zero_tags_nothing() {
    // As few identifiers as there can be, so that all are given out.
    let machine = new_machine(CAP & !7 | CACHING_MODE, ECAP);
    let unit = machine.enable(legacy()).unwrap();
    let mut domains = Vec::new();
    loop {
        match unit.second_stage() {
            Ok(domain) => domains.push(Arc::new(domain)),
            Err(error) => break assert_eq!(error, IommuError::OutOfContexts),
        }
    }
    assert_eq!(domains.len(), 14);
    let mut seen = Vec::new();
    for domain in &domains {
        unit.attach(STREAM, domain).unwrap();
        seen.push(context::DID.of(machine.word(entries(&machine, STREAM).1 + 8)));
    }
    unit.pass_through(STREAM, all_memory()).unwrap();
    seen.push(context::DID.of(machine.word(entries(&machine, STREAM).1 + 8)));
    seen.sort_unstable();
    assert!(seen.into_iter().eq(1..16));
}

#[test]
fn a_new_root_is_followed_by_invalidations_before_translation_is_on() {
    let modes = [(Mode::Legacy, ECAP), (Mode::Scalable, SCALABLE)];
    for (mode, ecap) in modes {
        for cap in [CAP, CAP | ROOT_INVALIDATES] {
            let machine = new_machine(cap, ecap);
            let _unit = machine.enable(config(mode)).unwrap();
            let log = machine.take();
            let at = |bit: u32| {
                let is = |event: &Event| matches!(*event, Event::Write(reg::GCMD, value) if value as u32 & bit != 0);
                log.iter().position(is).unwrap()
            };
            let between = &log[at(command::SRTP)..at(command::TE)];
            let kinds = between.iter().filter_map(|event| match event {
                Event::Command(words) => Some(TYPE.of(words[0])),
                _ => None,
            });
            let wanted: &[u64] = match (cap == CAP, mode) {
                (false, _) => &[],
                (true, Mode::Legacy) => &[kind::CONTEXT, kind::WAIT, kind::IOTLB, kind::WAIT],
                (true, Mode::Scalable) => &[
                    kind::CONTEXT,
                    kind::WAIT,
                    kind::PASID_CACHE,
                    kind::WAIT,
                    kind::IOTLB,
                    kind::WAIT,
                ],
            };
            assert_eq!(kinds.collect::<Vec<_>>(), wanted);
        }
    }
}

#[test]
fn interrupt_remapping_stays_as_it_was_found() {
    const INTERRUPT_TABLE: usize = 0xb8;
    let machine = new_machine(CAP, ECAP | 1 << 3);
    machine.command(&[command::SIRTP, command::IRE]);
    let (unit, _domain) = attached(&machine, legacy());
    let remaps = || machine.reg32(reg::GSTS) & command::IRE;
    assert_eq!(remaps(), command::IRE);
    drop(unit);
    assert_eq!(remaps(), command::IRE);
    let log = machine.take();
    let commands = global_commands(&log);
    assert!(commands.iter().all(|c| c & command::SIRTP == 0));
    assert!(!log.iter().any(|event| matches!(event, Event::Write(INTERRUPT_TABLE, _))));
}

#[test]
fn the_tail_behind_the_last_slot_is_that_of_the_first() {
    let machine = new_machine(CAP, ECAP);
    let (_unit, domain) = attached(&machine, legacy());
    // Two descriptors at a time, 128 times: once all around.
    for _ in 0..128 {
        domain.sync(&mut map(&*domain, 1)).unwrap();
        domain.sync(&mut unmap(&*domain, 1)).unwrap();
    }
    let tails = machine.take().into_iter().filter_map(|event| match event {
        Event::Write(reg::IQT, tail) => Some(tail),
        _ => None,
    });
    let tails: Vec<_> = tails.collect();
    assert!(tails.iter().all(|tail| *tail < 0x1000));
    assert!(tails.contains(&0));
}

#[test]
fn a_full_queue_is_not_written_over() {
    let machine = new_machine(CAP, ECAP);
    let (unit, first) = attached(&machine, legacy());
    drop(first);
    let quirks =
        Quirks { preference: Preference::ByPage, context_above: u64::MAX, ..Quirks::default() };
    let caps = unit.second_capabilities();
    let domain = unit.second_stage_as(VtdLevels::Four, caps, quirks).unwrap();
    domain.sync(&mut map(&domain, 400)).unwrap();
    machine.take();
    machine.wrong(RegisterFaults::STUCK);
    let (head, before) = (machine.reg(reg::IQH), machine.reg(reg::IQT));
    assert_eq!(head, before);
    let mut owed = unmap(&domain, 400);
    let error = IommuError::from(domain.sync(&mut owed).unwrap_err());
    let awaited = match error {
        IommuError::TimedOut { awaited, .. } => awaited,
        other => panic!("{other}"),
    };
    assert_eq!(awaited, Awaited::QueueRoom);
    // All but one slot at most, so that a full ring does not look empty.
    let mut ahead = 0;
    let mut last = before;
    for event in machine.take() {
        if let Event::Write(reg::IQT, tail) = event {
            ahead += (tail.wrapping_sub(last) & 0xfff) >> 4;
            last = tail;
        }
    }
    assert!((200..256).contains(&ahead), "{ahead}");
    machine.wrong(RegisterFaults::NONE);
    domain.sync(&mut owed).unwrap();
}

#[test]
fn overflow_of_faults_is_cleared_and_no_error_with_it() {
    let machine = new_machine(CAP, ECAP);
    let (unit, _domain) = attached(&machine, legacy());
    let errors = fsts::IQE | fsts::ICE | fsts::ITE;
    machine.unit().raise(fsts::PFO | errors, 0);
    machine.take();
    assert_eq!(unit.next_fault(), Ok(Some(FaultEvent::Lost)));
    let written = Event::Write(reg::FSTS, fsts::PFO.into());
    assert_eq!(machine.take(), [written]);
    assert_eq!(machine.reg32(reg::FSTS), errors);
    machine.write32(reg::FSTS, errors);
}

#[test]
fn a_fault_record_is_given_back_by_a_one() {
    let machine = new_machine(CAP, ECAP);
    let (unit, _domain) = attached(&machine, legacy());
    machine.record(0x5000, 6 << 32 | u64::from(STREAM.get()));
    machine.take();
    let event = unit.next_fault().unwrap();
    assert!(matches!(event, Some(FaultEvent::Fault(record)) if record.stream == STREAM));
    assert_eq!(machine.take(), [Event::Write(0x22c, 1 << 31)]);
    assert_eq!(machine.reg(0x228) >> 63, 0);
    assert_eq!(unit.next_fault(), Ok(None));
}

#[test]
fn each_unit_of_a_machine_is_turned_on_and_none_takes_another_ones_domain() {
    let machines = [(); 3].map(|()| new_machine(CAP, ECAP));
    let units = machines.each_ref().map(|machine| machine.enable(legacy()).unwrap());
    for machine in &machines {
        assert_ne!(machine.reg32(reg::GSTS) & command::TE, 0);
        assert_ne!(machine.reg(reg::RTADDR), 0);
    }
    let domain = Arc::new(units[0].second_stage().unwrap());
    units[0].attach(STREAM, &domain).unwrap();
    for (unit, machine) in units.iter().zip(&machines).skip(1) {
        machine.take();
        unit.attach(STREAM, &domain).unwrap_err();
        assert!(machine.take().is_empty());
    }
    // Each gives out the same identifiers: they are not the machine's but the unit's.
    let other = units[1].second_stage().unwrap();
    assert_eq!(other.context(), domain.context());
}

#[test]
fn nothing_unmapped_is_reused_before_the_unit_has_forgotten_it() {
    let machine = new_machine(CAP, ECAP);
    let (_unit, domain) = attached(&machine, legacy());
    domain.sync(&mut map(&*domain, 512)).unwrap();
    machine.take();
    let live = machine.live();
    let mut owed = unmap(&*domain, 512);
    // The table that is out of the tree is still allocated, and nothing was sent.
    assert_eq!(machine.live(), live);
    assert!(machine.commands().is_empty());
    machine.wrong(RegisterFaults::STUCK);
    domain.sync(&mut owed).unwrap_err();
    assert_eq!(machine.live(), live);
    machine.wrong(RegisterFaults::NONE);
    domain.sync(&mut owed).unwrap();
    let invalidates = |words: [u64; 4]| TYPE.of(words[0]) == kind::IOTLB;
    assert!(machine.take_commands().any(invalidates));
}

#[test]
fn a_changed_context_entry_is_forgotten_before_what_was_reached_through_it() {
    let machine = new_machine(CAP, ECAP);
    let (unit, domain) = attached(&machine, legacy());
    let other = Arc::new(unit.second_stage().unwrap());
    let id =
        |domain: &Arc<PagedDomain<_, _, VtdQueue<VtdMachine>>>| u64::from(domain.context().get());
    unit.attach(STREAM, &other).unwrap();
    let sent = machine.take_commands();
    let sent: Vec<_> = sent.map(|words| words[0] & 0xffff_ffff_ffff).collect();
    let device = u64::from(STREAM.get()) << 32 | id(&domain) << 16 | 0x31;
    let all_of_domain = id(&domain) << 16 | 0xe2;
    assert_eq!(sent[0], device);
    assert_eq!(TYPE.of(sent[1]), kind::WAIT);
    assert_eq!(sent[2], all_of_domain);
    assert_eq!(TYPE.of(sent[3]), kind::WAIT);
    assert_eq!(sent.len(), 4);
    // Away from it the same; back from nothing, nothing.
    unit.block(STREAM).unwrap();
    assert_eq!(machine.commands().len(), 2);
    unit.attach(STREAM, &domain).unwrap();
    assert!(machine.commands().is_empty());
}

#[test]
fn registers_of_invalidation_are_where_the_unit_says() {
    for at in [0xf0_usize, 0x2c0] {
        let ecap = ECAP & !(0x3ff << 8 | 2) | (at as u64 / 16) << 8;
        let machine = new_machine(CAP, ecap);
        let (_unit, domain) = attached(&machine, legacy());
        domain.sync(&mut map(&*domain, 1)).unwrap();
        machine.take();
        domain.sync(&mut unmap(&*domain, 1)).unwrap();
        let offsets = machine.take().into_iter().filter_map(|event| match event {
            Event::Write(offset, _) => Some(offset),
            _ => None,
        });
        assert!(offsets.eq([at, at + 8]));
    }
}

#[test]
fn three_levels_are_not_taken_for_granted() {
    let machine = new_machine(CAP & !WIDTHS | REQUIRED_WIDTH, ECAP);
    let (_unit, domain) = attached(&machine, legacy());
    assert_eq!(domain.table().format().levels, VtdLevels::Four);
    let entry = entries(&machine, STREAM).1;
    assert_eq!(context::AW.of(machine.word(entry + 8)), 2);
}

#[test]
fn reserved_memory_is_mapped_before_a_device_is_translated() {
    let start = 0x7b80_0000;
    let config = super::reserved::config(&[(start, start + 0x2fff)]);
    let machine = new_machine(CAP, ECAP);
    let (regs, mem, clock) = (machine.clone(), machine.clone(), machine.clone());
    let unit = super::Iommu::prepare(regs, mem, clock, config, crashed(&|_| None)).unwrap();
    let on = || machine.reg32(reg::GSTS) & command::TE != 0;
    assert!(!on());
    let domain = Arc::new(unit.second_stage().unwrap());
    unit.attach(STREAM, &domain).unwrap();
    assert!(!on());
    for page in 0..3 {
        let at = start + page * 4096;
        let found = domain.translate(portolan::addr::Iova::new(at)).unwrap();
        assert_eq!(found.pa.get(), at);
    }
    unit.translate().unwrap();
    assert!(on());
    assert_eq!(machine.word(entries(&machine, STREAM).1) & 1, 1);
    machine.expect_obedience();
}
