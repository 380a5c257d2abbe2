//! Buffers that share their pages with others, copied for a device that tries every address around its mapping, on a
//! model that forgets nothing until it is told to.
#![allow(missing_docs)]

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use portolan::addr::{CpuId, InvalTag, Iova, IovaRange, PageSize, PhysAddr, PhysRange, StreamId};
use portolan::bounce::{BouncePool, Pool, PoolMemory, PoolOptions};
use portolan::dma::{
    Bidirectional, Constraints, CopyWhen, Copying, Device, DmaSpace, Policy, SpaceOptions, Trust,
    Unowned, reclaim_all,
};
use portolan::inval::{InvalidationQueue, Quirks, Step, TablesLeft};
use portolan::iommu::{BoundDomain, IommuError, PagedDomain, TagPool};
use portolan::platform::{Clearing, PhysMemory, SlabTables, SpinCpus, Transfer, TrustedBase};
use portolan::table::PageTable;
use portolan::table::format::{VtdLevels, VtdSecondStage};
use portolan_chips::fixture::{Attached, Still};
use portolan_protocol::run::{CheckedCpus, CheckedMemory, CheckedRun};
use portolan_sim::decode::{TableFormat, TableReader, TableRoot};
use portolan_sim::device::Device as Tester;
use portolan_sim::iommu::{Iommu, Setup, StreamConfig};

const STREAM: StreamId = StreamId::new(1);
const CONTEXT: InvalTag = InvalTag::new(1);
const PAGE: u64 = 0x1000;
const POOL: u64 = 0x10_0000;
const POOL_BYTES: u64 = 128 << 11;
/// Bytes of the world; each holds [`SECRET`] until it is written.
const WORLD: usize = 0x20_0000;
const SECRET: u8 = 0x5e;
const MINE: u8 = 0x11;
const WRITTEN: u8 = 0x99;
/// The device tries one of so many bytes; not a power of two, so that all offsets occur.
const STEP: u64 = 61;

type Tables = &'static SlabTables<AtomicU64>;
type Reader = TableReader<AtomicU64, Tables>;
type Model = Iommu<Reader>;
type Cpus = CheckedCpus<Arc<SpinCpus<Still, fn() -> CpuId>>>;

struct Queue(Arc<Model>);

impl InvalidationQueue for Queue {
    type Error = IommuError;

    fn pay(&self, steps: &mut dyn Iterator<Item = Step>, _: TablesLeft) -> Result<(), IommuError> {
        self.0.pay(steps, TablesLeft::ByDepth).map_err(|_| IommuError::Stopped)
    }
}

impl TagPool for Queue {
    fn release(&self, _context: InvalTag) -> Result<(), IommuError> {
        Ok(())
    }
}

/// Bytes from address 0.
struct World(Mutex<Vec<u8>>);

impl World {
    fn with<R>(&self, f: impl FnOnce(&mut [u8]) -> R) -> R {
        f(&mut self.0.lock().unwrap())
    }

    fn all(&self, start: u64, bytes: u64) -> Vec<u8> {
        self.with(|world| world[start as usize..(start + bytes) as usize].to_vec())
    }
}

impl PhysMemory for World {
    fn copy(&self, transfer: &Transfer) {
        let (from, to) = (transfer.from().get() as usize, transfer.to().get() as usize);
        let after = from + transfer.bytes() as usize;
        self.with(|world| world.copy_within(from..after, to));
    }

    fn clear(&self, clearing: &Clearing) {
        let memory = clearing.memory();
        let range = memory.start().get() as usize..=memory.last().get() as usize;
        self.with(|world| world[range].fill(0));
    }
}

struct Rig {
    world: Arc<World>,
    pool: Arc<PoolMemory<Cpus, Arc<World>>>,
    model: Arc<Model>,
    device: Device<Cpus>,
}

impl Rig {
    fn new(policy: Policy) -> Self {
        let base = PhysAddr::new(1 << 32);
        let tables = SlabTables::new(base, PageSize::SIZE_4K, 64);
        let tables: Tables = Box::leak(Box::new(tables));
        let format = VtdSecondStage::new(VtdLevels::Four, 46);
        let run = CheckedRun::default();
        let table = PageTable::new(format, CheckedMemory(tables, run.clone())).unwrap();
        let caps = Setup::able(PageSize::SIZE_4K);
        let reader = TableReader::new(tables, PageSize::SIZE_4K);
        let model = Arc::new(Iommu::new(Setup::adversarial(caps), reader));
        let root = table.root();
        let format = TableFormat::vtd_second_stage(4).unwrap();
        let table_root = TableRoot { root, format };
        let config = StreamConfig::Translate { context: CONTEXT, table: table_root };
        model.attach(STREAM, config);
        let queue = Queue(model.clone());
        let domain = PagedDomain::new(table, CONTEXT, caps, Quirks::default(), queue);
        let cpus = Arc::new(SpinCpus::new(1, Still, (|| CpuId::new(0)) as fn() -> CpuId));
        let cpus = CheckedCpus(cpus, run);
        let window = IovaRange::new(Iova::new(1 << 20), Iova::new((1 << 28) - 1));
        let mut options = SpaceOptions::default();
        options.window = window.unwrap();
        options.policy = policy;
        let bound = BoundDomain::new(Arc::new(Attached), Arc::new(domain), simulated());
        let space = DmaSpace::with_cpus(bound, cpus.clone(), &options, simulated());
        let world = Arc::new(World(Mutex::new(vec![SECRET; WORLD])));
        let memory = PhysRange::from_len(PhysAddr::new(POOL), POOL_BYTES).unwrap();
        let options = PoolOptions::for_cpus(&cpus);
        let pool = Pool::new(cpus.clone(), unowned(memory), options).unwrap();
        let pool = Arc::new(PoolMemory::new(pool, world.clone()));
        let mut constraints = Constraints::trusted();
        constraints.trust = Trust::Untrusted;
        let space = Arc::new(space.unwrap());
        let device = Device::translated(space, STREAM, constraints);
        let copying = Copying { pool: pool.clone(), when: CopyWhen::Needed };
        let device = device.unwrap().with_copies(copying);
        Self { world, pool, model, device }
    }

    /// Reads and writes all around `iova`; returns the number of places that it got to. Bytes that
    /// it reads are the buffer's or cleared; bytes that it writes land in the buffer's own pages or
    /// in the pool.
    fn rampage(&self, tester: &mut Tester<'_, Reader>, iova: Iova, whole: PhysRange) -> u64 {
        let mut got = 0;
        let begin = iova.get() / PAGE * PAGE - 8 * PAGE;
        for at in (begin..begin + 32 * PAGE).step_by(STEP as usize) {
            let Ok(reached) = tester.read(Iova::new(at), 1) else {
                assert!(tester.write(Iova::new(at), 1).is_err());
                continue;
            };
            got += 1;
            let pa = reached[0].pa.get();
            let read = self.world.all(pa, 1)[0];
            assert_ne!(read, SECRET, "{at:#x} reads what is not the device's, at {pa:#x}");
            let written = tester.write(Iova::new(at), 1).unwrap();
            assert_eq!(written[0].pa.get(), pa);
            let inside = whole.contains(PhysAddr::new(pa));
            assert!(inside || (POOL..POOL + POOL_BYTES).contains(&pa), "{pa:#x}");
            self.world.with(|world| world[pa as usize] = WRITTEN);
        }
        got
    }
}

/// Parts of a simulated machine.
fn simulated() -> TrustedBase {
    // SAFETY: its devices reach no memory of the process.
    unsafe { TrustedBase::new() }
}

fn unowned(memory: PhysRange) -> Unowned {
    // SAFETY: the addresses are those of a simulated world, to which only the test leads.
    unsafe { Unowned::new(memory) }
}

fn buffer(start: u64, bytes: u64) -> (PhysRange, PhysRange) {
    let range = PhysRange::from_len(PhysAddr::new(start), bytes).unwrap();
    let first = start.next_multiple_of(PAGE);
    let last = (start + bytes) / PAGE * PAGE;
    // Whole pages in the middle; where there are none, a byte of the buffer.
    let whole = match last.checked_sub(first) {
        Some(middle) if middle > 0 => PhysRange::from_len(PhysAddr::new(first), middle),
        _ => PhysRange::from_len(PhysAddr::new(start), 1),
    };
    (range, whole.unwrap())
}

#[test]
fn a_device_that_tries_everything_gets_at_its_buffer_alone() {
    for (start, bytes) in [(0x3123, 0x40), (0x3f00, 0x200), (0x3800, 0x3900), (0x4000, 0x1001)] {
        let rig = Rig::new(Policy::Strict);
        let mut tester = Tester::new(&rig.model, STREAM, 1 << 16);
        let (range, whole) = buffer(start, bytes);
        rig.world.with(|world| world[start as usize..(start + bytes) as usize].fill(MINE));
        let before = rig.world.all(0, POOL);
        let mapping = rig.device.map(unowned(range), Bidirectional).ok().unwrap();
        assert!(mapping.is_copied());
        let got = rig.rampage(&mut tester, mapping.iova(), whole);
        assert!(got * STEP >= bytes, "{got}");
        mapping.unmap().ok().unwrap();
        // Its writes came back, and the neighbours are as they were.
        let after = rig.world.all(0, POOL);
        for (at, (old, new)) in before.iter().zip(&after).enumerate() {
            if range.contains(PhysAddr::new(at as u64)) {
                assert!([MINE, WRITTEN].contains(new), "{at:#x}")
            } else {
                assert_eq!(old, new, "{at:#x}")
            }
        }
        let buffer = &after[start as usize..(start + bytes) as usize];
        assert!(buffer.contains(&WRITTEN));
        // Nothing that it reached can be reached any more.
        assert!(tester.reached().count() > 0);
        assert!(tester.try_stale(|_| false).is_empty());
        assert_eq!(rig.pool.in_use().used, 0);
    }
}

#[test]
fn slots_wait_until_they_are_quiet() {
    let rig = Rig::new(Policy::Deferred);
    let mut tester = Tester::new(&rig.model, STREAM, 1 << 16);
    let (range, whole) = buffer(0x3f00, 0x200);
    rig.world.with(|world| world[0x3f00..0x4100].fill(MINE));
    let mapping = rig.device.map(unowned(range), Bidirectional).ok().unwrap();
    rig.rampage(&mut tester, mapping.iova(), whole);
    let used = rig.pool.in_use().used;
    assert!(used > 0);
    let deferred = mapping.defer().ok().unwrap();
    // The device still gets there, so no other mapping may have the slots.
    assert!(!tester.try_stale(|_| false).is_empty());
    assert_eq!(rig.pool.in_use().used, used);
    reclaim_all([deferred], |_| {}, |_| panic!("it did not come back")).unwrap();
    assert!(tester.try_stale(|_| false).is_empty());
    assert_eq!(rig.pool.in_use().used, 0);
}
