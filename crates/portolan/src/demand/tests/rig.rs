//! A container, its owner, its queue and its clock.

use crate::platform::promised::{promised, simulated};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};
use spin::Mutex;

use crate::addr::{CpuId, InvalTag, Iova, IovaRange, PageSize, PhysAddr, StreamId};
use crate::demand::premap::Requester;
use crate::demand::{
    FaultRequest, Frames, Ioas, IoasOptions, Mapped, Pager, PopulateError, RegionOptions,
    Residency, Unreached,
};
use crate::inval::{Caching, Capabilities, InvalidationQueue, Quirks, RangeForm, Step, TablesLeft};
use crate::iommu::{Awaited, Domain as _, IommuError, PagedDomain, TagPool};
use crate::platform::{Clock, Nanos, SlabTables, SpinCpus};
use crate::table::format::{DirtyTracking, VtdLevels, VtdSecondStage};
use crate::table::{Access, PageTable};

pub(super) const PAGE: u64 = 4096;
pub(super) const BASE: u64 = 0x4000_0000;

/// A queue that counts, and that fails while `broken` is not 0.
#[derive(Debug, Default)]
pub(super) struct Hardware {
    pub syncs: AtomicU64,
    pub broken: AtomicU64,
    /// Called once, in the middle of the next sync: another CPU.
    pub hook: Mutex<Option<Once>>,
    now: AtomicU64,
}

pub(super) struct Once(pub Box<dyn FnOnce() + Send>);

impl core::fmt::Debug for Once {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Once")
    }
}

pub(super) const TIMED_OUT: IommuError =
    IommuError::TimedOut { awaited: Awaited::Completion, waited: Nanos::new(1) };

impl InvalidationQueue for Hardware {
    type Error = IommuError;

    fn pay(&self, steps: &mut dyn Iterator<Item = Step>, _: TablesLeft) -> Result<(), IommuError> {
        assert!(steps.count() > 0);
        self.syncs.fetch_add(1, Ordering::Relaxed);
        let hook = self.hook.lock().take();
        if let Some(hook) = hook {
            (hook.0)();
        }
        match self.broken.load(Ordering::Relaxed) {
            0 => Ok(()),
            _ => Err(TIMED_OUT),
        }
    }
}

impl TagPool for Hardware {
    fn release(&self, _context: InvalTag) -> Result<(), IommuError> {
        Ok(())
    }
}

#[derive(Clone, Debug)]
pub(super) struct Hand(pub Arc<Hardware>);

impl Clock for Hand {
    fn now(&self) -> Nanos {
        Nanos::new(self.0.now.load(Ordering::Relaxed))
    }

    fn relax(&self) {
        self.0.now.fetch_add(1_000_000, Ordering::Relaxed);
    }
}

type Hook = Box<dyn Fn() + Send + Sync>;

/// Memory of a guest: page numbers of IOVAs lead to pages of memory.
#[derive(Default)]
pub(super) struct Memory {
    pub pages: Mutex<BTreeMap<u64, u64>>,
    pub pinned: Mutex<BTreeMap<u64, u32>>,
    /// Pages that there are not.
    pub absent: Mutex<BTreeSet<u64>>,
    /// Distance of the memory of neighbours, in pages, less one.
    pub gap: AtomicU64,
    next: AtomicU64,
    /// Called after memory was found and before it is handed over.
    pub hook: Mutex<Option<Hook>>,
}

impl Memory {
    fn page(&self, number: u64) -> Result<PhysAddr, PopulateError> {
        let iova = Iova::new(number * PAGE);
        if self.absent.lock().contains(&number) {
            return Err(PopulateError::Absent { iova });
        }
        let gap = self.gap.load(Ordering::Relaxed);
        let mut pages = self.pages.lock();
        let page = pages
            .entry(number)
            .or_insert_with(|| 0x10_0000 + self.next.fetch_add(1 + gap, Ordering::Relaxed));
        Ok(PhysAddr::new(*page * PAGE))
    }

    fn find(&self, range: IovaRange, frames: &mut Frames) -> Result<u64, PopulateError> {
        let first = range.start().get() / PAGE;
        let mut count = 0;
        for number in first..=range.last().get() / PAGE {
            match self.page(number) {
                Ok(pa) if frames.push(promised(pa, PAGE)).is_ok() => count += 1,
                Err(error) if number == first => return Err(error),
                _ => break,
            }
        }
        Ok(count)
    }

    /// Forgets the memory behind `range`, as an owner does that takes it back.
    pub fn forget(&self, range: IovaRange) {
        let last = range.last().get() / PAGE;
        let mut pages = self.pages.lock();
        pages.retain(|number, _| !(range.start().get() / PAGE..=last).contains(number));
    }
}

impl Pager for Memory {
    fn populate(
        &self,
        range: IovaRange,
        _access: Access,
        frames: &mut Frames,
    ) -> Result<(), PopulateError> {
        self.find(range, frames)?;
        let hook = self.hook.lock().take();
        if let Some(hook) = hook {
            hook();
        }
        Ok(())
    }

    fn pin(
        &self,
        range: IovaRange,
        _access: Access,
        frames: &mut Frames,
    ) -> Result<(), PopulateError> {
        let count = self.find(range, frames)?;
        let mut pinned = self.pinned.lock();
        for number in 0..count {
            *pinned.entry(range.start().get() / PAGE + number).or_default() += 1;
        }
        Ok(())
    }

    fn unpin(&self, range: &Unreached) {
        let range = range.range();
        let mut pinned = self.pinned.lock();
        for number in range.start().get() / PAGE..=range.last().get() / PAGE {
            let count = pinned.get_mut(&number).expect("a pinned page");
            *count -= 1;
            if *count == 0 {
                pinned.remove(&number);
            }
        }
    }
}

type Tables = Arc<SlabTables<AtomicU64>>;
pub(super) type Domain = PagedDomain<VtdSecondStage, Tables, Arc<Hardware>>;
pub(super) type Cpus = Arc<SpinCpus<Hand, fn() -> CpuId>>;
pub(super) type Container = Ioas<Domain, Arc<Memory>, Cpus>;

pub(super) struct Rig {
    pub hardware: Arc<Hardware>,
    pub memory: Arc<Memory>,
    pub tables: Tables,
    pub domain: Arc<Domain>,
    pub container: Arc<Container>,
}

impl Rig {
    pub fn new(options: IoasOptions, tables: u32) -> Self {
        Self::caching(options, tables, Caching::PresentOnly)
    }

    pub fn caching(options: IoasOptions, tables: u32, caching: Caching) -> Self {
        let hardware = Arc::new(Hardware::default());
        let base = PhysAddr::new(0x80_0000_0000);
        let tables: Tables = Arc::new(SlabTables::new(base, PageSize::SIZE_4K, tables));
        let format = VtdSecondStage {
            levels: VtdLevels::Four,
            output_lg2: 46,
            dirty: DirtyTracking::Hardware,
        };
        let caps = caps(caching);
        let table = PageTable::new(format, tables.clone()).unwrap();
        let (context, quirks) = (InvalTag::new(1), Quirks::default());
        let queue = hardware.clone();
        let domain = Arc::new(PagedDomain::new(table, context, caps, quirks, queue));
        let current: fn() -> CpuId = || CpuId::new(0);
        let cpus = Arc::new(SpinCpus::new(1, Hand(hardware.clone()), current));
        let container = Ioas::new(domain.clone(), cpus, options, simulated()).unwrap();
        Self {
            hardware,
            memory: Arc::new(Memory::default()),
            tables,
            domain,
            container: Arc::new(container),
        }
    }

    /// A region of `pages` pages from [`BASE`], on demand.
    pub fn region(&self, pages: u64) {
        let options = RegionOptions {
            range: pages_at(0, pages),
            access: Access::READ | Access::WRITE,
            hold: Residency::OnDemand,
        };
        let memory = self.memory.clone();
        self.container.add_region(&options, memory).unwrap();
    }

    pub fn fault(&self, page: u64) -> Result<Mapped, crate::demand::FaultError> {
        self.container.fault(&request(page))
    }

    pub fn leads(&self, page: u64) -> Option<u64> {
        let found = self.domain.translate(Iova::new(BASE + page * PAGE))?;
        Some(found.pa.get() / PAGE)
    }

    /// Each page that is mapped leads where the owner says, and the count agrees.
    pub fn audit(&self, pages: u64) {
        let memory = self.memory.pages.lock();
        let mut mapped = 0;
        for page in 0..pages {
            if let Some(found) = self.leads(page) {
                assert_eq!(memory.get(&(BASE / PAGE + page)), Some(&found), "{page}");
                mapped += 1;
            }
        }
        let usage = self.container.usage();
        assert_eq!(usage.mapped_bytes, mapped * PAGE);
        assert_eq!(usage.leaving_bytes, 0);
    }
}

pub(super) fn caps(caching: Caching) -> Capabilities {
    Capabilities {
        range: RangeForm::PowerOfTwo { max_lg2_pages: 18 },
        caching,
        ..Capabilities::new(PageSize::SIZE_4K)
    }
}

pub(super) fn pages_at(first: u64, pages: u64) -> IovaRange {
    IovaRange::from_len(Iova::new(BASE + first * PAGE), pages * PAGE).unwrap()
}

pub(super) fn request(page: u64) -> FaultRequest {
    FaultRequest {
        who: Requester { stream: StreamId::new(3), pasid: None },
        iova: Iova::new(BASE + page * PAGE + 8),
        access: Access::WRITE,
    }
}
