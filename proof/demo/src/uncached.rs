//! Memory that CPUs do not cache, for a ring of a device that does not snoop.
//!
//! Without such memory, and where a device reaches only memory that is shared with a host, a ring is refused.

use alloc::format;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};

use portolan::addr::{PageSize, PhysAddr, PhysRange};
use portolan::dma::{Coherency, Device, HostVisibility, MapError};
use portolan::platform::Platform;
use portolan_bare::pci::Function;
use portolan_bare::{HeapError, Machine};
use portolan_hw::topology::{DeviceOptions, Iommus};

use crate::edu::{ADDRESS_BITS, Edu};
use crate::{Outcome, arch, say};

/// Words of a ring, and those that the device copies.
const WORDS: usize = 512;
const COPIED: usize = 128;

/// A block of RAM that is set aside.
pub struct Aside {
    memory: PhysRange,
    /// Address at which CPUs see it without caching it, where they can.
    first: Option<NonNull<u8>>,
}

impl Aside {
    /// Takes the last 2 MiB from `ram`, and returns them beside what lies before them.
    ///
    /// # Safety
    /// It is RAM that no code uses, and no other CPU runs.
    pub unsafe fn from(ram: PhysRange) -> Option<(PhysRange, Self)> {
        let block = PageSize::SIZE_2M;
        let end = PhysAddr::new(ram.last().get().checked_add(1)?).align_down(block);
        let start = PhysAddr::new(end.get().checked_sub(block.bytes())?);
        let rest = PhysRange::new(ram.start(), PhysAddr::new(start.get().checked_sub(1)?))?;
        let memory = PhysRange::page(start, block);
        // SAFETY: the caller's promise.
        let first = unsafe { arch::map_uncached(memory) };
        Some((rest, Self { memory, first }))
    }

    /// Tells if CPUs can see it without caching it.
    pub fn is_uncached(&self) -> bool {
        self.first.is_some()
    }
}

/// Opens `edu` as one that does not snoop.
pub fn unsnooped<P: Platform>(iommus: &Iommus<P>, edu: &Function) -> Outcome<Device<P>> {
    let mut options = DeviceOptions::trusted();
    options.constraints = options.constraints.address_bits(ADDRESS_BITS);
    options.constraints.coherency = Coherency::NotCoherent;
    Ok(iommus.device_with(edu.at(), &options)?)
}

/// Shows what is refused, gives the machine its memory, and has `edu` copy parts of a ring in it.
pub fn show(
    machine: Machine,
    iommus: &Iommus<Machine>,
    function: &Function,
    aside: &Aside,
) -> Outcome<()> {
    let mut options = DeviceOptions::trusted();
    options.constraints.reach = HostVisibility::Shared;
    match iommus.device_with(function.at(), &options)?.coherent(1) {
        Err(error @ MapError::NoShared { .. }) => say!("a ring for the host: {error}"),
        _ => return Err("there is memory that is shared with a host".into()),
    }
    let device = unsnooped(iommus, function)?;
    match device.coherent(1) {
        Err(error @ MapError::NoUncached { .. }) => say!("a ring without snooping: {error}"),
        _ => return Err("there is uncached memory before there is any".into()),
    }
    let Some(first) = aside.first else {
        return Ok(());
    };
    add(machine, aside.memory, first)?;
    let edu = Edu::new(machine, function)?;
    ring(&device, &edu)?;

    // All of it, twice: it comes back.
    let all = aside.memory.len_minus_one() + 1;
    for _ in 0..2 {
        let ring = device.coherent(all)?;
        match device.coherent(1) {
            Err(MapError::NoUncached { .. }) => drop(ring),
            _ => return Err("uncached memory was lent twice".into()),
        }
    }
    Ok(())
}

/// Gives the machine the memory, once.
fn add(machine: Machine, memory: PhysRange, first: NonNull<u8>) -> Outcome<()> {
    let kind = arch::uncached_type(first).ok_or("CPUs cache memory that is to be uncached")?;
    if let Some(kind) = arch::uncached_type(NonNull::from(&crate::heap::HEAP).cast()) {
        return Err(format!("the kernel's own memory is {kind}").into());
    }
    // SAFETY: it was set aside and mapped so before other CPUs began, and is used by the machine alone.
    let added = [(); 2].map(|()| unsafe { machine.add_uncached(memory, first) });
    match added {
        [Ok(()), Err(HeapError::Twice)] => say!("uncached memory at {memory}, {kind}"),
        [Err(error), _] => return Err(error.into()),
        _ => return Err("the machine takes uncached memory twice".into()),
    }
    Ok(())
}

/// Has the device copy one part of a ring to another, past the caches of the CPUs.
pub fn ring<P: Platform>(device: &Device<P>, edu: &Edu) -> Outcome<()> {
    let ring = device.coherent_of::<AtomicU64>(WORDS)?;
    let kind = arch::uncached_type(ring.view().cast()).ok_or("a ring's memory is cached")?;
    let word = |number: usize| (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let (from, to) = ring.items().split_at(WORDS / 2);
    for (number, of) in from.iter().enumerate().take(COPIED) {
        of.store(word(number), Ordering::Release);
    }
    let [start, end] = [0, WORDS / 2].map(|number| ring.iova_of(number).ok_or("no such entry"));
    edu.copy(start?, end?, COPIED as u64 * 8)?;
    let mut found = to.iter().enumerate().take(COPIED);
    if !found.all(|(number, of)| of.load(Ordering::Acquire) == word(number)) {
        return Err("a device and the CPU do not see the same ring".into());
    }
    say!("a ring without snooping is seen by both: {kind}");
    Ok(())
}
