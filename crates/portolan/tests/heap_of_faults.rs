//! No heap memory is taken or freed while a lock is held by functions that serve faults; nor at all
//! by functions that the handler of a unit's interrupt calls.
#![allow(missing_docs)]

#[path = "support/promised.rs"]
mod promised;
#[path = "support/watched_heap.rs"]
mod watched_heap;

use promised::{promised, simulated};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use portolan::addr::{InvalTag, Iova, IovaRange, PageSize, Pasid, PhysAddr, StreamId};
use portolan::demand::premap::{Adaptive, Requester};
use portolan::demand::{
    FaultRequest, Frames, Ioas, IoasOptions, Pager, PopulateError, RegionOptions, Residency,
    Unreached, Window,
};
use portolan::inval::{
    Caching, Capabilities, InvalidationQueue, Quirks, RangeForm, Step, TablesLeft,
};
use portolan::iommu::{IommuError, PagedDomain, TagPool};
use portolan::iopf::{
    Bounds, Dispatcher, Flow, Group, GroupId, Handler, Permissions, Place, RawPageRequest,
    ReplyPasid, ReplyTo, RequestKind, Responder, Response, Taken,
};
use portolan::platform::{OutOfTableMemory, SlabTables, TableMem};
use portolan::table::format::{DirtyTracking, VtdLevels, VtdSecondStage};
use portolan::table::{Access, PageTable};
use watched_heap::{Machine, held, uses};

struct Iommu;

impl Responder for Iommu {
    type Error = ();

    fn respond(&self, _: ReplyTo, _: Response) -> Result<(), ()> {
        assert_eq!(held(), 0, "a response under a lock");
        Ok(())
    }
}

struct Ready;

impl Handler for Ready {
    fn handle(&self, _: &Group<'_>) -> Response {
        assert_eq!(held(), 0, "a handler under a lock");
        Response::Success
    }
}

fn asks(stream: u32, group: u16, place: Place, iova: u64) -> RawPageRequest {
    let group = GroupId::new(group);
    RawPageRequest {
        stream: StreamId::new(stream),
        pasid: Some(Pasid::new(1)),
        iova: Iova::new(iova),
        wants: Permissions::READ,
        kind: RequestKind::Pri { group, place },
    }
}

#[test]
fn a_dispatcher_uses_no_heap_under_its_lock() {
    let bounds = Bounds {
        groups: 64,
        groups_of_device: 16,
        requests: 8,
        flow: Flow::UNBOUNDED,
        ..Bounds::default()
    };
    let desk = Dispatcher::new(Machine, Iommu, bounds).unwrap();
    uses("making it");
    let reach = IovaRange::new(Iova::new(0x1000), Iova::new(0xffff)).unwrap();
    for stream in 0..20 {
        let stream = StreamId::new(stream);
        desk.set_reply_pasid(stream, ReplyPasid::Never).unwrap();
        for pasid in 0..20 {
            let handler: Arc<dyn Handler> = Arc::new(Ready);
            desk.register(stream, Some(Pasid::new(pasid)), reach, handler).unwrap();
        }
    }
    uses("registering");
    for round in 0..4 {
        for stream in 0..21 {
            for group in 0..40 {
                for number in 0..12 {
                    // Some are outside, some are too large, most are too many.
                    let iova = 0x1000 * (1 + u64::from(group % 17));
                    let place = match number {
                        11 => Place::Last,
                        _ => Place::More,
                    };
                    let raw = asks(stream, group, place, iova);
                    while desk.queue(raw).is_err() {
                        assert_eq!(uses("taking in"), 0, "an interrupt's handler takes in");
                        desk.serve().unwrap();
                        uses("serving");
                    }
                }
            }
        }
        desk.lost();
        assert_eq!(uses("taking in"), 0, "round {round}: an interrupt's handler");
        while desk.serve().unwrap().is_some() {}
        desk.expire().unwrap();
        uses("serving");
    }
    assert_eq!(desk.accept(asks(1, 1, Place::More, 0x2000)), Ok(Taken::Partial));
    desk.unregister(StreamId::new(1), Some(Pasid::new(1)));
    desk.remove_device(StreamId::new(2));
    uses("removing");
    drop(desk);
    uses("closing");
}

/// Memory for tables and a queue that no code uses with a lock held.
struct Tables(SlabTables<AtomicU64>);

impl TableMem<AtomicU64> for Tables {
    fn alloc(&self, size: PageSize) -> Result<PhysAddr, OutOfTableMemory> {
        assert_eq!(held(), 0, "a table under a lock");
        self.0.alloc(size)
    }

    fn free(&self, table: PhysAddr, size: PageSize) {
        assert_eq!(held(), 0, "a table is freed under a lock");
        self.0.free(table, size);
    }

    fn table(&self, table: PhysAddr, size: PageSize) -> &[AtomicU64] {
        self.0.table(table, size)
    }

    fn clean(&self, _: portolan::addr::PhysRange) {}

    fn clean_barrier(&self) {}

    fn invalidate(&self, _: portolan::addr::PhysRange) {}
}

#[derive(Default)]
struct Queue {
    broken: AtomicBool,
}

impl InvalidationQueue for Queue {
    type Error = IommuError;

    fn pay(&self, steps: &mut dyn Iterator<Item = Step>, _: TablesLeft) -> Result<(), IommuError> {
        assert_eq!(held(), 0, "a sync under a lock");
        steps.for_each(drop);
        match self.broken.load(Ordering::Relaxed) {
            true => Err(IommuError::Refused { code: 1 }),
            false => Ok(()),
        }
    }
}

impl TagPool for Queue {
    fn release(&self, _: InvalTag) -> Result<(), IommuError> {
        Ok(())
    }
}

/// Pages at twice their address, so that none follows another.
struct Owner;

impl Owner {
    fn find(range: IovaRange, frames: &mut Frames) {
        assert_eq!(held(), 0, "the owner under a lock");
        let pages = (range.start().get()..=range.last().get()).step_by(4096);
        for page in pages {
            if frames.push(promised(PhysAddr::new(2 * page), 4096)).is_err() {
                return;
            }
        }
    }
}

impl Pager for Owner {
    fn populate(
        &self,
        range: IovaRange,
        _: Access,
        frames: &mut Frames,
    ) -> Result<(), PopulateError> {
        Self::find(range, frames);
        Ok(())
    }

    fn pin(&self, range: IovaRange, _: Access, frames: &mut Frames) -> Result<(), PopulateError> {
        Self::find(range, frames);
        Ok(())
    }

    fn unpin(&self, _: &Unreached) {
        assert_eq!(held(), 0, "the owner under a lock");
    }
}

type Container = Ioas<PagedDomain<VtdSecondStage, Tables, Arc<Queue>>, Owner, Machine>;

fn container(window: Window, queue: Arc<Queue>) -> Container {
    let format =
        VtdSecondStage { levels: VtdLevels::Four, output_lg2: 46, dirty: DirtyTracking::Hardware };
    let caps = Capabilities {
        range: RangeForm::PowerOfTwo { max_lg2_pages: 18 },
        caching: Caching::NotPresentToo,
        ..Capabilities::new(PageSize::SIZE_4K)
    };
    let tables = Tables(SlabTables::new(PhysAddr::new(1 << 40), PageSize::SIZE_4K, 128));
    let table = PageTable::new(format, tables).unwrap();
    let (context, quirks) = (InvalTag::new(1), Quirks::default());
    let domain = Arc::new(PagedDomain::new(table, context, caps, quirks, queue));
    let options = IoasOptions { window, ..IoasOptions::default() };
    Ioas::new(domain, Machine, options, simulated()).unwrap()
}

fn pages(first: u64, count: u64) -> IovaRange {
    IovaRange::from_len(Iova::new(first * 4096), count * 4096).unwrap()
}

#[test]
fn a_container_uses_no_heap_and_maps_nothing_under_its_locks() {
    let fixed = NonZeroU32::new(40).map_or(Window::Page, Window::Fixed);
    for window in [Window::Page, Window::Block, fixed, Window::Adaptive(Adaptive::default())] {
        let queue = Arc::new(Queue::default());
        let container = container(window, queue.clone());
        for region in 0..20 {
            let part = [pages(region * 1024, 50)];
            let hold = match region % 2 {
                0 => Residency::OnDemand,
                _ => Residency::Selective(&part),
            };
            let options = RegionOptions {
                range: pages(region * 1024, 1024),
                access: Access::READ | Access::WRITE,
                hold,
            };
            container.add_region(&options, Owner).unwrap();
        }
        uses("adding regions");
        for stream in 0..40 {
            for page in (100..900).step_by(7) {
                let request = FaultRequest {
                    who: Requester { stream: StreamId::new(stream), pasid: None },
                    iova: Iova::new((u64::from(stream % 4) * 1024 + page) * 4096),
                    access: Access::WRITE,
                };
                container.fault(&request).unwrap();
            }
        }
        uses("faults");
        container.read_and_clear_dirty(pages(0, 4096), |_| ()).unwrap();
        queue.broken.store(true, Ordering::Relaxed);
        container.invalidate(pages(200, 300)).unwrap_err();
        queue.broken.store(false, Ordering::Relaxed);
        container.recover().unwrap();
        container.invalidate(pages(100, 800)).unwrap();
        uses("taking back");
        container.remove_region(Iova::new(1024 * 4096)).unwrap();
        drop(container);
        uses("removing regions");
    }
}
