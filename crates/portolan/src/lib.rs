//! Portolan: page tables, owed invalidation and DMA mapping for IOMMUs.
//!
//! The library gives a device exactly the memory it may touch, takes it back safely and makes both
//! cheap. It is `no_std` with `alloc`, names no vendor, and reaches the machine only through the
//! traits in [`platform`].
//!
//! * [`addr`]: addresses, inclusive ranges, page sizes and identifiers as types of their own.
//! * [`platform`]: what an embedder implements.
//! * [`table`]: page tables: one walker, one small file per format.
//! * [`iova`]: addresses for mappings.
//! * [`bounce`]: memory that devices can reach, lent out by the slot.
//! * [`dma`]: what a device driver calls: mappings that own their buffers.
//! * [`inval`]: what an operation owes the hardware, and the commands that pay it.
//! * [`fault`]: page requests of devices, their handlers and the responses.
//! * [`passthrough`]: devices that fault on memory that nobody pinned.
//! * [`mod@unit`]: what every IOMMU driver offers: domains, attachments, faults.
//!
//! ```
//! use core::sync::atomic::AtomicU64;
//! use portolan::addr::{ContextId, Iova, PageSize, PhysAddr};
//! use portolan::inval::{Gather, plan};
//! use portolan::platform::SlabTables;
//! use portolan::table::format::{DirtyTracking, VtdLevels, VtdSecondStage};
//! use portolan::table::{Access, PageTable};
//! # use portolan::inval::*;
//! # let caps = Capabilities { granule: PageSize::SIZE_4K, page: PageForm::Granule,
//! #     range: RangeForm::PowerOfTwo { max_lg2_pages: 18 }, leaf_only: LeafOnly::Present,
//! #     walker: Walker::Coherent, caching: Caching::PresentOnly, write_buffer: WriteBuffer::Absent };
//! let dirty = DirtyTracking::Off;
//! let format = VtdSecondStage { levels: VtdLevels::Four, output_lg2: 46, dirty };
//! let memory = SlabTables::<AtomicU64>::new(PhysAddr::new(0x8000_0000), PageSize::SIZE_4K, 16);
//! let table = PageTable::new(format, &memory)?;
//!
//! let mut owed = Gather::new();
//! let iova = Iova::new(0xfff0_0000);
//! let range = table.map(iova, PhysAddr::new(0x1234_5000), 0x3000, Access::READ, &mut owed)?;
//! assert_eq!(table.translate(Iova::new(0xfff0_1008)).unwrap().pa, PhysAddr::new(0x1234_6008));
//!
//! let mut owed = Gather::new();
//! table.unmap(range, &mut owed)?;
//! let counts = plan(ContextId::new(7), &caps, &Quirks::default(), &owed).counts();
//! assert_eq!((counts.range, counts.syncs), (1, 1));
//! # drop(owed);
//! # Ok::<(), Box<dyn core::error::Error>>(())
//! ```
//!
//! # Where functions may be called
//!
//! Each public function, or the type or module that it belongs to, has a line *Context*:
//!
//! * *Interrupt*: from anywhere. It never waits for hardware or another CPU and takes no heap
//!   memory; locks are held for short, bounded sections with interrupts out.
//! * *Atomic*: may wait for hardware, with a deadline, and never sleeps.
//! * *Task*: may take memory, and as long as its work is large.
//!
//! So an interrupt handler takes buffers back by [`dma::Mapping::retire`] and
//! [`dma::Retired::poll`], and a worker or a timer calls [`dma::DmaSpace::tick`].
#![no_std]
#![deny(unsafe_code)]

extern crate alloc;

pub mod addr;
pub mod bounce;
mod contract;
pub mod dma;
pub mod fault;
pub mod inval;
pub mod iova;
pub mod passthrough;
pub mod platform;
pub mod table;
pub mod unit;
