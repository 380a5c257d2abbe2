//! Registers whose writes are combined.
//!
//! Documentation/PCI/sysfs-pci.rst (`resourceN_wc`): VFIO itself maps BARs so that each store is a transaction. The
//! mapping is of the machine's memory, not of the open device: where the function has been taken out, it is no memory.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;

use super::error::{Step, VfioError};
use crate::sys::Window;

/// A BAR whose stores may reach the device together, in any order and late: as long as no [`CombinedBar::flush`] is
/// between them. So there is no read: what it returned would have no place among the writes.
///
/// ```no_run
/// # use portolan_linux::vfio::{VfioDevice, VfioError};
/// # fn push(device: &VfioDevice, descriptor: [u64; 8]) -> Result<(), VfioError> {
/// let window = device.bar_combined(2)?;
/// window.write(0, &descriptor)?;
/// window.flush(); // the card has all of it, before the doorbell rings
/// # Ok(())
/// # }
/// ```
///
/// *Context.* Task.
#[derive(Debug)]
pub struct CombinedBar {
    /// The function is this process's as long as its file is open.
    _device: Arc<OwnedFd>,
    window: Window,
    bytes: u64,
}

impl CombinedBar {
    pub(super) fn open(device: &Arc<OwnedFd>, path: &Path, bytes: u64) -> Result<Self, VfioError> {
        let failed = VfioError::of(Step::Registers);
        let file = match OpenOptions::new().read(true).write(true).open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(VfioError::NotCombined);
            }
            file => file.map_err(&failed)?,
        };
        let length = file.metadata().map_err(&failed)?.len();
        let outside = VfioError::OutOfBounds { offset: 0, bytes, length };
        let count = usize::try_from(bytes).ok().filter(|_| bytes <= length).ok_or(outside)?;
        let window = Window::new(file.as_fd(), 0, count).map_err(failed)?;
        Ok(Self { _device: device.clone(), window, bytes })
    }

    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Writes `words` from `offset` on, each once.
    ///
    /// # Errors
    /// [`VfioError::OutOfBounds`] if they are not inside, or the offset is not a multiple of eight; then nothing is
    /// written.
    pub fn write(&self, offset: u64, words: &[u64]) -> Result<(), VfioError> {
        let bytes = words.len() as u64 * 8;
        let outside = VfioError::OutOfBounds { offset, bytes, length: self.bytes };
        let at = usize::try_from(offset).map_err(|_| outside)?;
        self.window.write_burst(at, words).then_some(()).ok_or(outside)
    }

    /// Waits until all earlier writes are on their way to the device, and before all later ones.
    pub fn flush(&self) {
        self.window.flush();
    }

    /// Its bytes, for stores of other widths by code that answers for them: valid for writes as long as the value
    /// lives, and not for reads that have to come in order.
    pub fn view(&self) -> NonNull<[u8]> {
        self.window.view()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use rustix::io::pread;
    use std::os::fd::AsRawFd as _;

    /// A file in the place of a BAR of a page.
    fn bar(file: &Arc<OwnedFd>, bytes: u64) -> Result<CombinedBar, VfioError> {
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        CombinedBar::open(file, Path::new(&path), bytes)
    }

    #[test]
    fn words_are_written_where_they_belong_and_nowhere_else() {
        let file = Arc::new(memfd_create("bar", MemfdFlags::CLOEXEC).unwrap());
        ftruncate(&*file, 0x1000).unwrap();
        let bar = bar(&file, 0x1000).unwrap();
        bar.write(0xff0, &[0x0102_0304_0506_0708, u64::MAX]).unwrap();
        bar.flush();
        let mut bytes = [0; 24];
        pread(&*file, &mut bytes, 0xfe8).unwrap();
        assert_eq!((bytes[..8].to_vec(), bytes[8], bytes[15]), (vec![0; 8], 8, 1));
        assert_eq!((bytes[16..].to_vec(), bar.view().len()), (vec![0xff; 8], 0x1000));
        for (offset, count) in [(0xff8, 2), (0x1000, 1), (4, 1), (u64::MAX - 7, 2), (1 << 40, 1)] {
            let refused = bar.write(offset, &vec![0; count]).unwrap_err();
            assert!(matches!(refused, VfioError::OutOfBounds { .. }), "{offset:#x}");
        }
        assert!(bar.write(0x1000, &[]).is_ok());
        let mut last = [0; 8];
        pread(&*file, &mut last, 0xff8).unwrap();
        assert_eq!(last, [0xff; 8]);
    }

    #[test]
    fn files_that_are_shorter_or_not_there_are_refused() {
        let file = Arc::new(memfd_create("bar", MemfdFlags::CLOEXEC).unwrap());
        ftruncate(&*file, 0x1000).unwrap();
        let refused = bar(&file, 0x2000).unwrap_err();
        assert!(matches!(refused, VfioError::OutOfBounds { length: 0x1000, .. }), "{refused}");
        let none = Path::new("/sys/bus/pci/devices/ffff:ff:1f.7/resource0_wc");
        assert_eq!(CombinedBar::open(&file, none, 1).unwrap_err(), VfioError::NotCombined);
    }
}
