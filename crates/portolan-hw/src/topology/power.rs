//! All units of a machine, before it sleeps and once it wakes.
//!
//! *Context.* Task.

use portolan::iommu::IommuError;
use portolan::platform::Platform;
use thiserror::Error;

use super::Iommus;

/// Units that did not follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{failed} units did not follow, the first of them unit {unit}: {error}")]
pub struct PowerError {
    /// Number of the first of them.
    pub unit: usize,
    /// Its error.
    pub error: IommuError,
    /// Number of all of them.
    pub failed: usize,
}

impl<P: Platform> Iommus<P> {
    /// Suspends each unit ([`Iommu::suspend`](portolan::iommu::Iommu::suspend)), for a machine that is about to
    /// sleep and whose devices are quiet. Mappings stand, and maps and unmaps go on.
    ///
    /// # Errors
    /// All units are resumed again if one does not follow; [`Iommus::resume`] repeats that for those that
    /// did not follow then either.
    pub fn suspend(&self) -> Result<(), PowerError> {
        let suspended = self.each(|unit| unit.suspend());
        suspended.inspect_err(|_| {
            // The first error is the reason, and the caller learns of others by the next call.
            let _ = self.resume();
        })
    }

    /// Resumes each unit ([`Iommu::resume`](portolan::iommu::Iommu::resume)), before a device may run: with the
    /// memory of [`Iommus::suspend`], and with the power of each unit lost meanwhile or not.
    ///
    /// # Errors
    /// Other units are resumed all the same. The devices of those that are not have to stay stopped until
    /// another call succeeds.
    pub fn resume(&self) -> Result<(), PowerError> {
        self.each(|unit| unit.resume())
    }

    fn each(
        &self,
        act: impl Fn(&super::enable::Enabled) -> Result<(), IommuError>,
    ) -> Result<(), PowerError> {
        let mut failed: Option<PowerError> = None;
        for (number, unit) in self.units.iter().enumerate() {
            let Err(error) = unit.as_ref().map_or(Ok(()), &act) else { continue };
            failed = Some(match failed {
                None => PowerError { unit: number, error, failed: 1 },
                Some(first) => PowerError { failed: first.failed + 1, ..first },
            });
        }
        failed.map_or(Ok(()), Err)
    }
}
