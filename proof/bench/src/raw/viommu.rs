//! Calls into Linux's driver of a virtio-iommu, and into its IOMMU core for devices behind one (`virtio.c` of the
//! shim).

use std::ffi::{CStr, c_int, c_void};
use std::ptr::NonNull;
use std::slice;

use super::linux::{At, OnCpu, ViommuEntries};

/// Placeholder for an address.
const NOWHERE: u64 = u64::MAX;
/// Linux's `DMA_TO_DEVICE` and `DMA_BIDIRECTIONAL`.
const TO_DEVICE: u32 = 1;
const BOTH: u32 = 0;
/// Linux's `IOMMU_READ` and `IOMMU_WRITE`.
const READ: c_int = 1;
const WRITE: c_int = 2;

/// Carries out a request, the first slice, and fills the answer, the second; returns the number of
/// bytes that it filled.
pub(crate) type Carry<'d> = dyn Fn(&[u8], &mut [u8]) -> usize + 'd;

/// Thin, as C passes it on.
struct Context<'d>(&'d Carry<'d>);

/// Carries out the driver's request: the bytes that the device reads and those that it writes.
extern "C" fn carry_out(context: At, out: *const u8, outs: u32, into: *mut u8, ins: u32) -> u32 {
    // SAFETY: `context` came from `OnCpu::viommu`, and the unit keeps it; both buffers are the driver's request,
    // alive and used by no other code until this returns.
    let (carry, request, answer) = unsafe {
        (
            (*context.cast::<Context<'_>>()).0,
            slice::from_raw_parts(out, outs as usize),
            slice::from_raw_parts_mut(into, ins as usize),
        )
    };
    // Nothing unwinds into C: a device that panics ends the process.
    carry(request, answer) as u32
}

/// Access that a device behind the unit has to a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum May {
    Read,
    ReadAndWrite,
}

// SAFETY of all calls below: the thread is a CPU of Linux's; objects are those that Linux gave for the
// purpose, alive until they are dropped, and used by no other code at the time.

/// Linux's driver on a virtio-iommu.
pub(crate) struct Unit<'d> {
    cpu: OnCpu,
    at: NonNull<c_void>,
    _config: Box<[u8]>,
    _carry: Box<Context<'d>>,
}

impl OnCpu {
    /// Starts Linux's driver on a device of these features and configuration, whose requests `carry` carries out;
    /// nothing if it refuses. There is one at a time.
    pub(crate) fn viommu<'d>(
        &self,
        features: u64,
        config: &[u8],
        carry: &'d Carry<'d>,
    ) -> Option<Unit<'d>> {
        let (config, carry) = (Box::<[u8]>::from(config), Box::new(Context(carry)));
        let (bytes, context) = (config.len() as u32, (&raw const *carry).cast_mut().cast());
        // SAFETY: see above; the configuration and the context stay where they are as long as the unit.
        let at = unsafe {
            (self.linux.viommu.viommu)(features, config.as_ptr(), bytes, carry_out, context)
        };
        Some(Unit { cpu: self.clone(), at: NonNull::new(at)?, _config: config, _carry: carry })
    }
}

impl Unit<'_> {
    fn entries(&self) -> &ViommuEntries {
        &self.cpu.linux.viommu
    }

    /// The device writes an event; returns the driver's message about it.
    pub(crate) fn event(&self, event: &[u8]) -> Option<String> {
        // SAFETY: see above; messages are copied before the next one.
        unsafe {
            let took =
                (self.entries().viommu_event)(self.at.as_ptr(), event.as_ptr(), event.len() as u32);
            let said = CStr::from_ptr((self.entries().said)());
            (took != 0).then(|| said.to_string_lossy().into_owned())
        }
    }

    /// A device of this number; nothing if Linux refuses.
    pub(crate) fn endpoint(&self, id: u32) -> Option<Endpoint<'_>> {
        // SAFETY: see above.
        let at = NonNull::new(unsafe { (self.entries().endpoint)(self.at.as_ptr(), id) })?;
        Some(Endpoint { unit: self, at })
    }
}

impl Drop for Unit<'_> {
    fn drop(&mut self) {
        // SAFETY: see above; its endpoints have gone.
        unsafe { (self.entries().viommu_end)(self.at.as_ptr()) };
    }
}

/// A device behind the unit, in a domain for its buffers, strict.
pub(crate) struct Endpoint<'u> {
    unit: &'u Unit<'u>,
    at: NonNull<c_void>,
}

impl Endpoint<'_> {
    /// Maps a buffer for the device; returns the address at which the device reaches it.
    pub(crate) fn map(&self, pa: u64, bytes: u64, may: May) -> Option<u64> {
        // SAFETY: see above; Linux does not look at the buffer.
        let iova = unsafe {
            (self.unit.entries().endpoint_map)(self.at.as_ptr(), pa, bytes, direction(may))
        };
        (iova != NOWHERE).then_some(iova)
    }

    /// Takes a buffer back.
    pub(crate) fn unmap(&self, iova: u64, bytes: u64, may: May) {
        // SAFETY: see above.
        unsafe {
            (self.unit.entries().endpoint_unmap)(self.at.as_ptr(), iova, bytes, direction(may));
        }
    }

    /// The first and last address of its doorbell.
    pub(crate) fn doorbell(&self) -> Option<(u64, u64)> {
        let mut last = 0;
        // SAFETY: see above; `last` is written.
        let start =
            unsafe { (self.unit.entries().endpoint_doorbell)(self.at.as_ptr(), &raw mut last) };
        (start != NOWHERE).then_some((start, last))
    }

    /// Moves it to a domain without a policy, until that is dropped.
    pub(crate) fn unmanaged(&self) -> Option<Unmanaged<'_>> {
        // SAFETY: see above.
        let at = unsafe { (self.unit.entries().endpoint_domain)(self.at.as_ptr()) };
        Some(Unmanaged { endpoint: self, at: NonNull::new(at)? })
    }
}

const fn direction(may: May) -> u32 {
    match may {
        May::Read => TO_DEVICE,
        May::ReadAndWrite => BOTH,
    }
}

impl Drop for Endpoint<'_> {
    fn drop(&mut self) {
        // SAFETY: see above; its other domains have gone.
        unsafe { (self.unit.entries().endpoint_end)(self.at.as_ptr()) };
    }
}

/// A domain whose owner chooses the addresses.
pub(crate) struct Unmanaged<'e> {
    endpoint: &'e Endpoint<'e>,
    at: NonNull<c_void>,
}

impl Unmanaged<'_> {
    /// Maps `bytes` bytes; returns if that worked.
    pub(crate) fn map(&self, iova: u64, pa: u64, bytes: u64, may: May) -> bool {
        let access = match may {
            May::Read => READ,
            May::ReadAndWrite => READ | WRITE,
        };
        let entries = self.endpoint.unit.entries();
        // SAFETY: see above.
        unsafe { (entries.domain_map)(self.at.as_ptr(), iova, pa, bytes, access) == 0 }
    }

    /// Bytes that were unmapped.
    pub(crate) fn unmap(&self, iova: u64, bytes: u64) -> u64 {
        // SAFETY: see above.
        unsafe { (self.endpoint.unit.entries().domain_unmap)(self.at.as_ptr(), iova, bytes) }
    }
}

impl Drop for Unmanaged<'_> {
    fn drop(&mut self) {
        let entries = self.endpoint.unit.entries();
        // SAFETY: see above.
        unsafe { (entries.endpoint_domain_end)(self.endpoint.at.as_ptr(), self.at.as_ptr()) };
    }
}
