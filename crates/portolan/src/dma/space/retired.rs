//! Buffers that were dropped while a device may reach them, until none does.
//!
//! An interrupt handler may drop one: so the records in which they wait are made before
//! ([`SpaceOptions::dropped_buffers`](super::SpaceOptions::dropped_buffers)), and [`DmaSpace::tick`] makes new ones and
//! drops what is quiet.
//!
//! Not supported: buffers of more than 100 bytes, which wait in a box of their owner's; mappings that are in no space.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::DmaSpace;
use crate::addr::IovaRange;
use crate::dma::flush_queue::{FlushTicket, Wait};
use crate::platform::contract::Parked;
use crate::platform::{Cpus, Guarded};

/// A record of one buffer. Dropping it does not drop the buffer.
///
/// *Context.* Interrupt.
struct RetiredBuffer {
    /// There if it is in use.
    ticket: Option<FlushTicket>,
    /// Addresses that go back with it.
    range: Option<IovaRange>,
    buffer: Parked,
    next: Option<RetiredRecord>,
}

/// A box of one, since only a vector's memory can be asked for without a panic.
type RetiredRecord = Box<[RetiredBuffer; 1]>;

impl RetiredBuffer {
    fn record() -> Option<RetiredRecord> {
        let mut one = Vec::new();
        one.try_reserve_exact(1).ok()?;
        one.push(Self { ticket: None, range: None, buffer: Parked::new(), next: None });
        one.into_boxed_slice().try_into().ok()
    }
}

/// A list of records.
#[derive(Default)]
struct RecordList {
    first: Option<RetiredRecord>,
    length: usize,
}

impl RecordList {
    fn push(&mut self, mut record: RetiredRecord) {
        record[0].next = self.first.take();
        self.first = Some(record);
        self.length += 1;
    }

    fn pop(&mut self) -> Option<RetiredRecord> {
        let mut record = self.first.take()?;
        self.first = record[0].next.take();
        self.length -= 1;
        Some(record)
    }
}

impl Drop for RecordList {
    fn drop(&mut self) {
        // One after the other: a list of boxes would be dropped by recursion.
        while let Some(record) = self.pop() {
            drop(record);
        }
    }
}

/// Records of a space.
#[derive(Default)]
struct RetiredLists {
    spare: RecordList,
    waiting: RecordList,
}

/// Dropped buffers of a space.
///
/// *Context.* Interrupt, but for [`RetiredBuffers::replenish`] and dropping it (task).
pub(super) struct RetiredBuffers<P: Cpus> {
    records: Guarded<P, RetiredLists>,
    /// Spare records that there are to be.
    room: usize,
}

impl<P: Cpus> RetiredBuffers<P> {
    /// Room for as many; none if there is no memory yet.
    pub fn new(room: usize) -> Self {
        let made = Self { records: Guarded::default(), room };
        made.replenish();
        made
    }

    /// Makes spare records, as far as there is memory.
    pub fn replenish(&self) {
        if self.room == 0 {
            return;
        }
        while self.records.with(|records| records.spare.length) < self.room {
            let Some(record) = RetiredBuffer::record() else {
                return;
            };
            self.records.with(|records| records.spare.push(record));
        }
    }

    fn give(&self, record: RetiredRecord) {
        self.records.with(|records| records.spare.push(record));
    }
}

impl<P: Cpus + Clone> DmaSpace<P> {
    /// Tells if mappings that are dropped are to be unmapped.
    #[inline]
    pub(in crate::dma) fn retires(&self) -> bool {
        self.retired.room != 0
    }

    /// Keeps `value` until `wait` is over, then drops it and gives its addresses back.
    ///
    /// # Errors
    /// With the value, if there is no room.
    pub(in crate::dma) fn retire<T: Send + 'static>(&self, wait: &Wait, value: T) -> Result<(), T> {
        let Some(ticket) = wait.ticket else {
            return Err(value);
        };
        let Some(mut record) = self.retired.records.with(|records| records.spare.pop()) else {
            return Err(value);
        };
        let retired = &mut record[0];
        if let Err(value) = retired.buffer.put(value) {
            self.retired.give(record);
            return Err(value);
        }
        (retired.ticket, retired.range) = (Some(ticket), wait.range);
        let left = self.retired.records.with(|records| {
            records.waiting.push(record);
            records.spare.length
        });
        if left < self.retired.room.div_ceil(2) {
            // The worker that calls `tick` makes more.
            self.cpus.flush_wanted();
        }
        Ok(())
    }

    /// Drops the buffers that no device reaches any more.
    ///
    /// *Context.* Atomic; that of the buffers' drops.
    pub(super) fn drop_retired(&self) {
        if !self.retires() {
            return;
        }
        let waiting = |records: &mut RetiredLists| core::mem::take(&mut records.waiting);
        let mut waiting = self.retired.records.with(waiting);
        while let Some(mut record) = waiting.pop() {
            let retired = &mut record[0];
            match retired.ticket.and_then(|ticket| self.pending.proof(ticket)) {
                Some(flushed) => {
                    if let Some(range) = retired.range.take() {
                        self.give_back(range, &flushed);
                    }
                    retired.ticket = None;
                    retired.buffer.end();
                    self.retired.give(record);
                }
                None => self.retired.records.with(|records| records.waiting.push(record)),
            }
        }
    }

    /// Number of dropped buffers that wait until no device reaches them.
    ///
    /// *Context.* Interrupt.
    pub fn dropped_buffers(&self) -> usize {
        self.retired.records.with(|records| records.waiting.length)
    }
}
