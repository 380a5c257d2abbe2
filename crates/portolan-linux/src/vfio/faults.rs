//! Page requests of devices, as the kernel hands them to this process.
//!
//! linux/iommufd.h (`IOMMU_FAULT_QUEUE_ALLOC`, `iommu_hwpt_pgfault`, `iommu_hwpt_page_response`), as of Linux 6.12.
//! The kernel collects the requests of a group and hands over the whole of it; a response names the group by the
//! kernel's own number (cookie), and is success or refusal: "stop asking" cannot be said.
//!
//! Not supported: the hint about the number of pages that a device is going to ask for.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use iommufd_bindings::iommufd as sys;
use portolan::addr::{Iova, Pasid, StreamId};
use portolan::iommu::IommuError;
use portolan::iopf::{
    GroupId, Permissions, Place, RawPageRequest, ReplyName, ReplyTo, RequestKind, Responder,
    Response,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, read, write};

use super::error::{Step, VfioError};
use super::iommufd::{Iommufd, Object};
use crate::chain::{InfoError, long, word};

/// Bytes of `iommu_hwpt_pgfault`.
pub(super) const RECORD: usize = size_of::<sys::iommu_hwpt_pgfault>();
/// Records that there is room for at first: a group of as many pages as a device asks for at once, and more.
const RECORDS: usize = 512;
/// Records of the largest group that is taken: a device that keeps to no bounds must not stop the queue.
const MOST_RECORDS: usize = 1 << 18;

/// Page requests of a unit's functions whose domains name this queue
/// ([`DomainOptions::faults`](super::DomainOptions)): it takes the place of a driver's queue for an
/// [`iopf::Dispatcher`](portolan::iopf::Dispatcher), whose [`Responder`] it is.
///
/// *Context.* Task, all methods: they make system calls.
#[derive(Debug)]
pub struct FaultQueue {
    // Closed before the object goes: the kernel refuses requests that wait.
    file: OwnedFd,
    /// The queue; none in tests.
    object: Option<Object>,
    streams: BTreeMap<u32, StreamId>,
    /// The kernel's numbers of groups that wait. A device may use a number for two groups at once: then both get
    /// the same response.
    waiting: Mutex<BTreeMap<(StreamId, GroupId), Vec<u32>>>,
}

/// A record, as far as it makes sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FaultRecord {
    pub(super) request: Option<RawPageRequest>,
    cookie: u32,
}

impl FaultRecord {
    pub(super) fn read(
        record: &[u8],
        streams: &BTreeMap<u32, StreamId>,
    ) -> Result<Self, InfoError> {
        let (flags, device) = (word(record, 0)?, word(record, 4)?);
        let (pasid, group) = (word(record, 8)?, word(record, 12)?);
        let (permissions, iova) = (word(record, 16)?, long(record, 24)?);
        let named = flags & sys::iommu_hwpt_pgfault_flags_IOMMU_PGFAULT_FLAGS_PASID_VALID != 0;
        let last = flags & sys::iommu_hwpt_pgfault_flags_IOMMU_PGFAULT_FLAGS_LAST_PAGE != 0;
        let place = if last { Place::Last } else { Place::More };
        let request = || {
            Some(RawPageRequest {
                stream: *streams.get(&device)?,
                pasid: named.then(|| Pasid::new(pasid)),
                iova: Iova::new(iova),
                // The kernel's bits are those of the requests.
                wants: Permissions::from_bits_truncate(permissions as u8),
                kind: RequestKind::Pri { group: GroupId::new(u16::try_from(group).ok()?), place },
            })
        };
        Ok(Self { request: request(), cookie: word(record, 36)? })
    }
}

/// Result of `read`, with room for the first group:
fn whole_groups(
    mut read: impl FnMut(&mut [u8]) -> rustix::io::Result<usize>,
) -> rustix::io::Result<Vec<u8>> {
    let mut records = RECORDS;
    loop {
        let mut bytes = vec![0; records * RECORD];
        match read(&mut bytes) {
            Err(Errno::INVAL) if records < MOST_RECORDS => records *= 8,
            Err(Errno::AGAIN) => return Ok(Vec::new()),
            count => {
                bytes.truncate(count?);
                return Ok(bytes);
            }
        }
    }
}

impl FaultQueue {
    pub(super) fn new(
        iommufd: Arc<Iommufd>,
        streams: BTreeMap<u32, StreamId>,
    ) -> Result<Self, IommuError> {
        let (id, file) = iommufd.fault_queue()?;
        let object = Some(Object { iommufd, id });
        Ok(Self { file, object, streams, waiting: Mutex::default() })
    }

    pub(super) fn id(&self) -> u32 {
        self.object.as_ref().map_or(0, |object| object.id)
    }

    /// Tells if it is one of `iommufd`'s objects.
    pub(super) fn is_of(&self, iommufd: &Arc<Iommufd>) -> bool {
        self.object.as_ref().is_some_and(|own| Arc::ptr_eq(&own.iommufd, iommufd))
    }

    fn waiting(&self) -> MutexGuard<'_, BTreeMap<(StreamId, GroupId), Vec<u32>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands the requests that devices have made since to `each`, in whole groups; returns their number. It
    /// does not wait. Requests of no function of the unit's are refused, and not handed on.
    ///
    /// # Errors
    /// The kernel's error, or that its answer makes no sense.
    pub fn take(&self, mut each: impl FnMut(RawPageRequest)) -> Result<usize, VfioError> {
        let bytes = whole_groups(|bytes| read(&self.file, bytes));
        let bytes = bytes.map_err(|error| VfioError::of(Step::Faults)(error.into()))?;
        let (mut taken, mut refused) = (0, None);
        for record in bytes.chunks(RECORD) {
            let FaultRecord { request, cookie } = FaultRecord::read(record, &self.streams)?;
            let Some(request) = request else {
                // The records of a group are one behind the other.
                if refused.replace(cookie) != Some(cookie) {
                    self.answer(cookie, Response::Invalid)?;
                }
                continue;
            };
            if let RequestKind::Pri { group, .. } = request.kind {
                let mut waiting = self.waiting();
                let cookies = waiting.entry((request.stream, group)).or_default();
                if !cookies.contains(&cookie) {
                    cookies.push(cookie);
                }
            }
            taken += 1;
            each(request);
        }
        Ok(taken)
    }

    /// Waits until there are requests, and not longer than `limit`; returns if there are.
    ///
    /// # Errors
    /// [`VfioError::System`].
    pub fn wait(&self, limit: Duration) -> Result<bool, VfioError> {
        let limit = Timespec::try_from(limit).ok();
        let mut polled = [PollFd::new(&self.file, PollFlags::IN)];
        match poll(&mut polled, limit.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(polled[0].revents().contains(PollFlags::IN)),
            Err(error) => Err(VfioError::of(Step::Faults)(error.into())),
        }
    }

    pub(super) fn answer(&self, cookie: u32, response: Response) -> Result<(), VfioError> {
        let code = match response {
            Response::Success => sys::iommufd_page_response_code_IOMMUFD_PAGE_RESP_SUCCESS,
            Response::Invalid | Response::Failure => {
                sys::iommufd_page_response_code_IOMMUFD_PAGE_RESP_INVALID
            }
        };
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&cookie.to_ne_bytes());
        bytes[4..].copy_from_slice(&code.to_ne_bytes());
        let written = write(&self.file, &bytes);
        match written.map_err(|error| VfioError::of(Step::Faults)(error.into()))? {
            8 => Ok(()),
            _ => Err(VfioError::Gone),
        }
    }
}

/// For an event loop of the caller's.
impl AsFd for FaultQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Responder for FaultQueue {
    type Error = VfioError;

    /// A group that the kernel has not handed over is not known: nothing is sent.
    fn respond(&self, to: ReplyTo, response: Response) -> Result<(), VfioError> {
        let ReplyName::Group(group) = to.name else {
            return Ok(());
        };
        let cookies = self.waiting().remove(&(to.stream, group));
        let answer = |cookie| self.answer(cookie, response);
        let answers = cookies.into_iter().flatten().map(answer);
        // All of them, also if the first has failed.
        answers.fold(Ok(()), Result::and)
    }
}

#[cfg(test)]
mod tests;
