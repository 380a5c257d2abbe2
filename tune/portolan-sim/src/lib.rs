//! Virtual time: IOMMUs with every cache they have, CPUs, a clock, and a price for each event.
//!
//! * [`decode`]: table walkers that share no code with the library's.
//! * [`iommu`]: an IOMMU with IOTLB, walk caches and configuration cache, adversarial or realistic,
//!   fed through a command queue.
//! * [`cache`]: one such cache.
//! * [`adversary`]: the most harmful order of commands, and places that devices try again.
//! * [`device`]: devices that do DMA, remember where it went, and try again.
//! * [`tables`]: table memory that a walker sees late: without snooping, or behind a write buffer.
//! * [`profile`]: machines, as the price of each event and where each price comes from.
//! * [`swiotlb`]: bounce pools of other designs, to compare with.
//! * [`cpus`]: CPUs in virtual time, on which code that shares memory runs.
//! * [`clock`], [`counters`]: virtual time and the events in it.
//!
//! Nothing here reads a wall clock or depends on the order of a hash map: equal calls give equal runs.
//! `docs/model.md` has the limits of the model.
#![forbid(unsafe_code)]

pub mod adversary;
pub mod cache;
pub mod clock;
pub mod counters;
pub mod cpus;
pub mod decode;
pub mod device;
pub mod iommu;
pub mod profile;
pub mod request;
pub mod swiotlb;
pub mod tables;
