//! Events of a virtual IOMMU's devices.
//!
//! linux/iommufd.h (`iommufd_vevent_header`), as of Linux 7.3: events are numbered, so a gap is a number of lost ones.

use std::fmt;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use iommufd_bindings::iommufd as sys;
use rustix::io::{Errno, read};

use super::kinds::EventKind;
use crate::chain::{InfoError, word};
use crate::vfio::error::{Step, VfioError};
use crate::vfio::iommufd::Object;

/// Bytes of `iommufd_vevent_header`.
pub(in crate::vfio) const HEADER: usize = size_of::<sys::iommufd_vevent_header>();
/// Events that are read at once.
const AT_ONCE: usize = 64;
/// Numbers of events, which begin again behind the last.
pub(in crate::vfio) const NUMBERS: u32 = 1 << 31;

/// Virtual IOMMU that stays as long as its queue.
type KeptBelow = Arc<dyn fmt::Debug + Send + Sync>;

/// Events of a virtual IOMMU's devices, which a monitor hands to its guest.
#[derive(Debug)]
pub struct EventQueue<K> {
    // Closed before the object goes.
    file: OwnedFd,
    _object: Object,
    /// Number of the next event.
    next: Mutex<u32>,
    _viommu: KeptBelow,
    kind: PhantomData<fn(K)>,
}

/// Numbers of events that a call has read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VirtualEvents {
    /// Events that were handed over.
    pub taken: u64,
    /// Events that found the queue full.
    pub lost: u64,
}

/// Hands the events of `bytes` over. `next` is the number of the next one.
pub(in crate::vfio) fn parse<K: EventKind>(
    bytes: &[u8],
    next: &mut u32,
    mut each: impl FnMut(K::Event),
) -> Result<VirtualEvents, InfoError> {
    let (mut counts, mut at) = (VirtualEvents::default(), 0);
    while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
        let (flags, number) = (word(rest, 0)?, word(rest, 4)? % NUMBERS);
        let gap = number.wrapping_sub(*next) % NUMBERS;
        at = at.saturating_add(HEADER);
        if flags & sys::iommu_veventq_flag_IOMMU_VEVENTQ_FLAG_LOST_EVENTS != 0 {
            // The number is that of the last event which is lost.
            counts.lost += u64::from(gap) + 1;
        } else {
            let cut = InfoError::Cut { offset: at, bytes: bytes.len() };
            let event = bytes.get(at..at.saturating_add(K::EVENT)).ok_or(cut)?;
            each(K::event(event)?);
            at = at.saturating_add(K::EVENT);
            counts.lost += u64::from(gap);
            counts.taken += 1;
        }
        *next = (number + 1) % NUMBERS;
    }
    Ok(counts)
}

impl<K: EventKind> EventQueue<K> {
    pub(super) fn new(object: Object, file: OwnedFd, viommu: KeptBelow) -> Self {
        let next = Mutex::default();
        Self { _object: object, file, next, _viommu: viommu, kind: PhantomData }
    }

    /// Hands the events that have arrived to `each`, in their order; returns their number, and the number of those
    /// that were lost before. It does not wait: poll the descriptor.
    ///
    /// *Context.* Task: a system call.
    ///
    /// # Errors
    /// The kernel's error, or that its answer makes no sense.
    pub fn take(&self, each: impl FnMut(K::Event)) -> Result<VirtualEvents, VfioError> {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let mut bytes = vec![0; AT_ONCE * (HEADER + K::EVENT)];
        let count = match read(&self.file, &mut bytes) {
            Err(Errno::AGAIN) => 0,
            Err(error) => return Err(VfioError::of(Step::Faults)(error.into())),
            Ok(count) => count,
        };
        let bytes = bytes.get(..count).unwrap_or_default();
        Ok(parse::<K>(bytes, &mut next, each)?)
    }
}

/// For an event loop of the caller's.
impl<K> AsFd for EventQueue<K> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests;
