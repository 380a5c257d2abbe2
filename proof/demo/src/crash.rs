//! The kernel after the crash of another one, a foreign one whose IOMMU is on: an NVMe disk, at work for that kernel,
//! goes on through its tables until this one opens it.
//!
//! The former kernel has loaded this one into memory that it left free (`kexec_load(2)`), with [`Notes`] about the
//! requests that it made, and jumps there. Nothing is reset. Memory outside is read, and never written.

use alloc::boxed::Box;
use alloc::format;
use alloc::sync::Arc;
use core::ffi::c_void;

use portolan::addr::{Iova, PageSize, PhysAddr, PhysRange};
use portolan::dma::Direction;
use portolan::iommu::FaultEvent;
use portolan::platform::{FormerMemory, Mmio, Nanos, PreservedMemory, poll};
use portolan_bare::nvme::{Access, Nvme, Operation};
use portolan_bare::pci::{self, Function};
use portolan_bare::{Machine, Pages};
use portolan_hw::TrustedDescription;
use portolan_hw::topology::{Iommus, Options, Topology};

use crate::arch::{self, Loader};
use crate::batch::{self, Disk, PAGE, UNTOUCHED, inverted, original};
use crate::edu::Edu;
use crate::flash::COPIES;
use crate::guarded::recorded;
use crate::heap::HEAP;
use crate::{End, Outcome, edu, flash, named, say};

/// Most requests of the former kernel.
const MOST: usize = 64;
/// Registers with the addresses of the queues of administration.
const COMMANDS: usize = 0x28;
const COMPLETIONS: usize = 0x30;
/// Pages of the disk that this kernel copies, in one request.
const COPIED: u64 = 10;
/// Longest time that requests of the former kernel may take.
const LIMIT: Nanos = Nanos::from_millis(20_000);

/// Notes of the former kernel's program, in the page at [`arch::KEPT`].
#[repr(C)]
struct Notes {
    /// Requests, the first of which reads the disk's first page, the second the next one, and so on.
    count: u64,
    /// Physical addresses of their pages.
    at: [u64; MOST],
}

const _: () = assert!(size_of::<Notes>() <= PAGE);

/// Eight bytes of the former kernel's memory.
fn word(ram: PhysRange, at: PhysAddr) -> Option<u64> {
    let word = PhysRange::from_len(at, 8).filter(|_| at.get().is_multiple_of(8))?;
    let at = core::ptr::with_exposed_provenance::<u64>(at.get() as usize);
    // SAFETY: it is RAM, which `boot.s` maps one to one; only devices write there.
    ram.covers(word).then(|| unsafe { at.read_volatile() })
}

/// Requests of the former kernel that read the disk.
struct Requests {
    ram: PhysRange,
    notes: &'static Notes,
}

impl Requests {
    fn of(ram: PhysRange) -> Outcome<Self> {
        let at = core::ptr::with_exposed_provenance::<Notes>(arch::KEPT.get() as usize);
        // SAFETY: the page is in this kernel's memory, mapped one to one, and nothing writes there; any bits are notes.
        let notes = unsafe { &*at };
        let count = notes.count;
        match usize::try_from(count).is_ok_and(|count| (1..=MOST).contains(&count)) {
            true => Ok(Self { ram, notes }),
            false => Err(format!("the former kernel left notes of {count} requests").into()),
        }
    }

    fn count(&self) -> usize {
        self.notes.count as usize
    }

    /// Number of requests whose data is there.
    fn done(&self) -> usize {
        let pages = self.notes.at.iter().zip(0..self.notes.count);
        pages.filter(|(at, number)| self.is_done(**at, *number)).count()
    }

    fn is_done(&self, at: u64, number: u64) -> bool {
        let wanted = original(number);
        let mut words = wanted.as_chunks::<8>().0.iter().zip((at..).step_by(8));
        words.all(|(wanted, at)| {
            word(self.ram, PhysAddr::new(at)) == Some(u64::from_le_bytes(*wanted))
        })
    }
}

pub fn run(left: *const c_void) -> Outcome<End> {
    // SAFETY: the former kernel left the pointer, and nothing writes there.
    let loader = unsafe { Loader::at(left) }.ok_or("the former kernel left no device tree")?;
    let own = loader.ram().ok_or("there is no RAM behind the kernel")?;
    let heap = PhysRange::new(PhysAddr::new(arch::KEPT.get() + PAGE as u64), own.last());
    let heap = heap.filter(|heap| own.covers(*heap)).ok_or("there is too little RAM")?;
    // SAFETY: no code uses this memory yet, and no other CPU runs this kernel; firmware's tables and windows of
    // registers are elsewhere.
    let machine = unsafe {
        HEAP.init(heap)?;
        loader.machine(&HEAP)?
    };
    let ram = loader.all_ram().ok_or("there is no RAM")?;
    say!("a kernel has crashed; RAM at {ram}, of which this one has {heap}");
    let functions = pci::functions(&machine);
    let (flash, edu) = (named(&functions, flash::IDENTITY)?, named(&functions, edu::IDENTITY)?);
    let requests = Requests::of(ram)?;
    let early = requests.done();
    let iommus = take_over(machine, ram, flash)?;
    let late = requests.count() - requests.done();
    let all = || (requests.done() == requests.count()).then_some(());
    if poll(&machine, LIMIT, all).is_err() {
        let (done, count) = (requests.done(), requests.count());
        return Err(format!("{done} of {count} requests are done").into());
    }
    is_not_refused(&iommus, flash)?;
    say!("{early} requests of the former kernel done before its unit was taken over, {late} after");
    is_blocked(machine, &iommus, edu)?;
    copy(machine, &iommus, flash)?;
    // It names memory of the former kernel, which is not given back.
    core::mem::forget(iommus);
    Ok(End::Good)
}

/// Finds the disk's queues of administration, whose addresses its registers have, by the former kernel's tables.
fn find_queues(
    machine: &Machine,
    topology: &Topology,
    flash: &Function,
    memory: (PhysRange, FormerMemory<'_>),
) -> Outcome<()> {
    let Access { registers, .. } = batch::access(*machine, flash)?;
    let (ram, former) = memory;
    // SAFETY: the tables are this machine's, by the word of its loader.
    let described = unsafe { TrustedDescription::new() };
    for (name, offset) in [("commands", COMMANDS), ("completions", COMPLETIONS)] {
        let at = Iova::new(registers.read64(offset) & !(PAGE as u64 - 1));
        let found = topology.former_translation(machine, described, flash.at(), at, former);
        let found = found.ok_or_else(|| format!("nothing is mapped at {at}, the disk's {name}"))?;
        if !ram.contains(found.pa) {
            return Err(format!("{at}, the disk's {name}, leads to {}", found.pa).into());
        }
        say!("the disk's {name} at {at}: {}", found.pa);
    }
    Ok(())
}

/// Takes the units over, with the disk at work.
fn take_over(machine: Machine, ram: PhysRange, flash: &Function) -> Outcome<Iommus<Machine>> {
    let read = |at| word(ram, at);
    // SAFETY: it is memory, and no code writes to it any more: the former kernel's CPUs have stopped, and this kernel's
    // own is apart from it.
    let former = unsafe { FormerMemory::new(&read) };
    let topology = machine.topology()?;
    find_queues(&machine, &topology, flash, (ram, former))?;
    let (tables, none) = ([ram], []);
    // SAFETY: as above; the units are there for good, and give none of it back.
    let preserved = unsafe { PreservedMemory::new(&tables, &none) };
    // SAFETY: the tables are this machine's, by the word of its loader.
    let described = unsafe { TrustedDescription::new() };
    let keep: &[_] = if cfg!(feature = "keep-nothing") { &[] } else { &[flash.at()] };
    let (iommus, taken) =
        topology.take_over(machine, Options::default(), described, keep, former, preserved)?;
    if let Some((_, why)) = taken.refused.first() {
        return Err(format!("the unit was not taken over: {why}").into());
    }
    if let Some(error) = iommus.units().iter().find_map(|unit| unit.as_ref().err()) {
        return Err(Box::new(*error));
    }
    let pages = taken.tables.iter().map(|of| of.pages(PageSize::SIZE_4K)).sum::<u64>();
    say!("{} of {} devices go on, {pages} pages of tables", taken.kept.len(), keep.len());
    match taken.kept == [flash.at()] || keep.is_empty() {
        true => Ok(iommus),
        false => Err("the disk does not go on".into()),
    }
}

/// Checks that no access of the disk was refused since the unit was taken over.
fn is_not_refused(iommus: &Iommus<Machine>, flash: &Function) -> Outcome<()> {
    let (unit, stream) = iommus.unit_of(flash.at())?;
    while let Some(event) = unit.next_fault()? {
        if let FaultEvent::Fault(fault) = event
            && fault.stream == stream
        {
            return Err(format!("the disk was refused, {:?}", fault.reason).into());
        }
    }
    Ok(())
}

/// Checks that `edu`, which was not named, reaches nothing.
fn is_blocked(machine: Machine, iommus: &Iommus<Machine>, function: &Function) -> Outcome<()> {
    let mut page = machine.pages(PAGE).ok_or("no memory")?;
    page.bytes_mut().fill(UNTOUCHED);
    let at = Iova::new(page.memory().start().get());
    Edu::new(machine, function)?.write(at, batch::EDU_BYTES as u64)?;
    if page.bytes().iter().any(|byte| *byte != UNTOUCHED) {
        return Err("a device that is not named wrote to memory".into());
    }
    say!("edu: refused, {}", recorded(machine, iommus, function.at())?);
    Ok(())
}

/// Opens the disk, and copies its first pages, inverted.
fn copy(machine: Machine, iommus: &Iommus<Machine>, flash: &Function) -> Outcome<()> {
    // The former kernel's requests are done; its messages would be refused.
    flash.stop();
    flash.stop_messages();
    let (Disk { device, .. }, policy) = Disk::open(iommus, flash, 0)?;
    let device = Arc::new(device);
    let mut nvme = Nvme::start(machine, flash, device.clone(), 1)?;
    let mut queue = nvme.queue()?;
    let block = |page: u64| (page * PAGE as u64) >> nvme.block_lg2();
    let mut exchange = |operation, page: u64, pages: Pages| -> Outcome<Pages> {
        let direction = match operation {
            Operation::Read => Direction::FromDevice,
            Operation::Write => Direction::ToDevice,
        };
        let mapping = device.map(pages, direction).map_err(|failed| failed.error)?;
        queue.submit(operation, block(page), mapping).map_err(|failed| failed.error)?;
        Ok(queue.wait()?.1.unmap().map_err(|failed| failed.error)?)
    };
    let fresh = || machine.pages(COPIED as usize * PAGE).ok_or("no memory");
    let mut pages = exchange(Operation::Read, 0, fresh()?)?;
    if !pages.bytes().chunks(PAGE).zip(0..).all(|(page, number)| page == original(number)) {
        return Err("the disk read something else than it has".into());
    }
    pages.bytes_mut().iter_mut().for_each(|byte| *byte = !*byte);
    exchange(Operation::Write, COPIES, pages)?;
    let again = exchange(Operation::Read, COPIES, fresh()?)?;
    if !again.bytes().chunks(PAGE).zip(0..).all(|(page, number)| page == inverted(number)) {
        return Err("the disk returned something else than was written".into());
    }
    nvme.stop()?;
    say!("the disk is this kernel's: {policy}, {COPIED} pages copied");
    Ok(())
}
