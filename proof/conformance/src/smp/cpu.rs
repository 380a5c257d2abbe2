//! State of one CPU: its random numbers, its buffers, and the old addresses that it knows.

use std::collections::VecDeque;

use fastrand::Rng;
use portolan::addr::{Iova, PhysRange};
use portolan::dma::{Deferred, Mapping, ToDevice};

use super::machine::SpaceCpus;
use super::world::Block;

/// State of one CPU.
pub(super) struct SmpCpu {
    pub(super) number: u64,
    pub(super) rng: Rng,
    pub(super) hands: Hands,
    /// The page of a region that its device uses next.
    pub(super) next: u64,
}

/// A mapping and the memory of its buffer.
pub(super) type Live = (Mapping<SpaceCpus, Block, ToDevice>, PhysRange);

/// Buffers and old addresses of one CPU.
#[derive(Default)]
pub(super) struct Hands {
    pub(super) live: Vec<Live>,
    pub(super) deferred: Vec<Deferred<SpaceCpus, Block>>,
    pub(super) old: VecDeque<Iova>,
    /// Time at which the CPU's timer looks next.
    pub(super) timer_ns: u64,
}
