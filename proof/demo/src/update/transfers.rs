//! Requests that go on through an update: a queue of an NVMe disk, and a write of `edu`.

use alloc::vec::Vec;
use core::mem;
use core::sync::atomic::AtomicU64;

use portolan::addr::Iova;
use portolan::dma::{Coherent, Direction};
use portolan_bare::nvme::spec::Command;
use portolan_bare::nvme::{Controller, Operation, Ring, RingMemory, RingState};
use portolan_bare::pci::Function;
use portolan_bare::{Machine, Registers};
use portolan_hw::topology::Iommus;

use super::kept::{BATCH, Kept, KeptPage, KeptRing};
use crate::batch::{
    self, COMMANDS, COMPLETIONS, Disk, EDU_BYTES, PAGE, PART, UNTOUCHED, first, inverted, original,
    transfer,
};
use crate::edu::Edu;
use crate::flash::COPIES;
use crate::{Outcome, say};

/// Pages of a batch that are read, and those that are written.
const HALF: usize = BATCH / 2;
const _: () = assert!(HALF == PART);

/// Memory of a ring that the controller knows.
struct Known {
    iova: Iova,
    words: &'static [AtomicU64],
}

impl RingMemory for Known {
    fn iova(&self) -> Iova {
        self.iova
    }

    fn words(&self) -> &[AtomicU64] {
        self.words
    }
}

/// The queue with its memory.
pub struct Transfers {
    ring: Ring<Registers, Machine, Known>,
    kept: KeptRing,
    /// Requests that are not completed.
    under_way: usize,
}

/// A ring in memory that is kept.
fn ring(of: &Devices<'_>, kept: &KeptRing) -> Outcome<Ring<Registers, Machine, Known>> {
    let known = |page: &KeptPage, bytes: u64| {
        let at = core::ptr::with_exposed_provenance(page.at as usize);
        // SAFETY: the memory is the ring's for good, aligned, and mapped one to one.
        let words = unsafe { core::slice::from_raw_parts(at, bytes as usize / 8) };
        Known { iova: Iova::new(page.iova), words }
    };
    let memory = [known(&kept.commands, COMMANDS), known(&kept.completions, COMPLETIONS)];
    let KeptRing { number, tail, head, phase, .. } = *kept;
    let state = RingState { number, tail, head, phase: phase != 0 };
    let access = batch::access(of.machine, of.flash)?;
    Ok(Ring::resume(access, memory, state)?)
}

/// Devices that are at work.
pub struct Devices<'m> {
    pub machine: Machine,
    pub flash: &'m Function,
    pub edu: &'m Function,
}

impl Devices<'_> {
    /// Opens the disk under the policy of kernel `number`.
    pub fn open(&self, iommus: &Iommus<Machine>, number: u64) -> Outcome<Disk> {
        let (disk, policy) = Disk::open(iommus, self.flash, number)?;
        say!("kernel {number}: {policy}");
        Ok(disk)
    }

    /// Has `edu` begin to write, which the next kernel takes over.
    pub fn leave_edu(&self, iommus: &Iommus<Machine>, kept: &mut Kept) -> Outcome<()> {
        let edu = Edu::new(self.machine, self.edu)?;
        let device = batch::open_edu(iommus, self.edu)?;
        if kept.done > 0 {
            kept.take_back(self.machine, &device, kept.edu)?;
        }
        let mut page = self.machine.pages(PAGE).ok_or("no memory")?;
        page.bytes_mut().fill(UNTOUCHED);
        let memory = page.memory();
        let mapping = device.map(page, Direction::FromDevice).map_err(|failed| failed.error)?;
        kept.edu = kept.lend(mapping.iova().get(), memory);
        edu.begin_write(mapping.iova(), EDU_BYTES as u64);
        mem::forget((mapping, device));
        Ok(())
    }

    /// Waits for the write of the former kernel's, and compares each byte.
    pub fn reap_edu(&self, kept: &Kept) -> Outcome<()> {
        let edu = Edu::new(self.machine, self.edu)?;
        edu.finish()?;
        // SAFETY: the former kernel filled it in, and `edu` is at rest.
        let (written, rest) = unsafe { kept.edu.bytes() }.split_at(EDU_BYTES);
        if written.iter().any(|byte| *byte != 0) || rest.iter().any(|byte| *byte != UNTOUCHED) {
            return Err("edu did not write what the former kernel asked for".into());
        }
        Ok(())
    }

    /// Tells if `edu` has not written yet what the former kernel asked for.
    pub fn edu_is_busy(&self) -> Outcome<bool> {
        Ok(Edu::new(self.machine, self.edu)?.is_busy())
    }

    /// Checks that `edu`, whose unit was refused, does not reach its buffer.
    pub fn edu_is_blocked(&self, kept: &Kept) -> Outcome<()> {
        let edu = Edu::new(self.machine, self.edu)?;
        edu.finish()?;
        // SAFETY: as above.
        unsafe { kept.edu.bytes() }.fill(UNTOUCHED);
        edu.write(Iova::new(kept.edu.iova), EDU_BYTES as u64)?;
        // SAFETY: as above.
        match unsafe { kept.edu.bytes() }.iter().all(|byte| *byte == UNTOUCHED) {
            true => say!("edu is blocked"),
            false => return Err("a device of a unit that was refused wrote to memory".into()),
        }
        Ok(())
    }
}

impl Transfers {
    /// Starts the disk with one queue, which stays mapped.
    pub fn start(of: &Devices<'_>, disk: &Disk, kept: &mut Kept) -> Outcome<Self> {
        let device = &disk.device;
        let memory =
            || -> Outcome<_> { Ok([device.coherent(COMMANDS)?, device.coherent(COMPLETIONS)?]) };
        of.flash.start();
        let (admin, queue) = (memory()?, memory()?);
        let mut lend = |one: &Coherent<Machine>| kept.lend(one.iova().get(), one.memory());
        for one in &admin {
            lend(one);
        }
        let [commands, completions] = queue.each_ref().map(lend);
        let mut controller = Controller::start(batch::access(of.machine, of.flash)?, admin)?;
        let created = controller.queue(1, queue, None)?;
        let RingState { number, tail, head, phase } = created.state();
        // The disk has the memory for as long as the machine runs.
        mem::forget((controller, created));
        let kept = KeptRing { commands, completions, number, tail, head, phase: phase.into() };
        Ok(Self { ring: ring(of, &kept)?, kept, under_way: 0 })
    }

    /// Goes on with the queue of the former kernel.
    pub fn resume(of: &Devices<'_>, kept: &Kept) -> Outcome<Self> {
        let ring = ring(of, &kept.ring)?;
        Ok(Self { ring, kept: kept.ring, under_way: kept.under_way as usize })
    }

    /// Takes the completions that are there, and returns their number.
    pub fn completed(&mut self) -> Outcome<usize> {
        let before = self.under_way;
        while let Some(done) = self.ring.take() {
            done.result()?;
            self.under_way = self.under_way.checked_sub(1).ok_or("a completion too many")?;
        }
        Ok(before - self.under_way)
    }

    /// Waits for the other requests of the former kernel, and compares each byte; returns the number of requests.
    pub fn reap(&mut self, kept: &Kept) -> Outcome<usize> {
        let late = self.wait()?;
        let first = first(kept.done - 1);
        for (page, number) in kept.batch.iter().zip(first..).take(HALF) {
            // SAFETY: the former kernel filled it in, and the disk has completed the request.
            if unsafe { page.bytes() } != original(number) {
                return Err("the disk read something else than it has".into());
            }
        }
        Ok(late)
    }

    /// Waits for all requests that are under way, and returns their number.
    fn wait(&mut self) -> Outcome<usize> {
        let count = mem::take(&mut self.under_way);
        for _ in 0..count {
            self.ring.wait()?.result()?;
        }
        Ok(count)
    }

    fn submit(&mut self, command: &Command) {
        self.ring.put(self.under_way as u16, command);
        self.under_way += 1;
        self.ring.announce();
    }

    /// Reads by mappings of this kernel what the former one wrote, and takes the memory back.
    pub fn check(&mut self, machine: Machine, disk: &Disk, number: u64) -> Outcome<()> {
        let Some(first) = number.checked_sub(1).map(first) else {
            return Ok(());
        };
        let mut mappings = Vec::new();
        for page in 0..HALF as u64 {
            let pages = machine.pages(PAGE).ok_or("no memory")?;
            let mapping =
                disk.device.map(pages, Direction::FromDevice).map_err(|failed| failed.error)?;
            self.submit(&transfer(Operation::Read, COPIES + first + page, mapping.iova()));
            mappings.push(mapping);
        }
        self.wait()?;
        let found = disk.take_back(mappings)?;
        match found.iter().zip(first..).all(|(page, number)| page.bytes() == inverted(number)) {
            true => Ok(()),
            false => Err("the disk did not write what the former kernel asked for".into()),
        }
    }

    /// Has the devices begin what the next kernel takes over.
    pub fn leave(&mut self, machine: Machine, disk: &Disk, kept: &mut Kept) -> Outcome<()> {
        let device = &disk.device;
        let first = first(kept.done);
        let mut requests = Vec::new();
        for at in 0..BATCH {
            let (page, direction) = ((at % HALF) as u64, at < HALF);
            let mut pages = machine.pages(PAGE).ok_or("no memory")?;
            let (operation, direction, number) = match direction {
                true => (Operation::Read, Direction::FromDevice, first + page),
                false => {
                    pages.bytes_mut().copy_from_slice(&inverted(first + page));
                    (Operation::Write, Direction::ToDevice, COPIES + first + page)
                }
            };
            let memory = pages.memory();
            let mapping = device.map(pages, direction).map_err(|failed| failed.error)?;
            kept.batch[at] = kept.lend(mapping.iova().get(), memory);
            requests.push(transfer(operation, number, mapping.iova()));
            // It is the next kernel's to look at.
            mem::forget(mapping);
        }
        requests.iter().for_each(|command| self.submit(command));
        Ok(())
    }

    /// Notes how far the queue is.
    pub fn note(&self, kept: &mut Kept) {
        let RingState { number, tail, head, phase } = self.ring.state();
        kept.ring = KeptRing { number, tail, head, phase: phase.into(), ..self.kept };
        kept.under_way = self.under_way as u64;
    }
}
