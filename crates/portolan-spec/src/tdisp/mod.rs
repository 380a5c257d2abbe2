//! Device interface report of TDISP: a device's own words about an interface that a confidential guest lets in.
//!
//! PCI Express Base Specification 6.3, section 11.3.11 (DEVICE_INTERFACE_REPORT). Not supported: TDISP's messages,
//! which the platform's security manager exchanges with the device.

#[cfg(test)]
mod tests;

use core::fmt;

use crate::bits::constants;

/// Bits of INTERFACE_INFO.
pub mod info {
    crate::bits::constants! {
        NO_UPDATE: u16 = 1 << 0 => "No update of firmware while the interface is locked or runs.";
        PLAIN_DMA: u16 = 1 << 1 => "Requests without a PASID.";
        PASID_DMA: u16 = 1 << 2 => "Requests with a PASID.";
        ATS: u16 = 1 << 3 => "Address translation services are enabled.";
        PRS: u16 = 1 << 4 => "Page request services are enabled.";
    }
}

/// Attributes of a range.
pub mod range {
    crate::bits::constants! {
        MSIX_TABLE: u16 = 1 << 0 => "It has the MSI-X table.";
        MSIX_PBA: u16 = 1 << 1 => "It has the MSI-X pending bits.";
        NON_TEE: u16 = 1 << 2 => "Any software reaches it (IS_NON_TEE_MEM).";
        UPDATABLE: u16 = 1 << 3 => "Its attribute can be changed while the interface is locked or runs.";
    }
}

constants! {
    HEAD: usize = 16 => "Bytes of a report before its ranges.";
    RANGE: usize = 16 => "Bytes of a range.";
}

/// Range of a function's registers or memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MmioRange {
    /// Address of the first page of 4 KiB, with the offset added that the manager chose at the lock.
    pub start: u64,
    /// Pages of 4 KiB.
    pub pages: u32,
    /// Attributes: see [`range`].
    pub attributes: u16,
    /// Identifier, in most devices the number of the BAR.
    pub id: u16,
}

/// Error of a report's layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReportError {
    /// The report ends before a part that it has to have.
    Cut {
        /// Bytes that there are.
        bytes: usize,
        /// Bytes that its fields ask for.
        wanted: u64,
    },
    /// A range has no pages, or reaches beyond 2^64.
    Range {
        /// The range.
        range: MmioRange,
    },
}

impl fmt::Display for ReportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cut { bytes, wanted } => {
                write!(f, "the report has {bytes} bytes, and {wanted} by its own fields")
            }
            Self::Range { range: MmioRange { start, pages, .. } } => {
                write!(f, "a range of {pages} pages at {start:#x} is none")
            }
        }
    }
}

impl core::error::Error for ReportError {}

/// Device interface report.
///
/// ```
/// use portolan_spec::tdisp::{InterfaceReport, info};
/// // No ranges, and nothing of the device's own.
/// let bytes = [0x3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
/// let report = InterfaceReport::new(&bytes).unwrap();
/// assert_eq!(report.info(), info::NO_UPDATE | info::PLAIN_DMA);
/// assert_eq!(report.ranges().count(), 0);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceReport<'b> {
    head: &'b [u8],
    ranges: &'b [u8],
    device: &'b [u8],
}

/// Little-endian number in the first eight of `bytes`, or as many as there are.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().take(8).rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

impl<'b> InterfaceReport<'b> {
    /// The report in `bytes`, as a device gave it: any bytes. Bytes behind it are left out.
    ///
    /// # Errors
    /// See [`ReportError`].
    pub fn new(bytes: &'b [u8]) -> Result<Self, ReportError> {
        let cut = |wanted: u64| ReportError::Cut { bytes: bytes.len(), wanted };
        let (head, rest) = bytes.split_at_checked(HEAD).ok_or(cut(HEAD as u64))?;
        let count = number(head.get(12..16).unwrap_or_default());
        // A count of 32 bits can't overflow.
        let before_length = HEAD as u64 + count * RANGE as u64;
        let fits = usize::try_from(count * RANGE as u64).ok();
        let parts = fits.and_then(|fits| rest.split_at_checked(fits));
        let (ranges, rest) = parts.ok_or(cut(before_length + 4))?;
        let (length, rest) = rest.split_at_checked(4).ok_or(cut(before_length + 4))?;
        let length = number(length);
        let fits = usize::try_from(length).ok();
        let device = fits.and_then(|fits| rest.get(..fits));
        let device = device.ok_or(cut(before_length + 4 + length))?;
        let report = Self { head, ranges, device };
        let is_none = |range: &MmioRange| {
            let bytes = u64::from(range.pages) << 12;
            bytes == 0 || range.start.checked_add(bytes - 1).is_none()
        };
        match report.ranges().find(is_none) {
            Some(range) => Err(ReportError::Range { range }),
            None => Ok(report),
        }
    }

    fn field(&self, at: usize, bytes: usize) -> u64 {
        number(self.head.get(at..at + bytes).unwrap_or_default())
    }

    /// INTERFACE_INFO: see [`info`].
    pub fn info(&self) -> u16 {
        self.field(0, 2) as u16
    }

    /// The function's MSI-X message control register, if it is locked.
    pub fn msix_control(&self) -> u16 {
        self.field(4, 2) as u16
    }

    /// The control register of lightweight notifications.
    pub fn lnr_control(&self) -> u16 {
        self.field(6, 2) as u16
    }

    /// The control register of TLP processing hints.
    pub fn tph_control(&self) -> u32 {
        self.field(8, 4) as u32
    }

    /// Ranges, in the device's order.
    pub fn ranges(&self) -> impl Iterator<Item = MmioRange> + 'b {
        self.ranges.chunks_exact(RANGE).map(|range| {
            let field = |at: usize, bytes: usize| number(range.get(at..at + bytes).unwrap_or(&[]));
            MmioRange {
                start: field(0, 8),
                pages: field(8, 4) as u32,
                attributes: field(12, 2) as u16,
                id: field(14, 2) as u16,
            }
        })
    }

    /// Information of the device's own kind.
    pub const fn device_specific(&self) -> &'b [u8] {
        self.device
    }
}
