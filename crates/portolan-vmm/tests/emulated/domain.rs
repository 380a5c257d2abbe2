//! This project's own domains write the guest's tables, as its drivers do in a guest, and their debts become the
//! unit's invalidations. The device then reads through the walk.

use crate::promised::promised;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use fastrand::Rng;
use portolan::addr::{InvalTag, Iova, PhysAddr};
use portolan::inval::{
    Caching, Capabilities, Command, Gather, InvalidationQueue, LeafOnly, PageForm, Quirks,
    RangeForm, Step, TablesLeft, Walker, WriteBuffer,
};
use portolan::iommu::{Domain as _, IommuError, PagedDomain, TagPool};
use portolan::table::{Access, Format, PageTable};
use portolan_chips::fixture::seed;
use portolan_vmm::Endpoint;
use portolan_vmm::emulated::{Context, Scope};
use vm_memory::iommu::IommuMemory;
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap, Permissions};

use crate::pages::GuestPages;
use crate::{
    AMD, ENDPOINT, Guest, LONG, Unit, VTD, VTD_FIRST, guest, range, reach, riscv, stage1, stage2,
    unit,
};

const BYTES: usize = 32 << 20;
const TABLES: u64 = 24 << 20;
const TAG: InvalTag = InvalTag::new(7);

/// Tells the emulated unit, as a guest's queue of commands would.
#[derive(Clone)]
struct Queue(Arc<Unit>);

impl InvalidationQueue for Queue {
    type Error = IommuError;

    fn pay(&self, steps: &mut dyn Iterator<Item = Step>, _: TablesLeft) -> Result<(), IommuError> {
        for step in steps {
            let Step::Invalidate(command) = step else {
                continue;
            };
            let (scope, range) = match command {
                Command::Page { context, iova, size, .. } => {
                    (Scope::Tag(context), Some(portolan::addr::IovaRange::page(iova, size)))
                }
                Command::Range { context, run, granule, .. } => {
                    (Scope::Tag(context), Some(run.range(granule)))
                }
                Command::Context { context } => (Scope::Tag(context), None),
                Command::Global | Command::Configuration { .. } => (Scope::All, None),
            };
            self.0.invalidate(scope, range).unwrap();
        }
        Ok(())
    }
}

impl TagPool for Queue {
    fn release(&self, context: InvalTag) -> Result<(), IommuError> {
        self.0.invalidate(Scope::Tag(context), None).unwrap();
        Ok(())
    }
}

/// A unit that knows commands of ranges, or of pages alone.
fn capabilities<F: Format>(range: RangeForm) -> Capabilities {
    Capabilities {
        granule: F::GRANULE,
        page: PageForm::Granule,
        range,
        leaf_only: LeafOnly::Present,
        walker: Walker::Coherent,
        caching: Caching::PresentOnly,
        write_buffer: WriteBuffer::Absent,
    }
}

struct Game<F: Format<Word = AtomicU64>> {
    guest: Guest,
    endpoint: Endpoint,
    memory: IommuMemory<GuestMemoryMmap, Endpoint>,
    domain: PagedDomain<F, GuestPages, Queue>,
    rng: Rng,
}

impl<F: Format<Word = AtomicU64>> Game<F> {
    fn new(format: F, form: RangeForm, seed: u64) -> Self {
        let guest = guest(BYTES);
        let (unit, endpoint) = unit(&guest, 256, LONG);
        let unit = Arc::new(unit);
        let table = PageTable::new(format, GuestPages::new(&guest, TABLES)).unwrap();
        let context = Context::tables(format, table.root(), TAG).unwrap();
        unit.attach(ENDPOINT, context).unwrap();
        let caps = capabilities::<F>(form);
        Self {
            memory: IommuMemory::new((*guest).clone(), endpoint.clone(), true, ()),
            guest,
            endpoint,
            domain: PagedDomain::new(table, TAG, caps, Quirks::default(), Queue(unit)),
            rng: Rng::with_seed(seed),
        }
    }

    /// Some pages: few places of three leaf tables, so that they meet.
    fn pages(&mut self) -> (u64, u64) {
        let granule = F::GRANULE.bytes();
        let block = granule << F::INDEX_LG2;
        let first = self.rng.u64(..3) * block + self.rng.u64(..8) * granule;
        (first, self.rng.u64(1..6) * granule)
    }

    fn change(&mut self) {
        let (start, bytes) = self.pages();
        let mut owed = Gather::new();
        if self.rng.u32(..3) == 0 {
            // Where nothing is mapped it is refused.
            let range = range(start, start + bytes - 1);
            let _ = self.domain.unmap_part(range, &mut owed);
        } else {
            let frames = TABLES / F::GRANULE.bytes();
            let pa = PhysAddr::new(self.rng.u64(..frames - 8) * F::GRANULE.bytes());
            let access = self.rng.choice([Access::READ, Access::READ_WRITE]).unwrap();
            // Where something is mapped it is refused.
            let _ = self.domain.map(Iova::new(start), promised(pa, bytes), access, &mut owed);
        }
        self.domain.sync(&mut owed).unwrap();
    }

    /// The device reaches the pages that the domain maps, and the bytes there.
    fn compare(&mut self) {
        let (start, _) = self.pages();
        let at = start + self.rng.u64(..F::GRANULE.bytes() - 8);
        let mapped = self.domain.translate(Iova::new(at));
        for (access, bit) in
            [(Permissions::Read, Access::READ), (Permissions::Write, Access::WRITE)]
        {
            let wanted = mapped.filter(|leaf| leaf.access.contains(bit));
            let wanted = wanted.map(|leaf| vec![(leaf.pa.get(), 8)]);
            assert_eq!(reach(&self.endpoint, at, 8, access), wanted, "{at:#x} {access:?}");
        }
        let Some(leaf) = mapped else {
            return;
        };
        let (word, there) = (self.rng.u64(..), GuestAddress(leaf.pa.get()));
        if leaf.access.contains(Access::WRITE) {
            self.memory.write_obj(word, GuestAddress(at)).unwrap();
            assert_eq!(self.guest.read_obj::<u64>(there).unwrap(), word);
        } else {
            self.guest.write_obj(word, there).unwrap();
            assert_eq!(self.memory.read_obj::<u64>(GuestAddress(at)).unwrap(), word);
            assert!(self.memory.write_obj(word, GuestAddress(at)).is_err());
        }
    }
}

fn play<F: Format<Word = AtomicU64>>(format: F, form: RangeForm, seed: u64) {
    let mut game = Game::new(format, form, seed);
    for _ in 0..3000 {
        game.change();
        game.compare();
    }
    let Game { domain, endpoint, .. } = game;
    // Its pages are poisoned when it goes: nothing of it is kept.
    drop(domain);
    for at in 0..8 {
        assert_eq!(reach(&endpoint, at * F::GRANULE.bytes(), 8, Permissions::Read), None);
    }
}

#[test]
fn the_device_follows_domains_of_every_format() {
    let seed = seed();
    let mask = RangeForm::PowerOfTwo { max_lg2_pages: 9 };
    let run = RangeForm::NumScale { max_num: 32, max_scale: 31 };
    for form in [RangeForm::Absent, mask, run] {
        play(VTD, form, seed);
        play(VTD_FIRST, form, seed);
        play(AMD, form, seed);
        play(riscv::<12>(), form, seed);
        play(riscv::<14>(), form, seed);
        play(stage1::<12>(39), form, seed);
        play(stage1::<14>(47), form, seed);
        play(stage1::<16>(48), form, seed);
        play(stage2::<12>(48), form, seed);
    }
}
