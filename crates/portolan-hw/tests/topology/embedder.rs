//! An embedder that forgets what it has, calls the library from its own callbacks, or gives limits that cannot
//! be: errors with a type, nothing lost that others need, no panic and no hang.

use std::alloc::Layout;
use std::mem::forget;
use std::num::NonZeroU64;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use portolan::addr::{Iova, IovaRange, PageSize, PciFunction, PhysAddr, PhysRange};
use portolan::dma::{
    Constraints, Device, Direction, DmaSpace, IovaUse, LazyBounds, Mapping, PolicyPreference,
    Reservation,
};
use portolan::platform::{LeftBehind, Nanos, Platform, SpinLock};
use portolan_chips::chips::SKYLAKE_SP;
use portolan_hw::topology::{DeviceOptions, Iommus, Options, Topology};
use portolan_sim::decode::AccessKind;

use super::machine::{DEVICE, Kernel, OTHER, REGISTERS, described, dmar, vtd};
use super::{Packet, opened};

/// A page of its own for each number.
fn page(number: u64) -> Packet {
    let at = PhysAddr::new(0x1000_0000 + number * 0x1000);
    Packet(PhysRange::page(at, PageSize::SIZE_4K))
}

#[test]
fn what_is_forgotten_stays_out_of_use_and_the_rest_goes_on() {
    let machine = vtd(SKYLAKE_SP.identification);
    let iommus: Iommus<Kernel> = opened(machine.kernel(), &dmar(REGISTERS));
    let card = iommus.trusted_device(DEVICE).expect("a device");
    let space = card.space().expect("it is translated").clone();
    let stream = DEVICE.requester.stream();
    let reach = |at| {
        let found = machine.unit.dma(stream, None, at, AccessKind::Write, 8).ok()?;
        found.first().map(|piece| piece.pa)
    };
    let mapped = |number| card.map(page(number), Direction::FromDevice).expect("mapped");
    let mapping = mapped(0);
    let (kept, memory) = (mapping.iova(), page(0).0.start());
    forget(mapping);
    let deferred = mapped(1);
    let gone = deferred.iova();
    forget(deferred.defer().expect("unmapped"));
    forget(card.coherent(0x3000).expect("memory"));
    let constraints = Constraints::trusted();
    forget(Reservation::new(space.clone(), 0x4000, &constraints).expect("addresses"));
    space.flush().expect("the unit answers");
    assert_eq!((reach(kept), reach(gone)), (Some(memory), None));
    for number in 2..200 {
        let one = mapped(number);
        assert_ne!(one.iova(), kept);
        assert_eq!(reach(one.iova()), Some(page(number).0.start()));
        one.unmap().expect("the unit answers");
    }
    assert_eq!(reach(kept), Some(memory));
    // The device too, with its stream; another one is opened as if nothing had been.
    forget(card);
    drop(space);
    assert!(iommus.trusted_device(OTHER).is_ok());
    assert_eq!(machine.unit.violations(), []);
}

/// The space that callbacks call, and how often they did.
#[derive(Default)]
struct Callbacks {
    space: Mutex<Weak<DmaSpace<Insistent>>>,
    inside: AtomicBool,
    calls: AtomicUsize,
}

/// A kernel whose callbacks call the library.
#[derive(Clone)]
struct Insistent {
    kernel: Kernel,
    callbacks: Arc<Callbacks>,
}

impl Insistent {
    fn call(&self) {
        let space = self.callbacks.space.lock().expect("nobody panicked");
        let space = space.upgrade();
        let Some(space) = space.filter(|_| !self.callbacks.inside.swap(true, Ordering::Relaxed))
        else {
            return;
        };
        self.callbacks.calls.fetch_add(1, Ordering::Relaxed);
        space.tick().expect("the unit answers");
        space.flush().expect("the unit answers");
        assert!(!matches!(space.find(Iova::new(0)), IovaUse::Mapped(_)));
        let range = IovaRange::page(Iova::new(0x7fff_0000), PageSize::SIZE_4K);
        let _ = (space.reserve(range), space.recover());
        space.trim_addresses();
        self.callbacks.inside.store(false, Ordering::Relaxed);
    }
}

// SAFETY: it is the kernel.
unsafe impl Platform for Insistent {
    type Word = AtomicU64;
    type Lock<T: Send> = SpinLock<T>;
    type Registers = <Kernel as Platform>::Registers;

    fn now(&self) -> Nanos {
        self.kernel.now()
    }

    fn relax(&self) {
        self.kernel.relax();
    }

    fn alloc(&self, layout: Layout) -> Option<PhysAddr> {
        self.kernel.alloc(layout)
    }

    unsafe fn free(&self, at: PhysAddr, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { self.kernel.free(at, layout) }
    }

    unsafe fn virt(&self, at: PhysAddr) -> NonNull<u8> {
        // SAFETY: the caller's promise.
        unsafe { self.kernel.virt(at) }
    }

    unsafe fn registers(&self, window: PhysRange) -> Option<Self::Registers> {
        // SAFETY: the caller's promise.
        unsafe { self.kernel.registers(window) }
    }

    fn pci_config(&self, function: PciFunction, offset: u16) -> Option<u32> {
        self.kernel.pci_config(function, offset)
    }

    fn clean(&self, lines: PhysRange) {
        self.kernel.clean(lines);
    }

    fn clean_barrier(&self) {}

    fn invalidate(&self, _: PhysRange) {}

    fn flush_wanted(&self) {
        self.call();
    }

    fn drop_later(&self, left: LeftBehind) {
        self.call();
        drop(left);
    }
}

#[test]
fn a_callback_that_calls_the_library_waits_for_nothing_that_its_caller_has() {
    let machine = vtd(SKYLAKE_SP.identification);
    let callbacks = Arc::new(Callbacks::default());
    let platform = Insistent { kernel: machine.kernel(), callbacks: callbacks.clone() };
    let topology = Topology::from_acpi([&dmar(REGISTERS)[..]]).expect("a table");
    let iommus = topology.enable(platform, Options::default(), described());
    let iommus = iommus.expect("units that work");
    let mut options = DeviceOptions::trusted();
    options.preference = PolicyPreference::Lazy;
    options.space.bounds = LazyBounds { entries: 4, ..LazyBounds::default() };
    let card = iommus.device_with(DEVICE, &options).expect("a device");
    let space = card.space().expect("it is translated");
    *callbacks.space.lock().expect("nobody panicked") = Arc::downgrade(space);
    let mut deferred = Vec::new();
    for number in 0..64 {
        let mapping: Mapping<_, Packet> =
            card.try_map(page(number), Direction::FromDevice).expect("mapped");
        deferred.push(mapping.defer().expect("unmapped"));
    }
    assert!(callbacks.calls.load(Ordering::Relaxed) > 0);
    drop(card);
    for one in deferred {
        assert!(one.reclaim().is_ok());
    }
    assert_eq!(machine.unit.violations(), []);
}

/// Half of all addresses.
const ALL: PageSize = PageSize::of_lg2(63);

#[test]
fn limits_that_cannot_be_are_refused_or_kept() {
    let machine = vtd(SKYLAKE_SP.identification);
    let iommus: Iommus<Kernel> = opened(machine.kernel(), &dmar(REGISTERS));
    let odd: [fn(&mut Constraints); 7] = [
        |of| of.dma_mask = Iova::new(0),
        |of| of.dma_mask = Iova::new(0xfff),
        |of| of.max_segment = NonZeroU64::MIN,
        |of| of.seg_boundary = Some(PageSize::of_lg2(0)),
        |of| (of.seg_boundary, of.align) = (Some(ALL), ALL),
        |of| of.min_align_mask = ALL,
        |of| (of.align, of.min_align_mask, of.dma_mask) = (ALL, ALL, Iova::new(1)),
    ];
    for make in odd {
        let mut constraints = Constraints::trusted();
        make(&mut constraints);
        let mut options = DeviceOptions::of(constraints);
        for window in [(0, 0), (0, u64::MAX), (u64::MAX, u64::MAX), (1, 1), (0x1000, 0x1fff)] {
            let window = IovaRange::new(Iova::new(window.0), Iova::new(window.1));
            options.space.window = window.expect("a range");
            options.space.iova.refill = u32::MAX;
            options.space.bounds = LazyBounds { entries: 0, bytes: 0, age: Nanos::new(0) };
            let card: Device<Kernel> = match iommus.device_with(DEVICE, &options) {
                Ok(card) => card,
                Err(refused) => {
                    assert!(!refused.to_string().is_empty());
                    continue;
                }
            };
            match card.map(page(1), Direction::FromDevice) {
                Ok(mapping) => {
                    let segments = mapping.segments().take(5000);
                    let last = constraints.dma_mask.get();
                    for segment in segments {
                        let end = segment.iova.get() + (segment.bytes.get() - 1);
                        assert!(end <= last && segment.bytes <= constraints.max_segment);
                    }
                    mapping.unmap().expect("the unit answers");
                }
                Err(refused) => assert!(!refused.error.to_string().is_empty()),
            }
        }
    }
    assert_eq!(machine.unit.violations(), []);
}
