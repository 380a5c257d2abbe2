//! Root, context and PASID entries: their words, the states in between, and the invalidations.

use crate::promise::tests::all_memory;
use alloc::sync::Arc;
use alloc::vec::Vec;

use portolan::addr::{Pasid, StreamId};
use portolan::iommu::{Attach, AttachError, Domain as _, Iommu as _, IommuError};
use portolan::table::format::VtdFirstLevels;

use super::kit::{CAP, ECAP, Iommu, SCALABLE, new_machine, of_version};
use super::{STREAM, attached, config, legacy, map, unmap};
use crate::chassis::tests::suite::Driven;
use crate::vtd::{DeviceTlb, Mode};
use portolan_chips::machine::Event;
use portolan_chips::vtd::VtdMachine;
use portolan_spec::vtd::descriptor::{TYPE, kind};
use portolan_spec::vtd::reg;

/// With first-stage pages of 1 GiB, and tables of five levels.
const FIRST: u64 = CAP | 1 << 56 | 1 << 60;
const CACHING_MODE: u64 = 1 << 7;
const WALKS_SNOOP: u64 = 1 << 48;
const DEVICE_TLB: u64 = 1 << 2;
const PASID: Pasid = Pasid::new(0x47);

const DEVICE: DeviceTlb = DeviceTlb { depth: 4, physical: STREAM.get() as u16, twice: false };

/// Address of the legacy context entry of bus 1, device 1.
fn context(machine: &VtdMachine) -> u64 {
    (machine.word(machine.reg(reg::RTADDR) + 16) & !0xfff) + 8 * 16
}

/// Addresses of the scalable context entry and of the entry of `pasid`.
fn scalable(machine: &VtdMachine, pasid: u32) -> (u64, u64) {
    let root = machine.reg(reg::RTADDR) & !0xfff;
    let context = (machine.word(root + 16) & !0xfff) + 8 * 32;
    let directory = machine.word(context) & !0xfff;
    let table = machine.word(directory + u64::from(pasid >> 6) * 8) & !0xfff;
    (context, table + u64::from(pasid & 0x3f) * 64)
}

fn words(machine: &VtdMachine, at: u64, count: u64) -> Vec<u64> {
    (0..count).map(|n| machine.word(at + 8 * n)).collect()
}

#[test]
fn golden_legacy_entries() {
    let machine = new_machine(CAP, ECAP | DEVICE_TLB);
    let (unit, domain) = attached(&machine, legacy());
    assert_eq!(machine.reg(reg::RTADDR) & 0xfff, 0);
    assert_eq!(machine.word(machine.reg(reg::RTADDR)), 0);
    assert_eq!(machine.word(machine.reg(reg::RTADDR) + 16) & 0xfff, 1);
    let root = domain.table().root().get();
    let second = [root | 1, 0x202];
    assert_eq!(words(&machine, context(&machine), 2), second);
    unit.pass_through(STREAM, all_memory()).unwrap();
    assert_eq!(words(&machine, context(&machine), 2), [0x9, 0x102]);
    unit.use_device_tlb(STREAM, DEVICE, all_memory()).unwrap();
    unit.attach(STREAM, &domain).unwrap();
    assert_eq!(words(&machine, context(&machine), 2), [root | 5, 0x202]);
    unit.block(STREAM).unwrap();
    assert_eq!(words(&machine, context(&machine), 2), [0, 0]);
    machine.expect_obedience();
}

#[test]
fn golden_scalable_entries() {
    let machine = new_machine(FIRST, SCALABLE);
    let unit = machine.enable(config(Mode::Scalable)).unwrap();
    assert_eq!(machine.reg(reg::RTADDR) & 0xfff, 1 << 10);
    assert_eq!(machine.reg(reg::IQA) & 0xfff, 1 << 11);
    let second = Arc::new(unit.second_stage().unwrap());
    unit.attach(STREAM, &second).unwrap();
    let (context, rid) = scalable(&machine, 0);
    // 512 entries in the directory; requests with PASID are let through.
    assert_eq!(machine.word(context) & 0xfff, 0x409);
    assert_eq!(words(&machine, context + 8, 3), [0; 3]);
    let root = second.table().root().get();
    let none = [0; 5];
    assert_eq!(words(&machine, rid, 3), [root | 0x89, 2, 0]);
    assert_eq!(words(&machine, rid + 24, 5), none);
    for (levels, width, mode, id) in
        [(VtdFirstLevels::Four, 2 << 2, 0, 3), (VtdFirstLevels::Five, 3 << 2, 1 << 2, 4)]
    {
        let first = Arc::new(unit.first_stage(levels).unwrap());
        unit.attach_pasid(STREAM, PASID, &first).unwrap();
        let root = first.table().root().get();
        let at = scalable(&machine, PASID.get()).1;
        assert_eq!(words(&machine, at, 3), [0x41 | width, id, root | mode]);
        unit.block_pasid(STREAM, PASID).unwrap();
        assert_eq!(words(&machine, at, 8), [0; 8]);
        core::mem::forget(first);
    }
    let nested = Arc::new(unit.nested(VtdFirstLevels::Four, &second).unwrap());
    unit.attach(STREAM, &nested).unwrap();
    let inner = nested.table().root().get();
    assert_eq!(words(&machine, rid, 3), [root | 0xc9, 5, inner]);
    unit.pass_through(STREAM, all_memory()).unwrap();
    assert_eq!(words(&machine, rid, 3), [0x109, 1, 0]);
    // The other half of the functions hangs on the other word of the root entry.
    let high = StreamId::new(0x01ff);
    unit.attach(high, &second).unwrap();
    let root = machine.reg(reg::RTADDR) & !0xfff;
    let table = machine.word(root + 24);
    assert_eq!(table & 0xfff, 1);
    assert_eq!(machine.word((table & !0xfff) + 0x7f * 32) & 0xfff, 0x409);
}

#[test]
fn walks_snoop_where_the_unit_can() {
    let machine = new_machine(FIRST, SCALABLE | WALKS_SNOOP);
    let unit = machine.enable(config(Mode::Scalable)).unwrap();
    let domain = Arc::new(unit.second_stage().unwrap());
    unit.attach(STREAM, &domain).unwrap();
    let rid = scalable(&machine, 0).1;
    assert_eq!(machine.word(rid + 8), 1 << 23 | 2);
    // What passes through walks no tables.
    unit.pass_through(STREAM, all_memory()).unwrap();
    assert_eq!(machine.word(rid + 8), 1);
}

#[test]
fn between_two_domains_an_entry_is_old_or_absent_or_new_and_absent_when_forgotten() {
    for (mode, ecap, count) in [(Mode::Legacy, ECAP, 2), (Mode::Scalable, SCALABLE, 8)] {
        let machine = new_machine(FIRST, ecap);
        let (unit, _first) = attached(&machine, config(mode));
        let at = match mode {
            Mode::Legacy => context(&machine),
            Mode::Scalable => scalable(&machine, 0).1,
        };
        let other = Arc::new(unit.second_stage().unwrap());
        let old = words(&machine, at, count);
        machine.watch(at, count);
        unit.attach(STREAM, &other).unwrap();
        let new = words(&machine, at, count);
        let seen = machine.seen();
        assert!(seen.len() > 8);
        for (event, state) in &seen {
            let absent = state[0] & 1 == 0;
            assert!(absent || *state == old || *state == new, "{state:x?}");
            if matches!(event, Event::Command(_)) {
                assert!(absent);
            }
        }
        // All words but the first were in memory before the first was written.
        let whole = |state: &[u64]| state[1..] == new[1..] && state[0] == 0;
        let cleaned =
            |(event, state): &(Event, Vec<u64>)| matches!(event, Event::Barrier) && whole(state);
        assert!(seen.iter().any(cleaned));
    }
}

#[test]
fn stages_of_an_invalidation_are_apart_in_scalable_mode() {
    let machine = new_machine(FIRST, SCALABLE);
    let unit = machine.enable(config(Mode::Scalable)).unwrap();
    unit.use_device_tlb(STREAM, DEVICE, all_memory()).unwrap();
    let domain = Arc::new(unit.first_stage(VtdFirstLevels::Four).unwrap());
    unit.attach_pasid(STREAM, PASID, &domain).unwrap();
    machine.take();
    unit.block_pasid(STREAM, PASID).unwrap();
    let sent: Vec<_> = machine.take_commands().collect();
    let kinds: Vec<_> = sent.iter().map(|words| TYPE.of(words[0])).collect();
    let wanted = [
        kind::PASID_CACHE,
        kind::WAIT,
        kind::PASID_IOTLB,
        kind::IOTLB,
        kind::WAIT,
        kind::PASID_DEVICE_TLB,
        kind::WAIT,
    ];
    assert_eq!(kinds, wanted);
    assert_eq!(sent[0], [0x47_0002_0017, 0, 0, 0]);
    assert_eq!(sent[2], [0x47_0002_0026, 0, 0, 0]);
    assert_eq!(sent[5], [0x0047_0108_0048, 0x7fff_ffff_ffff_f800, 0, 0]);
}

#[test]
fn a_device_tlb_is_told_after_the_unit_and_whenever_its_stream_moves() {
    for (mode, ecap) in [(Mode::Legacy, ECAP | DEVICE_TLB), (Mode::Scalable, SCALABLE)] {
        let machine = new_machine(FIRST, ecap);
        let unit = machine.enable(config(mode)).unwrap();
        unit.use_device_tlb(STREAM, DEVICE, all_memory()).unwrap();
        let domain = Arc::new(unit.second_stage().unwrap());
        unit.attach(STREAM, &domain).unwrap();
        domain.sync(&mut map(&*domain, 1)).unwrap();
        machine.take();
        domain.sync(&mut unmap(&*domain, 1)).unwrap();
        let kinds = || {
            let all = machine.take_commands();
            all.map(|words| TYPE.of(words[0])).collect::<Vec<_>>()
        };
        let wanted = [kind::IOTLB, kind::WAIT, kind::DEVICE_TLB, kind::WAIT];
        assert_eq!(kinds(), wanted);
        // A device that passes through may hold translations of that.
        unit.pass_through(STREAM, all_memory()).unwrap();
        assert_eq!(kinds()[..].last_chunk(), Some(&[kind::DEVICE_TLB, kind::WAIT]));
        unit.block(STREAM).unwrap();
        assert_eq!(kinds()[..].last_chunk(), Some(&[kind::DEVICE_TLB, kind::WAIT]));
    }
}

#[test]
fn a_device_tlb_is_not_used_while_a_domain_does_not_know_of_it() {
    let machine = new_machine(FIRST, SCALABLE);
    let (unit, domain) = attached(&machine, config(Mode::Scalable));
    unit.use_device_tlb(STREAM, DEVICE, all_memory()).unwrap();
    let first = Arc::new(unit.first_stage(VtdFirstLevels::Four).unwrap());
    let enabled = || machine.word(scalable(&machine, 0).0) & 4;
    unit.attach_pasid(STREAM, PASID, &first).unwrap();
    assert_eq!(enabled(), 0);
    unit.block_pasid(STREAM, PASID).unwrap();
    machine.take();
    unit.attach(STREAM, &domain).unwrap();
    assert_eq!(enabled(), 4);
    unit.attach_pasid(STREAM, PASID, &first).unwrap();
    domain.sync(&mut map(&*domain, 1)).unwrap();
    machine.take();
    domain.sync(&mut unmap(&*domain, 1)).unwrap();
    let told = |words: &[u64; 2]| TYPE.of(words[0]) == kind::DEVICE_TLB;
    assert!(machine.commands().iter().any(told));
}

#[test]
fn with_caching_mode_absence_is_forgotten_under_domain_zero_too() {
    let machine = new_machine(CAP | CACHING_MODE, ECAP);
    let unit = machine.enable(legacy()).unwrap();
    let domain = Arc::new(unit.second_stage().unwrap());
    machine.take();
    unit.attach(STREAM, &domain).unwrap();
    let sent = machine.commands();
    let wanted = [[0x0108_0000_0031, 0], [0x0108_0002_0031, 0], [0x0002_00e2, 0]];
    assert_eq!(sent, wanted);
}

#[test]
fn a_second_stage_under_another_is_forgotten_whole() {
    let machine = new_machine(FIRST, SCALABLE);
    let unit = machine.enable(config(Mode::Scalable)).unwrap();
    let parent = Arc::new(unit.second_stage().unwrap());
    let nested = Arc::new(unit.nested(VtdFirstLevels::Four, &parent).unwrap());
    unit.attach(STREAM, &nested).unwrap();
    parent.sync(&mut map(&*parent, 1)).unwrap();
    machine.take();
    parent.sync(&mut unmap(&*parent, 1)).unwrap();
    let sent = machine.commands();
    assert_eq!(sent.len(), 3, "{sent:x?}");
    assert_eq!(sent[0][0] & 0xffff_0000, 2 << 16);
    assert_eq!(sent[1], [0x0003_00e2, 0]);
    assert_eq!(sent[2], [0x0003_0026, 0]);
}

#[test]
fn what_the_mode_does_not_have_is_refused_before_anything_is_written() {
    let machine = new_machine(CAP, ECAP);
    let unit: Iommu = machine.enable(legacy()).unwrap();
    let unsupported = Some(IommuError::Unsupported);
    assert_eq!(unit.first_stage(VtdFirstLevels::Four).err(), unsupported);
    assert_eq!(unit.use_device_tlb(STREAM, DEVICE, all_memory()).err(), unsupported);
    assert_eq!(unit.read_page_requests(0).err(), unsupported);
    let domain = Arc::new(unit.second_stage().unwrap());
    machine.take();
    let refused = Err(AttachError::Mismatch);
    assert_eq!(unit.attach_pasid(STREAM, PASID, &domain), refused);
    assert!(machine.take().is_empty());
    let scalable = new_machine(FIRST, SCALABLE);
    let unit = scalable.enable(config(Mode::Scalable)).unwrap();
    let domain = Arc::new(unit.second_stage().unwrap());
    scalable.take();
    for wrong in [0, 1 << 13] {
        let pasid = Pasid::new(wrong);
        assert_eq!(unit.attach_pasid(STREAM, pasid, &domain), refused);
    }
    assert!(scalable.take().is_empty());
    let missing = new_machine(CAP, ECAP).enable(config(Mode::Scalable));
    assert_eq!(missing.err(), unsupported);
}

#[test]
fn registers_are_not_used_where_the_version_has_none() {
    let machine = of_version(0x60, CAP, ECAP & !2);
    assert_eq!(machine.enable(legacy()).err(), Some(IommuError::Unsupported));
    assert!(machine.take().is_empty());
    let machine = of_version(0x50, CAP, ECAP & !2);
    machine.enable(legacy()).unwrap();
}
