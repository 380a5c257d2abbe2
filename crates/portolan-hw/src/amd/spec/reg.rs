//! Registers (3.4), all of 64 bits.

use super::Bits;

/// Device table base.
pub const DEVICE_TABLE: usize = 0x0;
/// Command buffer base.
pub const COMMAND_BASE: usize = 0x8;
/// Event log base.
pub const EVENT_BASE: usize = 0x10;
/// Control.
pub const CONTROL: usize = 0x18;
/// Exclusion range base.
pub const EXCLUSION_BASE: usize = 0x20;
/// Exclusion range limit.
pub const EXCLUSION_LIMIT: usize = 0x28;
/// Extended features.
pub const FEATURES: usize = 0x30;
/// Command buffer head.
pub const COMMAND_HEAD: usize = 0x2000;
/// Command buffer tail.
pub const COMMAND_TAIL: usize = 0x2008;
/// Event log head.
pub const EVENT_HEAD: usize = 0x2010;
/// Event log tail.
pub const EVENT_TAIL: usize = 0x2018;
/// Status.
pub const STATUS: usize = 0x2020;

/// [`DEVICE_TABLE`]: pages of 4 KiB, less one.
pub const TABLE_SIZE: Bits = Bits::new(0, 9);
/// [`COMMAND_BASE`] and [`EVENT_BASE`]: entries, as an exponent from 8 to 15.
pub const LENGTH: Bits = Bits::new(56, 4);
/// Heads and tails: offset in bytes, in units of 16.
pub const INDEX: Bits = Bits::new(4, 15);

/// Bits of [`CONTROL`].
pub mod control {
    /// The IOMMU is enabled.
    pub const ENABLE: u64 = 1;
    /// Events are logged.
    pub const EVENT_LOG: u64 = 1 << 2;
    /// An interrupt for each event.
    pub const EVENT_INTERRUPT: u64 = 1 << 3;
    /// Interrupts by COMPLETION_WAIT.
    pub const WAIT_INTERRUPT: u64 = 1 << 4;
    /// Reads of the device table snoop.
    pub const COHERENT: u64 = 1 << 10;
    /// Commands are fetched.
    pub const COMMANDS: u64 = 1 << 12;
    /// HtTunEn: HyperTransport traffic is tunnelled.
    pub const TUNNEL: u64 = 1 << 1;
    /// InvTimeOut: how long a device's TLB may take to answer an invalidation.
    pub const DEVICE_TLB_LIMIT: u64 = 7 << 5;
    /// PassPW: posted writes of the unit's own may pass others.
    pub const PASS_POSTED: u64 = 1 << 8;
    /// ResPassPW: responses to the unit may pass posted writes.
    pub const RESPONSES_PASS: u64 = 1 << 9;
    /// Isoc: the unit's own reads are isochronous.
    pub const ISOCHRONOUS: u64 = 1 << 11;
    /// PPRLogEn, PPRIntEn: page requests are logged.
    pub const PAGE_REQUEST_LOG: u64 = 3 << 13;
    /// GALogEn, GAIntEn: interrupts for guests are logged.
    pub const GUEST_LOG: u64 = 3 << 28;
    /// DevTblSegEn: the device table is in several segments.
    pub const SEGMENTS: u64 = 7 << 34;
}

/// Fields of [`FEATURES`].
pub mod features {
    use super::Bits;
    /// INVALIDATE_IOMMU_ALL.
    pub const INVALIDATE_ALL: Bits = Bits::new(6, 1);
    /// Host tables of up to four levels and so many more; 3 is reserved.
    pub const HOST_LEVELS: Bits = Bits::new(10, 2);
}

/// Bits of [`STATUS`].
pub mod status {
    /// Events were lost; written 1 to clear.
    pub const EVENT_OVERFLOW: u64 = 1;
    /// An event came; written 1 to clear.
    pub const EVENT_INTERRUPT: u64 = 1 << 1;
    /// A COMPLETION_WAIT interrupted; written 1 to clear.
    pub const WAIT_INTERRUPT: u64 = 1 << 2;
    /// Events are being logged.
    pub const EVENT_RUNS: u64 = 1 << 3;
    /// Commands are being fetched.
    pub const COMMANDS_RUN: u64 = 1 << 4;
    /// Page requests are being logged.
    pub const PAGE_REQUESTS_RUN: u64 = 1 << 7;
    /// Interrupts for guests are being logged.
    pub const GUEST_LOG_RUNS: u64 = 1 << 8;
}
