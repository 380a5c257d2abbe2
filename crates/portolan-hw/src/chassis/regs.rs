//! Registers of a unit that may be gone.

use portolan::iommu::IommuError;
use portolan::platform::Mmio;

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
}

impl<R: Mmio + ?Sized> Present for R {}
