//! The codes with which [`portolan::unit::UnitError::Refused`] says why.

/// Refused through registers: the hardware did nothing.
pub const REGISTERS: u32 = 0x300;
/// A descriptor was refused; the low four bits are `IQERCD.IQEI`.
pub const DESCRIPTOR: u32 = 0x100;
/// A device did not complete an invalidation of its TLB.
pub const DEVICE_TLB: u32 = 0x200;
