//! Reading the buffers of all CPUs into the queue, round by round.
//!
//! One thread does nothing else: a page of fifty events is one read, so that the kernel's side of it is a copy. The
//! kernel's own text of an event takes it some microseconds, which are spent here, after the page is out of its way.

use super::error::RecordError;
use super::instance::Instance;
use super::merge::{put_page, put_round};
use super::spool::Spool;
use crate::trace::binary::ring::PageLayout;

/// Bytes of a round, of all CPUs together.
const ROUND: usize = 64 << 20;
/// Bytes that are put into the queue at once.
const PARCELS: usize = 1 << 20;

/// Reads an instance's buffers.
pub(super) struct Sweeper<'a> {
    instance: &'a Instance<'a>,
    spool: &'a Spool,
    cpus: Vec<u32>,
    page: Vec<u8>,
    /// Pages of a CPU in a round.
    most: usize,
    parcels: Vec<u8>,
}

impl<'a> Sweeper<'a> {
    /// Sweeper of `instance`, whose pages are as `layout` has them, into `spool`.
    pub(super) fn new(
        instance: &'a Instance<'a>,
        spool: &'a Spool,
        layout: PageLayout,
    ) -> Result<Self, RecordError> {
        let cpus = instance.cpus()?;
        let most = ROUND / cpus.len().max(1) / layout.size;
        Ok(Self {
            instance,
            spool,
            cpus,
            page: vec![0; layout.size],
            most: most.max(1),
            parcels: Vec::new(),
        })
    }

    /// Reads the available pages; returns `true` if a buffer has more.
    pub(super) fn round(&mut self) -> Result<bool, RecordError> {
        let mut cut = Vec::new();
        for &cpu in &self.cpus {
            let (spool, parcels) = (self.spool, &mut self.parcels);
            let hand_on = |page: &[u8]| {
                put_page(parcels, cpu, page);
                match parcels.len() {
                    PARCELS.. => flush(spool, parcels),
                    _ => Ok(()),
                }
            };
            if self.instance.sweep(cpu, &mut self.page, self.most, hand_on)? {
                cut.push(cpu);
            }
        }
        // Pages that wait for the end of a round go with an empty one as well.
        put_round(&mut self.parcels, &cut);
        flush(self.spool, &mut self.parcels)?;
        Ok(!cut.is_empty())
    }
}

fn flush(spool: &Spool, parcels: &mut Vec<u8>) -> Result<(), RecordError> {
    spool.put(parcels)?;
    parcels.clear();
    Ok(())
}
