//! Taking over a unit whose translation is on.

use crate::promise::tests::{all_memory, crashed, promised};
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use portolan::addr::{PhysAddr, StreamId};
use portolan::inval::Gather;
use portolan::iommu::{
    Attach, AttachError, Domain as _, Iommu as _, IommuDomains as _, IommuError,
};
use portolan::platform::Mmio as _;
use portolan::table::Access;

use super::kit::{CAP, ECAP, Kit, SCALABLE, new_machine};
use super::{STREAM, config, legacy};
use crate::chassis::tests::suite::{BASE, Driven, reaches_what_is_mapped};
use crate::vtd::command::CommandKind as Kind;
use crate::vtd::{Config, DeviceTlb, Mode, PciIdentity, Quirks, Takeover, Vtd};
use portolan_chips::machine::Event;
use portolan_chips::vtd::VtdMachine;
use portolan_spec::vtd::reg::{self, command};

/// Address of the tables of the system before: not in memory of this one.
const OLD_ROOT: u64 = 0x7000_0000;
/// Pages of the kernel before and of this one.
const OLD_PAGE: u64 = 0x1000;
const NEW_PAGE: u64 = 0x9000;
const OTHER: StreamId = StreamId::new(0x0110);

/// A unit that translates with the root at `root`.
fn translating(machine: &VtdMachine, root: u64) {
    machine.write64(reg::RTADDR, root);
    machine.command(&[command::SRTP, command::TE]);
}

/// Tells if translation was off after some command.
fn was_off(log: &[Event]) -> bool {
    let off = |event: &Event| match event {
        Event::Write(reg::GCMD, value) => *value as u32 & command::TE == 0,
        _ => false,
    };
    log.iter().any(off)
}

#[test]
fn translation_that_is_on_stays_on_while_a_unit_is_taken_over() {
    for (mode, ecap, root) in [
        (Mode::Legacy, ECAP, OLD_ROOT),
        (Mode::Legacy, ECAP & !2, OLD_ROOT),
        (Mode::Scalable, SCALABLE, OLD_ROOT | 1 << 10),
    ] {
        let machine = new_machine(CAP, ecap);
        translating(&machine, root);
        let unit = machine.enable(config(mode)).unwrap();
        let log = machine.take();
        assert!(!was_off(&log), "{log:x?}");
        assert_ne!(machine.reg(reg::RTADDR) & !0xfff, OLD_ROOT);
        let set = |event: &Event| matches!(event, Event::Write(reg::RTADDR, _));
        let set = log.iter().position(set).unwrap();
        // What was cached of the old tables goes next, and all of it.
        let (contexts, all) = match ecap & 2 {
            0 => (Event::Write(reg::CCMD, 5 << 61), None),
            _ => (Event::Command([0x11, 0, 0, 0]), Some([0xd2, 0, 0, 0])),
        };
        assert!(log[set..].contains(&contexts), "{log:x?}");
        if let Some(words) = all {
            assert!(log[set..].contains(&Event::Command(words)), "{log:x?}");
        }
        // The new tables are empty: everything is blocked.
        assert_eq!(machine.word(machine.reg(reg::RTADDR) & !0xfff), 0);
        drop(unit);
    }
}

/// Remains of a kernel that is gone: its unit's driver and the tables of the first stream.
fn former(machine: &VtdMachine, mode: Mode) -> (super::kit::Iommu, Arc<super::Second>) {
    let (unit, domain) = super::attached(machine, config(mode));
    domain.sync(&mut super::map(&*domain, 1)).unwrap();
    assert_eq!(machine.read(STREAM, BASE.get()), Some(OLD_PAGE));
    machine.take();
    (unit, domain)
}

/// The next kernel's unit, before it changes to its own tables.
fn prepared(machine: &VtdMachine, mode: Mode) -> super::kit::Iommu {
    let (regs, mem, clock) = (machine.clone(), machine.clone(), machine.clone());
    Vtd::prepare(regs, mem, clock, config(mode), crashed(&|at| Some(machine.word(at.get()))))
        .unwrap()
}

/// A domain that has another page than the former one.
fn other_page(unit: &super::kit::Iommu) -> Arc<super::Second> {
    let domain = Arc::new(unit.second_stage().unwrap());
    let (mut owed, memory) = (Gather::new(), promised(PhysAddr::new(NEW_PAGE), 0x1000));
    domain.map(BASE, memory, Access::READ | Access::WRITE, &mut owed).unwrap();
    domain.sync(&mut owed).unwrap();
    domain
}

/// Judges accesses behind each write of a register: `old` reaches what it did, or nothing, and `new` the page at
/// `reached`, or nothing.
fn judge(machine: &VtdMachine, [old, new]: [StreamId; 2], reached: u64) {
    let seen = machine.clone();
    machine.judge(Some(alloc::boxed::Box::new(move || {
        let [old, new] = [old, new].map(|stream| seen.read(stream, BASE.get()));
        assert!([None, Some(OLD_PAGE)].contains(&old), "{old:x?}");
        assert!([None, Some(reached)].contains(&new), "{new:x?}");
    })));
}

#[test]
fn streams_attached_before_the_change_of_tables_hit_no_translation_of_before() {
    for (mode, cap, ecap) in [
        (Mode::Legacy, CAP, ECAP),
        (Mode::Legacy, CAP, ECAP & !2),
        (Mode::Scalable, CAP, SCALABLE),
        (Mode::Legacy, CAP | 1 << 63, ECAP),
    ] {
        let machine = new_machine(cap, ecap);
        let (gone, old) = former(&machine, mode);
        judge(&machine, [STREAM, OTHER], NEW_PAGE);
        let unit = prepared(&machine, mode);
        let domain = other_page(&unit);
        unit.attach(OTHER, &domain).unwrap();
        unit.translate().unwrap();
        assert!(!was_off(&machine.take()));
        assert_eq!(machine.read(OTHER, BASE.get()), Some(NEW_PAGE));
        assert_eq!(machine.read(STREAM, BASE.get()), None);
        unit.translate().unwrap();
        assert!(machine.take().is_empty());
        // What is forgotten is used again.
        let more: Vec<_> = (0..2).map(|_| Arc::new(unit.second_stage().unwrap())).collect();
        let again = domain.context() == old.context();
        assert!(again || more.iter().any(|domain| domain.context() == old.context()));
        machine.judge(None);
        drop(unit);
        machine.expect_obedience();
        drop(gone);
    }
}

#[test]
fn tables_that_cannot_be_read_whole_let_no_stream_be_attached_before_the_change() {
    for (mode, ecap) in [(Mode::Legacy, ECAP), (Mode::Scalable, SCALABLE)] {
        for word in [None, Some(u64::MAX)] {
            let machine = new_machine(CAP, ecap);
            translating(&machine, OLD_ROOT | u64::from(mode == Mode::Scalable) << 10);
            let (regs, mem, clock) = (machine.clone(), machine.clone(), machine.clone());
            // Of legacy tables all can be read in time, so that the last word has no memory.
            let last = PhysAddr::new(0x000f_ffff_ffff_fff8);
            let one = |at| word.filter(|_| mode == Mode::Scalable || at != last);
            let unit = Vtd::prepare(regs, mem, clock, config(mode), crashed(&one)).unwrap();
            let domain = other_page(&unit);
            let refused = Err(AttachError::Iommu(IommuError::Unsupported));
            assert_eq!(unit.attach(STREAM, &domain), refused);
            unit.block(STREAM).unwrap();
            unit.translate().unwrap();
            unit.attach(STREAM, &domain).unwrap();
            assert_eq!(machine.read(STREAM, BASE.get()), Some(NEW_PAGE));
        }
    }
}

#[test]
fn streams_pass_through_before_the_change_unless_a_former_domain_has_their_identifier() {
    for domain in [1, 9] {
        let machine = new_machine(CAP, ECAP);
        let (gone, _) = former(&machine, Mode::Legacy);
        let contexts = machine.word((machine.reg(reg::RTADDR) & !0xfff) + 16) & !0xfff;
        let at = contexts + 8 * 16 + 8;
        machine.store(at, machine.word(at) & !0xff_ff00 | domain << 8);
        let unit = prepared(&machine, Mode::Legacy);
        let passed = unit.pass_through(OTHER, all_memory());
        assert_eq!(passed.is_ok(), domain != 1, "{passed:?}");
        unit.translate().unwrap();
        unit.pass_through(OTHER, all_memory()).unwrap();
        drop(gone);
    }
}

#[test]
fn streams_at_work_hit_no_translation_of_before_where_its_tables_are_not_read() {
    let machine = new_machine(CAP, ECAP);
    let (gone, old) = former(&machine, Mode::Legacy);
    gone.block(STREAM).unwrap();
    gone.attach(OTHER, &old).unwrap();
    assert_eq!(machine.read(OTHER, BASE.get()), Some(OLD_PAGE));
    judge(&machine, [OTHER, STREAM], BASE.get());
    let unit = machine.enable(super::reserved::config(&[(BASE.get(), BASE.get() + 0xfff)]));
    assert_eq!(machine.read(STREAM, BASE.get()), Some(BASE.get()));
    assert_eq!(machine.read(OTHER, BASE.get()), None);
    drop((unit, gone));
}

#[test]
fn modes_change_only_where_devices_may_reach_everything_meanwhile() {
    let machine = new_machine(CAP, SCALABLE);
    translating(&machine, OLD_ROOT);
    let refused = machine.enable(config(Mode::Scalable));
    assert_eq!(refused.err(), Some(IommuError::Unsupported));
    assert!(machine.take().is_empty());
    assert_eq!(machine.live(), 0);
    let bypass = Config { takeover: Takeover::Bypass(all_memory()), ..config(Mode::Scalable) };
    machine.enable(bypass.clone()).unwrap();
    assert!(was_off(&machine.take()));
    let machine = new_machine(CAP, SCALABLE);
    translating(&machine, OLD_ROOT);
    let chip = Quirks::KEEP_TRANSLATION;
    let kept = machine.enable(Config { chip, ..bypass });
    assert_eq!(kept.err(), Some(IommuError::Unsupported));
}

/// Memory of the system before.
struct Old(BTreeMap<u64, u64>);

impl Old {
    fn read(&self, at: PhysAddr) -> Option<u64> {
        self.0.get(&at.get()).copied()
    }
}

fn take_over(
    machine: &VtdMachine,
    config: Config,
    keep: &[StreamId],
    old: &Old,
) -> (super::kit::Iommu, Vec<StreamId>) {
    let (regs, mem, clock) = (machine.clone(), machine.clone(), machine.clone());
    let read = |at| old.read(at);
    Vtd::take_over(regs, mem, clock, config, keep, crashed(&read).passing(all_memory())).unwrap()
}

#[test]
fn named_streams_go_on_through_the_tables_of_the_system_before() {
    let contexts = 0x7000_1000;
    let old = Old(BTreeMap::from([
        (OLD_ROOT + 16, contexts | 1),
        (contexts + 8 * 16, 0x7123_4001),
        (contexts + 8 * 16 + 8, 0x302),
        // Passes through.
        (contexts + 16 * 16, 9),
        (contexts + 16 * 16 + 8, 0x502),
        // Not present.
        (contexts + 24 * 16, 0),
        (contexts + 24 * 16 + 8, 0),
        // In the domain of what passes through.
        (contexts + 32 * 16, 0x7123_5001),
        (contexts + 32 * 16 + 8, 0x102),
        // Half of it is not in memory.
        (contexts + 40 * 16, 0x7123_6001),
    ]));
    let machine = new_machine(CAP, ECAP);
    translating(&machine, OLD_ROOT);
    let keep = [0x0108, 0x0110, 0x0118, 0x0120, 0x0128, 0x0308, 0x1_0108].map(StreamId::new);
    let (unit, kept) = take_over(&machine, legacy(), &keep, &old);
    assert_eq!(kept, [STREAM, OTHER]);
    assert!(!was_off(&machine.take()));
    let context = machine.word(machine.reg(reg::RTADDR) + 16) & !0xfff;
    let entry = |function: u64| [0, 8].map(|n| machine.word(context + function * 16 + n));
    assert_eq!(entry(8), [0x7123_4001, 0x302]);
    assert_eq!(entry(16), [9, 0x502]);
    assert_eq!([entry(24), entry(32), entry(40)], [[0; 2]; 3]);
    // No domain of ours gets the identifier that tags the old translations.
    let domains: Vec<_> = (0..3).map(|_| Arc::new(unit.second_stage().unwrap())).collect();
    let ids: Vec<_> = domains.iter().map(|domain| domain.context().get()).collect();
    assert_eq!(ids, [2, 4, 6]);
    machine.take();
    let handed_over = || unit.handover().err();
    assert_eq!(handed_over(), Some(IommuError::Unsupported), "a stream is in no domain of ours");
    unit.attach(STREAM, &domains[0]).unwrap();
    let sent = machine.commands();
    assert_eq!(sent, [[0x0108_0003_0031, 0], [0x0003_00e2, 0]]);
    assert_eq!(handed_over(), Some(IommuError::Unsupported), "one that passes is as it was");
    unit.block(OTHER).unwrap();
    assert_eq!(entry(16), [0; 2]);
    assert_eq!(handed_over(), None);
}

#[test]
fn a_stream_that_passes_is_kept_with_leave_alone() {
    let contexts = 0x7000_1000;
    let old = Old(BTreeMap::from([
        (OLD_ROOT + 16, contexts | 1),
        (contexts + 16 * 16, 9),
        (contexts + 16 * 16 + 8, 0x502),
    ]));
    let machine = new_machine(CAP, ECAP);
    translating(&machine, OLD_ROOT);
    let (regs, mem, clock) = (machine.clone(), machine.clone(), machine.clone());
    let read = |at| old.read(at);
    let taken = Vtd::take_over(regs, mem, clock, legacy(), &[OTHER], crashed(&read));
    let (_unit, kept) = taken.unwrap();
    assert_eq!((kept, machine.read(OTHER, BASE.get())), (Vec::new(), None));
}

#[test]
fn a_kept_stream_in_scalable_mode_keeps_requests_without_a_pasid() {
    let (contexts, directory, table) = (0x7000_1000, 0x7000_2000, 0x7000_3000);
    let old = Old(BTreeMap::from([
        (OLD_ROOT + 16, contexts | 1),
        (contexts + 8 * 32, directory | 0x41d),
        (contexts + 8 * 32 + 8, 0x45),
        (contexts + 8 * 32 + 16, 0),
        (contexts + 8 * 32 + 24, 0),
        (directory + 8, table | 1),
        (table + 5 * 64, 0x81),
        (table + 5 * 64 + 8, 7),
    ]));
    let machine = new_machine(CAP, SCALABLE);
    translating(&machine, OLD_ROOT | 1 << 10);
    let keep = [STREAM, OTHER];
    let (unit, kept) = take_over(&machine, config(Mode::Scalable), &keep, &old);
    assert_eq!(kept, [STREAM]);
    let context = machine.word((machine.reg(reg::RTADDR) & !0xfff) + 16) & !0xfff;
    let words = [0, 8].map(|n| machine.word(context + 8 * 32 + n));
    assert_eq!(words, [directory | 0x405, 0x45]);
    // What its device's TLB holds is the old system's: it forgets that before it is used.
    let physical = STREAM.get() as u16;
    let device = DeviceTlb { depth: 4, physical, twice: false };
    unit.use_device_tlb(STREAM, device, all_memory()).unwrap();
    let domain = Arc::new(unit.second_stage().unwrap());
    machine.take();
    unit.attach(STREAM, &domain).unwrap();
    let sent = machine.commands();
    assert_eq!(sent[0][0] & 0xf, 3, "{sent:x?}");
    // And everything that hung on the old entry goes with it.
    for words in [[0x0108_0000_0031, 0], [0x37, 0], [0xd2, 0]] {
        assert!(sent.contains(&words), "{sent:x?}");
    }
}

#[test]
fn a_chipset_that_hides_its_write_buffer_is_flushed_all_the_same() {
    let bridge = PciIdentity { vendor: 0x8086, device: 0x2a40, base_class: 6 };
    let machine = new_machine(CAP, ECAP);
    let chip = Quirks::of(bridge);
    let (unit, domain) = super::attached(&machine, Config { chip, ..legacy() });
    let before = unit.counts().of(Kind::WriteBuffer);
    assert!(before > 0);
    domain.sync(&mut super::map(&*domain, 1)).unwrap();
    assert!(unit.counts().of(Kind::WriteBuffer) > before);
    // And its graphics are not attached.
    let graphics = StreamId::new(0x10);
    unit.attach(graphics, &domain).unwrap_err();
    unit.pass_through(graphics, all_memory()).unwrap();
}

#[test]
fn a_sound_controller_that_would_hang_translated_is_passed_through_or_blocked() {
    let machine = new_machine(CAP, ECAP);
    let chip = Quirks::AZALIA_UNTRANSLATED;
    let (unit, domain) = super::attached(&machine, Config { chip, ..legacy() });
    let [azalia, next] = [0xd8, 0xd9].map(StreamId::new);
    assert_eq!(unit.attach(azalia, &domain), Err(AttachError::Mismatch));
    unit.attach(next, &domain).unwrap();
    unit.pass_through(azalia, all_memory()).unwrap();
    unit.block(azalia).unwrap();
}

/// A kernel that crashed may have left its queue at a command that never completes.
#[test]
fn a_queue_that_was_left_stuck_does_not_keep_a_unit_from_being_taken_over() {
    let machine = new_machine(CAP, ECAP);
    machine.write64(reg::IQT, 0);
    machine.write64(reg::IQA, 0x10_0000_0000);
    machine.command(&[command::QIE]);
    let mut times = 3;
    machine.refuse(move |_| {
        times -= i32::from(times > 0);
        (times > 0).then_some(super::kit::REFUSED)
    });
    machine.write64(reg::IQT, 16);
    assert_ne!(machine.reg(reg::IQH), machine.reg(reg::IQT));
    reaches_what_is_mapped(&machine);
}
