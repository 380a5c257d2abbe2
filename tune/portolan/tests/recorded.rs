//! Reports of the library on itself, read as a trace of Linux.
#![allow(missing_docs)]

use std::alloc::Layout;
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use portolan::addr::{CpuId, InvalTag, Iova, Pasid, PhysAddr, PhysRange, StreamId};
use portolan::dma::{
    Buffer, Constraints, Device, DmaSpace, Pieces, Policy, SpaceOptions, ToDevice, Unowned,
};
use portolan::inval::{Capabilities, InvalidationQueue, Quirks, Step, TablesLeft};
use portolan::iommu::{
    Attach, AttachError, BoundDomain, Domain, FaultAccess, FaultEvent, FaultReason, FaultRecord,
    Iommu, IommuError, PagedDomain, TagPool,
};
use portolan::platform::{
    AllMemory, Mmio, Nanos, Platform, RawMemory, SpinLock, TraceEvent, Tracer, TrustedBase,
};
use portolan::table::PageTable;
use portolan::table::format::{VtdLevels, VtdSecondStage};
use portolan_sim::profile::Profile;
use portolan_tune::replay::{Policy as Replayed, Replay};
use portolan_tune::trace::{OpKind, Reader};

/// A machine whose CPU 1 writes down the library's reports.
#[derive(Clone, Default)]
struct Machine(Arc<Record>);

#[derive(Default)]
struct Record {
    now: AtomicU64,
    lines: Mutex<String>,
}

impl Tracer for Machine {
    fn event(&self, event: &TraceEvent<'_>) {
        let line = event.line(CpuId::new(1), self.now());
        *self.0.lines.lock().unwrap() += &format!("{line}\n");
    }
}

struct NoRegisters;

impl Mmio for NoRegisters {
    fn read32(&self, _offset: usize) -> u32 {
        u32::MAX
    }

    fn write32(&self, _offset: usize, _value: u32) {}
}

// SAFETY: the allocator hands out each block once, at the address that `virt` returns.
unsafe impl Platform for Machine {
    type Word = AtomicU64;
    type Lock<T: Send> = SpinLock<T>;
    type Registers = NoRegisters;

    fn now(&self) -> Nanos {
        Nanos::new(self.0.now.fetch_add(1_500, Ordering::Relaxed))
    }

    fn alloc(&self, layout: Layout) -> Option<PhysAddr> {
        // SAFETY: the library asks for no empty layouts.
        let at = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) })?;
        Some(PhysAddr::new(at.addr().get() as u64))
    }

    unsafe fn free(&self, at: PhysAddr, layout: Layout) {
        // SAFETY: the caller's duties are the same.
        unsafe { std::alloc::dealloc(self.virt(at).as_ptr(), layout) }
    }

    unsafe fn virt(&self, at: PhysAddr) -> NonNull<u8> {
        NonNull::new(at.get() as *mut u8).unwrap()
    }

    unsafe fn registers(&self, _window: PhysRange) -> Option<NoRegisters> {
        None
    }

    fn tracer(&self) -> Option<&dyn Tracer> {
        Some(self)
    }

    fn clean(&self, _: PhysRange) {}

    fn clean_barrier(&self) {}

    fn invalidate(&self, _: PhysRange) {}

    fn flush_wanted(&self) {}

    fn drop_later(&self, left: portolan::platform::LeftBehind) {
        drop(left);
    }
}

/// A unit that has refused one access.
struct Unit;

impl Iommu for Unit {
    fn block(&self, _stream: StreamId) -> Result<(), AttachError> {
        Ok(())
    }

    fn pass_through(&self, _stream: StreamId, _all: AllMemory) -> Result<(), AttachError> {
        Ok(())
    }

    fn next_fault(&self) -> Result<Option<FaultEvent>, IommuError> {
        Ok(Some(FaultEvent::Fault(FaultRecord {
            stream: StreamId::new(0x10),
            pasid: Some(Pasid::new(3)),
            iova: Some(Iova::new(0xdead_0000)),
            access: Some(FaultAccess::Write),
            reason: FaultReason::NotMapped,
        })))
    }

    fn reserved(&self, _: StreamId, _: &mut dyn FnMut(portolan::iommu::ReservedRegion)) {}
}

impl<D: Domain> Attach<D> for Unit {
    fn attach(&self, _stream: StreamId, _domain: &Arc<D>) -> Result<(), AttachError> {
        Ok(())
    }
}

struct Queue;

impl InvalidationQueue for Queue {
    type Error = IommuError;

    fn pay(&self, steps: &mut dyn Iterator<Item = Step>, _: TablesLeft) -> Result<(), IommuError> {
        steps.for_each(drop);
        Ok(())
    }
}

impl TagPool for Queue {
    fn release(&self, _context: InvalTag) -> Result<(), IommuError> {
        Ok(())
    }
}

struct List([PhysRange; 3]);

// SAFETY: the addresses are names: no memory of the test is behind them.
unsafe impl Buffer for List {
    fn pieces(&self) -> Pieces<'_> {
        Pieces::List(&self.0)
    }

    fn device_may_write(&self) -> bool {
        true
    }
}

fn space(machine: &Machine) -> Arc<DmaSpace<Machine>> {
    let format = VtdSecondStage::new(VtdLevels::Four, 52);
    // SAFETY: it is handed to a page table.
    let memory = unsafe { RawMemory::new(machine.clone()) };
    let table = PageTable::new(format, memory).unwrap();
    let domain = PagedDomain::new(table, InvalTag::new(1), CAPS, Quirks::default(), Queue);
    // SAFETY: there is no device.
    let base = unsafe { TrustedBase::new() };
    let bound = BoundDomain::new(Arc::new(Unit), Arc::new(domain), base);
    let mut options = SpaceOptions::default();
    options.policy = Policy::Deferred;
    Arc::new(DmaSpace::new(bound, machine.clone(), &options).unwrap())
}

const CAPS: Capabilities = Capabilities::new(portolan::addr::PageSize::SIZE_4K);

/// A buffer, a list and a ring of a device, and a refused access.
fn record() -> String {
    let machine = Machine::default();
    let space = space(&machine);
    let stream = StreamId::new(0x10);
    let device = Device::translated(space.clone(), stream, Constraints::trusted()).unwrap();
    let at = |start, bytes| PhysRange::from_len(PhysAddr::new(start), bytes).unwrap();
    let ring = device.coherent(0x2000).unwrap();
    // SAFETY: as of `List`.
    let packet = unsafe { Unowned::new(at(0x7_0840, 1522)) };
    let packet = device.map(packet, ToDevice).ok().unwrap();
    let list = List([0x1_0000, 0x3_0000, 0x5_0000].map(|start| at(start, 0x1000)));
    let list = device.map(list, ToDevice).ok().unwrap();
    let deferred = list.defer().ok().unwrap();
    packet.unmap().ok().unwrap();
    assert!(deferred.try_reclaim().is_ok());
    space.next_fault().unwrap();
    drop(ring);
    drop((device, space));
    let lines = machine.0.lines.lock().unwrap();
    lines.clone()
}

fn reader(text: &str) -> Reader {
    let bytes = std::io::Cursor::new(text.to_owned());
    Reader::new(Box::new(bytes)).unwrap()
}

#[test]
fn the_reader_of_traces_finds_what_the_library_did() {
    let text = record();
    let mut reader = reader(&text);
    let mut lists = Vec::new();
    while let Some(op) = reader.next_op() {
        assert_eq!(op.cpu, 1);
        if let OpKind::Map { pieces, bytes, .. } = op.kind {
            let memory: Vec<_> = pieces.iter().map(|piece| piece.pa.get()).collect();
            lists.push((bytes, memory));
        }
    }
    assert_eq!(lists[1], (1522, vec![0x7_0000]), "{text}");
    assert_eq!(lists[2], (0x3000, vec![0x1_0000, 0x3_0000, 0x5_0000]));
    let read = reader.summary();
    assert_eq!((read.bad_lines, read.orphan_unmaps), (0, 0), "{text}");
    assert_eq!((read.maps, read.unmaps, read.left_mapped), (2, 2, 0));
    assert_eq!((read.coherent_allocs, read.coherent_frees), (1, 1));
    assert_eq!((read.inexact_lists, read.maps_beyond), (0, 0));
    assert_eq!(read.out_of_order, 0);
    assert_eq!(read.devices, ["stream-10"]);
    let counts = [
        ("dma_alloc", 1),
        ("dma_free", 1),
        ("dma_map_phys", 1),
        ("dma_map_sg", 1),
        ("dma_unmap_phys", 1),
        ("dma_unmap_sg", 1),
        ("io_page_fault", 1),
        ("iotlb_flush", 2),
        ("map", 5),
        ("unmap", 3),
    ];
    let counts = counts.map(|(name, count)| (name.to_owned(), count));
    assert_eq!(read.events_by_name, BTreeMap::from(counts), "{text}");
}

#[test]
fn lines_are_those_of_linux() {
    let text = record();
    let lines: Vec<_> = text.lines().collect();
    let of = |name: &str| {
        let line = lines.iter().find(|line| line.contains(name)).unwrap();
        line.split_once(name).unwrap().1
    };
    let map = of(": dma_map_phys: ");
    assert!(map.starts_with("stream-10 dir=TO_DEVICE dma_addr="), "{map}");
    assert!(map.ends_with("840 size=1522 phys_addr=70840 attrs="), "{map}");
    assert!(of(": dma_map_sg: ").ends_with("phys_addrs={0x10000,0x30000,0x50000} attrs="));
    let fault = "IOMMU:portolan stream-10.3 iova=0x00000000dead0000 flags=0x0001";
    assert_eq!(of(": io_page_fault: "), fault);
    assert!(lines[0].starts_with("portolan-0 [001] ..... 0.0000"), "{text}");
}

#[test]
fn a_recording_is_replayed() {
    let profile = Profile::by_name("xeon-vtd").unwrap();
    let report = Replay::new(&profile, &Replayed::ALL).run(&mut reader(&record())).unwrap();
    assert_eq!(report.trace.maps, 2);
}
