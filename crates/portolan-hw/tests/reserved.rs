//! From firmware's table to a device: reservations of the table are in the unit's configuration, are mapped one to
//! one before the stream is attached, and are never handed out.
#![allow(missing_docs)]

use std::sync::Arc;

use portolan::addr::{Iova, IovaRange, PageSize, PhysAddr, PhysRange, StreamId};
use portolan::addr::{PciSegment, RequesterId};
use portolan::dma::{
    Bidirectional, Constraints, Device, DmaSpace, Doorbell, MapError, Mapping, SpaceOptions,
    Unowned,
};
use portolan::iommu::{
    Attach, AttachError, BoundDomain, Domain, FaultEvent, Iommu, IommuError, ReservedKind,
    ReservedRegion,
};
use portolan::platform::{AllMemory, Cpus, TrustedBase, UnitParts};
use portolan::table::Access;
use portolan_chips::memory::{ModelMemory, Visibility};
use portolan_chips::smmuv2::{SmmuV2Registers, SmmuV2Setup};
use portolan_chips::smmuv3::{SmmuRegisters, SmmuSetup};
use portolan_chips::vtd::{VtdRegisters, VtdSetup};
use portolan_hw::TrustedDescription;
use portolan_hw::reservations::{Ignored, Reservations, Reserved, Streams};
use portolan_hw::{smmuv2, smmuv3, vtd};
use portolan_sim::clock::PollingClock;
use portolan_sim::decode::AccessKind;
use portolan_tables::dmar::Dmar;
use portolan_tables::iort::Iort;

/// The function 0:14.0.
const DEVICE: RequesterId = RequesterId::of(0, 0x14, 0);
const STREAM: StreamId = DEVICE.stream();
const PAGE: u64 = 0x1000;
/// Addresses that are given out, among them those of interrupt messages on x86.
const WINDOW: u64 = 0xfedf_0000;
const PAGES: u64 = 0x120;
/// Pages of the window that the device uses.
const DIRECT: [u64; 5] = [1, 2, 3, 4, 0x110];

/// Claims of firmware: two that overlap and fill no page, one more, and nonsense.
const CLAIMS: [(u64, u64); 4] = [
    (WINDOW + 0x1800, WINDOW + 0x3fff),
    (WINDOW + 0x3000, WINDOW + 0x4123),
    (0x9000_0000, 0x8000_0000),
    (WINDOW + 0x11_0000, WINDOW + 0x11_0fff),
];

fn table(signature: [u8; 4], body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 36];
    bytes[..4].copy_from_slice(&signature);
    bytes.extend(body);
    let length = bytes.len() as u32;
    bytes[4..8].copy_from_slice(&length.to_le_bytes());
    let sum = bytes.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
    bytes[9] = sum.wrapping_neg();
    bytes
}

/// Reservations of a DMAR: an RMRR for each claim.
fn of_dmar(mut reserved: Reservations) -> Reservations {
    reserved.believe(described());
    let mut body = vec![47, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    for (start, last) in CLAIMS {
        body.extend([1, 0, 32, 0, 0, 0, 0, 0]);
        body.extend(start.to_le_bytes());
        body.extend(last.to_le_bytes());
        body.extend([1, 8, 0, 0, 0, 0, 0x14, 0]);
    }
    let bytes = table(*b"DMAR", &body);
    let dmar = Dmar::parse(&bytes).expect("a table");
    let found = dmar.reserved(PciSegment::new(0), Streams::ALL, |_| None);
    assert!(matches!(reserved.read(found), Err(Ignored::Table(_))));
    reserved
}

/// Reservations of an IORT: an RMR for each claim, for streams of the SMMU at 48.
fn of_iort(mut reserved: Reservations) -> Reservations {
    reserved.believe(described());
    let words =
        |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|word| word.to_le_bytes()).collect() };
    let mut body = words(&[5, 48, 0]);
    body.extend([4, 68, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    body.extend(words(&[0x905_0000, 0, 9, 0, 0, 0, 0, 106, 107, 109, 108, 2, 0]));
    for (start, last) in CLAIMS {
        body.extend([6, 68, 0, 3, 0, 0, 0, 0]);
        body.extend(words(&[1, 48, 5 << 2, 1, 28]));
        body.extend(start.to_le_bytes());
        // A claim that ends before it begins has no bytes.
        body.extend((last + 1).saturating_sub(start).to_le_bytes());
        body.extend(words(&[0, 0, 0, STREAM.get(), 48, 0]));
    }
    let bytes = table(*b"IORT", &body);
    let iort = Iort::parse(&bytes).expect("a table");
    let unit = iort.node_at(0, 48).expect("an SMMU");
    let found = iort.reserved(&unit, Streams::ALL);
    assert!(matches!(reserved.read(found), Err(Ignored::Table(_))));
    reserved
}

/// A unit that sees the mappings at the time when a stream is attached.
struct Watched<U>(Arc<U>);

impl<U: Iommu> Iommu for Watched<U> {
    fn block(&self, stream: StreamId) -> Result<(), AttachError> {
        self.0.block(stream)
    }

    fn pass_through(&self, stream: StreamId, all: AllMemory) -> Result<(), AttachError> {
        self.0.pass_through(stream, all)
    }

    fn reserved(&self, stream: StreamId, each: &mut dyn FnMut(ReservedRegion)) {
        self.0.reserved(stream, each);
    }

    fn next_fault(&self) -> Result<Option<FaultEvent>, IommuError> {
        self.0.next_fault()
    }
}

impl<U: Attach<D>, D: Domain> Attach<D> for Watched<U> {
    fn attach(&self, stream: StreamId, domain: &Arc<D>) -> Result<(), AttachError> {
        for at in direct() {
            let found = domain.translate(at).expect("mapped before the attach");
            assert_eq!(found.pa, PhysAddr::new(at.get()));
            assert!(found.access.contains(Access::READ | Access::WRITE));
        }
        self.0.attach(stream, domain)
    }
}

fn direct() -> impl Iterator<Item = Iova> {
    DIRECT.into_iter().map(|page| Iova::new(WINDOW + page * PAGE))
}

/// Attaches the device and takes all addresses that there are, of which `closed` pages are none.
fn keeps_off<U, D, P>(
    unit: &Arc<U>,
    domain: D,
    cpus: P,
    closed: u64,
    dma: impl Fn(Iova) -> Option<PhysAddr>,
) where
    U: Attach<D> + Send + Sync + 'static,
    D: Domain + 'static,
    P: Cpus + Clone,
{
    let mut options = SpaceOptions::default();
    options.window = IovaRange::from_len(Iova::new(WINDOW), PAGES * PAGE).expect("a window");
    let watched = Arc::new(Watched(Arc::clone(unit)));
    let bound = BoundDomain::new(watched, Arc::new(domain), simulated());
    let space = DmaSpace::with_cpus(bound, cpus, &options, simulated()).expect("a space");
    let limits = Constraints::trusted();
    let device = Device::translated(Arc::new(space), STREAM, limits).expect("attached");
    let buffer = |number: u64| {
        let memory = PhysRange::page(PhysAddr::new(0x4000_0000 + number * PAGE), PageSize::SIZE_4K);
        // SAFETY: the model has no such memory: no code reads or writes there.
        unsafe { Unowned::new(memory) }
    };
    let mut held: Vec<Mapping<_, _, _>> = Vec::new();
    let full = loop {
        match device.map(buffer(held.len() as u64), Bidirectional) {
            Ok(mapping) => held.push(mapping),
            Err(refused) => break refused.error,
        }
    };
    assert!(matches!(full, MapError::Iova(_)), "{full:?}");
    let free = PAGES - DIRECT.len() as u64 - closed;
    assert_eq!(held.len() as u64, free);
    for (number, mapping) in (0..).zip(&held) {
        assert!(direct().all(|at| at != mapping.iova()));
        assert_eq!(dma(mapping.iova()), Some(PhysAddr::new(0x4000_0000 + number * PAGE)));
    }
    for at in direct() {
        assert_eq!(dma(at), Some(PhysAddr::new(at.get())));
    }
    for mapping in held {
        mapping.unmap().map_err(|kept| kept.error).expect("unmapped");
    }
}

/// A simulated machine is as it is described.
fn described() -> TrustedDescription {
    // SAFETY: its devices reach no memory of the process.
    unsafe { TrustedDescription::new() }
}

/// Parts of a simulated machine.
fn simulated() -> TrustedBase {
    // SAFETY: its devices reach no memory of the process.
    unsafe { TrustedBase::new() }
}

fn memory() -> Arc<ModelMemory> {
    let base = PhysAddr::new(0x8000_0000);
    Arc::new(ModelMemory::new(base, 256, Visibility::AtOnce))
}

#[test]
fn what_dmar_reserves_is_mapped_before_a_device_is_attached_and_never_handed_out() {
    let memory = memory();
    let registers = Arc::new(VtdRegisters::new(VtdSetup::default(), memory.clone()));
    let clock = PollingClock::new(registers.clock().clone(), 100, registers.clone());
    let cpus = Arc::new(clock);
    let mut config = vtd::Config::default();
    config.reserved = of_dmar(config.reserved);
    let unit = vtd::Vtd::enable(registers.clone(), memory, UnitParts::new(cpus.clone()), config);
    let unit = Arc::new(unit.expect("enabled"));
    assert_eq!(unit.reservations().left_out().count, 1);
    let domain = unit.second_stage().expect("a domain");
    // Interrupt messages.
    keeps_off(&unit, domain, cpus, 0x100, |at| {
        let done = registers.dma(STREAM, None, at, AccessKind::Read, 8);
        done.ok().map(|pieces| pieces[0].pa)
    });
    assert_eq!(registers.violations(), []);
}

#[test]
fn what_iort_reserves_is_mapped_before_a_device_of_an_smmuv3_is_attached() {
    let memory = memory();
    let registers = Arc::new(SmmuRegisters::new(SmmuSetup::default(), memory.clone()));
    let clock = PollingClock::new(registers.clock().clone(), 100, registers.clone());
    let cpus = Arc::new(clock);
    let mut config = smmuv3::Config::default();
    config.stream_lg2 = 8;
    config.reserved = of_iort(config.reserved);
    let unit =
        smmuv3::Smmu::enable(registers.clone(), memory, UnitParts::new(cpus.clone()), config);
    let unit = Arc::new(unit.expect("enabled"));
    let domain = unit.first_stage::<12>(&smmuv3::SmmuDomainOptions::default());
    let domain = domain.expect("a domain");
    keeps_off(&unit, domain, cpus, 0, |at| {
        let done = registers.dma(STREAM, None, at, AccessKind::Read, 8);
        done.ok().map(|pieces| pieces[0].pa)
    });
    assert_eq!(registers.violations(), []);
}

/// A message of a translated device arrives once its doorbell is mapped, and not before.
#[test]
fn a_message_of_a_translated_device_arrives_where_it_is_mapped_to() {
    let memory = memory();
    let registers = Arc::new(SmmuRegisters::new(SmmuSetup::default(), memory.clone()));
    let clock = PollingClock::new(registers.clock().clone(), 100, registers.clone());
    let cpus = Arc::new(clock);
    let translater = PhysAddr::new(0x0809_0040);
    let mut config = smmuv3::Config::default();
    config.stream_lg2 = 8;
    let page = IovaRange::page(Iova::new(translater.get()), PageSize::SIZE_64K);
    let region = ReservedRegion { range: page, kind: ReservedKind::Doorbell };
    let everywhere = Reserved::everywhere(region);
    config.reserved.add(everywhere).expect("it makes sense");
    let unit =
        smmuv3::Smmu::enable(registers.clone(), memory, UnitParts::new(cpus.clone()), config);
    let unit = Arc::new(unit.expect("enabled"));
    let domain = unit.first_stage::<12>(&smmuv3::SmmuDomainOptions::default());
    let domain = Arc::new(domain.expect("a domain"));
    let mut told = None;
    unit.reserved(STREAM, &mut |region| told = Some(region));
    assert_eq!(told, Some(region));
    let bound = BoundDomain::new(unit, domain, simulated());
    let space = DmaSpace::with_cpus(bound, cpus, &SpaceOptions::default(), simulated());
    let space = space.expect("a space");
    let limits = Constraints::trusted();
    let device = Device::translated(Arc::new(space), STREAM, limits).expect("attached");
    let write = |at| {
        let done = registers.dma(STREAM, None, at, AccessKind::Write, 4);
        done.ok().map(|pieces| pieces[0].pa)
    };
    assert_eq!(write(Iova::new(translater.get())), None);
    // SAFETY: the model has no such memory, and nothing else in the page.
    let doorbell = unsafe { Doorbell::new(translater) };
    let at = device.map_doorbell(doorbell).expect("mapped");
    assert_eq!(write(at), Some(translater));
}

#[test]
fn what_iort_reserves_is_mapped_before_a_device_of_an_smmuv2_is_attached() {
    let memory = memory();
    let registers = Arc::new(SmmuV2Registers::new(SmmuV2Setup::default(), memory.clone()));
    let clock = PollingClock::new(registers.clock().clone(), 100, registers.clone());
    let cpus = Arc::new(clock);
    let mut config = smmuv2::Config::default();
    config.reserved = of_iort(config.reserved);
    let unit =
        smmuv2::SmmuV2::enable(registers.clone(), memory, UnitParts::new(cpus.clone()), config);
    let unit = Arc::new(unit.expect("enabled"));
    let domain = unit.first_stage::<12>(&smmuv2::SmmuV2DomainOptions::default());
    let domain = domain.expect("a domain");
    keeps_off(&unit, domain, cpus, 0, |at| {
        let done = registers.dma(STREAM, at, AccessKind::Read, 8);
        done.ok().map(|pieces| pieces[0].pa)
    });
    assert_eq!(registers.violations(), []);
}
