//! Registers of a unit that may be gone, or of which some are locked.

use portolan::iommu::IommuError;
use portolan::platform::Mmio;
use portolan_spec::ADDRESS;

/// Registers that never read as all ones while the unit is there.
///
/// # Errors
/// [`IommuError::Gone`] if they do.
pub(crate) trait Present: Mmio {
    fn present32(&self, offset: usize) -> Result<u32, IommuError> {
        match self.read32(offset) {
            u32::MAX => Err(IommuError::Gone),
            value => Ok(value),
        }
    }

    fn present64(&self, offset: usize) -> Result<u64, IommuError> {
        match self.read64(offset) {
            u64::MAX => Err(IommuError::Gone),
            value => Ok(value),
        }
    }

    /// Sees that a register holds the address in `value`, which was written to it: firmware locks some, and a
    /// part without power keeps nothing.
    ///
    /// # Errors
    /// [`IommuError::Nonsense`] with its value instead.
    fn holds(&self, offset: usize, value: u64) -> Result<(), IommuError> {
        match self.present64(offset)? {
            held if (held ^ value) & ADDRESS == 0 => Ok(()),
            value => Err(IommuError::Nonsense { offset, value }),
        }
    }
}

impl<R: Mmio + ?Sized> Present for R {}
