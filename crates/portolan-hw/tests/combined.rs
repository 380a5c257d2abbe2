//! Each driver's unit with one submitter for all CPUs that meet, and without: on the model, by CPUs in
//! virtual time. Registers take time, as do commands, so that CPUs meet.
#![allow(missing_docs)]

#[path = "../../portolan/tests/support/promised.rs"]
mod promised;

use promised::promised;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use portolan::addr::{CpuId, Iova, PageSize, PhysAddr, StreamId};
use portolan::inval::{CombineOptions, Gather};
use portolan::iommu::{BoundDomain, IommuDomains};
use portolan::platform::{Clock, Cpus, Mmio, Nanos, UnitParts};
use portolan::table::Access;
use portolan_chips::amd::{AmdRegisters, AmdSetup};
use portolan_chips::chips::{LS1088A, RAVEN_RIDGE, SKYLAKE_SP};
use portolan_chips::inject::RegisterFaults;
use portolan_chips::memory::{ModelMemory, Visibility};
use portolan_chips::riscv::{RiscvIdentification, RiscvRegisters, RiscvSetup};
use portolan_chips::smmuv2::{SmmuV2Registers, SmmuV2Setup};
use portolan_chips::smmuv3::{SmmuIdentification, SmmuRegisters, SmmuSetup};
use portolan_chips::tegra_smmu::{TegraChip, TegraRegisters, TegraSetup};
use portolan_chips::vtd::{VtdRegisters, VtdSetup};
use portolan_hw::tegra_smmu::{Chip, TegraSmmu};
use portolan_hw::{amd, riscv, smmuv2, smmuv3, tegra_smmu, vtd};
use portolan_sim::clock::{Tick, VirtualClock};
use portolan_sim::cpus::{
    LockKind, Schedule, SharingPrices, VirtualCpus, VirtualLock, VirtualWord,
};
use portolan_sim::decode::AccessKind;

const CPUS: usize = 8;
/// Unmaps of each CPU.
const UNMAPS: u64 = 12;
/// Longest wait of a driver for its unit.
const LIMIT: Nanos = Nanos::new(2_000_000);
/// Time of an access to a register, in nanoseconds.
const ACCESS_NS: f64 = 300.0;
const BASE: PhysAddr = PhysAddr::new(0x8000_0000);
const PAGES: u32 = 1 << 12;

const SHARING: SharingPrices = SharingPrices {
    hit: 1.0,
    transfer: 60.0,
    share: 15.0,
    handover: 60.0,
    relax: 20.0,
    lock: LockKind::Queued,
};

/// The CPUs, and hardware that goes on while one of them waits.
#[derive(Clone)]
struct Machine {
    cpus: VirtualCpus,
    hardware: Arc<dyn Tick>,
    clock: Arc<VirtualClock>,
}

impl Clock for Machine {
    fn now(&self) -> Nanos {
        self.cpus.now()
    }

    fn relax(&self) {
        self.clock.advance_ns(SHARING.relax as u64);
        self.hardware.tick();
        self.cpus.relax();
    }
}

impl Cpus for Machine {
    type Word = VirtualWord;
    type Lock<T: Send> = VirtualLock<T>;

    fn count(&self) -> usize {
        self.cpus.count()
    }

    fn current(&self) -> CpuId {
        self.cpus.current()
    }

    fn flush_wanted(&self) {}

    fn drop_later(&self, left: portolan::platform::LeftBehind) {
        drop(left);
    }
}

/// Registers that take a CPU's time.
struct Slow<R>(Arc<R>, VirtualCpus);

impl<R> Slow<R> {
    fn access(&self) -> &R {
        self.1.sleep_until(self.1.now_exact_ns() + ACCESS_NS);
        &self.0
    }
}

impl<R: Mmio> Mmio for Slow<R> {
    fn read32(&self, offset: usize) -> u32 {
        self.access().read32(offset)
    }

    fn write32(&self, offset: usize, value: u32) {
        self.access().write32(offset, value);
    }

    fn read64(&self, offset: usize) -> u64 {
        self.access().read64(offset)
    }

    fn write64(&self, offset: usize, value: u64) {
        self.access().write64(offset, value);
    }
}

/// Reads for a device.
type Dma = Box<dyn Fn(StreamId, Iova) -> bool + Sync>;

/// A driver on the model of its unit.
struct Bench {
    cpus: VirtualCpus,
    unit: Arc<dyn IommuDomains>,
    stream: StreamId,
    dma: Dma,
    inject: Box<dyn Fn(RegisterFaults) + Sync>,
    accesses: Box<dyn Fn() -> u64 + Sync>,
}

fn start<R: Tick + 'static>(registers: &Arc<R>, clock: &Arc<VirtualClock>) -> (Slow<R>, Machine) {
    let cpus = VirtualCpus::new(CPUS, SHARING);
    let machine = Machine { cpus: cpus.clone(), hardware: registers.clone(), clock: clock.clone() };
    (Slow(registers.clone(), cpus), machine)
}

/// The driver of `$Registers`: its set-up, and a device's read.
macro_rules! bench {
    ($Registers:ident, $setup:expr, $memory:expr, $stream:expr, $enable:expr, $dma:expr) => {{
        let memory = Arc::new($memory);
        let registers = Arc::new($Registers::new($setup, memory.clone()));
        let (slow, machine) = start(&registers, registers.clock());
        let cpus = machine.cpus.clone();
        let unit = Arc::new($enable(slow, memory, machine).unwrap());
        let theirs = registers.clone();
        let counted = registers.clone();
        Bench {
            cpus,
            unit,
            stream: $stream,
            dma: Box::new(move |stream, iova| $dma(&*theirs, stream, iova)),
            inject: Box::new(move |faults| registers.inject(faults)),
            accesses: Box::new(move || counted.accesses()),
        }
    }};
}

const STREAM: StreamId = StreamId::new(8);
const READ: AccessKind = AccessKind::Read;

fn memory() -> ModelMemory<AtomicU64> {
    ModelMemory::new(BASE, PAGES, Visibility::AtOnce)
}

fn narrow() -> ModelMemory<AtomicU32> {
    ModelMemory::narrow(BASE, PAGES, Visibility::AtOnce)
}

macro_rules! enable {
    ($Driver:path, $config:expr, $combining:expr $(, $capability:expr)?) => {
        |registers, memory, machine| {
            let mut config = $config;
            config.limit = LIMIT;
            config.combining = $combining;
            <$Driver>::enable(registers, memory, UnitParts::new(machine), $($capability,)? config)
        }
    };
}

fn smmuv2_bench() -> Bench {
    bench!(
        SmmuV2Registers,
        SmmuV2Setup::of(LS1088A.identification),
        memory(),
        STREAM,
        |registers, memory, machine| {
            let config = smmuv2::Config::default();
            smmuv2::SmmuV2::enable(registers, memory, UnitParts::new(machine), config)
        },
        |unit: &SmmuV2Registers, stream, iova| unit.dma(stream, iova, READ, 8).is_ok()
    )
}

/// The drivers that have the option, by name.
fn all(combining: Option<CombineOptions>) -> Vec<(&'static str, Bench)> {
    let setup = AmdSetup::of(RAVEN_RIDGE.identification);
    let capability = amd::Capability::parse(setup.identification.capability).unwrap();
    let client = TegraChip::Tegra124.clients()[0].stream;
    vec![
        (
            "smmuv3",
            bench!(
                SmmuRegisters,
                SmmuSetup::of(SmmuIdentification::able()),
                memory(),
                STREAM,
                enable!(smmuv3::Smmu<_>, smmuv3::Config::default(), combining),
                |unit: &SmmuRegisters, stream, iova| unit.dma(stream, None, iova, READ, 8).is_ok()
            ),
        ),
        (
            "vtd",
            bench!(
                VtdRegisters,
                VtdSetup::of(SKYLAKE_SP.identification),
                memory(),
                STREAM,
                enable!(vtd::Vtd<_>, vtd::Config::default(), combining),
                |unit: &VtdRegisters, stream, iova| unit.dma(stream, None, iova, READ, 8).is_ok()
            ),
        ),
        (
            "amd",
            bench!(
                AmdRegisters,
                setup,
                memory(),
                STREAM,
                enable!(amd::AmdVi<_>, amd::Config::default(), combining, capability),
                |unit: &AmdRegisters, stream, iova| unit.dma(stream, iova, READ, 8).is_ok()
            ),
        ),
        (
            "riscv",
            bench!(
                RiscvRegisters,
                RiscvSetup::of(RiscvIdentification::able()),
                memory(),
                STREAM,
                enable!(riscv::RiscvIommu<_>, riscv::Config::default(), combining),
                |unit: &RiscvRegisters, stream, iova| unit.dma(stream, None, iova, READ, 8).is_ok()
            ),
        ),
        (
            "tegra",
            bench!(
                TegraRegisters,
                TegraSetup::of(TegraChip::Tegra124),
                narrow(),
                client,
                enable!(TegraSmmu<_>, tegra_smmu::Config::of(Chip::Tegra124), combining),
                |unit: &TegraRegisters, stream, iova| unit.dma(stream, iova, READ, 8).is_ok()
            ),
        ),
    ]
}

/// Commands, and those among them that wait.
fn commands(bench: &Bench) -> [u64; 2] {
    let mut all = [0; 2];
    bench.unit.commands(&mut |kind, count| {
        all[0] += count;
        all[1] += count * u64::from(kind == "TLBSYNC");
    });
    all
}

/// Counts of unmaps.
#[derive(Debug, Default)]
struct Found {
    /// Commands that they took.
    commands: u64,
    /// Accesses to registers.
    accesses: u64,
    /// Of the commands, those that wait.
    waits: u64,
    took: Nanos,
    stale: Vec<(u32, Iova)>,
    /// By CPU.
    failures: BTreeMap<u32, u64>,
}

/// Each CPU maps pages of its own, four granules from each other, lets the device read, and unmaps. The unit
/// answers no more once `stops` unmaps have gone well.
fn run(bench: &Bench, seed: u64, stops: Option<u64>) -> Found {
    let bound: BoundDomain = bench.unit.clone().new_domain().unwrap();
    bound.attach(bench.stream).unwrap();
    let (domain, page) = (bound.domain(), PageSize::SIZE_4K);
    let at =
        |cpu: u32, n: u64| Iova::new((1 << 24) + u64::from(cpu) * (1 << 18) + n * 4 * page.bytes());
    let each = || (0..CPUS as u32).flat_map(|cpu| (0..UNMAPS).map(move |n| (cpu, n)));
    let mut owed = Gather::new();
    for (cpu, n) in each() {
        let _ =
            domain.map(at(cpu, n), promised(BASE, page.bytes()), Access::READ, &mut owed).unwrap();
    }
    domain.sync(&mut owed).unwrap();
    assert!(each().all(|(cpu, n)| (bench.dma)(bench.stream, at(cpu, n))));
    let before = (commands(bench), (bench.accesses)());
    let (found, done) = (Mutex::new(Found::default()), AtomicU64::new(0));
    let report = bench.cpus.run(&Schedule::of_seed(seed), |cpu| {
        let cpu = cpu.get();
        for n in 0..UNMAPS {
            let mut owed = Gather::new();
            let range = portolan::addr::IovaRange::page(at(cpu, n), page);
            domain.unmap(range, &mut owed).unwrap();
            match domain.sync(&mut owed) {
                Err(_) => *found.lock().unwrap().failures.entry(cpu).or_default() += 1,
                // In no virtual time, so that nothing comes in between.
                Ok(_) if (bench.dma)(bench.stream, range.start()) => {
                    found.lock().unwrap().stale.push((cpu, range.start()));
                }
                Ok(_) => {
                    if Some(done.fetch_add(1, Ordering::Relaxed) + 1) == stops {
                        (bench.inject)(RegisterFaults::STUCK);
                    }
                }
            }
        }
    });
    let mut found = found.into_inner().unwrap();
    found.took = Nanos::new(report.unwrap().end_ns() as u64);
    let after = commands(bench);
    [found.commands, found.waits] = [0, 1].map(|kind| after[kind] - before.0[kind]);
    found.accesses = (bench.accesses)() - before.1;
    found
}

#[test]
fn cpus_that_meet_submit_less_at_every_unit() {
    let seed = portolan_chips::fixture::seed();
    let alone = all(None);
    let combined = all(Some(CombineOptions::default()));
    for ((name, alone), (_, combined)) in alone.iter().zip(&combined) {
        let [alone, combined] = [alone, combined].map(|bench| run(bench, seed, None));
        for found in [&alone, &combined] {
            let well = found.stale.is_empty() && found.failures.is_empty();
            assert!(well, "{name}: {found:?}");
        }
        let (alone, combined) = (alone.accesses, combined.accesses);
        println!("{name}: {alone} accesses to registers alone, {combined} combined");
        assert!(combined < alone, "{name}: {combined} of {alone}");
    }
}

/// An SMMUv2 has no option: its CPUs share waits as it is.
#[test]
fn cpus_that_meet_at_an_smmuv2_share_its_waits() {
    let found = run(&smmuv2_bench(), portolan_chips::fixture::seed(), None);
    let well = found.stale.is_empty() && found.failures.is_empty();
    assert!(well, "{found:?}");
    let (unmaps, waits) = (found.commands - found.waits, found.waits);
    println!("smmuv2: {unmaps} invalidations, {waits} waits");
    assert_eq!(unmaps, CPUS as u64 * UNMAPS);
    assert!(waits < unmaps);
}

/// The unit stops while CPUs submit together: each of them hears of it, and none waits for long.
#[test]
fn a_unit_that_stops_fails_everybody_who_submits_to_it() {
    let seed = portolan_chips::fixture::seed();
    let options = CombineOptions::default();
    for (name, bench) in all(Some(options)) {
        // Writes to registers of a Tegra are complete at once: nothing of it can stand still.
        if name == "tegra" {
            continue;
        }
        let all = CPUS as u64 * UNMAPS;
        let before = all / 2;
        let found = run(&bench, seed, Some(before));
        assert!(found.stale.is_empty(), "{name}: {found:?}");
        // What was under way on other CPUs may have gone well.
        let failures: u64 = found.failures.values().sum();
        let least = all - before - CPUS as u64;
        assert!((least..=all - before).contains(&failures), "{name}: {found:?}");
        assert_eq!(found.failures.len(), CPUS, "{name}: {found:?}");
        // For others, and twice for the unit.
        let each = options.wait_limit.get() + 2 * LIMIT.get();
        let most = UNMAPS * each;
        assert!(found.took.get() < most, "{name}: {:?} of {most}", found.took);
    }
}
