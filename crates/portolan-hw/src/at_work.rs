//! Devices that firmware has at work, by the memory that it reserves for them: displays, keyboards. They go
//! on with that memory, and nothing else, from the moment their unit is enabled until a driver opens them.
//!
//! *Context.* Task: domains are made and streams are moved.

use alloc::sync::Arc;
use alloc::vec::Vec;

use portolan::addr::{Iova, IovaRange, PageSize, PhysAddr, StreamId};
use portolan::inval::Gather;
use portolan::iommu::{AttachError, Domain, DomainError, IommuError, ReservedRegion};
use portolan::platform::{AllMemory, OutOfTableMemory};
use portolan::table::{Access, TableMapError};

use crate::promise::{TrustedDescription, of_devices_at_work, of_firmware};
use crate::reservations::Reservations;

/// Leaves and gaps of one reserved range that are looked at before it is given up: those of
/// a range that makes sense are far fewer.
const MAX_PIECES: u32 = 1 << 16;
/// Streams of one device, at most: a claim to more is none of a device.
const MOST_STREAMS: u32 = 16;

/// A stream whose device firmware has at work.
///
/// *Context.* Interrupt: a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtWork {
    /// The stream.
    pub stream: StreamId,
    /// Leave for it to pass through until it is moved.
    pub all: AllMemory,
}

impl Reservations {
    /// Streams whose devices firmware has at work. A claim to more than a few streams is left aside.
    pub(crate) fn at_work(&self) -> Result<Vec<StreamId>, OutOfTableMemory> {
        let none = OutOfTableMemory { size: PageSize::SIZE_4K };
        let mut at_work = Vec::new();
        let direct = self.iter().filter(|one| one.region.kind.direct().is_some());
        for item in direct {
            let (first, last) = (item.streams.first().get(), item.streams.last().get());
            if last - first >= MOST_STREAMS {
                continue;
            }
            for stream in (first..=last).map(StreamId::new) {
                if !at_work.contains(&stream) {
                    at_work.try_reserve(1).map_err(|_| none)?;
                    at_work.push(stream);
                }
            }
        }
        Ok(at_work)
    }

    /// The same, with leave for them to pass through until they are opened.
    pub(crate) fn passing(
        &self,
        description: TrustedDescription,
    ) -> Result<Vec<AtWork>, OutOfTableMemory> {
        let all = of_devices_at_work(description);
        Ok(self.at_work()?.into_iter().map(|stream| AtWork { stream, all }).collect())
    }

    /// Regions that `stream` reaches at its own addresses.
    fn direct(&self, stream: StreamId) -> Vec<ReservedRegion> {
        let mut found = Vec::new();
        self.of(stream, &mut |region| {
            if region.kind.direct().is_some() {
                found.push(region);
            }
        });
        found
    }

    /// Attaches each stream that firmware has at work to a domain that leads to its memory alone.
    /// Those with the same memory share one that `new` makes. Regions that the unit cannot map are
    /// left aside: the stream stays blocked, and the caller that opens the device gets the error.
    ///
    /// # Errors
    /// Of the unit, and without memory or domains.
    pub(crate) fn keep_at_work<D: Domain>(
        &self,
        new: impl Fn() -> Result<D, IommuError>,
        attach: impl Fn(StreamId, &Arc<D>) -> Result<(), AttachError>,
    ) -> Result<(), IommuError> {
        let mut made: Vec<(Vec<ReservedRegion>, Arc<D>)> = Vec::new();
        for stream in self.at_work()? {
            let regions = self.direct(stream);
            let known = made.iter().find(|(of, _)| *of == regions);
            let domain = match known {
                Some((_, domain)) => domain.clone(),
                None => {
                    let domain = match new() {
                        Ok(domain) => Arc::new(domain),
                        // The unit has none: the caller that opens a device gets the error.
                        Err(IommuError::Unsupported) => return Ok(()),
                        Err(error) => return Err(error),
                    };
                    made.push((regions.clone(), domain.clone()));
                    domain
                }
            };
            let held = hold_all(&regions, &*domain);
            let attached = held.and_then(|()| attach(stream, &domain));
            if let Err(AttachError::Iommu(error)) = attached {
                return Err(error);
            }
        }
        Ok(())
    }

    /// Maps the regions that `stream` reaches at its own addresses into `domain`, unless they are
    /// there already.
    pub(crate) fn map_into(
        &self,
        stream: StreamId,
        domain: &impl Domain,
    ) -> Result<(), AttachError> {
        hold_all(&self.direct(stream), domain)
    }
}

/// Maps `regions` at their own addresses into `domain`, unless they are there already.
fn hold_all(regions: &[ReservedRegion], domain: &impl Domain) -> Result<(), AttachError> {
    for region in regions {
        let Some(access) = region.kind.direct() else {
            continue;
        };
        let granted = domain.grants(access).ok_or(AttachError::Mismatch)?;
        if !domain.input_range().covers(region.range) {
            return Err(AttachError::Mismatch);
        }
        hold(domain, region.range, granted)?;
    }
    Ok(())
}

/// Maps the missing parts of `range` at their own addresses.
fn hold(domain: &impl Domain, range: IovaRange, access: Access) -> Result<(), AttachError> {
    let mut next = Some(range.start());
    for _ in 0..MAX_PIECES {
        let Some(start) = next.filter(|start| *start <= range.last()) else {
            return Ok(());
        };
        next = match domain.translate(start) {
            Some(found) => {
                let same = found.pa == PhysAddr::new(start.get());
                if !same || !found.access.contains(access) {
                    return Err(AttachError::Mismatch);
                }
                let last = start.get() | (found.size.bytes() - 1);
                last.checked_add(1).map(Iova::new)
            }
            None => match map_same(domain, start, range.last(), access) {
                Ok(()) => None,
                Err(DomainError::Map(TableMapError::AlreadyMapped { iova })) if iova > start => {
                    match map_same(domain, start, Iova::new(iova.get() - 1), access) {
                        Err(DomainError::Iommu(error)) => return Err(error.into()),
                        // Another caller attaches another stream: look again.
                        Ok(()) | Err(DomainError::Map(TableMapError::AlreadyMapped { .. })) => {
                            Some(start)
                        }
                        Err(_) => return Err(AttachError::Mismatch),
                    }
                }
                Err(DomainError::Map(TableMapError::AlreadyMapped { .. })) => Some(start),
                Err(DomainError::Iommu(error)) => return Err(error.into()),
                Err(_) => return Err(AttachError::Mismatch),
            },
        };
    }
    Err(AttachError::Mismatch)
}

fn map_same(
    domain: &impl Domain,
    start: Iova,
    last: Iova,
    access: Access,
) -> Result<(), DomainError> {
    let past = TableMapError::IovaOutOfRange { iova: start };
    let memory = IovaRange::new(start, last).and_then(of_firmware);
    let mut owed = Gather::new();
    domain.map(start, memory.ok_or(past)?, access, &mut owed)?;
    domain.sync(&mut owed).map_err(IommuError::from)?;
    Ok(())
}

#[cfg(test)]
mod tests;
