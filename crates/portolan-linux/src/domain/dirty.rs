//! Dirty state: the pages that devices wrote, as the kernel reports them.
//!
//! `IOMMU_HWPT_GET_DIRTY_BITMAP` of iommufd, `VFIO_IOMMU_DIRTY_PAGES` of type 1: a bit for each page of whole
//! mappings. iommufd keeps the marks if a read asks for it. Type 1 looks at no hardware: all pages that a device may
//! write are dirty each time.

use std::ops::ControlFlow;

use portolan::addr::{Iova, IovaRange, PageSize};
use portolan::iommu::{Domain as _, IommuError};
use portolan::table::format::DirtyTracking;
use portolan::table::{Access, DirtyError};
use rustix::io::Errno;

use super::{DomainMappings, MappingRecord, MappingState, UserDomain};
use crate::calls::AfterRead;

/// Pages of a bitmap that is read in one call, unless one mapping has more.
const AT_ONCE: u64 = 1 << 20;

/// The first mapping in `range` that devices may write, with its neighbours of that kind.
fn writable(inner: &DomainMappings, range: IovaRange, page: PageSize) -> Option<IovaRange> {
    let mapped = |record: &&MappingRecord| {
        record.state == MappingState::Mapped && record.mapping.access.contains(Access::WRITE)
    };
    let mut records = inner.within(range).filter(mapped).map(|record| record.mapping.range);
    let first = records.next()?;
    let joined = records.try_fold(first, |run, next| {
        let whole = run.hull(next);
        let joins = run.last().checked_add(1) == Some(next.start());
        match joins && whole.pages(page) <= AT_ONCE {
            true => ControlFlow::Continue(whole),
            false => ControlFlow::Break(run),
        }
    });
    match joined {
        ControlFlow::Continue(run) | ControlFlow::Break(run) => Some(run),
    }
}

/// The runs of pages from `start` on whose bits are set.
fn marked(start: Iova, page: PageSize, bitmap: &[u64]) -> impl Iterator<Item = IovaRange> {
    let end = bitmap.len() as u64 * 64;
    let is_set = |at: &u64| {
        let word = bitmap.get((at / 64) as usize);
        word.is_some_and(|word| word >> (at % 64) & 1 != 0)
    };
    let mut at = 0;
    std::iter::from_fn(move || {
        let first = (at..end).find(is_set)?;
        at = (first..end).find(|at| !is_set(at)).unwrap_or(end);
        let start = start.checked_add(first.checked_mul(page.bytes())?)?;
        IovaRange::from_len(start, (at - first).checked_mul(page.bytes())?)
    })
}

impl UserDomain {
    /// Reads the marks of the first mappings in `range` that devices may write: where these are, and the bitmap.
    fn read_marks(
        &self,
        range: IovaRange,
        after: AfterRead,
    ) -> Result<Option<(IovaRange, Vec<u64>)>, DirtyError> {
        let (place, page) = (self.place(), self.granule());
        // Mappings stay as they are meanwhile: the kernel reads no part of a mapping.
        let inner = self.inner();
        let (Some(calls), Some(run)) = (&*place, writable(&inner, range, page)) else {
            return Ok(None);
        };
        let words = usize::try_from(run.pages(page).div_ceil(64));
        let mut bitmap = vec![0; words.map_err(|_| DirtyError::OutOfRange { range: run })?];
        let read = calls.dirty(run, page, after, &mut bitmap);
        read.map_err(|error| DirtyError::Refused { code: code(error) })?;
        Ok(Some((run, bitmap)))
    }
}

impl UserDomain {
    /// Reads the marks of `range`: a system call for each run of neighbouring mappings that devices may write, which
    /// owes nothing. Writes to pages whose marks were cleared are marked again when it returns.
    pub(super) fn read_kernels_marks(
        &self,
        range: IovaRange,
        after: AfterRead,
        visit: &mut dyn FnMut(IovaRange),
    ) -> Result<(), DirtyError> {
        if self.dirty == DirtyTracking::Off {
            return Err(DirtyError::NotTracked);
        }
        if !self.input_range().covers(range) {
            return Err(DirtyError::OutOfRange { range });
        }
        let mut rest = Some(range);
        while let Some(here) = rest {
            let Some((run, bitmap)) = self.read_marks(here, after)? else {
                break;
            };
            // Type 1 leaves bits set past the end of the last mapping.
            let inside = run.intersection(here);
            let dirty = marked(run.start(), self.granule(), &bitmap);
            dirty.filter_map(|dirty| dirty.intersection(inside?)).for_each(&mut *visit);
            rest = (run.last().checked_add(1)).and_then(|next| IovaRange::new(next, range.last()));
        }
        Ok(())
    }
}

/// The system's number of an error.
fn code(error: IommuError) -> u32 {
    let errno = match error {
        IommuError::Refused { code } => return code,
        IommuError::Gone => Errno::NODEV,
        _ => Errno::OPNOTSUPP,
    };
    errno.raw_os_error().unsigned_abs()
}
