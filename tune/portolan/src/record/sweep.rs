//! Reading the buffers of all CPUs, round by round.
//!
//! A page of fifty events is one read, so that the kernel's side of it is a copy. The text of an event takes some
//! microseconds, which are spent after the page is out of the kernel's way.

use super::error::RecordError;
use super::instance::Instance;
use super::merge::{put_page, put_round};
use crate::trace::binary::ring::PageLayout;

/// Bytes of parcels that are handed on at once.
const PARCELS: usize = 1 << 20;

/// Reads an instance's buffers.
pub(crate) struct Sweeper<'a> {
    instance: &'a Instance<'a>,
    cpus: Vec<u32>,
    page: Vec<u8>,
    /// Pages of a CPU in a round.
    most: usize,
    parcels: Vec<u8>,
}

impl<'a> Sweeper<'a> {
    /// Sweeper of `instance`, whose pages are as `layout` has them, that reads `round` bytes of all CPUs at once.
    pub(crate) fn new(
        instance: &'a Instance<'a>,
        layout: PageLayout,
        round: usize,
    ) -> Result<Self, RecordError> {
        let cpus = instance.cpus()?;
        let most = round / cpus.len().max(1) / layout.size;
        Ok(Self {
            instance,
            cpus,
            page: vec![0; layout.size],
            most: most.max(1),
            parcels: Vec::new(),
        })
    }

    /// Reads the available pages, and puts them and the end of the round away as whole parcels; returns `true` if a
    /// buffer has more.
    pub(crate) fn round(
        &mut self,
        mut put: impl FnMut(&[u8]) -> Result<(), RecordError>,
    ) -> Result<bool, RecordError> {
        let mut cut = Vec::new();
        for &cpu in &self.cpus {
            let parcels = &mut self.parcels;
            let hand_on = |page: &[u8]| {
                put_page(parcels, cpu, page);
                match parcels.len() {
                    PARCELS.. => flush(parcels, &mut put),
                    _ => Ok(()),
                }
            };
            if self.instance.sweep(cpu, &mut self.page, self.most, hand_on)? {
                cut.push(cpu);
            }
        }
        // Pages that wait for the end of a round go with an empty one as well.
        put_round(&mut self.parcels, &cut);
        flush(&mut self.parcels, &mut put)?;
        Ok(!cut.is_empty())
    }
}

fn flush(
    parcels: &mut Vec<u8>,
    put: &mut impl FnMut(&[u8]) -> Result<(), RecordError>,
) -> Result<(), RecordError> {
    put(parcels)?;
    parcels.clear();
    Ok(())
}
