//! Settings of a unit, and numbers of register writes by kind.
//!
//! *Context.* Interrupt: everything here is a value.

use super::quirks::{Implementation, Inherited};
use crate::at_work::AtWork;
use crate::chassis::arm::WhenDisabled;
use crate::reservations::Reservations;
use alloc::vec::Vec;
use portolan::platform::Nanos;
use portolan_tables::overrides::CoherencyOverride;

/// Settings of a unit.
///
/// ```no_run
/// # use portolan::iommu::IommuError;
/// # use portolan::platform::{Nanos, UnitPlatform};
/// # use portolan_hw::smmuv2::{Config, SmmuV2, WhenDisabled};
/// /// A unit whose devices reach nothing once it is off.
/// fn open<P: UnitPlatform>(
///     registers: P::Registers, memory: P::Memory, cpus: P,
/// ) -> Result<SmmuV2<P>, IommuError> {
///     let mut config = Config::default();
///     config.when_disabled = WhenDisabled::Abort;
///     SmmuV2::enable(registers, memory, cpus, config)
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// Longest wait for anything that the unit has to do.
    pub limit: Nanos,
    /// Implementation of the unit.
    pub implementation: Implementation,
    /// Firmware's word on reads of tables through the processors' caches.
    pub coherency: CoherencyOverride,
    /// Treatment of streams that a previous owner set up. Blocked by default, also those that
    /// Qualcomm's firmware hands over in use.
    pub inherited: Inherited,
    /// Streams that pass through until they are moved, whatever a previous owner did with them: devices
    /// that firmware has at work. One for which there is no register is blocked.
    pub at_work: Vec<AtWork>,
    /// After [`SmmuV2::disable`](super::SmmuV2::disable).
    pub when_disabled: WhenDisabled,
    /// Memory that firmware reserves for streams: regions that their devices use (RMR nodes:
    /// [`Iort::reserved`](portolan_tables::iort::Iort::reserved)), doorbells of their messages.
    pub reserved: Reservations,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            limit: Nanos::from_millis(1_000),
            implementation: Implementation::Arm,
            coherency: CoherencyOverride::AsRegistersSay,
            inherited: Inherited::Blocked,
            at_work: Vec::new(),
            when_disabled: WhenDisabled::Abort,
            reserved: Reservations::default(),
        }
    }
}

crate::chassis::counters! {
    /// A kind of register write.
    WriteKind,
    /// Writes since the unit was taken over.
    WriteCounts {
        TlbiVa = "TLBIVA" => "Invalidation by address, all levels.";
        TlbiVal = "TLBIVAL" => "Invalidation by address, the last level only.";
        TlbiAsid = "TLBIASID" => "Invalidation by ASID.";
        TlbiIpas2 = "TLBIIPAS2" => "Invalidation by second-stage address, all levels.";
        TlbiIpas2l = "TLBIIPAS2L" => "Invalidation by second-stage address, the last level only.";
        TlbiVmid = "TLBIVMID" => "Invalidation by VMID.";
        TlbiAllNsnh = "TLBIALLNSNH" => "Invalidation of everything.";
        TlbiAllH = "TLBIALLH" => "Invalidation of everything of the hypervisor's.";
        TlbSync = "TLBSYNC" => "Synchronisation of a context bank.";
        TlbGlobalSync = "sTLBGSYNC" => "Synchronisation of all.";
        StreamMatch = "SMR" => "Stream match registers.";
        StreamToContext = "S2CR" => "Stream-to-context registers.";
        Fault = "FSR" => "Faults cleared, stalls answered.";
        Configuration = "configuration" => "Everything else.";
    }
}
