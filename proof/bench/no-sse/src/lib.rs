//! The library as a kernel has it, for `portolan-bench no-sse`: a static library without the standard library, which
//! is compiled for a target without SSE and for one with it. The benchmark calls its functions.
//!
//! One CPU, hardware that costs nothing, memory from the C library. Not supported: threads.
#![no_std]

extern crate alloc;

#[path = "../../src/raw/buffers.rs"]
#[allow(dead_code)] // The rows of the benchmark use the rest.
mod buffers;
#[path = "../../src/commands.rs"]
#[allow(dead_code)]
mod commands;
mod host;
#[path = "../../src/raw/process.rs"]
mod process;
mod threads;
#[path = "../../src/unit.rs"]
#[allow(dead_code)]
mod unit;

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::hint::black_box;

use portolan::addr::{Iova, IovaRange, PageSize, PhysAddr, PhysRange, StreamId};
use portolan::dma::{Constraints, DmaSpace, Policy};
use portolan::iommu::{
    Attach, AttachError, BoundDomain, Domain, FaultEvent, Iommu, IommuError, PagedDomain,
    ReservedRegion,
};
use portolan::iova::{IovaOptions, IovaSpace, Request};
use portolan::platform::AllMemory;
use portolan::table::{Access, PageTable};

use crate::buffers::{no_device, unowned};
use crate::commands::Commands;
use crate::threads::Threads;

const PAGE: u64 = 4096;

/// A unit that attaches every stream.
struct Attached;

impl Iommu for Attached {
    fn block(&self, _stream: StreamId) -> Result<(), AttachError> {
        Ok(())
    }

    fn pass_through(&self, _stream: StreamId, _all: AllMemory) -> Result<(), AttachError> {
        Ok(())
    }

    fn next_fault(&self) -> Result<Option<FaultEvent>, IommuError> {
        Ok(None)
    }

    fn reserved(&self, _: StreamId, _: &mut dyn FnMut(ReservedRegion)) {}
}

impl<D: Domain> Attach<D> for Attached {
    fn attach(&self, _stream: StreamId, _domain: &Arc<D>) -> Result<(), AttachError> {
        Ok(())
    }
}

/// A row of the benchmark.
pub enum Row {
    /// Addresses of one page.
    Addresses(IovaSpace<Threads>),
    /// Buffers of one page.
    Buffers(Box<DmaSpace<Arc<Threads>>>),
}

impl Row {
    /// The row of a number: addresses, lazy buffers, strict ones.
    fn of(number: u32) -> Option<Self> {
        match number {
            0 => {
                let all = IovaRange::new(Iova::new(PAGE), Iova::new((1 << 48) - 1))?;
                let options = IovaOptions::default();
                Some(Self::Addresses(
                    IovaSpace::new(Threads, all, PageSize::SIZE_4K, options).ok()?,
                ))
            }
            1 => Self::buffers(Policy::Lazy),
            2 => Self::buffers(Policy::Strict),
            _ => None,
        }
    }

    fn buffers(policy: Policy) -> Option<Self> {
        let table =
            PageTable::new(unit::format().ok()?, process::tables(unit::TABLE_PAGES)).ok()?;
        let queue = Commands::new();
        let domain = PagedDomain::new(table, unit::CONTEXT, unit::CAPS, unit::QUIRKS, queue);
        let bound = BoundDomain::new(Arc::new(Attached), Arc::new(domain), no_device());
        let options = unit::space_options(policy);
        let space = DmaSpace::with_cpus(bound, Arc::new(Threads), &options, no_device());
        Some(Self::Buffers(Box::new(space.ok()?)))
    }

    /// Does the operation so many times; returns true if none failed.
    fn run(&self, pairs: u64) -> bool {
        match self {
            Self::Addresses(space) => addresses(space, pairs),
            Self::Buffers(space) => cycle(space, pairs),
        }
    }
}

fn addresses(space: &IovaSpace<Threads>, pairs: u64) -> bool {
    let (align, limit) = (PageSize::SIZE_4K, Iova::new(u64::MAX));
    (0..pairs).all(|_| {
        let bytes = black_box(1) * PAGE;
        let range = space.alloc(&Request { bytes, align, limit });
        range.is_ok_and(|range| space.free(black_box(range)).is_ok())
    })
}

fn cycle(space: &DmaSpace<Arc<Threads>>, pairs: u64) -> bool {
    let constraints = black_box(Constraints::trusted());
    (0..pairs).all(|i| {
        let memory = PhysRange::page(PhysAddr::new(black_box(i << 12)), PageSize::SIZE_4K);
        let access = black_box(Access::READ | Access::WRITE);
        let mapped = space.map_range(unowned(memory), access, &constraints);
        mapped.is_ok_and(|(range, iova)| {
            black_box(iova);
            space.unmap_range(range).is_ok()
        })
    })
}
