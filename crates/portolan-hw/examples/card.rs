//! A network card behind an IOMMU: from firmware's table to packets received, on the model of VT-d.
//!
//! `cargo run -p portolan-hw --example card`. The driver, [`Card`], is that of a kernel: its types name the
//! platform and the buffer, and nothing else. [`Wire`] plays the card, and reaches memory only as the IOMMU lets it.
#![allow(missing_docs, unsafe_code)]

use std::collections::VecDeque;
use std::error::Error;
use std::sync::atomic::Ordering;

use portolan::addr::PageSize;
use portolan::dma::{
    Buffer, Coherent, Deferred, Device, Direction, Mapping, UnmapError, reclaim_all,
};
use portolan::platform::Platform;
use portolan_chips::chips::SKYLAKE_SP;
use portolan_chips::vtd::VtdRegisters;
use portolan_hw::topology::{Options, Topology};
use portolan_sim::decode::AccessKind;

#[allow(dead_code)]
#[path = "../tests/topology/machine.rs"]
mod machine;
mod model;

use machine::{DEVICE, Machine, REGISTERS};
use model::{Frames, Wire};

const PAGE: PageSize = PageSize::SIZE_4K;
/// Packets that the card may fill at any time.
const RING: usize = 8;
/// Packets that are given back by one invalidation.
const BATCH: usize = 16;
/// Packets that arrive.
const PACKETS: u64 = 100;

/// The driver: a ring of descriptors that it shares with the card, and the packets on it.
struct Card<K: Platform, B: Buffer> {
    device: Device<K>,
    ring: Coherent<K>,
    posted: VecDeque<Mapping<K, B>>,
    next: usize,
    done: Vec<Deferred<K, B>>,
}

impl<K: Platform, B: Buffer> Card<K, B> {
    fn new(device: Device<K>) -> Result<Self, Box<dyn Error>> {
        let ring = device.coherent(8 * RING as u64)?;
        Ok(Self { device, ring, posted: VecDeque::new(), next: 0, done: Vec::new() })
    }

    /// Hands the card a packet to fill.
    fn post(&mut self, packet: B) -> Result<(), Box<dyn Error>> {
        let packet = self.device.map(packet, Direction::FromDevice);
        let packet = packet.map_err(|failed| failed.error)?;
        let slot = &self.ring.words()[self.next % RING];
        slot.store(packet.iova().get(), Ordering::Release);
        self.posted.push_back(packet);
        self.next += 1;
        Ok(())
    }

    /// The interrupt handler: the oldest packet is full. Returns its first word.
    fn received(&mut self) -> Result<u64, Box<dyn Error>> {
        let packet = self.posted.pop_front().ok_or("an interrupt without a packet")?;
        let mut first = [0; 8];
        packet.read(0, &mut first)?;
        // Unmapped, and invalidated later, with others.
        self.done.push(packet.defer().map_err(|failed| failed.error)?);
        Ok(u64::from_le_bytes(first))
    }

    /// The worker: has the packets that are done back, by one invalidation. Returns their number.
    fn take_back(&mut self) -> Result<usize, UnmapError> {
        let (mut back, mut kept) = (0, Vec::new());
        let give = |packet: B| {
            drop(packet);
            back += 1;
        };
        let result = reclaim_all(self.done.drain(..), give, |deferred| kept.push(deferred));
        // Packets that a device may still reach are asked for again.
        self.done = kept;
        result.map(|()| back)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let machine: Machine<VtdRegisters> = machine::vtd(SKYLAKE_SP.identification);
    let dmar = machine::dmar(REGISTERS);
    let topology = Topology::from_acpi([&dmar[..]])?;
    let iommus = topology.enable(machine.kernel(), Options::default(), machine::described())?;
    let device = iommus.trusted_device(DEVICE)?;
    let space = device.space().ok_or("the card is not translated")?.clone();
    println!("{DEVICE}: {:?}", space.policy());

    let mut card = Card::new(device)?;
    let wire = Wire::new(&machine, card.ring.iova());
    for _ in 0..RING {
        card.post(Frames::new(&machine.memory, PAGE)?)?;
    }
    let mut last = None;
    for number in 0..PACKETS {
        last = Some(wire.packet(number as usize % RING, number)?);
        assert_eq!(card.received()?, number, "a packet is what the card wrote");
        if card.done.len() == BATCH {
            card.take_back()?;
        }
        card.post(Frames::new(&machine.memory, PAGE)?)?;
    }
    let rest = card.take_back()?;
    println!("{PACKETS} packets received; the last {rest} came back together");

    // The card misbehaves: it writes once more to a packet that its owner has back.
    let stale = wire.reach(last.ok_or("no packet")?, AccessKind::Write);
    let refused = stale.expect_err("no device reaches a buffer that its owner has back");
    println!("a write to a packet that is gone is {refused}");
    drop(card);
    assert_eq!(machine.unit.violations(), []);
    Ok(())
}
