//! The codes with which [`portolan::iommu::IommuError::Refused`] says why.
//!
//! *Context.* Interrupt: everything here is a value.

use portolan::addr::StreamId;

/// Refused through registers: the hardware did nothing.
pub const REGISTERS: u32 = 0x300;
/// A descriptor was refused; the low four bits are `IQERCD.IQEI`.
pub const DESCRIPTOR: u32 = 0x100;
/// A device did not complete an invalidation of its TLB; see [`device`] for which.
pub const DEVICE_TLB: u32 = 0x200;

/// [`DEVICE_TLB`] with the device in the upper half.
pub(super) fn device_tlb(stream: u16) -> u32 {
    DEVICE_TLB | u32::from(stream) << 16
}

/// The device that did not complete an invalidation of its TLB, if `code` says that one did not and
/// the unit told which.
pub fn device(code: u32) -> Option<StreamId> {
    let known = code & 0xffff == DEVICE_TLB && code >> 16 != 0;
    known.then_some(StreamId::new(code >> 16))
}
