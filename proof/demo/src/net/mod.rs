//! A network card's receive pool behind the IOMMU: mapped once, however many packets arrive.
//!
//! Two virtio cards are on one hub of QEMU's: one receives what the other sends. Once the pool has ended, the card
//! still has addresses of its slots, at which it must not reach memory.
//!
//! Virtual I/O Device (VIRTIO) 1.2, section 5.1. Not supported: checksums, merged buffers, interrupts.

pub mod ring;

use alloc::format;
use alloc::vec;
use core::ptr::NonNull;

use portolan::addr::PhysRange;
use portolan::dma::{Coherency, Direction};
use portolan::platform::{Nanos, poll};
use portolan_bare::Machine;
use portolan_bare::pci::Function;
use portolan_hw::topology::{DeviceOptions, Iommus};

use crate::commands::Commands;
use crate::heap::{HEAP, HeapUse};
use crate::{Outcome, guarded, say};
use ring::{KernelSlot, PoolQueue};

/// A virtio 1.0 network card.
pub const IDENTITY: (u16, u16) = (0x1af4, 0x1041);

/// Packets that are sent.
const PACKETS: u64 = 1000;
/// Packets that are under way at once.
const UNDER_WAY: u64 = 8;
/// Memory of a pool: as many slots as a queue has descriptors, and some that the kernel has.
const POOL: usize = 64 * 1024;
/// Queues of a card.
const RECEIVED: (u16, Direction) = (0, Direction::FromDevice);
const SENT: (u16, Direction) = (1, Direction::ToDevice);
/// Bytes of `struct virtio_net_hdr`, which precedes each packet; zeros ask for nothing.
const HEADER: usize = 12;
/// Everyone's address, the sender's, and the type for local experiments (IEEE 802).
const ETHERNET: [u8; 14] = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x52, 0x54, 0, 0, 0, 1, 0x88, 0xb5];
/// A packet takes no longer.
const LIMIT: Nanos = Nanos::from_millis(2000);

/// Shows both cards with DMA that is as `coherency` says.
pub fn show(
    machine: Machine,
    iommus: &Iommus<Machine>,
    [receiver, sender]: [&Function; 2],
    coherency: Coherency,
) -> Outcome<()> {
    // Trusted: it reaches all slots of its pool, those of the kernel as well.
    let mut options = DeviceOptions::trusted();
    options.constraints.coherency = coherency;
    let [from, to] = [receiver, sender].map(|card| iommus.device_with(card.at(), &options));
    let (from, to) = (from?, to?);
    let memory = || machine.pages(POOL).ok_or("no memory");
    let received = PoolQueue::start(machine, receiver, &from, memory()?, RECEIVED)?;
    let mut wire = Wire {
        machine,
        sent: PoolQueue::start(machine, sender, &to, memory()?, SENT)?,
        received,
        bytes: 0,
    };
    for _ in 0..ring::ENTRIES {
        wire.offer()?;
    }

    let before = (Commands::of(iommus), HeapUse::now());
    let mut copied = 0;
    for first in (0..PACKETS).step_by(UNDER_WAY as usize) {
        let packets = first..PACKETS.min(first + UNDER_WAY);
        packets.clone().try_for_each(|number| wire.send(number))?;
        for number in packets {
            copied += u64::from(!wire.receive(number)?);
            if cfg!(feature = "map-each-packet") {
                let again = from.map(memory()?, RECEIVED.1).map_err(|failed| failed.error)?;
                again.unmap().map_err(|failed| failed.error)?;
            }
        }
    }
    let (heap, was) = (HeapUse::now(), before.1);
    let commands = Commands::of(iommus).since(&before.0).sum();
    let (uses, bytes) = (heap.uses - was.uses, wire.bytes);
    if (commands, uses, heap.free, copied) != (0, 0, was.free, 0) {
        return Err(format!(
            "{PACKETS} packets cost {commands} commands, {uses} uses of the heap, {copied} copies"
        )
        .into());
    }
    say!("NIC, {coherency:?}: {PACKETS} packets of {bytes} bytes received");
    say!("  0 commands, 0 uses of the heap, 0 pages of tables, 0 copies");

    outlived(iommus, receiver, wire)?;
    receiver.stop();
    sender.stop();
    Ok(())
}

/// Ends the pool of the receiver under its feet: what arrives then must not arrive in memory.
fn outlived(iommus: &Iommus<Machine>, receiver: &Function, mut wire: Wire) -> Outcome<()> {
    let machine = wire.machine;
    let (card, mapping) = wire.received.end_pool()?;
    let mut before = vec![0; POOL];
    mapping.read(0, &mut before)?;
    guarded::forget_faults(iommus.unit_of(receiver.at())?.0)?;
    let memory = match cfg!(feature = "pool-stays-mapped") {
        true => Err(mapping),
        false => Ok(mapping.unmap().map_err(|failed| failed.error)?),
    };

    Wire::put(&mut wire.sent, PACKETS)?;
    drop(wait(machine, || wire.sent.returned(), "a packet is not sent")?);
    let recorded = guarded::recorded(machine, iommus, receiver.at())?;
    drop(card);
    let mut after = vec![0; POOL];
    match &memory {
        Ok(pages) => after.copy_from_slice(pages.bytes()),
        Err(mapping) => mapping.read(0, &mut after)?,
    }
    if before != after {
        return Err("a card wrote to a pool that has ended".into());
    }
    say!("  the pool has ended: refused, {recorded}");
    Ok(())
}

/// Waits for the next slot that a device returns.
fn wait(
    machine: Machine,
    mut returned: impl FnMut() -> Outcome<Option<(KernelSlot, usize)>>,
    or: &'static str,
) -> Outcome<(KernelSlot, usize)> {
    poll(&machine, LIMIT, || returned().transpose()).map_err(|_| or)?
}

/// Bytes of packet `number` behind its header.
fn packet(number: u64) -> impl Iterator<Item = u8> {
    // From the shortest packet of Ethernet to the longest.
    let bytes = 60 + (number * 97 % 1455) as usize;
    let payload = (0..).map(move |at: u64| (number * 31 + at * 7 + (at >> 8)) as u8);
    ETHERNET.into_iter().chain(number.to_le_bytes()).chain(payload).take(bytes)
}

/// Two cards and what is between them.
struct Wire {
    machine: Machine,
    sent: PoolQueue,
    received: PoolQueue,
    /// Bytes of packets that have arrived.
    bytes: u64,
}

impl Wire {
    /// Hands the receiver a slot.
    fn offer(&mut self) -> Outcome<()> {
        let slot = self.received.take().ok_or("no slot is free")?;
        self.received.post(slot, usize::MAX)
    }

    fn send(&mut self, number: u64) -> Outcome<()> {
        Self::put(&mut self.sent, number)
    }

    /// Hands packet `number` to the sender.
    fn put(sent: &mut PoolQueue, number: u64) -> Outcome<()> {
        let mut slot = sent.take().ok_or("no slot is free")?;
        slot[..HEADER].fill(0);
        let mut bytes = HEADER;
        for (to, byte) in slot[HEADER..].iter_mut().zip(packet(number)) {
            *to = byte;
            bytes += 1;
        }
        sent.post(slot, bytes)
    }

    /// Takes packet `number` in, and tells if its bytes are where the card has written them, in the pool.
    fn receive(&mut self, number: u64) -> Outcome<bool> {
        let Self { machine, sent, received, .. } = self;
        let late = "a packet does not arrive";
        let (slot, bytes) = wait(*machine, || received.returned(), late)?;
        drop(wait(*machine, || sent.returned(), "a packet is not sent")?);
        let found = slot.get(HEADER..bytes).ok_or("a packet is longer than its slot")?;
        if !found.iter().copied().eq(packet(number)) {
            return Err(format!("packet {number} is not what was sent").into());
        }
        self.bytes += found.len() as u64;
        let at = HEAP
            .phys(NonNull::from(found).cast())
            .and_then(|at| PhysRange::from_len(at, bytes as u64));
        let in_pool = at.is_some_and(|at| received.memory().overlaps(at));
        drop(slot);
        self.offer()?;
        Ok(in_pool)
    }
}
