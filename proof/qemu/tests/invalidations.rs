//! Number of commands that an unmap of many small pages takes, by the unit's abilities and by
//! policy, as QEMU counts them: the table of docs/invalidations.md.

mod support;

use portolan::platform::UnitParts;
use std::sync::Arc;
use support::promised::promised;

use portolan::addr::{Iova, IovaRange, PageSize, PhysAddr};
use portolan::inval::{Capabilities, Gather, Preference, Quirks, RangeForm, WalkFlush};
use portolan::iommu::{Attach, Domain};
use portolan::table::Access;
use portolan_hw::smmuv3::{self, Smmu, SmmuDomainOptions};
use portolan_hw::virtio::Viommu;
use portolan_hw::vtd::{self, Vtd};
use portolan_qemu::config::{Architecture, Device, Iommu, Vtd as QemuVtd, VtdWidth};
use portolan_qemu::edu::Edu;
use portolan_qemu::machine::{Builder, Machine};
use portolan_qemu::mmio::HostClock;
use portolan_qemu::trace::{Counts, SmmuCommand, VirtioRequest, VtdDescriptor};
use portolan_qemu::viommu::PciTransport;

use support::start;

const TABLE: &str = include_str!("../../../docs/invalidations.md");
const START: u64 = 0x4000_0000;
const MIB: [u64; 2] = [4, 32];

/// Range commands of the unit, available to the plan or hidden from it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ranges {
    AsFound,
    Hidden,
}

/// A row: the options of the plan.
struct Policy {
    name: &'static str,
    ranges: Ranges,
    quirks: Quirks,
}

fn policies() -> Vec<Policy> {
    let plain = Quirks::default();
    let preferring = |preference| Quirks { preference, ..plain };
    let flush = Quirks { walk_flush: WalkFlush::ByContext, ..plain };
    let rows = [
        ("ranges", "fewest commands (default)", plain),
        ("ranges", "by range", preferring(Preference::ByRange)),
        ("ranges", "by page", preferring(Preference::ByPage)),
        ("ranges", "by context", preferring(Preference::ByContext)),
        ("pages", "by page, nothing else", preferring(Preference::ByPage)),
        ("pages", "by page, freed tables by context", flush),
        ("pages", "by context", preferring(Preference::ByContext)),
    ];
    rows.into_iter()
        .map(|(ranges, name, quirks)| Policy {
            name,
            ranges: match ranges {
                "ranges" => Ranges::AsFound,
                _ => Ranges::Hidden,
            },
            quirks,
        })
        .collect()
}

impl Policy {
    fn capabilities(&self, mut found: Capabilities) -> Capabilities {
        if self.ranges == Ranges::Hidden {
            found.range = RangeForm::Absent;
        }
        found
    }

    fn with(&self) -> &'static str {
        match self.ranges {
            Ranges::AsFound => "yes",
            Ranges::Hidden => "no",
        }
    }
}

/// QEMU's count of the commands that a sync of an unmap of `bytes` submitted: all of them, and the waits.
fn unmap<D: Domain>(
    machine: &Machine,
    domain: &D,
    bytes: u64,
    count: fn(&Counts) -> (u64, u64),
) -> String {
    let page = machine.tables().alloc(PageSize::SIZE_4K).unwrap();
    for n in 0..bytes / 4096 {
        map(domain, START + n * 4096, page);
    }
    let mut owed = Gather::new();
    let range = IovaRange::from_len(Iova::new(START), bytes).unwrap();
    let mark = machine.trace().mark().unwrap();
    domain.unmap(range, &mut owed).unwrap();
    domain.sync(&mut owed).unwrap();
    machine.tables().free(page, PageSize::SIZE_4K);
    let (all, waits) = count(&machine.trace().counts_since(mark).unwrap());
    format!("{} + {waits}", all - waits)
}

fn map(domain: &impl Domain, iova: u64, pa: PhysAddr) {
    let mut owed = Gather::new();
    let access = Access::READ | Access::WRITE;
    domain.map(Iova::new(iova), promised(pa, 4096), access, &mut owed).unwrap();
    domain.sync(&mut owed).unwrap();
}

/// The row that these figures make.
fn row(unit: &str, with: &str, policy: &str, figures: &[String; 2]) -> String {
    let [small, large] = figures;
    format!("| {unit} | {with} | {policy} | {small} | {large} |")
}

/// Checks that the rows are in the document.
fn check(rows: &[String]) {
    let missing: Vec<_> = rows.iter().filter(|row| !TABLE.contains(*row)).collect();
    assert!(missing.is_empty(), "docs/invalidations.md lacks {missing:#?}");
}

#[test]
fn commands_of_an_smmuv3() {
    let builder = Builder::new(Architecture::Aarch64).iommu(Iommu::Smmuv3);
    let Some(machine) = start(&builder) else {
        return;
    };
    let (registers, tables) = (machine.iommu_registers().unwrap(), machine.tables());
    let config = smmuv3::Config::default();
    let unit =
        Smmu::enable(registers, tables.clone(), UnitParts::new(HostClock::new()), config).unwrap();
    let found = unit.features().capabilities(PageSize::SIZE_4K);
    let mut rows = Vec::new();
    for policy in policies() {
        let mut options = SmmuDomainOptions::default();
        options.capabilities = Some(policy.capabilities(found));
        options.quirks = policy.quirks;
        let figures = MIB.map(|mib| {
            let domain = unit.first_stage::<12>(&options).unwrap();
            let count = |counts: &Counts| (counts.smmu_commands(), counts.smmu(SmmuCommand::Sync));
            unmap(&machine, &domain, mib << 20, count)
        });
        rows.push(row("SMMUv3", policy.with(), policy.name, &figures));
    }
    check(&rows);
}

#[test]
fn commands_of_a_vtd() {
    let vtd = Iommu::Vtd(QemuVtd::new(VtdWidth::Bits48));
    let Some(machine) = start(&Builder::new(Architecture::X86).iommu(vtd)) else {
        return;
    };
    let (registers, tables) = (machine.iommu_registers().unwrap(), machine.tables());
    let config = vtd::Config::default();
    let unit =
        Vtd::enable(registers, tables.clone(), UnitParts::new(HostClock::new()), config).unwrap();
    let levels = unit.features().best_second_levels().unwrap();
    let mut rows = Vec::new();
    for policy in policies() {
        let found = policy.capabilities(unit.second_capabilities());
        let figures = MIB.map(|mib| {
            let domain = unit.second_stage_as(levels, found, policy.quirks).unwrap();
            let count = |counts: &Counts| {
                let waits = counts.vtd(VtdDescriptor::Wait);
                (counts.vtd_descriptors(), waits)
            };
            unmap(&machine, &domain, mib << 20, count)
        });
        rows.push(row("VT-d", policy.with(), policy.name, &figures));
    }
    check(&rows);
}

#[test]
fn requests_of_a_virtio_iommu() {
    let builder = Builder::new(Architecture::X86).iommu(Iommu::Virtio);
    let Some(machine) = start(&builder.device(Device::edu())) else {
        return;
    };
    let pci = machine.pci().unwrap();
    let transport = PciTransport::start(&machine, &pci).unwrap();
    let stream = Edu::find(&pci).unwrap().function().stream();
    let config = portolan_hw::virtio::Config::default();
    let unit = Viommu::start(transport, HostClock::new(), config).unwrap();
    let figures = MIB.map(|mib| {
        let domain: Arc<_> = unit.domain().unwrap();
        // A domain that nothing is attached to has no unit to tell.
        unit.attach(stream, &domain).unwrap();
        let count = |counts: &Counts| (counts.virtio(VirtioRequest::Unmap), 0);
        unmap(&machine, &*domain, mib << 20, count)
    });
    check(&[row("virtio-iommu", "-", "mappings side by side in one request", &figures)]);
}
