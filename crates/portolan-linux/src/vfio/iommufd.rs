//! An open file of /dev/iommu.
//!
//! linux/iommufd.h, Documentation/userspace-api/iommufd.rst, as of Linux 7.3. The kernel's objects for it have
//! numbers; all are gone once the file and those of its devices are closed.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use portolan::addr::{IovaRange, PciFunction};
use portolan::iommu::IommuError;
use rustix::io::Errno;

use super::container::{bytes, node};
use super::error::{OpenError, Step, VfioError, errno};
use super::handed::IommufdFile;
use super::sysfs;
use crate::calls::{Counters, count, refused};
use crate::files::FileBehind;
use crate::sys::iommufd as call;

/// The file that all functions of a unit are bound to.
#[derive(Debug)]
pub(super) struct Iommufd {
    fd: OwnedFd,
    counters: Arc<Counters>,
    /// The kernel does not know the call that maps files: Linux before 6.13.
    maps_no_files: AtomicBool,
}

/// An object of a file's, which goes with its owner. The kernel keeps one that others stand on, and one whose own file
/// is open: an owner drops them before.
#[derive(Debug)]
pub(super) struct Object {
    pub(super) iommufd: Arc<Iommufd>,
    pub(super) id: u32,
}

impl Drop for Object {
    fn drop(&mut self) {
        self.iommufd.destroy(self.id);
    }
}

impl Iommufd {
    /// Tells if the kernel has it, this process may use it, and each of `functions` has a node for it.
    pub(super) fn is_offered(functions: &[PciFunction]) -> bool {
        let named = |function: &PciFunction| sysfs::node((*function).into()).is_some();
        functions.iter().all(named) && node("/dev/iommu").is_ok()
    }

    pub(super) fn of(fd: OwnedFd, counters: Arc<Counters>) -> Arc<Self> {
        Arc::new(Self { fd, counters, maps_no_files: AtomicBool::default() })
    }

    /// One that another process opened.
    pub(super) fn handed(file: IommufdFile, counters: Arc<Counters>) -> Arc<Self> {
        Self::of(file.into(), counters)
    }

    pub(super) fn open(counters: Arc<Counters>) -> Result<Arc<Self>, OpenError> {
        let step = Step::Iommufd;
        let fd = node("/dev/iommu").map_err(|error| match errno(&error) {
            Some(Errno::NOENT | Errno::NODEV | Errno::NXIO) => OpenError::NoIommufd,
            Some(Errno::ACCESS | Errno::PERM) => OpenError::NoPermission { group: None, step },
            _ => VfioError::of(step)(error).into(),
        })?;
        Ok(Self::of(fd, counters))
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(super) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Maps `memory` of a file at `range` of an address space, as `flags` say; `None` if the kernel maps no files.
    pub(super) fn map_file(
        &self,
        ioas: u32,
        range: IovaRange,
        behind: &FileBehind,
        flags: u32,
    ) -> Option<Result<(), IommuError>> {
        if self.maps_no_files.load(Ordering::Relaxed) {
            return None;
        }
        count(&self.counters.map_file);
        let (file, start) = (behind.file.as_fd(), behind.offset);
        let length = match bytes(range) {
            Ok(length) => length,
            Err(error) => return Some(Err(error)),
        };
        let from = call::FromFile { file, start };
        let mapped =
            call::map_file(self.descriptor(), ioas, range.start().get(), from, length, flags);
        match mapped {
            Err(error) if errno(&error) == Some(Errno::NOTTY) => {
                self.maps_no_files.store(true, Ordering::Relaxed);
                None
            }
            mapped => Some(mapped.map_err(|error| refused(&error))),
        }
    }

    /// Has this process pay for all that is pinned.
    pub(super) fn charge(&self) -> io::Result<()> {
        call::change_process(self.descriptor())
    }

    /// A queue of page requests: its number, and the file that it is read by.
    pub(super) fn fault_queue(&self) -> Result<(u32, OwnedFd), IommuError> {
        call::new_fault_queue(self.fd.as_fd()).map_err(|error| refused(&error))
    }

    pub(super) fn destroy(&self, id: u32) {
        // An object that is still in use stays, until the device's file or /dev/iommu is closed.
        let _ = self.remove(id);
    }

    pub(super) fn remove(&self, id: u32) -> io::Result<()> {
        call::destroy(self.fd.as_fd(), id)
    }
}
