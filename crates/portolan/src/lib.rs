//! Portolan: page tables, owed invalidation and DMA mapping for IOMMUs.
//!
//! The library gives a device exactly the memory it may touch, takes it back safely and makes both
//! cheap. It is `no_std` with `alloc`, names no vendor, and reaches the machine only through the
//! traits in [`platform`].
//!
//! * [`addr`]: addresses, inclusive ranges, page sizes and identifiers as types of their own.
//! * [`platform`]: what an embedder implements.
//! * [`table`]: page tables: one walker, one small file per format.
//! * [`inval`]: what an operation owes the hardware, and the commands that pay it.
//!
//! Not here yet: IOVA allocation, DMA mappings, bounce pools and I/O page faults.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod addr;
pub mod inval;
pub mod platform;
pub mod table;
