//! The way of a request to the device, its answer, and the properties in it.
//!
//! Interface of a virtio transport that the driver needs.
//!
//! Virtual I/O Device (VIRTIO) 1.2, sections 5.13.2 (queues) and 5.13.5 (initialisation).
//!
//! Answers of the device: the status of a request, and faults.
//!
//! Properties of an endpoint: the addresses that it cannot use.
//!
//! Virtual I/O Device (VIRTIO) 1.2, sections 5.13.6.7 and 5.13.6.7.3.
//!
//! *Context.* Interrupt: values; requests wait for the device (atomic).

use alloc::vec::Vec;
use portolan::addr::{Iova, IovaRange, StreamId};
use portolan::iommu::{
    FaultAccess, FaultReason, FaultRecord, IommuError, ReservedKind, ReservedRegion,
};
use portolan_spec::virtio as spec;
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

/// Value of an answer before the device has written it; no status has it.
pub(super) const UNWRITTEN: u8 = 0xff;

/// Checks that the request was carried out, by the last bytes of its answer.
pub(super) fn status(answer: &[u8]) -> Result<(), IommuError> {
    let at = answer.len().checked_sub(spec::TAIL_BYTES);
    match at.and_then(|at| answer.get(at)) {
        Some(&spec::S_OK) => Ok(()),
        Some(&UNWRITTEN) | None => {
            Err(IommuError::Nonsense { offset: at.unwrap_or(0), value: UNWRITTEN.into() })
        }
        Some(&code) => Err(IommuError::Refused { code: code.into() }),
    }
}

/// The error of a request for which there is no endpoint or no domain.
pub(super) const NO_SUCH: IommuError = IommuError::Refused { code: spec::S_NOENT as u32 };

/// The record in the first `written` bytes. A missing mapping and a forbidden access have the same
/// reason here: [`FaultReason::NotMapped`].
pub(super) fn fault(
    bytes: &[u8; spec::FAULT_BYTES],
    written: usize,
) -> Result<FaultRecord, IommuError> {
    if written < spec::FAULT_BYTES {
        return Err(IommuError::Nonsense { offset: 0, value: written as u64 });
    }
    let [reason, _, _, _, flags @ ..] = *bytes;
    let [f0, f1, f2, f3, e0, e1, e2, e3, _, _, _, _, address @ ..] = flags;
    let flags = u32::from_le_bytes([f0, f1, f2, f3]);
    let access = if flags & spec::FAULT_WRITE != 0 {
        Some(FaultAccess::Write)
    } else if flags & spec::FAULT_READ != 0 {
        Some(FaultAccess::Read)
    } else {
        None
    };
    let iova = Iova::new(u64::from_le_bytes(address));
    Ok(FaultRecord {
        stream: StreamId::new(u32::from_le_bytes([e0, e1, e2, e3])),
        pasid: None,
        iova: (flags & spec::FAULT_ADDRESS != 0).then_some(iova),
        access,
        reason: match reason {
            spec::R_DOMAIN => FaultReason::Blocked,
            spec::R_MAPPING => FaultReason::NotMapped,
            code => FaultReason::Other { code: code.into() },
        },
    })
}

/// The reserved addresses in a list of properties. Properties of other types are passed over;
/// reserved addresses of unknown kind are taken for unusable.
pub(super) fn reserved(properties: &[u8]) -> Result<Vec<ReservedRegion>, IommuError> {
    let mut found = Vec::new();
    let mut rest = properties;
    while let [t0, t1, l0, l1, after @ ..] = rest {
        let kind = u16::from_le_bytes([*t0, *t1]) & spec::PROPERTY_TYPE;
        if kind == spec::P_NONE {
            break;
        }
        let at = properties.len().saturating_sub(rest.len());
        let length = usize::from(u16::from_le_bytes([*l0, *l1]));
        let wrong = IommuError::Nonsense { offset: at, value: length as u64 };
        let value = after.get(..length).ok_or(wrong)?;
        rest = after.get(length..).unwrap_or(&[]);
        if kind == spec::P_RESV_MEM {
            found.push(region(value).ok_or(wrong)?);
        }
    }
    Ok(found)
}

/// The region in a property behind its head.
fn region(value: &[u8]) -> Option<ReservedRegion> {
    let (kind, numbers) = value.get(..spec::RESV_MEM_BYTES)?.split_first()?;
    let number = |at: usize| {
        let bytes = numbers.get(at..at.checked_add(8)?)?;
        bytes.try_into().ok().map(u64::from_le_bytes)
    };
    Some(ReservedRegion {
        range: IovaRange::new(Iova::new(number(3)?), Iova::new(number(11)?))?,
        kind: match *kind {
            // Writes are message-signalled interrupts, without a mapping.
            spec::RESV_MSI => ReservedKind::Interrupts,
            _ => ReservedKind::Unusable,
        },
    })
}
