//! A network card's receive pool on the model of VT-d: mapped once, however many packets arrive.
//!
//! `cargo run -p portolan-hw --example receive-pool`. The driver, [`Card`], hands slots of one mapping to the card and
//! takes them back. The program counts what a packet costs: calls of the domain, invalidations, table pages, heap
//! memory, and copies; each is none. [`Wire`] plays the card, and reaches memory only as the IOMMU lets it.
#![allow(missing_docs, unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::VecDeque;
use std::error::Error;
use std::sync::atomic::Ordering;

use portolan::addr::PageSize;
use portolan::dma::{Buffer, BufferPool, Coherent, Device, DeviceSlot, Direction};
use portolan::platform::{Mmio, Platform};
use portolan_chips::chips::SKYLAKE_SP;
use portolan_chips::vtd::VtdRegisters;
use portolan_hw::topology::{Options, Topology};
use portolan_spec::vtd::reg;

#[allow(dead_code)]
#[path = "../tests/topology/machine.rs"]
mod machine;
mod model;

use machine::{DEVICE, Machine, REGISTERS};
use model::{Frames, Wire};

/// Memory of the pool.
const MEMORY: PageSize = PageSize::of_lg2(16);
const SLOT_BYTES: usize = 2048;
/// Packets that the card may fill at any time.
const RING: usize = 8;
const PACKETS: u64 = 1000;

thread_local! {
    /// Uses of the heap.
    static HEAP: Cell<u64> = const { Cell::new(0) };
}

/// The system's heap, counted.
struct Counted;

// SAFETY: all memory is the system allocator's, with the layout that the caller gave.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HEAP.set(HEAP.get() + 1);
        // SAFETY: the caller's duties are the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HEAP.set(HEAP.get() + 1);
        // SAFETY: the caller's duties are the same.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counted = Counted;

/// The driver: a ring of addresses that it shares with the card, a pool, and the slots that the card has.
struct Card<K: Platform, B: Buffer> {
    ring: Coherent<K>,
    pool: BufferPool<K, B>,
    posted: VecDeque<DeviceSlot<K, B>>,
    next: usize,
    /// Sum of the first bytes of all packets.
    sum: u64,
}

impl<K: Platform, B: Buffer> Card<K, B> {
    fn new(device: &Device<K>, memory: B) -> Result<Self, Box<dyn Error>> {
        let ring = device.coherent(8 * RING as u64)?;
        let mapping = device.map(memory, Direction::FromDevice).map_err(|failed| failed.error)?;
        let pool = BufferPool::new(mapping, SLOT_BYTES).map_err(|failed| failed.error)?;
        let posted = VecDeque::with_capacity(RING);
        Ok(Self { ring, pool, posted, next: 0, sum: 0 })
    }

    /// Hands the card slots for as many descriptors as are free.
    fn fill(&mut self) {
        while self.posted.len() < RING {
            let Some(slot) = self.pool.take() else {
                return;
            };
            let slot = slot.post();
            let descriptor = &self.ring.words()[self.next % RING];
            descriptor.store(slot.iova().get(), Ordering::Release);
            self.posted.push_back(slot);
            self.next += 1;
        }
    }

    /// The interrupt handler: the card has written `bytes` bytes to the oldest slot.
    fn received(&mut self, bytes: usize) -> Result<(), Box<dyn Error>> {
        let slot = self.posted.pop_front().ok_or("an interrupt without a packet")?;
        let packet = slot.take_back_first(bytes);
        let first = packet.first_chunk().ok_or("a packet is longer")?;
        self.sum += u64::from_le_bytes(*first);
        // It is free again, and goes back to the card.
        drop(packet);
        self.fill();
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let machine: Machine<VtdRegisters> = machine::vtd(SKYLAKE_SP.identification);
    let dmar = machine::dmar(REGISTERS);
    let topology = Topology::from_acpi([&dmar[..]])?;
    let iommus = topology.enable(machine.kernel(), Options::default(), machine::described())?;
    let device = iommus.trusted_device(DEVICE)?;
    let mut card = Card::new(&device, Frames::new(&machine.memory, MEMORY)?)?;
    card.fill();
    let wire = Wire::new(&machine, card.ring.iova());

    let commands = || machine.unit.read32(reg::IQT);
    let before = (commands(), machine.memory.live());
    let mut heap = 0;
    for number in 0..PACKETS {
        wire.packet(number as usize % RING, number)?;
        let uses = HEAP.get();
        card.received(8)?;
        heap += HEAP.get() - uses;
    }
    assert_eq!(card.sum, (0..PACKETS).sum(), "packets are what the card wrote");
    assert_eq!((commands(), machine.memory.live()), before, "nothing was invalidated or allocated");
    assert_eq!(heap, 0, "no heap memory was taken or freed");
    println!("{PACKETS} packets: 0 invalidations, 0 table pages, {heap} uses of the heap");

    let Card { pool, posted, .. } = card;
    posted.into_iter().for_each(|slot| drop(slot.take_back()));
    let mapping = pool.into_mapping().map_err(|failed| failed.error)?;
    mapping.unmap().map_err(|failed| failed.error)?;
    let stale = wire.packet(0, 0).expect_err("no device reaches a pool that has ended");
    println!("a packet after the end of the pool is {stale}");
    assert_eq!(machine.unit.violations(), []);
    Ok(())
}
