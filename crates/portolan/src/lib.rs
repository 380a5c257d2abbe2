//! Portolan: page tables, owed invalidation and DMA mapping for IOMMUs.
//!
//! The library gives a device exactly the memory it may touch, takes it back safely and makes both
//! cheap. It is `no_std` with `alloc`, names no vendor, and reaches the machine only through the
//! traits in [`platform`].
//!
//! * [`addr`]: addresses, inclusive ranges, page sizes and identifiers as types of their own.
//! * [`platform`]: the traits that an embedder implements.
//! * [`table`]: page tables: one walker, one small file per format.
//! * [`iova`]: addresses for mappings.
//! * [`bounce`]: memory that devices can reach, lent out by the slot.
//! * [`dma`]: the calls of a device driver: mappings that own their buffers.
//! * [`inval`]: the invalidations that an operation owes the hardware, and the commands that pay them.
//! * [`iopf`]: page requests of devices, their handlers and the responses.
//! * [`demand`]: devices that fault on memory that is not pinned.
//! * [`tdisp`]: devices that a confidential guest lets in.
//! * [`iommu`]: the parts that every IOMMU driver offers: domains, attachments, faults.
//!
//! A device driver hands its buffers over, and has them back once no device can reach them. Its types
//! name the [`platform::Platform`] that the embedder implements, and the buffer:
//!
//! ```
//! # // A machine without devices: a platform, a unit that moves no stream, a table and its queue.
//! # use portolan::addr::*;
//! # use portolan::dma::*;
//! # use portolan::inval::*;
//! # use portolan::platform::*;
//! # use portolan::table::{PageTable, format::*};
//! # use portolan::iommu::*;
//! # use core::sync::atomic::AtomicU64;
//! # use std::{alloc::Layout, ptr::NonNull, sync::Arc};
//! # #[derive(Clone)]
//! # struct Kernel;
//! # struct NoRegisters;
//! # impl Mmio for NoRegisters {
//! #     fn read32(&self, _: usize) -> u32 { u32::MAX }
//! #     fn write32(&self, _: usize, _: u32) {}
//! # }
//! # unsafe impl Platform for Kernel {
//! #     type Word = AtomicU64;
//! #     type Lock<T: Send> = SpinLock<T>;
//! #     type Registers = NoRegisters;
//! #     fn now(&self) -> Nanos { Nanos::new(0) }
//! #     fn alloc(&self, layout: Layout) -> Option<PhysAddr> {
//! #         NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) })
//! #             .map(|at| PhysAddr::new(at.addr().get() as u64))
//! #     }
//! #     unsafe fn free(&self, at: PhysAddr, layout: Layout) {
//! #         unsafe { std::alloc::dealloc(self.virt(at).as_ptr(), layout) }
//! #     }
//! #     unsafe fn virt(&self, at: PhysAddr) -> NonNull<u8> { NonNull::new(at.get() as *mut u8).unwrap() }
//! #     unsafe fn registers(&self, _: PhysRange) -> Option<NoRegisters> { None }
//! #     fn clean(&self, _: PhysRange) {}
//! #     fn clean_barrier(&self) {}
//! #     fn invalidate(&self, _: PhysRange) {}
//! #     fn flush_wanted(&self) {}
//! #     fn drop_later(&self, left: portolan::platform::LeftBehind) { drop(left) }
//! # }
//! # struct Iommu;
//! # impl portolan::iommu::Iommu for Iommu {
//! #     fn block(&self, _: StreamId) -> Result<(), AttachError> { Ok(()) }
//! #     fn pass_through(&self, _: StreamId, _: portolan::platform::AllMemory) -> Result<(), AttachError> { Ok(()) }
//! #     fn reserved(&self, _: StreamId, _: &mut dyn FnMut(portolan::iommu::ReservedRegion)) {}
//! #     fn next_fault(&self) -> Result<Option<FaultEvent>, IommuError> { Ok(None) }
//! # }
//! # impl<D: Domain> Attach<D> for Iommu {
//! #     fn attach(&self, _: StreamId, _: &Arc<D>) -> Result<(), AttachError> { Ok(()) }
//! # }
//! # struct Queue;
//! # impl InvalidationQueue for Queue {
//! #     type Error = IommuError;
//! #     fn pay(&self, steps: &mut dyn Iterator<Item = Step>, _: TablesLeft) -> Result<(), IommuError> {
//! #         steps.for_each(drop);
//! #         Ok(())
//! #     }
//! # }
//! # impl TagPool for Queue {
//! #     fn release(&self, _: InvalTag) -> Result<(), IommuError> { Ok(()) }
//! # }
//! # struct Packet(Box<[core::cell::Cell<u8>; 4096]>);
//! # unsafe impl Buffer for Packet {
//! #     fn pieces(&self) -> Pieces<'_> {
//! #         let at = PhysAddr::new(self.0.as_ptr().addr() as u64);
//! #         Pieces::One(PhysRange::from_len(at, 4096).unwrap())
//! #     }
//! #     fn device_may_write(&self) -> bool { true }
//! #     fn view(&self) -> Option<NonNull<[u8]>> {
//! #         Some(NonNull::slice_from_raw_parts(NonNull::from(&self.0[..]).cast(), 4096))
//! #     }
//! # }
//! # fn open() -> Device<Kernel> {
//! #     let format = VtdSecondStage::new(VtdLevels::Four, 52);
//! #     let table = PageTable::new(format, unsafe { RawMemory::new(Kernel) }).unwrap();
//! #     let caps = Capabilities { granule: PageSize::SIZE_4K, page: PageForm::Granule,
//! #         range: RangeForm::Absent, leaf_only: LeafOnly::Present, walker: Walker::Coherent,
//! #         caching: Caching::PresentOnly, write_buffer: WriteBuffer::Absent };
//! #     let domain = PagedDomain::new(table, InvalTag::new(1), caps, Quirks::default(), Queue);
//! #     let bound = BoundDomain::new(Arc::new(Iommu), Arc::new(domain), unsafe { TrustedBase::new() });
//! #     let mut options = SpaceOptions::default();
//! #     options.policy = Policy::Deferred;
//! #     let space = Arc::new(DmaSpace::new(bound, Kernel, &options).unwrap());
//! #     Device::translated(space, StreamId::new(1), Constraints::trusted()).unwrap()
//! # }
//! /// Packets that did not come back, to be tried again.
//! #[derive(Debug, Default)]
//! struct Kept {
//!     unmapped: Vec<NotMapped<Kernel, Packet>>,
//!     mapped: Vec<Mapping<Kernel, Packet>>,
//!     deferred: Vec<Deferred<Kernel, Packet>>,
//! }
//!
//! fn receive(
//!     device: &Device<Kernel>, packet: Packet, kept: &mut Kept,
//! ) -> Result<Packet, Box<dyn std::error::Error>> {
//!     let rx = device.map(packet, Direction::FromDevice);
//!     let rx = rx.map_err(|failed| failed.keep(|packet| kept.unmapped.push(packet)))?;
//!     // ... rx.iova() goes into the card's descriptor, and the card says that it is done ...
//!     let mut header = [0; 14];
//!     rx.read(0, &mut header).expect("the buffer has 14 bytes");
//!     // Unmapped, and still reachable.
//!     let packet = rx.defer().map_err(|failed| failed.keep(|rx| kept.mapped.push(rx)))?;
//!     // Invalidated, and ours again.
//!     Ok(packet.reclaim().map_err(|failed| failed.keep(|packet| kept.deferred.push(packet)))?)
//! }
//! # let device = open();
//! # let packet = Packet(Box::new([const { core::cell::Cell::new(0) }; 4096]));
//! # assert!(receive(&device, packet, &mut Kept::default()).is_ok());
//! ```
//!
//! `portolan-hw` has the drivers that make such a device: its `topology` leads there from firmware's
//! tables. Each layer below can be used without those above it: [`table::PageTable`] and
//! [`inval::plan()`] alone are page tables and their invalidations.
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
//! So an interrupt handler takes buffers back by [`dma::Mapping::defer`] and
//! [`dma::Deferred::try_reclaim`], and a worker or a timer calls [`dma::DmaSpace::tick`].
#![no_std]
#![deny(unsafe_code)]

extern crate alloc;

pub mod addr;
pub mod bounce;
pub mod demand;
pub mod dma;
pub mod inval;
pub mod iommu;
pub mod iopf;
pub mod iova;
pub mod platform;
pub mod table;
pub mod tdisp;

/// The crate's page, whose example is compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
