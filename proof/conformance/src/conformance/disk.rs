//! A real disk behind the unit: a thousand random operations, with every byte compared.

use crate::promise::promised;
use std::collections::BTreeMap;

use fastrand::Rng;
use portolan::addr::{Iova, IovaRange, PhysAddr, StreamId};
use portolan::inval::Gather;
use portolan::iommu::{Domain, FaultEvent, FaultReason};

use super::basic::{Attached, PAGE, RW};
use super::{Has, Host, Machine, Outcome, Verdict, drain, expect, fail, must};

/// Operations of [`random_transfers`].
const OPERATIONS: u32 = 1000;
/// Seed of its random numbers.
pub(super) const SEED: u64 = 0xd15c_5eed;
const EVENTS: u64 = 1 << 17;
/// Lists of pages that may be mapped at a time, and pages of address space for each.
const SLOTS: u64 = 48;
const SLOT_PAGES: u64 = 64;
/// Pages of memory in play.
const POOL: u64 = 512;
/// Pages of a list.
const MOST_PAGES: u64 = 32;
/// Pages of a piece of it.
const MOST_PIECE: u64 = 8;
const BLOCK: u64 = 512;

/// Direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// Transfer from memory to the disk.
    Write,
    /// Transfer from the disk to memory.
    Read,
}

/// A page that both sides see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedPage {
    /// Address for the CPU.
    pub pa: PhysAddr,
    /// Address for the device.
    pub iova: Iova,
}

/// A disk behind the unit.
pub trait Disk {
    /// Its stream.
    fn stream(&self) -> StreamId;

    /// Blocks of 512 bytes.
    fn blocks(&self) -> u64;

    /// Starts it, with pages for its queues and one for a list of addresses, all mapped.
    ///
    /// # Errors
    /// Description of the failure.
    fn start(&self, pages: [SharedPage; 5]) -> Result<(), String>;

    /// Transfers `blocks` blocks from block `first`. The data begins `offset` bytes into the first
    /// of `pages`. Only a comparison tells if all of it arrived.
    ///
    /// # Errors
    /// The disk's error.
    fn transfer(
        &self,
        way: Transfer,
        first: u64,
        blocks: u32,
        pages: &[Iova],
        offset: u64,
    ) -> Result<(), String>;

    /// Reads the contents of the disk, as its maker sees it.
    fn read(&self, first: u64, into: &mut [u8]);

    /// Changes the contents of the disk.
    fn write(&self, first: u64, from: &[u8]);
}

/// A list of pages mapped at once, piece by piece contiguous.
struct List {
    start: u64,
    pages: Vec<PhysAddr>,
}

struct Play<'a, M: Machine> {
    machine: &'a M,
    disk: &'a dyn Disk,
    on: Attached<M>,
    rng: Rng,
    free: Vec<PhysAddr>,
    lists: BTreeMap<u64, List>,
    refused: u32,
    moved: u64,
}

fn page(at: Iova, n: u64) -> Iova {
    Iova::new(at.get() + n * PAGE)
}

/// Maps, unmaps, reads and writes at random.
pub(super) fn random_transfers<M: Machine>(machine: &M) -> Verdict {
    let mut verdict = Ok(());
    machine.host.with_disk(&mut |disk| {
        verdict = match disk {
            Some(disk) => transfers(machine, disk),
            None => Err(Outcome::Skip("no disk is behind the unit".to_owned())),
        };
    });
    verdict
}

fn transfers<M: Machine>(machine: &M, disk: &dyn Disk) -> Verdict {
    let mut play = Play::new(machine, disk)?;
    for step in 0..OPERATIONS {
        play.step().map_err(|outcome| match outcome {
            Outcome::Fail(why) => fail(format!("step {step}: {why}")),
            other => other,
        })?;
    }
    if play.refused < OPERATIONS / 20 || play.moved < 1 << 20 {
        let (refused, moved) = (play.refused, play.moved);
        return Err(fail(format!("only {moved} bytes and {refused} refusals")));
    }
    Ok(())
}

impl<'a, M: Machine> Play<'a, M> {
    fn new(machine: &'a M, disk: &'a dyn Disk) -> Result<Self, Outcome> {
        let on = Attached::with(machine, disk.stream())?;
        let queues = machine.host.memory(8 * PAGE);
        let mut shared = [SharedPage { pa: queues, iova: M::BASE }; 5];
        for (n, one) in (0..).zip(&mut shared) {
            one.pa = PhysAddr::new(queues.get() + n * PAGE);
            one.iova = page(M::BASE, n);
            on.map(one.iova, one.pa, PAGE, RW)?;
        }
        disk.start(shared).map_err(fail)?;
        let pool = machine.host.memory(POOL * PAGE);
        let free = (0..POOL).map(|n| PhysAddr::new(pool.get() + n * PAGE));
        Ok(Self {
            machine,
            disk,
            on,
            rng: Rng::with_seed(SEED),
            free: free.collect(),
            lists: BTreeMap::new(),
            refused: 0,
            moved: 0,
        })
    }

    fn step(&mut self) -> Verdict {
        let slot = self.rng.u64(0..SLOTS);
        if !self.lists.contains_key(&slot) {
            return self.map(slot);
        }
        match self.rng.u8(0..8) {
            0..=1 => self.unmap(slot),
            2..=4 => self.transfer(slot, Transfer::Write),
            _ => self.transfer(slot, Transfer::Read),
        }
    }

    /// Pieces of random sizes; each contiguous in memory if the pool has it so.
    fn map(&mut self, slot: u64) -> Verdict {
        let wanted = self.rng.u64(1..=MOST_PAGES).min(self.free.len() as u64);
        if wanted == 0 {
            return Ok(());
        }
        let start = self.rng.u64(0..SLOT_PAGES - wanted);
        let (mut pages, mut segments) = (Vec::new(), Vec::new());
        while (pages.len() as u64) < wanted {
            let most = MOST_PIECE.min(wanted - pages.len() as u64);
            let length = self.rng.u64(1..=most);
            let at = self.rng.usize(0..self.free.len());
            let first = self.free.remove(at);
            pages.push(first);
            let mut bytes = PAGE;
            while bytes < length * PAGE {
                let next = PhysAddr::new(first.get() + bytes);
                let Some(at) = self.free.iter().position(|free| *free == next) else {
                    break;
                };
                self.free.remove(at);
                pages.push(next);
                bytes += PAGE;
            }
            segments.push(promised(first, bytes));
        }
        let iova = self.address(slot, start);
        let mut owed = Gather::new();
        let (domain, list) = (&self.on.domain, &segments[..]);
        must("mapping a list", domain.map_sg(iova, list, RW, &mut owed))?;
        self.on.sync(owed)?;
        self.lists.insert(slot, List { start, pages });
        self.transfer(slot, Transfer::Read)
    }

    fn address(&self, slot: u64, n: u64) -> Iova {
        page(M::BASE, 64 + slot * 2 * SLOT_PAGES + n)
    }

    /// Takes a whole list away, and tries some of its pages afterwards.
    fn unmap(&mut self, slot: u64) -> Verdict {
        let Some(List { start, pages }) = self.lists.remove(&slot) else {
            return Ok(());
        };
        let iova = self.address(slot, start);
        let bytes = pages.len() as u64 * PAGE;
        let range = IovaRange::from_len(iova, bytes).ok_or_else(|| fail("empty list"))?;
        let mut owed = Gather::new();
        must("unmapping", self.on.domain.unmap(range, &mut owed))?;
        self.on.sync(owed)?;
        for _ in 0..2 {
            let n = self.rng.usize(0..pages.len());
            self.must_not_reach(page(iova, n as u64), pages[n])?;
        }
        self.free.extend(pages);
        Ok(())
    }

    fn fill(&mut self, bytes: u64) -> Vec<u8> {
        (0..bytes).map(|_| self.rng.u8(..)).collect()
    }

    fn poke(&self, pa: PhysAddr, bytes: &[u8]) {
        for (n, word) in (0..).zip(bytes.chunks_exact(4)) {
            let value = word.iter().rev().fold(0, |all, &b| all << 8 | u32::from(b));
            self.machine.host.poke(PhysAddr::new(pa.get() + 4 * n), value);
        }
    }

    fn peek(&self, pa: PhysAddr, bytes: u64) -> Vec<u8> {
        let words = (0..bytes / 4).map(|n| self.machine.host.peek(PhysAddr::new(pa.get() + 4 * n)));
        words.flat_map(u32::to_le_bytes).collect()
    }

    /// Moves a random part of a list, of whole blocks, and compares it.
    fn transfer(&mut self, slot: u64, way: Transfer) -> Verdict {
        let Some(list) = self.lists.get(&slot) else {
            return Ok(());
        };
        let (start, pages) = (list.start, list.pages.clone());
        let total = pages.len() as u64 * PAGE / BLOCK;
        let from = self.rng.u64(0..total);
        let blocks = self.rng.u64(1..=total - from);
        let first = self.rng.u64(0..=self.disk.blocks() - blocks);
        let (skip, offset) = (from * BLOCK / PAGE, from * BLOCK % PAGE);
        let bytes = blocks * BLOCK;
        let count = (offset + bytes).div_ceil(PAGE);
        let iovas: Vec<_> = (0..count).map(|n| self.address(slot, start + skip + n)).collect();
        let data = self.fill(bytes);
        // Places of the data's pieces in memory.
        let mut pieces = Vec::new();
        let mut done = 0;
        for pa in pages.iter().skip(skip as usize).take(count as usize) {
            let within = if done == 0 { offset } else { 0 };
            let length = (PAGE - within).min(bytes - done);
            pieces.push((PhysAddr::new(pa.get() + within), done, length));
            done += length;
        }
        let part = |at: u64, length: u64| &data[at as usize..(at + length) as usize];
        match way {
            Transfer::Read => self.disk.write(first, &data),
            Transfer::Write => {
                for &(pa, at, length) in &pieces {
                    self.poke(pa, part(at, length));
                }
            }
        }
        let moved = self.disk.transfer(way, first, blocks as u32, &iovas, offset);
        let what = format!("{way:?} of {blocks} blocks at {}", iovas[0]);
        moved.map_err(|error| fail(format!("{what}: {error}")))?;
        let same = match way {
            Transfer::Write => {
                let mut found = vec![0; data.len()];
                self.disk.read(first, &mut found);
                found == data
            }
            Transfer::Read => {
                pieces.iter().all(|&(pa, at, length)| self.peek(pa, length) == part(at, length))
            }
        };
        self.moved += bytes;
        if !same {
            return Err(fail(format!("{what}: other data arrived")));
        }
        expect("faults", drain(self.machine, EVENTS)?, Vec::new())
    }

    /// Checks a page that is no longer mapped: neither side gets the other's data, and a fault is recorded.
    fn must_not_reach(&mut self, iova: Iova, pa: PhysAddr) -> Verdict {
        let first = self.rng.u64(0..self.disk.blocks());
        let (memory, disk) = (self.fill(BLOCK), self.fill(BLOCK));
        for way in [Transfer::Read, Transfer::Write] {
            self.poke(pa, &memory);
            self.disk.write(first, &disk);
            drain(self.machine, EVENTS)?;
            // A disk may well say that all went well.
            let _ = self.disk.transfer(way, first, 1, &[iova], 0);
            let mut found = vec![0; BLOCK as usize];
            self.disk.read(first, &mut found);
            if self.peek(pa, BLOCK) != memory {
                return Err(fail(format!("memory behind {iova} was written")));
            }
            if found == memory {
                return Err(fail(format!("memory behind {iova} was read")));
            }
            self.must_be_told(iova)?;
            self.refused += 1;
        }
        Ok(())
    }

    fn must_be_told(&self, iova: Iova) -> Verdict {
        if self.machine.abilities.records != Has::Yes {
            return Ok(());
        }
        let events = drain(self.machine, EVENTS)?;
        let told = events.iter().any(|event| match event {
            FaultEvent::Fault(record) => {
                record.stream == self.disk.stream()
                    && record.reason == FaultReason::NotMapped
                    && record.iova.is_some_and(|at| at.get() / PAGE == iova.get() / PAGE)
            }
            FaultEvent::Lost => false,
        });
        if told {
            Ok(())
        } else {
            Err(fail(format!("no word of the refusal at {iova}: {events:?}")))
        }
    }
}
