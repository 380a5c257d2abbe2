//! A function's way to an address space: its group's container, or its binding to iommufd.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use portolan::addr::{Pasid, StreamId};
use portolan::iommu::{AttachError, IommuError};
use portolan::table::format::DirtyTracking;

use super::bound::{Bound, Tables};
use super::container::Container;
use super::error::{OpenError, VfioError};
use super::handed::Candidate;
use super::iommufd::Iommufd;
use super::nested::Site;
use crate::calls::{Counters, count};
use crate::domain::{Reach, UserDomain};

#[derive(Debug)]
enum PortInterface {
    /// The one address space that a container is.
    Container(Arc<Container>),
    Bound(Bound),
}

/// A function and its way.
#[derive(Debug)]
pub(super) struct Port {
    pub(super) stream: StreamId,
    way: PortInterface,
    attached: Mutex<Option<Tables>>,
}

/// Object that system calls of the caller's own are made on.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum RawSpace<'a> {
    /// A container of type 1.
    Container(BorrowedFd<'a>),
    /// An address space of iommufd's.
    Ioas {
        /// The open file of /dev/iommu.
        iommufd: BorrowedFd<'a>,
        /// The address space's number there.
        ioas: u32,
    },
}

impl Port {
    /// Opens a device, by iommufd if there is one.
    pub(super) fn open(
        candidate: Candidate,
        iommufd: Option<&Arc<Iommufd>>,
        counters: &Arc<Counters>,
    ) -> Result<(Self, Arc<OwnedFd>), OpenError> {
        let stream = candidate.name.stream();
        let (way, device) = match iommufd {
            Some(iommufd) => {
                let (bound, device) = Bound::open(candidate, iommufd)?;
                (PortInterface::Bound(bound), device)
            }
            None => {
                let (container, device) = Container::open(candidate, counters.clone())?;
                (PortInterface::Container(Arc::new(container)), device)
            }
        };
        Ok((Self::of(stream, way), device))
    }

    fn of(stream: StreamId, way: PortInterface) -> Self {
        let former = match &way {
            PortInterface::Bound(bound) => bound.former(),
            PortInterface::Container(_) => None,
        };
        Self { stream, way, attached: Mutex::new(former) }
    }

    fn attached(&self) -> MutexGuard<'_, Option<Tables>> {
        self.attached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn reach(&self) -> Result<Reach, VfioError> {
        match &self.way {
            PortInterface::Container(container) => container.reach(),
            PortInterface::Bound(bound) => bound.reach(),
        }
    }

    /// Number of mappings that may be added, if the kernel reports it.
    pub(super) fn available(&self) -> Result<Option<u32>, VfioError> {
        match &self.way {
            PortInterface::Container(container) => container.available(),
            PortInterface::Bound(_) => Ok(None),
        }
    }

    /// The number by which page requests name the device.
    pub(super) fn number(&self) -> Option<u32> {
        self.bound().map(Bound::id)
    }

    /// The address space; with iommufd there is none without a domain.
    pub(super) fn raw(&self) -> Option<RawSpace<'_>> {
        match &self.way {
            PortInterface::Container(container) => {
                Some(RawSpace::Container(container.descriptor()))
            }
            PortInterface::Bound(bound) => Some(RawSpace::Ioas {
                iommufd: bound.descriptor(),
                ioas: self.attached().as_ref()?.ioas()?,
            }),
        }
    }

    pub(super) fn attach(&self, tables: Tables, counters: &Counters) -> Result<(), AttachError> {
        let mut attached = self.attached();
        if attached.as_ref().is_some_and(|old| old.are(&tables)) {
            return Ok(());
        }
        match (&self.way, &tables) {
            (PortInterface::Container(container), Tables::Domain(domain)) => {
                count(&counters.attach);
                if let Some(old) = attached.as_ref().and_then(Tables::domain) {
                    Self::leave(container, old)?;
                }
                *attached = None;
                if domain.dirty() == DirtyTracking::Hardware {
                    container.track(DirtyTracking::Hardware)?;
                }
                domain.enter(container.clone())?;
            }
            (PortInterface::Container(_), _) => return Err(AttachError::Mismatch),
            (PortInterface::Bound(bound), tables) => bound.attach(tables)?,
        }
        *attached = Some(tables);
        Ok(())
    }

    /// The binding to iommufd.
    fn bound(&self) -> Option<&Bound> {
        match &self.way {
            PortInterface::Container(_) => None,
            PortInterface::Bound(bound) => Some(bound),
        }
    }

    pub(super) fn attach_pasid(&self, pasid: Pasid, tables: Tables) -> Result<(), AttachError> {
        self.bound().ok_or(AttachError::NoPasids)?.attach_pasid(pasid, tables)
    }

    pub(super) fn detach_pasid(&self, pasid: Pasid) -> Result<(), AttachError> {
        self.bound().ok_or(AttachError::NoPasids)?.detach_pasid(pasid)
    }

    /// The device, for the objects of iommufd's that are made for it.
    pub(super) fn site(&self) -> Result<Site, IommuError> {
        Ok(self.bound().ok_or(IommuError::Unsupported)?.site())
    }

    fn leave(container: &Container, domain: &UserDomain) -> Result<(), IommuError> {
        domain.leave()?;
        match domain.dirty() {
            DirtyTracking::Hardware => container.track(DirtyTracking::Off),
            DirtyTracking::Off => Ok(()),
        }
    }

    pub(super) fn detach(&self, counters: &Counters) -> Result<(), IommuError> {
        let mut attached = self.attached();
        let Some(tables) = &*attached else {
            return Ok(());
        };
        match &self.way {
            PortInterface::Container(container) => {
                count(&counters.attach);
                tables.domain().map_or(Ok(()), |domain| Self::leave(container, domain))?;
            }
            PortInterface::Bound(bound) => bound.detach()?,
        }
        *attached = None;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
