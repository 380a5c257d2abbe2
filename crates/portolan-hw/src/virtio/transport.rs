//! Interface of a virtio transport that the driver needs.
//!
//! Virtual I/O Device (VIRTIO) 1.2, sections 5.13.2 (queues) and 5.13.5 (initialisation).

use portolan::iommu::IommuError;
use portolan_spec::virtio::FAULT_BYTES;

/// One request of several that are sent together.
#[derive(Debug)]
pub struct Exchange<'a> {
    /// Bytes that the device reads.
    pub request: &'a [u8],
    /// Bytes that it writes.
    pub answer: &'a mut [u8],
    /// Outcome of the request; as [`Transport::request`] returns it.
    pub outcome: Result<(), IommuError>,
}

/// A virtio-iommu device whose features are negotiated and whose queues run: `DRIVER_OK` is set.
///
/// *Implementer's duties.* Methods may be called from several CPUs at once. Each returns within a
/// limit of the implementer's, with any behaviour of the device; buffers of a request that was
/// given up are not reused until the device has returned them. A device that needs a reset, or is
/// gone, is [`IommuError::Gone`].
///
/// *Context.* [`Transport::next_fault`], [`Transport::features`] and [`Transport::all_returned`]:
/// interrupt. The others: atomic.
pub trait Transport {
    /// The features that both sides accepted; accept
    /// [`DRIVER_FEATURES`](portolan_spec::virtio::DRIVER_FEATURES) as far as they are offered.
    fn features(&self) -> u64;

    /// Reads 4 bytes of the configuration.
    ///
    /// # Errors
    /// [`IommuError::Gone`].
    fn config32(&self, offset: usize) -> Result<u32, IommuError>;

    /// Reads 8 bytes of the configuration, of one generation.
    ///
    /// # Errors
    /// [`IommuError::Gone`].
    fn config64(&self, offset: usize) -> Result<u64, IommuError>;

    /// Writes 1 byte of the configuration and reads it back.
    ///
    /// # Errors
    /// [`IommuError::Gone`].
    fn set_config8(&self, offset: usize, value: u8) -> Result<u8, IommuError>;

    /// Sends `request` over queue 0, waits, and fills `answer` with the bytes that the device
    /// wrote. Other bytes are left as they were.
    ///
    /// # Errors
    /// [`IommuError::TimedOut`] with [`Completion`](portolan::iommu::Awaited::Completion): the device
    /// may still carry it out later. [`IommuError::Gone`].
    fn request(&self, request: &[u8], answer: &mut [u8]) -> Result<(), IommuError>;

    /// Sends all requests of `batch` and waits for all of them; they concern different things, so
    /// their order does not matter. A transport that can hands them to the device at once.
    fn request_all(&self, batch: &mut [Exchange<'_>]) {
        for one in batch {
            one.outcome = self.request(one.request, one.answer);
        }
    }

    /// Tells if the device has returned the buffers of all requests that were given up, so that
    /// none of them can be carried out from now on. A transport that does not know returns `false`:
    /// the driver then never reuses the addresses and the domain of such a request.
    fn all_returned(&self) -> bool {
        false
    }

    /// The next record of queue 1 and the number of its bytes that the device wrote. The buffer
    /// goes back to the device.
    ///
    /// # Errors
    /// [`IommuError::Gone`].
    fn next_fault(&self) -> Result<Option<([u8; FAULT_BYTES], usize)>, IommuError>;
}
