//! Linux's bounce pool, and buffers of a device through `dma-iommu.c`: addresses, tables, flush queue.

use std::hint::black_box;
use std::sync::Arc;

use super::{
    Bounced, Domain, Linux, LinuxDomainKind, List, OnCpu, SharedDomain, linux, newer_linux,
    succeeded,
};
use crate::live::Buffered;
use crate::rig::{INPUT_BITS, MEMORY, PAGE};
use crate::threads::{Together, Turn};
use crate::workload::{Failure, Workload};

/// Buffers or slots in one pass.
const PAIRS: u64 = 2048;
const PAIRS_EACH: u64 = 50_000;
/// Bytes of the pool: Linux's default.
const POOL: u64 = 64 << 20;

fn on_cpu(cpu: u32) -> Result<OnCpu, Failure> {
    Ok(linux()?.on_cpu(cpu))
}

/// Buffers of one size mapped and unmapped.
pub(crate) struct LinuxBuffers {
    domain: Domain,
}

impl LinuxBuffers {
    pub(crate) fn new(kind: LinuxDomainKind) -> Result<Self, Failure> {
        Self::of(linux()?, kind)
    }

    /// Buffers through the newer version's DMA layer.
    pub(crate) fn newer(kind: LinuxDomainKind) -> Result<Self, Failure> {
        Self::of(newer_linux()?, kind)
    }

    fn of(linux: &'static Linux, kind: LinuxDomainKind) -> Result<Self, Failure> {
        let domain = linux.on_cpu(0).domain(kind, INPUT_BITS);
        Ok(Self { domain: domain.ok_or(Failure::HostMemory)? })
    }
}

impl Workload for LinuxBuffers {
    fn units(&self) -> u64 {
        PAIRS
    }

    fn prepare(&mut self) -> Result<(), Failure> {
        warned(self.domain.cpu())
    }

    fn run(&mut self) -> Result<(), Failure> {
        for i in 0..PAIRS {
            let pa = black_box(MEMORY.get() + i * PAGE);
            let iova = self.domain.dma_map(pa, PAGE).ok_or(Failure::Linux)?;
            self.domain.dma_unmap(black_box(iova), PAGE);
        }
        Ok(())
    }
}

impl Buffered for Domain {
    /// Address and number of bytes.
    type Mapped = (u64, u64);

    #[inline]
    fn map(&self, pa: u64, pages: u64) -> Result<(u64, u64), Failure> {
        let bytes = pages * PAGE;
        Ok((self.dma_map(pa, bytes).ok_or(Failure::Linux)?, bytes))
    }

    #[inline]
    fn unmap(&self, (iova, bytes): (u64, u64)) -> Result<(), Failure> {
        self.dma_unmap(iova, bytes);
        Ok(())
    }

    fn check(&self) -> Result<(), Failure> {
        warned(self.cpu())
    }
}

/// A domain whose buffers stay live.
pub(crate) fn live(kind: LinuxDomainKind) -> Result<Domain, Failure> {
    on_cpu(0)?.domain(kind, INPUT_BITS).ok_or(Failure::HostMemory)
}

/// Two threads at once in one domain.
pub(crate) fn two_buffers(kind: LinuxDomainKind) -> Result<Together, Failure> {
    let domain = on_cpu(0)?.shared_domain(kind, INPUT_BITS);
    let domain: Arc<SharedDomain> = Arc::new(domain.ok_or(Failure::HostMemory)?);
    Ok(Together::new(2, PAIRS_EACH, move |cpu| {
        let (own, domain) = (on_cpu(cpu)?, Arc::clone(&domain));
        Ok(Box::new(move |pairs| {
            for i in 0..pairs {
                let pa = black_box(MEMORY.get() + i * PAGE);
                let iova = domain.dma_map(&own, pa, PAGE).ok_or(Failure::Linux)?;
                domain.dma_unmap(&own, black_box(iova), PAGE);
            }
            warned(&own)
        }) as Turn)
    }))
}

/// Scatter lists mapped and unmapped.
pub(crate) struct Lists {
    list: List,
    domain: Domain,
}

impl Lists {
    /// Lists of these pieces, each an address and a number of bytes.
    pub(crate) fn new(kind: LinuxDomainKind, pieces: &[(u64, u32)]) -> Result<Self, Failure> {
        let cpu = on_cpu(0)?;
        Ok(Self {
            list: cpu.list(pieces).ok_or(Failure::HostMemory)?,
            domain: cpu.domain(kind, INPUT_BITS).ok_or(Failure::HostMemory)?,
        })
    }
}

impl Workload for Lists {
    fn units(&self) -> u64 {
        PAIRS / 8
    }

    fn prepare(&mut self) -> Result<(), Failure> {
        warned(self.domain.cpu())
    }

    fn run(&mut self) -> Result<(), Failure> {
        for _ in 0..PAIRS / 8 {
            let pieces = self.domain.dma_map_sg(black_box(&mut self.list));
            succeeded(pieces > 0)?;
            self.domain.dma_unmap_sg(&mut self.list);
        }
        Ok(())
    }
}

fn warned(cpu: &OnCpu) -> Result<(), Failure> {
    succeeded(cpu.warnings() == 0)
}

/// The pool with so many percent of its buffers of some size in use, here and there.
struct Filled {
    cpu: OnCpu,
    held: Vec<Bounced>,
}

impl Filled {
    fn new(cpu: OnCpu, bytes: u64, percent: usize) -> Result<Self, Failure> {
        if !cpu.pool(POOL) {
            return Err(Failure::HostMemory);
        }
        let mut held: Vec<Bounced> = std::iter::from_fn(|| cpu.slots(bytes)).collect();
        let mut random = fastrand::Rng::with_seed(7);
        let most = held.len() * percent / 100;
        while held.len() > most {
            cpu.give(held.swap_remove(random.usize(..held.len())));
        }
        Ok(Self { cpu, held })
    }
}

impl Drop for Filled {
    fn drop(&mut self) {
        for slots in self.held.drain(..) {
            self.cpu.give(slots);
        }
    }
}

/// A slot taken and given back.
pub(crate) struct Slots(Filled);

impl Slots {
    pub(crate) fn new(percent: usize) -> Result<Self, Failure> {
        Ok(Self(Filled::new(on_cpu(0)?, PAGE / 2, percent)?))
    }
}

fn slots(cpu: &OnCpu, count: u64) -> Result<(), Failure> {
    for _ in 0..count {
        let slots = cpu.slots(black_box(PAGE / 2)).ok_or(Failure::Linux)?;
        cpu.give(black_box(slots));
    }
    Ok(())
}

impl Workload for Slots {
    fn units(&self) -> u64 {
        PAIRS
    }

    fn prepare(&mut self) -> Result<(), Failure> {
        black_box(&self.0.held);
        warned(&self.0.cpu)
    }

    fn run(&mut self) -> Result<(), Failure> {
        slots(&self.0.cpu, PAIRS)
    }
}

/// Two threads at once; one of them holds the buffers that stay in use.
pub(crate) fn two(percent: usize) -> Result<Together, Failure> {
    on_cpu(0)?;
    let filled = std::sync::Barrier::new(2);
    Ok(Together::new(2, PAIRS_EACH, move |cpu| {
        let own = on_cpu(cpu)?;
        let held = match cpu {
            0 => Some(Filled::new(own.clone(), PAGE / 2, percent)),
            _ => None,
        };
        filled.wait();
        let held = held.transpose()?;
        Ok(Box::new(move |count| {
            black_box(&held);
            slots(&own, count)
        }) as Turn)
    }))
}

/// Buffers copied for a device that reads them.
pub(crate) struct LinuxCopies {
    filled: Filled,
    memory: Vec<u8>,
    bytes: usize,
}

impl LinuxCopies {
    pub(crate) fn new(bytes: usize, percent: usize) -> Result<Self, Failure> {
        Ok(Self {
            filled: Filled::new(on_cpu(0)?, bytes as u64, percent)?,
            memory: vec![1; bytes + PAGE as usize],
            bytes,
        })
    }
}

impl Workload for LinuxCopies {
    fn units(&self) -> u64 {
        PAIRS / 8
    }

    fn prepare(&mut self) -> Result<(), Failure> {
        warned(&self.filled.cpu)
    }

    fn run(&mut self) -> Result<(), Failure> {
        // From a page boundary on, as our side.
        let start = self.memory.as_ptr().addr().wrapping_neg() & (PAGE as usize - 1);
        let buffer = &self.memory[start..start + self.bytes];
        for _ in 0..PAIRS / 8 {
            let slots = self.filled.cpu.bounce(black_box(buffer)).ok_or(Failure::Linux)?;
            self.filled.cpu.give(black_box(slots));
        }
        Ok(())
    }
}
