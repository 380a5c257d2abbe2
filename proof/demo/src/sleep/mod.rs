//! Sleep of the machine (S3): units and devices lose their registers, and mappings stand.
//!
//! An NVMe disk reads to buffers that stay mapped, the units are suspended, and the machine sleeps. Awake again, the
//! units are resumed, and the disk goes on with the same buffers and the same rings. Meanwhile `edu` is refused, one
//! of its buffers is mapped and another one taken back.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ffi::c_void;
use core::sync::atomic::AtomicU64;

use portolan::addr::{Iova, PciFunction};
use portolan::dma::{Coherent, Device, Direction, Mapping};
use portolan::platform::Mmio;
use portolan_bare::nvme::{Controller, Operation, Ring, RingMemory};
use portolan_bare::pci::Function;
use portolan_bare::{Machine, Pages, Registers};
use portolan_hw::topology::Iommus;

use crate::arch::{self, Loader, Sleep};
use crate::batch::{
    self, COMMANDS, COMPLETIONS, Disk, EDU_BYTES, PAGE, PART, UNTOUCHED, first, inverted, original,
    transfer,
};
use crate::commands::Commands;
use crate::edu::Edu;
use crate::flash::COPIES;
use crate::heap::HEAP;
use crate::{End, Outcome, Started, edu, enable, flash, guarded, named, say};

/// Offsets of a function's base address registers.
const BARS: [usize; 6] = [0x10, 0x14, 0x18, 0x1c, 0x20, 0x24];

/// Sleeps that are to be shown.
#[derive(Clone, Copy)]
pub struct Sleeps {
    pub count: u64,
    /// The units are not resumed, which has to be noticed.
    pub is_left_out: bool,
}

/// Sleeps so often, each time under the next policy.
pub fn run(left: *const c_void, sleeps: Sleeps) -> Outcome<End> {
    let Started { loader, machine, functions, .. } = crate::start(left)?;
    // QEMU writes there again when it resets the machine.
    if !HEAP.keep(arch::KEPT) {
        return Err("the word that asks for sleeps is not in free memory".into());
    }
    let (flash, edu) = (named(&functions, flash::IDENTITY)?, named(&functions, edu::IDENTITY)?);
    let iommus = enable(machine)?;
    let sleeper = Sleeper {
        machine,
        iommus: &iommus,
        way: Sleep::of(&machine)?,
        loader,
        places: [flash, edu].map(|of| Place::of(&machine, of.at())),
        is_left_out: sleeps.is_left_out,
    };
    for number in 0..sleeps.count {
        sleeper.show(flash, edu, number)?;
    }
    guarded::show(machine, &iommus, edu)?;
    Commands::of(&iommus).print();
    Ok(End::Good)
}

/// Windows of a function's registers, which it loses in a sleep.
struct Place {
    at: PciFunction,
    bars: [u32; BARS.len()],
}

impl Place {
    fn of(machine: &Machine, at: PciFunction) -> Self {
        let space = machine.pci(at);
        let bars = BARS.map(|bar| space.as_ref().map_or(0, |space| space.read32(bar)));
        Self { at, bars }
    }

    /// Gives the function its windows again; it does no DMA yet.
    fn restore(&self, machine: &Machine) -> Outcome<()> {
        let space = machine.pci(self.at).ok_or("a device is gone after the sleep")?;
        if BARS.into_iter().zip(self.bars).all(|(bar, value)| space.read32(bar) == value) {
            return Err("a device has slept and kept its registers".into());
        }
        BARS.into_iter().zip(self.bars).for_each(|(bar, value)| space.write32(bar, value));
        Ok(())
    }
}

/// Memory of a ring, which the disk has again after a sleep.
#[derive(Clone)]
struct Standing(Arc<Coherent<Machine>>);

impl RingMemory for Standing {
    fn iova(&self) -> Iova {
        self.0.iova()
    }

    fn words(&self) -> &[AtomicU64] {
        self.0.words()
    }
}

type Buffer = Mapping<Machine, Pages>;

/// A disk that is started before a sleep and after it.
struct Rings<'m> {
    machine: Machine,
    flash: &'m Function,
    admin: [Standing; 2],
    queue: [Standing; 2],
}

impl Rings<'_> {
    /// Starts the disk, has `work` done with its queue, and stops it.
    fn start(&self, work: impl FnOnce(&mut Queue) -> Outcome<()>) -> Outcome<()> {
        self.flash.start();
        let access = batch::access(self.machine, self.flash)?;
        let mut controller = Controller::start(access, self.admin.clone())?;
        let mut queue = Queue(controller.queue(1, self.queue.clone(), None)?);
        work(&mut queue)?;
        controller.stop()?;
        self.flash.stop();
        Ok(())
    }
}

/// A queue of the disk.
struct Queue(Ring<Registers, Machine, Standing>);

impl Queue {
    /// Transfers one page of the disk after the other, from `first` on, all at once.
    fn transfer(&mut self, operation: Operation, first: u64, buffers: &[Buffer]) -> Outcome<()> {
        for (id, buffer) in buffers.iter().enumerate() {
            self.0.put(id as u16, &transfer(operation, first + id as u64, buffer.iova()));
        }
        self.0.announce();
        for _ in buffers {
            self.0.wait()?.result()?;
        }
        Ok(())
    }

    /// Reads pages, and compares each byte.
    fn compare(
        &mut self,
        first: u64,
        buffers: &mut [Buffer],
        wanted: impl Fn(u64) -> Vec<u8>,
    ) -> Outcome<()> {
        self.transfer(Operation::Read, first, buffers)?;
        for (number, buffer) in (first..).zip(buffers) {
            let mut found = [0; PAGE];
            buffer.sync_for_cpu();
            buffer.read(0, &mut found)?;
            if found[..] != wanted(number) {
                return Err("the disk read something else than it has".into());
            }
        }
        Ok(())
    }
}

/// A machine that is to sleep.
struct Sleeper<'m> {
    machine: Machine,
    iommus: &'m Iommus<Machine>,
    way: Sleep,
    loader: Loader,
    places: [Place; 2],
    is_left_out: bool,
}

impl Sleeper<'_> {
    fn map(&self, device: &Device<Machine>, direction: Direction, bytes: &[u8]) -> Outcome<Buffer> {
        let mut pages = self.machine.pages(PAGE).ok_or("no memory")?;
        pages.bytes_mut().copy_from_slice(bytes);
        Ok(device.map(pages, direction).map_err(|failed| failed.error)?)
    }

    /// Shows sleep `number`.
    fn show(&self, flash: &Function, edu: &Function, number: u64) -> Outcome<()> {
        let (disk, policy) = Disk::open(self.iommus, flash, number)?;
        say!("sleep {number}: {policy}");
        let device = &disk.device;
        let memory = |bytes| -> Outcome<_> { Ok(Standing(Arc::new(device.coherent(bytes)?))) };
        let (admin, queue) =
            ([memory(COMMANDS)?, memory(COMPLETIONS)?], [memory(COMMANDS)?, memory(COMPLETIONS)?]);
        let rings = Rings { machine: self.machine, flash, admin, queue };
        let first = first(number);
        let (mut read, mut written) = (Vec::new(), Vec::new());
        for page in first..first + PART as u64 {
            read.push(self.map(device, Direction::FromDevice, &[UNTOUCHED; PAGE])?);
            written.push(self.map(device, Direction::ToDevice, &inverted(page))?);
        }
        rings.start(|queue| queue.compare(first, &mut read, original))?;

        self.sleep(edu)?;

        rings.start(|queue| {
            queue.transfer(Operation::Write, COPIES + first, &written)?;
            queue.compare(COPIES + first, &mut read, |page| inverted(page - COPIES))
        })?;
        read.extend(written);
        drop(disk.take_back(read)?);
        Ok(())
    }

    /// Suspends the units, sleeps, and resumes them, while buffers of `edu` are mapped and taken back.
    fn sleep(&self, function: &Function) -> Outcome<()> {
        let device = batch::open_edu(self.iommus, function)?;
        let map = || self.map(&device, Direction::FromDevice, &[UNTOUCHED; PAGE]);
        let (mut standing, gone) = (map()?, map()?);
        let edu = Edu::new(self.machine, function)?;
        self.iommus.suspend()?;
        edu.write(standing.iova(), EDU_BYTES as u64)?;
        if written(&mut standing)? {
            return Err("a device reached memory while its unit was suspended".into());
        }
        say!("  suspended: edu is refused");
        let mut late = map()?;
        let taken = gone.iova();
        let mut page = gone.unmap().map_err(|failed| failed.error)?;
        function.stop();

        self.way.sleep(&self.machine, &self.loader)?;
        self.places.iter().try_for_each(|place| place.restore(&self.machine))?;
        if !self.is_left_out {
            self.iommus.resume()?;
        }

        let edu = Edu::new(self.machine, function)?;
        for buffer in [&mut standing, &mut late] {
            edu.write(buffer.iova(), EDU_BYTES as u64)?;
            if !written(buffer)? {
                return Err("a device does not reach its buffer after the sleep".into());
            }
        }
        page.bytes_mut().fill(UNTOUCHED);
        edu.write(taken, EDU_BYTES as u64)?;
        if page.bytes().iter().any(|byte| *byte != UNTOUCHED) {
            return Err("a device reached a buffer that was taken back in the sleep".into());
        }
        say!("  awake: edu writes to buffers from before, and is refused one that was taken back");
        Ok(())
    }
}

/// Tells if `edu` has written to a buffer.
fn written(buffer: &mut Buffer) -> Outcome<bool> {
    let mut found = [0; PAGE];
    buffer.sync_for_cpu();
    buffer.read(0, &mut found)?;
    let (start, rest) = found.split_at(EDU_BYTES);
    if rest.iter().any(|byte| *byte != UNTOUCHED) {
        return Err("edu wrote more than it was asked for".into());
    }
    Ok(start.iter().all(|byte| *byte == 0))
}
