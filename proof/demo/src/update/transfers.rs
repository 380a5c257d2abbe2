//! Requests that go on through an update: a queue of an NVMe disk, and a write of `edu`.

use alloc::vec::Vec;
use core::mem;
use core::sync::atomic::AtomicU64;

use portolan::addr::Iova;
use portolan::dma::{Buffers, Coherent, Device, Direction, reclaim_all};
use portolan::platform::Nanos;
use portolan_bare::nvme::spec::Command;
use portolan_bare::nvme::{Access, Controller, NvmeError, Operation, Ring, RingMemory, RingState};
use portolan_bare::pci::Function;
use portolan_bare::{Machine, Pages, Registers};
use portolan_hw::topology::{DeviceOptions, Iommus};

use super::kept::{BATCH, Kept, KeptPage, KeptRing};
use crate::commands;
use crate::edu::{ADDRESS_BITS, Edu};
use crate::flash::{COPIES, POLICIES};
use crate::{Outcome, say};

const PAGE: usize = 4096;
const SECTOR: usize = 512;
/// Registers that are mapped.
const WINDOW: u64 = 0x2000;
/// Bytes of a ring of 64 commands, and of one of 64 completions.
const COMMANDS: u64 = 4096;
const COMPLETIONS: u64 = 1024;
/// Longest time that a command may take.
const LIMIT: Nanos = Nanos::from_millis(10_000);
/// Bytes that `edu` writes, and the value that its page is filled with.
const EDU_BYTES: usize = 2048;
const UNTOUCHED: u8 = 0x5a;
/// Pages of a batch that are read, and those that are written.
const HALF: usize = BATCH / 2;

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

/// First page of the batch of a kernel on the disk.
fn first(number: u64) -> u64 {
    number * HALF as u64 % COPIES
}

/// Page `number` of the disk, as it is at first.
fn original(number: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(PAGE);
    for sector in number * 8..number * 8 + 8 {
        let word = (sector + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
        bytes.extend((0..SECTOR).map(|at| word[at % 8] ^ (at / 8) as u8));
    }
    bytes
}

fn inverted(number: u64) -> Vec<u8> {
    original(number).into_iter().map(|byte| !byte).collect()
}

fn access(of: &Devices<'_>) -> Outcome<Access<Registers, Machine>> {
    let registers = of.flash.window(&of.machine, WINDOW).ok_or(NvmeError::NoRegisters)?;
    Ok(Access { registers, clock: of.machine, limit: LIMIT })
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
    Ok(Ring::resume(access(of)?, memory, state)?)
}

fn transfer(operation: Operation, page: u64, at: Iova) -> Command {
    let blocks = (PAGE / SECTOR) as u32;
    Command::transfer(operation, page * u64::from(blocks), blocks, [at.get(), 0])
}

/// Devices that are at work.
pub struct Devices<'m> {
    pub machine: Machine,
    pub flash: &'m Function,
    pub edu: &'m Function,
}

/// The disk, opened.
pub struct Disk {
    device: Device<Machine>,
    buffers: Buffers,
}

impl Devices<'_> {
    /// Opens the disk under the policy of kernel `number`.
    pub fn open(&self, iommus: &Iommus<Machine>, number: u64) -> Outcome<Disk> {
        let (buffers, trust, preference) = POLICIES[number as usize % POLICIES.len()];
        let mut options = DeviceOptions::trusted();
        options.buffers = buffers;
        options.constraints.trust = commands::trust(iommus, trust);
        options.preference = preference;
        let (policy, _) = commands::policy(iommus, self.flash, &options);
        say!("kernel {number}: {policy}");
        Ok(Disk { device: iommus.device_with(self.flash.at(), &options)?, buffers })
    }

    /// Has `edu` begin to write, which the next kernel takes over.
    pub fn leave_edu(&self, iommus: &Iommus<Machine>, kept: &mut Kept) -> Outcome<()> {
        let edu = Edu::new(self.machine, self.edu)?;
        let mut options = DeviceOptions::trusted();
        options.constraints = options.constraints.address_bits(ADDRESS_BITS);
        let device = iommus.device_with(self.edu.at(), &options)?;
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
        let mut controller = Controller::start(access(of)?, admin)?;
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
        let Disk { device, buffers } = disk;
        let Some(first) = number.checked_sub(1).map(first) else {
            return Ok(());
        };
        let mut mappings = Vec::new();
        for page in 0..HALF as u64 {
            let pages = machine.pages(PAGE).ok_or("no memory")?;
            let mapping =
                device.map(pages, Direction::FromDevice).map_err(|failed| failed.error)?;
            self.submit(&transfer(Operation::Read, COPIES + first + page, mapping.iova()));
            mappings.push(mapping);
        }
        self.wait()?;
        let mut found: Vec<Pages> = Vec::new();
        if *buffers == Buffers::Kept {
            for mapping in mappings {
                found.push(mapping.unmap().map_err(|failed| failed.error)?);
            }
        } else {
            let deferred =
                mappings.into_iter().map(|one| one.defer().map_err(|failed| failed.error));
            let deferred: Result<Vec<_>, _> = deferred.collect();
            reclaim_all(deferred?, |one| found.push(one), drop)?;
        }
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
