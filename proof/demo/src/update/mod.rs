//! Updates of the kernel while its devices are at work: this kernel hands its IOMMUs to the next one, and jumps there
//! without a reset.
//!
//! Each kernel takes over what the former one left under way (requests of an NVMe disk, a write of `edu`), compares
//! each byte, reads back by its own mappings, in the same queue, what the former one wrote, and leaves requests under
//! way itself. [`Kept`] is the memory that it leaves, and the way to the next kernel.

mod kept;
mod transfers;
mod virtio_disk;

use alloc::boxed::Box;
use alloc::format;
use core::alloc::Layout;
use core::ffi::c_void;

use portolan::platform::{Platform, PreservedMemory};
use portolan_bare::Machine;
use portolan_bare::pci;
use portolan_hw::TrustedDescription;
use portolan_hw::topology::Iommus;

pub use kept::Kept;
use kept::LENT;
use transfers::{Devices, Transfers};
use virtio_disk::VirtioDisk;

use crate::arch::Loader;
use crate::batch::Disk;
use crate::commands::Commands;
use crate::heap::HEAP;
use crate::{End, Outcome, disk, edu, enable, flash, named, options, say};

/// Runs one kernel of the row, which ends in the next one, or in the machine's end.
pub fn run(left: *const c_void, kept: &'static mut Kept) -> Outcome<End> {
    // SAFETY: the loader left the pointer, and nothing writes there.
    let loader = unsafe { Loader::at(left) }.ok_or("the loader left nothing that makes sense")?;
    let [lent, heap] = Kept::memory().ok_or("the memory is not known")?;
    let ram = loader.ram().ok_or("there is no RAM behind the kernel")?;
    if !ram.covers(lent) || !ram.covers(heap) {
        return Err(format!("{ram} is not all RAM that is needed").into());
    }
    // SAFETY: both are RAM of this kernel alone, but for pages that are set aside before any is lent.
    let machine = unsafe {
        HEAP.init(heap)?;
        LENT.init(lent)?;
        kept.set_aside()?;
        loader.machine(&LENT)?
    };
    let functions = pci::functions(&machine);
    let (flash, edu) = (named(&functions, flash::IDENTITY)?, named(&functions, edu::IDENTITY)?);
    let virtio = named(&functions, disk::IDENTITY)?;
    let devices = Devices { machine, flash, edu };
    if kept.done == 0 {
        loader.give_addresses(&functions)?;
        pci::stop_all(&functions);
        pci::start_iommus(&functions);
        pci::isolate(&functions);
        let iommus = enable(machine)?;
        let disk = devices.open(&iommus, 0)?;
        let transfers = Transfers::start(&devices, &disk, kept)?;
        let opened = virtio_disk::open(&iommus, virtio, 0)?;
        let queue = VirtioDisk::start(machine, virtio, &opened, kept)?;
        let work = Work { disk, transfers, virtio: opened, queue };
        return leave(&devices, &iommus, work, (left, kept));
    }

    let mut transfers = Transfers::resume(&devices, kept)?;
    let early = transfers.completed()?;
    let mut queue = VirtioDisk::resume(machine, virtio, kept)?;
    let Some(iommus) = adopt(machine, kept)? else {
        devices.edu_is_blocked(kept)?;
        return Ok(End::Good);
    };
    let edu = if devices.edu_is_busy()? { "after" } else { "before" };
    let virtio_late = queue.under_way();
    let late = transfers.reap(kept)?;
    devices.reap_edu(kept)?;
    let number = kept.done;
    say!("update {number}: {early} requests done before the units were taken over, {late} after");
    say!("  edu wrote {edu} that; {virtio_late} requests of the virtio disk after");
    let disk = devices.open(&iommus, number)?;
    transfers.check(machine, &disk, number)?;
    let opened = virtio_disk::open(&iommus, virtio, number)?;
    queue.reap(&opened, kept)?;
    for page in kept.batch {
        kept.take_back(machine, &disk.device, page)?;
    }
    for page in kept.virtio_batch {
        kept.take_back(machine, &opened.device, page)?;
    }
    say!("  {} pages in use", kept.check_use()?);
    let work = Work { disk, transfers, virtio: opened, queue };
    if number == kept.wanted() {
        say!("{number} updates, each byte as it should be");
        Commands::of(&iommus).print();
        core::mem::forget((iommus, work));
        return Ok(End::Good);
    }
    leave(&devices, &iommus, work, (left, kept))
}

/// Both disks, opened, with their queues.
struct Work {
    disk: Disk,
    transfers: Transfers,
    virtio: Disk,
    queue: VirtioDisk,
}

/// Takes the units over; `None` if the record was damaged, which has to be noticed.
fn adopt(machine: Machine, kept: &Kept) -> Outcome<Option<Iommus<Machine>>> {
    let (tables, buffers) = (kept.tables(), kept.buffers());
    // SAFETY: all of it was the former kernel's, and is set aside: each page counts as one of the heap.
    let preserved = unsafe { PreservedMemory::new(&tables, &buffers) };
    // SAFETY: the tables are this machine's, by the word of its loader.
    let described = unsafe { TrustedDescription::new() };
    let topology = machine.topology()?;
    let options = options(machine, &topology);
    let (iommus, adoption) =
        topology.adopt(machine, options, described, kept.record(), preserved)?;
    let is_last = kept.is_damaged() && kept.done == kept.wanted();
    match (adoption.refused.first(), is_last) {
        (None, false) => {}
        (Some((_, why)), true) => {
            say!("a damaged record: {why}");
            Commands::of(&iommus).print();
            core::mem::forget(iommus);
            return Ok(None);
        }
        (Some((_, why)), false) => return Err(Box::new(*why)),
        (None, true) => return Err("a damaged record was taken".into()),
    }
    let layout = Layout::from_size_align(4096, 4096)?;
    let mut free = 0;
    for range in tables {
        let mut at = range.start();
        while at <= range.last() {
            if !adoption.tables.iter().any(|of| of.contains(at)) {
                // SAFETY: the page was set aside, and is no unit's and no device's.
                unsafe { machine.free(at, layout) };
                free += 1;
            }
            at = at.checked_add(4096).ok_or("a table is at the end of memory")?;
        }
    }
    say!(
        "{} units taken over, {} pages of theirs, {free} free",
        adoption.adopted.len(),
        adoption.tables.len()
    );
    Ok(Some(iommus))
}

/// Leaves requests under way, and goes to the next kernel.
fn leave(
    devices: &Devices<'_>,
    iommus: &Iommus<Machine>,
    mut work: Work,
    (left, kept): (*const c_void, &mut Kept),
) -> Outcome<End> {
    let is_blocked_next = kept.is_damaged() && kept.done + 1 == kept.wanted();
    devices.leave_edu(iommus, kept)?;
    // What the disk does is not waited for where it ends with its reach.
    if !is_blocked_next {
        work.queue.leave(&work.virtio, kept)?;
        work.transfers.leave(devices.machine, &work.disk, kept)?;
    }
    work.transfers.note(kept);
    let prepared = iommus.prepare(kept.record_mut())?;
    if let Some((_, error)) = prepared.left_out.first() {
        return Err(Box::new(*error));
    }
    Commands::of(iommus).print();
    core::mem::forget(work);
    kept.jump(left, prepared.bytes)
}
