//! Registers, at their offsets: of 64 bits where nothing else is said.

use super::{Bits, Bits32};
use crate::chassis::fields;

/// `capabilities`: what the unit has.
pub const CAPABILITIES: usize = 0;
/// `fctl`, 32 bits: what of it is on.
pub const FEATURES: usize = 8;
/// `ddtp`: the device directory.
pub const DIRECTORY: usize = 16;
/// `cqb`: the command queue.
pub const COMMAND_BASE: usize = 24;
/// `cqh`, 32 bits: index of the next command that the unit fetches.
pub const COMMAND_HEAD: usize = 32;
/// `cqt`, 32 bits: index of the next command that software writes.
pub const COMMAND_TAIL: usize = 36;
/// `fqb`: the fault queue.
pub const FAULT_BASE: usize = 40;
/// `fqh`, 32 bits: index of the next record that software reads.
pub const FAULT_HEAD: usize = 48;
/// `fqt`, 32 bits: index of the next record that the unit writes.
pub const FAULT_TAIL: usize = 52;
/// `pqb`: the page-request queue.
pub const REQUEST_BASE: usize = 56;
/// `pqh`, 32 bits: index of the next record that software reads.
pub const REQUEST_HEAD: usize = 64;
/// `pqt`, 32 bits: index of the next record that the unit writes.
pub const REQUEST_TAIL: usize = 68;
/// `cqcsr`, 32 bits: control and status of the command queue.
pub const COMMAND_CONTROL: usize = 72;
/// `fqcsr`, 32 bits: control and status of the fault queue.
pub const FAULT_CONTROL: usize = 76;
/// `pqcsr`, 32 bits: control and status of the page-request queue.
pub const REQUEST_CONTROL: usize = 80;
/// `ipsr`, 32 bits: which interrupts are pending; written 1 to clear.
pub const PENDING: usize = 84;
/// `iocountovf`, 32 bits: which counters have overflown; bit 0 is the cycles'.
pub const COUNTER_OVERFLOW: usize = 88;
/// `iocountinh`, 32 bits: which counters stand still; bit 0 is the cycles'.
pub const COUNTER_INHIBIT: usize = 92;
/// `iohpmcycles`.
pub const CYCLES: usize = 96;
/// `iohpmctr1`; 30 others follow.
pub const COUNTERS: usize = 104;
/// `iohpmevt1`; 30 others follow.
pub const EVENTS: usize = 352;
/// `icvec`: the vector of each cause of an interrupt.
pub const VECTORS: usize = 760;
/// `msi_cfg_tbl`: address, data (32 bits) and mask (32 bits) of the message of each vector.
pub const MESSAGES: usize = 768;

/// Fields of [`CAPABILITIES`].
pub mod capability {
    use super::{Bits, fields};

    fields! { Bits;
        /// Version of the specification: major in the upper half, minor in the lower.
        VERSION: 0, 8;
        /// First-stage tables of three levels.
        SV39: 9, 1;
        /// First-stage tables of four levels.
        SV48: 10, 1;
        /// First-stage tables of five levels.
        SV57: 11, 1;
        /// Memory types in tables.
        SVPBMT: 15, 1;
        /// Second-stage tables of three levels.
        SV39X4: 17, 1;
        /// Second-stage tables of four levels.
        SV48X4: 18, 1;
        /// Second-stage tables of five levels.
        SV57X4: 19, 1;
        /// MSI page tables; device contexts are then of 64 bytes.
        MSI_FLAT: 22, 1;
        /// Accessed and dirty bits that the unit sets.
        AMO_HWAD: 24, 1;
        /// ATS and page requests.
        ATS: 25, 1;
        /// Either endianness.
        END: 27, 1;
        /// How the unit raises interrupts.
        IGS: 28, 2;
        /// Hardware counters.
        HPM: 30, 1;
        /// Width of physical addresses.
        PAS: 32, 6;
        /// Process directories for 8 bits.
        PD8: 38, 1;
        /// Process directories for 17 bits.
        PD17: 39, 1;
        /// Process directories for 20 bits.
        PD20: 40, 1;
        /// Invalidation of entries above the leaves by address.
        NL: 42, 1;
        /// Invalidation of ranges.
        S: 43, 1;
    }

    /// Value of [`IGS`]: by messages.
    pub const MESSAGES: u64 = 0;
    /// Value of [`IGS`]: by wires.
    pub const WIRES: u64 = 1;
    /// Value of [`IGS`]: by either.
    pub const BOTH: u64 = 2;
}

/// Bits of [`FEATURES`].
pub mod feature {
    /// Structures in memory are big-endian.
    pub const BIG_ENDIAN: u32 = 1;
    /// Interrupts are raised by wires.
    pub const WIRED: u32 = 1 << 1;
    /// Guest physical addresses have 32-bit schemes.
    pub const GUEST_32: u32 = 1 << 2;
}

/// Fields of [`DIRECTORY`], whose page number is in [`PPN`](super::PPN).
pub mod directory {
    use super::{Bits, fields};

    fields! { Bits;
        /// What becomes of accesses.
        MODE: 0, 4;
        /// A change of the mode is under way.
        BUSY: 4, 1;
    }

    /// Value of [`MODE`]: none is let through.
    pub const OFF: u64 = 0;
    /// Value of [`MODE`]: all are let through.
    pub const BARE: u64 = 1;
    /// Value of [`MODE`]: a directory of one level; of two and three levels the next values.
    pub const ONE_LEVEL: u64 = 2;
}

/// Queue bases: number of entries as an exponent, less one.
pub const LENGTH: Bits = Bits::new(0, 5);

/// Bits of the control and status registers of queues.
pub mod queue {
    /// The queue is to be on. Turning it on clears its errors, and the index that is the unit's.
    pub const ENABLE: u32 = 1;
    /// It raises interrupts.
    pub const INTERRUPT: u32 = 1 << 1;
    /// Its memory could not be accessed; written 1 to clear.
    pub const MEMORY_FAULT: u32 = 1 << 8;
    /// Faults and page requests: there was no room; written 1 to clear.
    pub const OVERFLOW: u32 = 1 << 9;
    /// Commands: a device did not answer; written 1 to clear.
    pub const TIME_OUT: u32 = 1 << 9;
    /// Commands: one is illegal; written 1 to clear.
    pub const ILLEGAL: u32 = 1 << 10;
    /// The queue is on.
    pub const ON: u32 = 1 << 16;
    /// A change is under way.
    pub const BUSY: u32 = 1 << 17;
}

/// Bits of [`PENDING`].
pub mod pending {
    /// Of the fault queue.
    pub const FAULTS: u32 = 1 << 1;
    /// Of counters that have overflown.
    pub const COUNTERS: u32 = 1 << 2;
    /// Of the page-request queue.
    pub const REQUESTS: u32 = 1 << 3;
    /// Of all there are.
    pub const ALL: u32 = 0xf;
}

/// Fields of [`EVENTS`].
pub mod event {
    use super::{Bits, fields};

    fields! { Bits;
        /// What is counted; 0 is nothing.
        ID: 0, 15;
        /// Of which device.
        DID: 36, 24;
        /// The device counts.
        DV: 61, 1;
        /// The counter has overflown.
        OVERFLOW: 63, 1;
    }
}

fields! { Bits;
    /// [`CYCLES`]: without the bit that says that it has overflown.
    CYCLE: 0, 63;
}

fields! { Bits;
    /// A message's address.
    MESSAGE_ADDRESS: 0, 56;
}
fields! { Bits32;
    /// The third register of a message: it is masked.
    MASKED: 0, 1;
}
