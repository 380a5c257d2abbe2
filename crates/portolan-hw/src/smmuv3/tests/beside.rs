//! Command queues beside the unit's own, on CPUs that take turns: enhanced ones, and NVIDIA's.

use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};

use portolan::addr::{CpuId, Iova, IovaRange, PhysAddr, StreamId};
use portolan::inval::{Command, Gather, InvalidationQueue as _, Step, TablesLeft};
use portolan::iommu::{Domain as _, Iommu as _, IommuError};
use portolan::platform::{Clock, Cpus, LeftBehind, Mmio, Nanos, UnitParts};
use portolan::table::Access;
use portolan_chips::inject::Violation;
use portolan_chips::interrupts::{InterruptedLock, InterruptedWord};
use portolan_chips::machine::{Machine, Withheld};
use portolan_chips::smmuv3::{Beside, CMDQV, SmmuMachine, SmmuSetup, SmmuV3};
use portolan_sim::decode::AccessKind;
use portolan_spec::smmuv3::command::{error, op};
use portolan_spec::smmuv3::reg;

use super::kit::{FULL, Kit as _, of};
use crate::chassis::tests::hostile::Hosted;
use crate::promise::tests::promised;
use crate::smmuv3::{
    Config, EnhancedQueues, FirstStage, MoreQueues, Smmu, SmmuDomainOptions, enhanced_queues,
};

/// Registers of the machine from an offset on.
#[derive(Clone)]
struct Window(SmmuMachine, usize);

impl Mmio for Window {
    fn read32(&self, offset: usize) -> u32 {
        self.0.read32(self.1 + offset)
    }

    fn write32(&self, offset: usize, value: u32) {
        self.0.write32(self.1 + offset, value);
    }

    fn read64(&self, offset: usize) -> u64 {
        self.0.read64(self.1 + offset)
    }

    fn write64(&self, offset: usize, value: u64) {
        self.0.write64(self.1 + offset, value);
    }
}

/// Four CPUs, of which another one calls each time.
#[derive(Clone)]
struct Turns(SmmuMachine, Arc<AtomicU32>);

const CPUS: u32 = 4;

impl Clock for Turns {
    fn now(&self) -> Nanos {
        self.0.now()
    }

    fn relax(&self) {
        self.0.relax();
    }
}

impl Cpus for Turns {
    type Word = InterruptedWord;
    type Lock<T: Send> = InterruptedLock<T>;

    fn count(&self) -> usize {
        CPUS as usize
    }

    fn current(&self) -> CpuId {
        CpuId::new(self.1.fetch_add(1, Ordering::Relaxed) % CPUS)
    }

    fn flush_wanted(&self) {}

    fn drop_later(&self, left: LeftBehind) {
        drop(left);
    }
}

type Parts = UnitParts<Window, SmmuMachine, Turns>;

/// A machine with enhanced queues.
struct Enhanced(SmmuMachine);
/// A machine with CMDQV.
struct Tegra241(SmmuMachine);

const ENHANCED: Beside = Beside::Enhanced { pages_lg2: 1, queues_lg2: 1 };
/// As NVIDIA's Grace has it: two queues for an interface.
const TEGRA241: Beside = Beside::Tegra241 { queues_lg2: 7, vintfs_lg2: 6 };

fn machine(beside: Beside) -> SmmuMachine {
    of(SmmuSetup { identification: FULL, beside, ..SmmuSetup::default() })
}

fn enable(
    machine: &SmmuMachine,
    more: MoreQueues<Window>,
    config: Config,
) -> Result<Smmu<Parts>, IommuError> {
    let (registers, memory) = (Window(machine.clone(), 0), machine.clone());
    let cpus = UnitParts::new(Turns(machine.clone(), Arc::default()));
    Smmu::enable_with(registers, more, memory, cpus, config)
}

macro_rules! hosted {
    ($name:ident, $beside:ident, |$machine:ident| $more:expr) => {
        impl From<Machine<SmmuV3>> for $name {
            fn from(machine: Machine<SmmuV3>) -> Self {
                Self(machine)
            }
        }

        impl Hosted for $name {
            type Kind = SmmuV3;
            type Unit = Smmu<Parts>;
            type Tables = FirstStage<12, Parts>;

            const STREAMS: [StreamId; 2] = [StreamId::new(0x1234), StreamId::new(0x1235)];

            fn new() -> Self {
                Self(machine($beside))
            }

            fn bring_up(&self) -> Result<Self::Unit, IommuError> {
                let $machine = &self.0;
                enable($machine, $more, super::config())
            }

            fn release(unit: Self::Unit) -> Result<(), IommuError> {
                unit.disable()
            }

            fn tables(unit: &Self::Unit) -> Result<Self::Tables, IommuError> {
                unit.first_stage(&SmmuDomainOptions::default())
            }

            fn machine(&self) -> &SmmuMachine {
                &self.0
            }

            fn read(&self, stream: StreamId, iova: u64) -> Option<u64> {
                let (iova, read) = (Iova::new(iova), AccessKind::Read);
                let found = self.0.unit().dma(stream, None, iova, read, 4).ok()?;
                found.first().map(|piece| piece.pa.get())
            }
        }
    };
}

hosted!(Enhanced, ENHANCED, |_machine| MoreQueues::Enhanced);
hosted!(Tegra241, TEGRA241, |machine| MoreQueues::Tegra241(Window(machine.clone(), CMDQV)));

mod enhanced {
    crate::chassis::tests::hostile::on_a_hostile_machine! { crate::smmuv3::tests::beside::Enhanced }
}

mod tegra241 {
    crate::chassis::tests::hostile::on_a_hostile_machine! { crate::smmuv3::tests::beside::Tegra241 }
}

/// Indices that the queues beside the unit's own have reached.
fn reached(machine: &SmmuMachine) -> Vec<u32> {
    machine.unit().beside()
}

fn no_violation(machine: &SmmuMachine) {
    let none: [Violation; 0] = [];
    assert_eq!(machine.unit().violations(), none);
}

/// An invalidation of everything, as one CPU asks for it.
fn pay(unit: &Smmu<Parts>) -> Result<(), IommuError> {
    let mut steps = [Step::Invalidate(Command::Global), Step::Sync].into_iter();
    unit.queue().pay(&mut steps, TablesLeft::ByDepth)
}

fn each_cpu_has_a_queue<H: Hosted<Kind = SmmuV3, Unit = Smmu<Parts>>>(queues: usize) {
    let host = H::new();
    let unit = host.bring_up().unwrap();
    let machine = host.machine();
    machine.take_log();
    assert_eq!(reached(machine), vec![0; queues]);
    // Everything is written in the queue of the CPU that asks: a command and a sync each.
    for round in 1..=3 {
        for _ in 0..CPUS {
            pay(&unit).unwrap();
        }
        let each = round * 2 * CPUS / queues as u32;
        assert_eq!(reached(machine), vec![each; queues]);
    }
    // The unit's own took what enabled it, and no more.
    let own = machine.reg32(reg::CMDQ_CONS);
    pay(&unit).unwrap();
    assert_eq!(machine.reg32(reg::CMDQ_CONS), own);
    // 13 invalidations since, and those of before in the counts as well.
    let counts = unit.counts();
    assert_eq!(counts.of(crate::smmuv3::CommandKind::Everything), 1 + 13);
    unit.disable().unwrap();
    no_violation(machine);
}

#[test]
fn each_cpu_has_an_enhanced_queue_of_its_own() {
    each_cpu_has_a_queue::<Enhanced>(4);
}

#[test]
fn cpus_share_the_two_queues_of_an_interface() {
    each_cpu_has_a_queue::<Tegra241>(2);
}

fn a_refusal_is_one_callers<H: Hosted<Kind = SmmuV3, Unit = Smmu<Parts>>>() {
    let host = H::new();
    let unit = host.bring_up().unwrap();
    let machine = host.machine();
    for round in 0..20 {
        machine.refuse_kind((op::TLBI_NSNH_ALL, error::ILL, 1));
        let refused = pay(&unit);
        assert_eq!(refused, Err(IommuError::Refused { code: error::ILL }), "{round}");
        // Each queue goes on, the one that stopped too.
        for _ in 0..CPUS {
            assert_eq!(pay(&unit), Ok(()), "{round}");
        }
    }
    // A sync that a device did not answer is done again.
    machine.refuse_kind((op::SYNC, error::ABT, 1));
    assert_eq!(pay(&unit), Ok(()));
    let errors = unit.service_errors().unwrap();
    assert!(!errors.contains(crate::smmuv3::GlobalErrors::SERVICE_FAILURE));
    unit.disable().unwrap();
    no_violation(machine);
}

#[test]
fn a_command_that_an_enhanced_queue_refuses_is_told_to_its_caller_alone() {
    a_refusal_is_one_callers::<Enhanced>();
}

#[test]
fn a_command_that_a_queue_of_an_interface_refuses_is_told_to_its_caller_alone() {
    a_refusal_is_one_callers::<Tegra241>();
}

fn maps_come_and_go<
    H: Hosted<Kind = SmmuV3, Unit = Smmu<Parts>, Tables = FirstStage<12, Parts>>,
>() {
    let host = H::new();
    let (unit, domain) = host.attached();
    let stream = H::STREAMS[0];
    let mut random = fastrand::Rng::with_seed(0xec3d);
    for round in 0..200u64 {
        let iova = 0x10_0000 + random.u64(..16) * 0x1000;
        let page = IovaRange::from_len(Iova::new(iova), 0x1000).unwrap();
        let pa = PhysAddr::new(0x4000_0000 + round * 0x1000);
        let mut owed = Gather::new();
        let access = Access::READ | Access::WRITE;
        domain.map(Iova::new(iova), promised(pa, 0x1000), access, &mut owed).unwrap();
        domain.sync(&mut owed).unwrap();
        assert_eq!(host.read(stream, iova), Some(pa.get()), "{round}");
        let mut owed = Gather::new();
        domain.unmap(page, &mut owed).unwrap();
        domain.sync(&mut owed).unwrap();
        assert_eq!(host.read(stream, iova), None, "{round}: a stale translation");
        if round % 50 == 49 {
            unit.suspend().unwrap();
            unit.resume().unwrap();
        }
    }
    no_violation(host.machine());
}

#[test]
fn what_is_unmapped_is_gone_whichever_queue_was_told() {
    maps_come_and_go::<Enhanced>();
    maps_come_and_go::<Tegra241>();
}

#[test]
fn control_pages_are_where_the_unit_says_or_nonsense() {
    let there = machine(ENHANCED);
    let window = Window(there, 0);
    let found = enhanced_queues(&window).unwrap().unwrap();
    assert_eq!(found, EnhancedQueues { at: 0x2_0000, pages: 2, queues: 2 });
    assert_eq!(found.window_bytes(), 0x4_0000);
    assert_eq!(enhanced_queues(&Window(machine(Beside::None), 0)), Ok(None));
    /// Registers of a unit with two pages, whose second base is changed.
    struct Changed(u64);
    impl Mmio for Changed {
        fn read32(&self, offset: usize) -> u32 {
            let bases = [0x10_0000u64 | 1, self.0];
            match offset {
                reg::IDR1 => 1 << 31,
                reg::IDR6 => 1 << 24 | 8 << 16,
                0x4000..0x4040 => {
                    let base = bases[(offset - 0x4000) / 32];
                    (base >> (8 * (offset as u32 & 4))) as u32
                }
                _ => 0,
            }
        }
        fn write32(&self, _: usize, _: u32) {}
    }
    let good = EnhancedQueues { at: 0x10_0000, pages: 2, queues: 256 };
    assert_eq!(enhanced_queues(&Changed(0x11_0001)), Ok(Some(good)));
    // In memory: software would have to give it.
    assert_eq!(enhanced_queues(&Changed(0x11_0000)), Ok(None));
    for value in [0x12_0001, 0x1, 0xf_ffff_f000_0001, 0x11_1001] {
        let offset = 0x4020;
        assert_eq!(enhanced_queues(&Changed(value)), Err(IommuError::Nonsense { offset, value }));
    }
    assert_eq!(enhanced_queues(&Changed(u64::MAX)), Err(IommuError::Gone));
}

#[test]
fn an_interface_that_is_a_guests_is_refused() {
    let there = machine(TEGRA241);
    let more = MoreQueues::Tegra241(Window(there.clone(), CMDQV));
    there.withhold(CMDQV + 0x1000, Withheld::Locked);
    let refused = enable(&there, more, super::config()).err();
    let offset = portolan_spec::smmuv3::cmdqv::VINTF_CONFIG;
    assert_eq!(refused, Some(IommuError::Nonsense { offset, value: 0 }));
}

fn fetches_from_no_queue(after: impl FnOnce(&Smmu<Parts>) -> Result<(), IommuError>) {
    let host = Enhanced::new();
    let unit = host.bring_up().unwrap();
    pay(&unit).unwrap();
    after(&unit).unwrap();
    for queue in 0..4usize {
        let at = 0x2_0000 + queue * 0x8000;
        let enable = 1u32 << 31;
        assert_eq!(host.machine().reg32(at + reg::ECMDQ_PROD) & enable, 0);
        assert_eq!(host.machine().reg32(at + reg::ECMDQ_CONS) & enable, 0);
    }
}

#[test]
fn a_unit_that_is_left_fetches_from_no_queue() {
    fetches_from_no_queue(Smmu::leave_unit);
}

#[test]
fn a_unit_that_is_disabled_fetches_from_no_queue() {
    fetches_from_no_queue(Smmu::disable);
}
