//! The codes with which [`portolan::iommu::IommuError::Refused`] says why: those of the events that
//! the unit logs of commands.

/// The unit stopped at the command and logged nothing of it.
pub const UNKNOWN: u32 = 0;
/// ILLEGAL_COMMAND_ERROR: the command is malformed.
pub const ILLEGAL: u32 = portolan_spec::amd::event::code::ILLEGAL_COMMAND as u32;
/// COMMAND_HARDWARE_ERROR: the command could not be read.
pub const HARDWARE: u32 = portolan_spec::amd::event::code::COMMAND_HARDWARE as u32;
