//! A minimal driver of virtio-blk. Virtual I/O Device 1.2, section 5.2: read and write.
//!
//! Request headers, data and queue all go through the IOMMU. A request whose data was blocked may
//! still report success: compare the data.

use std::time::Duration;

use portolan::addr::Iova;
use portolan::platform::Mmio;
use thiserror::Error;

use crate::dma::{Direction, DmaArea};
use crate::pci::Function;
use crate::ram::{GuestRam, OutsideRam};
use crate::virtio_pci::{ACCESS_PLATFORM, LiveQueue, VirtioError, VirtioPci};
use crate::virtqueue::Segment;

/// PCI device id.
pub const DEVICE: u16 = 0x1042;
/// Bytes of a sector.
pub const SECTOR: u64 = 512;

const READ: u32 = 0;
const WRITE: u32 = 1;
const HEADER_BYTES: u32 = 16;
/// Value of the status byte before the device writes it.
const UNWRITTEN: u8 = 0xff;

/// Reason why a request did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BlkError {
    /// The transport failed.
    #[error(transparent)]
    Virtio(#[from] VirtioError),
    /// The request's header is not in guest RAM.
    #[error(transparent)]
    Ram(#[from] OutsideRam),
    /// The device reports an error: 1 for I/O, 2 for unsupported.
    #[error("status {status}")]
    Status {
        /// The status byte.
        status: u8,
    },
    /// The device finished without writing the status byte, as when that write was blocked.
    #[error("no status was written")]
    NoStatus,
}

/// A piece of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Address for the device.
    pub iova: Iova,
    /// Its size in bytes.
    pub bytes: u32,
}

/// A running device.
#[derive(Debug)]
pub struct VirtioBlk {
    virtio: VirtioPci,
    queue: LiveQueue,
    ram: GuestRam,
    header: DmaArea,
}

impl VirtioBlk {
    /// Resets the device and sets up its queue in the page at `queue`; `header` is for the header
    /// (16 bytes) and the status (1 byte) of a request.
    ///
    /// # Errors
    /// [`BlkError::Virtio`], if the device does not go through the IOMMU too.
    pub fn start(
        function: &Function,
        ram: &GuestRam,
        queue: DmaArea,
        header: DmaArea,
        limit: Duration,
    ) -> Result<Self, BlkError> {
        let virtio = VirtioPci::new(function, limit)?;
        virtio.negotiate(ACCESS_PLATFORM, 0)?;
        let queue = virtio.queue(0, ram, queue)?;
        virtio.driver_ok()?;
        let ram = ram.clone();
        Ok(Self { virtio, queue, ram, header })
    }

    /// Number of sectors.
    pub fn sectors(&self) -> u64 {
        self.virtio.config().read64(0)
    }

    /// The transport.
    pub fn transport(&self) -> &VirtioPci {
        &self.virtio
    }

    /// Reads or writes the `data`, whole sectors together, from sector `first` on.
    ///
    /// # Errors
    /// [`BlkError`].
    pub fn transfer(
        &mut self,
        direction: Direction,
        first: u64,
        data: &[Piece],
    ) -> Result<(), BlkError> {
        let kind = match direction {
            Direction::ToDevice => WRITE,
            Direction::FromDevice => READ,
        };
        let status = self.header.phys_at(HEADER_BYTES.into())?;
        self.ram.write64(self.header.phys, kind.into())?;
        self.ram.write64(self.header.phys_at(8)?, first)?;
        self.ram.write(status, &[UNWRITTEN])?;
        let iova = self.header.iova;
        let address = self.header.phys;
        let bytes = HEADER_BYTES.into();
        let status_iova = iova.checked_add(bytes).ok_or(OutsideRam { address, bytes })?;
        let mut segments =
            vec![Segment { iova, bytes: HEADER_BYTES, direction: Direction::ToDevice }];
        let pieces = data.iter();
        segments.extend(pieces.map(|p| Segment { iova: p.iova, bytes: p.bytes, direction }));
        let (iova, direction) = (status_iova, Direction::FromDevice);
        segments.push(Segment { iova, bytes: 1, direction });
        self.virtio.request(&mut self.queue, &segments)?;
        let mut byte = [0];
        self.ram.read(status, &mut byte)?;
        match byte {
            [0] => Ok(()),
            [UNWRITTEN] => Err(BlkError::NoStatus),
            [status] => Err(BlkError::Status { status }),
        }
    }
}
