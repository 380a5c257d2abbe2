//! What firmware says of the board around a unit: reserved addresses, and streams whose devices are
//! at work already.
//!
//! Arm I/O Remapping Table (DEN0049), revision E.f, sections 3.1.1.7 (reserved memory) and 3.1.1.1
//! (ITS groups); or a device tree's `reserved-memory` with `iommu-addresses`.
//!
//! *Context.* Interrupt: everything public here is a value.

use super::attach::passed_through;
use super::spec::ste;
use super::unit::Smmu;
use alloc::vec::Vec;
use core::sync::atomic::AtomicU64;
use portolan::addr::StreamId;
use portolan::platform::{Cpus, Mmio, TableMem};
use portolan::unit::{AttachError, ReservedRegion, UnitError};

/// What a stream meets from the moment the unit is enabled until it is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Start {
    /// Its accesses are refused.
    #[default]
    Blocked,
    /// They pass through untranslated, to all of memory: for a device that firmware has at work, such
    /// as a display's controller, until a driver attaches its stream to a domain in which the
    /// reserved memory is mapped one to one.
    PassedThrough,
}

/// What firmware says of one stream.
#[derive(Clone, Copy, Debug)]
pub struct BoardStream<'a> {
    /// The stream.
    pub stream: StreamId,
    /// What it meets at first.
    pub start: Start,
    /// What is reserved for it: memory that its device uses (RMR), its doorbell.
    pub regions: &'a [ReservedRegion],
}

/// What firmware says of a unit's streams.
#[derive(Clone, Copy, Debug, Default)]
pub struct Board<'a> {
    /// Reserved for all streams: the doorbell of the ITS that all of them signal to, or a window for
    /// messages.
    pub everywhere: &'a [ReservedRegion],
    /// What is said of single streams. A stream may be named more than once.
    pub streams: &'a [BoardStream<'a>],
}

/// Reserved regions of one stream, or of all.
pub(super) type Reserved = Vec<(Option<StreamId>, ReservedRegion)>;

impl Board<'_> {
    pub(super) fn reserved(&self) -> Reserved {
        let everywhere = self.everywhere.iter().map(|region| (None, *region));
        let streams = self.streams.iter().flat_map(|stream| {
            let regions = stream.regions.iter();
            regions.map(|region| (Some(stream.stream), *region))
        });
        everywhere.chain(streams).collect()
    }
}

impl<R: Mmio, M: TableMem<AtomicU64>, C: Cpus> Smmu<R, M, C> {
    /// Writes the entries of streams that are not blocked at first. The unit must be disabled.
    pub(super) fn start(&self, board: &Board<'_>) -> Result<(), UnitError> {
        let machine = &*self.shared.machine;
        for stream in board.streams {
            let place = match self.table.place(machine, stream.stream) {
                Ok(place) => place,
                Err(AttachError::Unit(error)) => return Err(error),
                Err(_) => return Err(UnitError::Unsupported),
            };
            if stream.start == Start::PassedThrough {
                let entry = passed_through().entry;
                for word in (0..ste::WORDS).rev() {
                    machine.store(place.block, place.word + word, entry[word]);
                }
            }
        }
        Ok(())
    }
}
