//! The SMMUv3 driver on QEMU's model of the hardware: access, staleness, faults, and as many
//! commands as QEMU counts.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use support::promised::{all_memory, promised};

use portolan::addr::{Iova, IovaRange, PageSize, PhysAddr, StreamId};
use portolan::inval::{Gather, Preference, Quirks, RangeForm, WalkFlush};
use portolan::iommu::{
    Attach, AttachError, Domain, FaultAccess, FaultEvent, FaultReason, FaultRecord, Iommu as _,
    IommuError,
};
use portolan::platform::{Mmio, UnitParts};
use portolan::table::Access;
use portolan::table::format::Format;
use portolan_hw::smmuv3::{
    Blocking, CommandCounts, CommandKind, Config, FirstStage, GlobalErrors, Smmu, SmmuDomainOptions,
};
use portolan_qemu::config::{Architecture, Device, Iommu};
use portolan_qemu::edu::Edu;
use portolan_qemu::guest_tables::GuestTables;
use portolan_qemu::machine::{Builder, Machine};
use portolan_qemu::mmio::{HostClock, Registers};
use portolan_qemu::ram::GuestRam;
use portolan_qemu::trace::{Counts, SmmuCommand};
use portolan_spec::smmuv3::reg;
use support::start;

type Parts = UnitParts<Registers, GuestTables, HostClock>;
type Driver = Smmu<Parts>;
type First<const G: u32> = FirstStage<G, Parts>;

struct Bench {
    machine: Machine,
    edu: Edu,
    stream: StreamId,
}

impl Bench {
    fn new() -> Option<Self> {
        let builder =
            Builder::new(Architecture::Aarch64).iommu(Iommu::Smmuv3).device(Device::edu());
        let machine = start(&builder)?;
        let edu = Edu::find(&machine.pci().unwrap()).unwrap();
        let stream = edu.function().stream();
        Some(Self { machine, edu, stream })
    }

    fn driver(&self, config: Config) -> Driver {
        let registers = self.machine.iommu_registers().unwrap();
        let tables = self.machine.tables().clone();
        Driver::enable(registers, tables, UnitParts::new(HostClock::new()), config).unwrap()
    }

    /// Tells if a write of the device at `iova` arrives at `pa`.
    fn reaches(&self, iova: u64, pa: PhysAddr) -> bool {
        let ram = self.machine.ram();
        ram.write32(pa, 0).unwrap();
        self.edu.dma_write32(Iova::new(iova), 0x5a5a).unwrap();
        ram.read32(pa).unwrap() == 0x5a5a
    }

    /// A block of memory for buffers.
    fn buffer(&self, size: PageSize) -> PhysAddr {
        self.machine.tables().alloc(size).unwrap()
    }

    /// The only fault.
    fn fault(&self, driver: &Driver) -> FaultRecord {
        let Some(FaultEvent::Fault(record)) = driver.next_fault().unwrap() else {
            panic!("no fault was recorded");
        };
        assert_eq!(driver.next_fault(), Ok(None));
        assert_eq!(record.stream, self.stream);
        record
    }

    fn same_counts(&self, driver: &Driver) {
        same_counts(&driver.counts(), &self.machine.trace().counts().unwrap());
    }
}

/// The driver and QEMU count the same commands.
fn same_counts(ours: &CommandCounts, theirs: &Counts) {
    let pairs = [
        (CommandKind::ConfigStream, SmmuCommand::CfgiSte),
        (CommandKind::ConfigStreams, SmmuCommand::CfgiSteRange),
        (CommandKind::ConfigContext, SmmuCommand::CfgiCd),
        (CommandKind::ConfigContexts, SmmuCommand::CfgiCdAll),
        (CommandKind::FirstStageOfVmid, SmmuCommand::TlbiNhAll),
        (CommandKind::Asid, SmmuCommand::TlbiNhAsid),
        (CommandKind::Address, SmmuCommand::TlbiNhVa),
        (CommandKind::Hyp, SmmuCommand::TlbiEl2All),
        (CommandKind::Vmid, SmmuCommand::TlbiS12Vmall),
        (CommandKind::IntermediateAddress, SmmuCommand::TlbiS2Ipa),
        (CommandKind::Everything, SmmuCommand::TlbiNsnhAll),
        (CommandKind::Sync, SmmuCommand::Sync),
    ];
    for (kind, key) in pairs {
        assert_eq!(ours.of(kind), theirs.smmu(key), "{kind:?}");
    }
    assert_eq!(ours.total(), theirs.smmu_commands());
    assert_ne!(ours.total(), 0);
}

fn map<D: Domain>(domain: &Arc<D>, iova: u64, pa: PhysAddr, bytes: u64) -> IovaRange {
    let mut owed = Gather::new();
    let access = Access::READ | Access::WRITE;
    let range = domain.map(Iova::new(iova), promised(pa, bytes), access, &mut owed).unwrap();
    domain.sync(&mut owed).unwrap();
    range
}

/// Domains with the widest input addresses and this way of invalidating.
fn preferring(preference: Preference) -> SmmuDomainOptions {
    let mut options = SmmuDomainOptions::default();
    options.quirks = Quirks { preference, ..Quirks::default() };
    options
}

/// Tests one granule: reached, stale after the unmap, blocked after the sync, and reported.
fn one_granule<const G: u32>(bench: &Bench, driver: &Driver, options: &SmmuDomainOptions) {
    let domain: Arc<First<G>> = Arc::new(driver.first_stage::<G>(options).unwrap());
    driver.attach(bench.stream, &domain).unwrap();
    let page = PageSize::of_lg2(G);
    let buffer = bench.buffer(page);
    let iova = 0x12_3456_0000;
    let range = map(&domain, iova, buffer, page.bytes());
    assert!(bench.reaches(iova, buffer));
    let mut owed = Gather::new();
    domain.unmap(range, &mut owed).unwrap();
    assert!(bench.reaches(iova, buffer), "nothing was stale");
    domain.sync(&mut owed).unwrap();
    assert!(!bench.reaches(iova + 0x124, buffer));
    let record = bench.fault(driver);
    assert_eq!(record.reason, FaultReason::NotMapped);
    assert_eq!(record.access, Some(FaultAccess::Write));
    assert_eq!(record.iova, Some(Iova::new(iova + 0x124)));
    assert_eq!(record.pasid, None);
    driver.block(bench.stream).unwrap();
    bench.machine.tables().free(buffer, page);
}

#[test]
fn unmapped_is_blocked_after_the_sync_in_every_granule() {
    let Some(bench) = Bench::new() else { return };
    let before = bench.machine.tables().live();
    for preference in [Preference::Fewest, Preference::ByPage, Preference::ByContext] {
        let driver = bench.driver(Config::default());
        let options = preferring(preference);
        one_granule::<12>(&bench, &driver, &options);
        one_granule::<14>(&bench, &driver, &options);
        one_granule::<16>(&bench, &driver, &options);
        let mut options = options;
        options.input_lg2 = Some(39);
        one_granule::<12>(&bench, &driver, &options);
        drop(driver);
    }
    assert_eq!(bench.machine.tables().live(), before, "memory was lost");
    assert_eq!(bench.machine.tables().refused(), 0);
}

/// Unmaps `pages` pages, which are cached as far as the hardware has room.
fn unmap_many(bench: &Bench, driver: &Driver, preference: Preference, pages: u64) -> CommandCounts {
    let options = preferring(preference);
    let domain: Arc<First<12>> = Arc::new(driver.first_stage::<12>(&options).unwrap());
    driver.attach(bench.stream, &domain).unwrap();
    let buffer = bench.buffer(PageSize::SIZE_4K);
    let start = 0x1_0000_3000;
    for page in 0..pages {
        map(&domain, start + page * 0x1000, buffer, 0x1000);
    }
    let at = |page: u64| start + page * 0x1000;
    assert!((0..pages).all(|page| bench.reaches(at(page), buffer)));
    let before = driver.counts();
    let range = IovaRange::from_len(Iova::new(start), pages * 0x1000).unwrap();
    let mut owed = Gather::new();
    domain.unmap(range, &mut owed).unwrap();
    assert!(bench.reaches(at(pages / 2), buffer));
    domain.sync(&mut owed).unwrap();
    let counts = driver.counts().since(&before);
    for page in 0..pages {
        assert!(!bench.reaches(at(page), buffer), "{preference:?} {page}");
        assert_eq!(bench.fault(driver).reason, FaultReason::NotMapped);
    }
    driver.block(bench.stream).unwrap();
    bench.machine.tables().free(buffer, PageSize::SIZE_4K);
    counts
}

#[test]
fn ranges_reach_every_page_with_few_commands() {
    let Some(bench) = Bench::new() else { return };
    let driver = bench.driver(Config::default());
    // Not a power of two, and not aligned.
    const PAGES: u64 = 77;
    let few = unmap_many(&bench, &driver, Preference::Fewest, PAGES);
    let each = unmap_many(&bench, &driver, Preference::ByPage, PAGES);
    let whole = unmap_many(&bench, &driver, Preference::ByContext, PAGES);
    assert_eq!(each.of(CommandKind::Address), PAGES);
    assert_eq!((whole.of(CommandKind::Asid), whole.total()), (1, 2));
    if driver.features().range {
        assert!(few.of(CommandKind::Address) <= 4, "{few:?}");
    }
    for counts in [few, each, whole] {
        assert_eq!(counts.of(CommandKind::Sync), 1);
    }
    bench.same_counts(&driver);
}

#[test]
fn a_stream_moves_between_domains_bypass_and_nothing() {
    let Some(bench) = Bench::new() else { return };
    let driver = bench.driver(Config::default());
    let (one, two) = (bench.buffer(PageSize::SIZE_4K), bench.buffer(PageSize::SIZE_4K));
    let iova = 0x7000;
    let domain = |buffer| {
        let options = SmmuDomainOptions::default();
        let domain: Arc<First<12>> = Arc::new(driver.first_stage::<12>(&options).unwrap());
        map(&domain, iova, buffer, 0x1000);
        domain
    };
    let (first, second) = (domain(one), domain(two));
    // Never named.
    assert!(!bench.reaches(iova, one));
    assert_eq!(bench.fault(&driver).reason, FaultReason::Blocked);
    for _ in 0..3 {
        driver.attach(bench.stream, &first).unwrap();
        assert!(bench.reaches(iova, one));
        driver.attach(bench.stream, &second).unwrap();
        assert!(bench.reaches(iova, two) && !bench.reaches(iova, one));
        driver.pass_through(bench.stream, all_memory()).unwrap();
        assert!(bench.reaches(one.get(), one));
        driver.attach(bench.stream, &second).unwrap();
        assert!(bench.reaches(iova, two));
        driver.block(bench.stream).unwrap();
        assert!(!bench.reaches(iova, two));
        assert_eq!(bench.fault(&driver).reason, FaultReason::Blocked);
    }
    bench.same_counts(&driver);
    // Memory is reused: the identifier as well.
    let tag = first.context();
    drop(first);
    let again = domain(two);
    assert_eq!(again.context(), tag);
    driver.attach(bench.stream, &again).unwrap();
    assert!(bench.reaches(iova, two) && !bench.reaches(iova, one));
}

#[test]
fn read_only_memory_is_not_written() {
    let Some(bench) = Bench::new() else { return };
    let driver = bench.driver(Config::default());
    let options = SmmuDomainOptions::default();
    let domain: Arc<First<12>> = Arc::new(driver.first_stage::<12>(&options).unwrap());
    driver.attach(bench.stream, &domain).unwrap();
    let buffer = bench.buffer(PageSize::SIZE_4K);
    let mut owed = Gather::new();
    let iova = Iova::new(0x9000);
    domain.map(iova, promised(buffer, 0x1000), Access::READ, &mut owed).unwrap();
    domain.sync(&mut owed).unwrap();
    assert!(!bench.reaches(0x9000, buffer));
    let record = bench.fault(&driver);
    assert_eq!(record.reason, FaultReason::Permission);
    assert_eq!(record.iova, Some(iova));
}

#[test]
fn a_full_event_queue_says_that_events_were_lost() {
    let Some(bench) = Bench::new() else { return };
    let mut config = Config::default();
    config.event_queue_lg2 = 2;
    let driver = bench.driver(config);
    let buffer = bench.buffer(PageSize::SIZE_4K);
    for _ in 0..8 {
        assert!(!bench.reaches(0x4000, buffer));
    }
    let mut faults = 0;
    loop {
        match driver.next_fault().unwrap() {
            Some(FaultEvent::Fault(_)) => faults += 1,
            Some(FaultEvent::Lost) => break,
            None => panic!("nothing was lost"),
        }
    }
    assert!((3..=4).contains(&faults), "{faults}");
    assert_eq!(driver.next_fault(), Ok(None));
    // It continues.
    assert!(!bench.reaches(0x4000, buffer));
    assert_eq!(bench.fault(&driver).reason, FaultReason::Blocked);
}

#[test]
fn silent_blocking_linear_tables_and_streams_out_of_range() {
    let Some(bench) = Bench::new() else { return };
    let mut config = Config::default();
    config.stream_lg2 = 8;
    config.blocking = Blocking::Silent;
    let driver = bench.driver(config);
    let buffer = bench.buffer(PageSize::SIZE_4K);
    assert!(!bench.reaches(buffer.get(), buffer));
    assert_eq!(driver.next_fault(), Ok(None));
    let stream = StreamId::new(0x100);
    let outside = AttachError::NoSuchStream { stream };
    assert_eq!(driver.pass_through(stream, all_memory()), Err(outside));
    driver.pass_through(bench.stream, all_memory()).unwrap();
    assert!(bench.reaches(buffer.get(), buffer));
    bench.same_counts(&driver);
}

#[test]
fn a_disabled_unit_lets_go_of_everything() {
    let Some(bench) = Bench::new() else { return };
    let before = bench.machine.tables().live();
    let driver = bench.driver(Config::default());
    let options = SmmuDomainOptions::default();
    let domain: Arc<First<16>> = Arc::new(driver.first_stage::<16>(&options).unwrap());
    driver.attach(bench.stream, &domain).unwrap();
    driver.disable().unwrap();
    let stopped = AttachError::Iommu(IommuError::Stopped);
    assert_eq!(driver.block(bench.stream), Err(stopped));
    drop(driver);
    // The domain lives longer than its unit.
    let mut owed = Gather::new();
    let range = IovaRange::from_len(Iova::new(0x10000), 0x10000).unwrap();
    let access = Access::READ;
    domain
        .map(range.start(), promised(PhysAddr::new(0x10000), 0x10000), access, &mut owed)
        .unwrap();
    domain.unmap(range, &mut owed).unwrap();
    domain.sync(&mut owed).unwrap();
    assert_eq!(domain.table().format().levels(), 3);
    drop(domain);
    assert_eq!(bench.machine.tables().live(), before);
}

#[test]
fn a_queue_of_few_commands_wraps() {
    let Some(bench) = Bench::new() else { return };
    let mut config = Config::default();
    config.command_queue_lg2 = 2;
    let driver = bench.driver(config);
    let counts = unmap_many(&bench, &driver, Preference::ByPage, 50);
    assert_eq!(counts.of(CommandKind::Address), 50);
    bench.same_counts(&driver);
}

#[test]
fn a_second_stage_where_there_is_one() {
    let Some(bench) = Bench::new() else { return };
    let driver = bench.driver(Config::default());
    let options = SmmuDomainOptions::default();
    let domain = driver.second_stage::<12>(&options);
    if !driver.features().stage2 {
        assert_eq!(domain.err(), Some(IommuError::Unsupported));
        println!("SKIP: this QEMU's SMMUv3 has no stage 2");
        return;
    }
    let domain = Arc::new(domain.unwrap());
    driver.attach(bench.stream, &domain).unwrap();
    let buffer = bench.buffer(PageSize::SIZE_4K);
    let range = map(&domain, 0x8000, buffer, 0x1000);
    assert!(bench.reaches(0x8000, buffer));
    let mut owed = Gather::new();
    domain.unmap(range, &mut owed).unwrap();
    assert!(bench.reaches(0x8000, buffer));
    domain.sync(&mut owed).unwrap();
    assert!(!bench.reaches(0x8000, buffer));
    assert_eq!(bench.fault(&driver).reason, FaultReason::NotMapped);
    bench.same_counts(&driver);
}

/// Registers that spoil the command before the last when they are told to, on its way to the unit.
#[derive(Clone)]
struct Spoiling {
    registers: Registers,
    ram: GuestRam,
    armed: Arc<AtomicBool>,
}

impl Mmio for Spoiling {
    fn read32(&self, offset: usize) -> u32 {
        self.registers.read32(offset)
    }

    fn write32(&self, offset: usize, value: u32) {
        if offset == reg::CMDQ_PROD && self.armed.swap(false, Ordering::Relaxed) {
            let base = self.registers.read64(reg::CMDQ_BASE);
            let entries = 1u64 << (base & 0x1f);
            let slot = u64::from(value).wrapping_sub(2) & (entries - 1);
            let at = PhysAddr::new((base & 0x000f_ffff_ffff_ffe0) + slot * 16);
            self.ram.write64(at, 0xff).unwrap();
        }
        self.registers.write32(offset, value);
    }
}

#[test]
fn a_refused_command_is_reported_and_the_queue_goes_on() {
    let Some(bench) = Bench::new() else { return };
    let armed = Arc::new(AtomicBool::new(false));
    let registers = Spoiling {
        registers: bench.machine.iommu_registers().unwrap(),
        ram: bench.machine.ram().clone(),
        armed: armed.clone(),
    };
    let tables = bench.machine.tables().clone();
    let driver =
        Smmu::enable(registers, tables, UnitParts::new(HostClock::new()), Config::default())
            .unwrap();
    let options = SmmuDomainOptions::default();
    let domain = Arc::new(driver.first_stage::<12>(&options).unwrap());
    driver.attach(bench.stream, &domain).unwrap();
    let buffer = bench.buffer(PageSize::SIZE_4K);
    for round in 0..5 {
        let range = map(&domain, 0xa000, buffer, 0x1000);
        assert!(bench.reaches(0xa000, buffer));
        let mut owed = Gather::new();
        domain.unmap(range, &mut owed).unwrap();
        armed.store(true, Ordering::Relaxed);
        let failed = IommuError::from(domain.sync(&mut owed).unwrap_err());
        // Illegal command.
        assert_eq!(failed, IommuError::Refused { code: 1 }, "{round}");
        assert!(bench.reaches(0xa000, buffer), "nothing was stale");
        domain.sync(&mut owed).unwrap();
        assert!(!bench.reaches(0xa000, buffer));
        while driver.next_fault().unwrap().is_some() {}
    }
    assert_eq!(driver.service_errors(), Ok(GlobalErrors::empty()));
}

/// Commands, without the sync, of one unmap of `bytes` in pages of 4 KiB.
fn commands_of_unmap(
    bench: &Bench,
    driver: &Driver,
    bytes: u64,
    options: &SmmuDomainOptions,
) -> u64 {
    let domain: Arc<First<12>> = Arc::new(driver.first_stage::<12>(options).unwrap());
    driver.attach(bench.stream, &domain).unwrap();
    let buffer = bench.buffer(PageSize::SIZE_4K);
    let start = 0x4000_0000;
    for page in 0..bytes >> 12 {
        map(&domain, start + (page << 12), buffer, 0x1000);
    }
    assert!(bench.reaches(start, buffer) && bench.reaches(start + bytes - 0x1000, buffer));
    let range = IovaRange::from_len(Iova::new(start), bytes).unwrap();
    let mut owed = Gather::new();
    domain.unmap(range, &mut owed).unwrap();
    let (ours, theirs) = (driver.counts(), bench.machine.trace().mark().unwrap());
    domain.sync(&mut owed).unwrap();
    let ours = driver.counts().since(&ours);
    let theirs = bench.machine.trace().counts_since(theirs).unwrap();
    same_counts(&ours, &theirs);
    assert!(!bench.reaches(start, buffer) && !bench.reaches(start + bytes - 0x1000, buffer));
    while driver.next_fault().unwrap().is_some() {}
    driver.block(bench.stream).unwrap();
    bench.machine.tables().free(buffer, PageSize::SIZE_4K);
    ours.total() - ours.of(CommandKind::Sync)
}

#[test]
fn commands_of_large_unmaps_by_policy() {
    let Some(bench) = Bench::new() else { return };
    let driver = bench.driver(Config::default());
    let ranged = SmmuDomainOptions::default();
    let mut capabilities = driver.features().capabilities(PageSize::SIZE_4K);
    capabilities.range = RangeForm::Absent;
    let mut paged = ranged;
    paged.capabilities = Some(capabilities);
    let flush = |mut options: SmmuDomainOptions| {
        options.quirks = Quirks { walk_flush: WalkFlush::ByContext, ..Quirks::default() };
        options
    };
    for mib in [4u64, 32] {
        let count = |options| commands_of_unmap(&bench, &driver, mib << 20, &options);
        assert_eq!(count(ranged), 1, "{mib} MiB by range");
        assert_eq!(count(paged), mib << 8, "{mib} MiB by page");
        assert_eq!(count(flush(paged)), 1, "{mib} MiB by context");
    }
}
