//! Registers, at their offsets: of 64 bits where nothing else is said.

use super::{Bits, Bits32};
use crate::bits::fields;

crate::bits::constants! {
    CAPABILITIES: usize = 0 => "`capabilities`: what the unit has.";
    FEATURES: usize = 8 => "`fctl`, 32 bits: what of it is on.";
    DIRECTORY: usize = 16 => "`ddtp`: the device directory.";
    COMMAND_BASE: usize = 24 => "`cqb`: the command queue.";
    COMMAND_HEAD: usize = 32 => "`cqh`, 32 bits: index of the next command that the unit fetches.";
    COMMAND_TAIL: usize = 36 => "`cqt`, 32 bits: index of the next command that software writes.";
    FAULT_BASE: usize = 40 => "`fqb`: the fault queue.";
    FAULT_HEAD: usize = 48 => "`fqh`, 32 bits: index of the next record that software reads.";
    FAULT_TAIL: usize = 52 => "`fqt`, 32 bits: index of the next record that the unit writes.";
    REQUEST_BASE: usize = 56 => "`pqb`: the page-request queue.";
    REQUEST_HEAD: usize = 64 => "`pqh`, 32 bits: index of the next record that software reads.";
    REQUEST_TAIL: usize = 68 => "`pqt`, 32 bits: index of the next record that the unit writes.";
    COMMAND_CONTROL: usize = 72 => "`cqcsr`, 32 bits: control and status of the command queue.";
    FAULT_CONTROL: usize = 76 => "`fqcsr`, 32 bits: control and status of the fault queue.";
    /// `pqcsr`, 32 bits: control and status of the page-request queue.
    REQUEST_CONTROL: usize = 80;
    PENDING: usize = 84 => "`ipsr`, 32 bits: which interrupts are pending; written 1 to clear.";
    /// `iocountovf`, 32 bits: which counters have overflown; bit 0 is the cycles'.
    COUNTER_OVERFLOW: usize = 88;
    /// `iocountinh`, 32 bits: which counters stand still; bit 0 is the cycles'.
    COUNTER_INHIBIT: usize = 92;
    CYCLES: usize = 96 => "`iohpmcycles`.";
    COUNTERS: usize = 104 => "`iohpmctr1`; 30 others follow.";
    EVENTS: usize = 352 => "`iohpmevt1`; 30 others follow.";
    VECTORS: usize = 760 => "`icvec`: the vector of each cause of an interrupt.";
    /// `msi_cfg_tbl`: address, data (32 bits) and mask (32 bits) of the message of each vector.
    MESSAGES: usize = 768;
}

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
        /// Memory-resident interrupt files that the unit updates by atomic operations.
        AMO_MRIF: 21, 1;
        /// MSI page tables; device contexts are then of 64 bytes.
        MSI_FLAT: 22, 1;
        /// Memory-resident interrupt files.
        MSI_MRIF: 23, 1;
        /// Accessed and dirty bits that the unit sets.
        AMO_HWAD: 24, 1;
        /// ATS and page requests.
        ATS: 25, 1;
        /// Either endianness.
        END: 27, 1;
        /// Ways in which the unit raises interrupts.
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

    crate::bits::constants! {
        MESSAGES: u64 = 0 => "Value of [`IGS`]: by messages.";
        WIRES: u64 = 1 => "Value of [`IGS`]: by wires.";
        BOTH: u64 = 2 => "Value of [`IGS`]: by either.";
    }
}

/// Bits of [`FEATURES`].
pub mod feature {
    crate::bits::constants! {
        BIG_ENDIAN: u32 = 1 => "Structures in memory are big-endian.";
        WIRED: u32 = 1 << 1 => "Interrupts are raised by wires.";
        GUEST_32: u32 = 1 << 2 => "Guest physical addresses have 32-bit schemes.";
    }
}

/// Fields of [`DIRECTORY`], whose page number is in [`PPN`](super::PPN).
pub mod directory {
    use super::{Bits, fields};

    fields! { Bits;
        /// Treatment of accesses.
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
    crate::bits::constants! {
        /// The queue is to be on. Turning it on clears its errors, and the index that is the unit's.
        ENABLE: u32 = 1;
        INTERRUPT: u32 = 1 << 1 => "It raises interrupts.";
        MEMORY_FAULT: u32 = 1 << 8 => "Its memory could not be accessed; written 1 to clear.";
        /// Faults and page requests: there was no room; written 1 to clear.
        OVERFLOW: u32 = 1 << 9;
        TIME_OUT: u32 = 1 << 9 => "Commands: a device did not answer; written 1 to clear.";
        ILLEGAL: u32 = 1 << 10 => "Commands: one is illegal; written 1 to clear.";
        ON: u32 = 1 << 16 => "The queue is on.";
        BUSY: u32 = 1 << 17 => "A change is under way.";
    }
}

/// Bits of [`PENDING`].
pub mod pending {
    crate::bits::constants! {
        FAULTS: u32 = 1 << 1 => "Of the fault queue.";
        COUNTERS: u32 = 1 << 2 => "Of counters that have overflown.";
        REQUESTS: u32 = 1 << 3 => "Of the page-request queue.";
        ALL: u32 = 0xf => "Of all there are.";
    }
}

/// Fields of [`EVENTS`].
pub mod event {
    use super::{Bits, fields};

    fields! { Bits;
        /// Event that is counted; 0 is nothing.
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
