//! Addresses that devices reach whatever they are attached to, and those that reach no memory.
//!
//! Intel Virtualization Technology for Directed I/O (D51397), revision 4.1, sections 8.4 (memory
//! that firmware lists for a device) and 3.13 (interrupt messages).

use core::sync::atomic::AtomicU64;

use portolan::addr::{Iova, IovaRange, PhysAddr, StreamId};
use portolan::inval::Gather;
use portolan::iommu::{AttachError, Domain, DomainError, IommuError};
use portolan::platform::{Cpus, Mmio, TableMem};
use portolan::table::{Access, TableMapError};

use super::quirks::Quirks;
use super::unit::Vtd;
use crate::firmware::reservations::Reservations;
use crate::promise::of_firmware;

/// Leaves and gaps of one reserved range that are looked at before it is given up: those of
/// a range that makes sense are far fewer.
const MAX_PIECES: u32 = 1 << 16;

/// The graphics of a chipset or a processor: device 2 of the first bus.
const GRAPHICS: StreamId = StreamId::new(0x10);

impl<R: Mmio, M: TableMem<AtomicU64>, C: Cpus> Vtd<R, M, C> {
    /// Whether `stream` may not be attached, as it does not work translated.
    pub(super) fn is_untranslated(&self, stream: StreamId) -> bool {
        stream == GRAPHICS && self.config.chip.contains(Quirks::GRAPHICS_UNTRANSLATED)
    }

    /// What is reserved for streams, and what of [`Config::reserved`](super::Config::reserved) was
    /// ignored.
    ///
    /// *Context.* Interrupt.
    pub fn reservations(&self) -> &Reservations {
        &self.config.reserved
    }

    /// Maps what `stream` reaches at its own addresses into `domain`, unless it is there already.
    pub(super) fn hold_reserved(
        &self,
        stream: StreamId,
        domain: &impl Domain,
    ) -> Result<(), AttachError> {
        let mut held = Ok(());
        self.config.reserved.of(stream, &mut |region| {
            let Some(access) = region.kind.direct() else {
                return;
            };
            held = held.and_then(|()| {
                let granted = domain.grants(access).ok_or(AttachError::Mismatch)?;
                let there = domain.input_range().covers(region.range);
                let range = Some(region.range).filter(|_| there);
                hold(domain, range.ok_or(AttachError::Mismatch)?, granted)
            });
        });
        held
    }
}

/// Maps what is missing of `range` at its own addresses.
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
                        // Somebody else attaches another stream: look again what is there.
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
