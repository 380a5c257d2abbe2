//! Registers (chapter 11 of revision 4.1).
//!
//! *Context.* Interrupt: everything here is a value.

use super::Bits;

crate::bits::constants! {
    VER: usize = 0x0 => "Architecture version.";
    CAP: usize = 0x8 => "Capabilities (64 bits).";
    ECAP: usize = 0x10 => "Extended capabilities (64 bits).";
    GCMD: usize = 0x18 => "Global command.";
    GSTS: usize = 0x1c => "Global status.";
    RTADDR: usize = 0x20 => "Root table address (64 bits).";
    CCMD: usize = 0x28 => "Context command (64 bits).";
    FSTS: usize = 0x34 => "Fault status.";
    FECTL: usize = 0x38 => "Fault event control.";
    PMEN: usize = 0x64 => "Protected memory enable.";
    IQH: usize = 0x80 => "Invalidation queue head (64 bits).";
    IQT: usize = 0x88 => "Invalidation queue tail (64 bits).";
    IQA: usize = 0x90 => "Invalidation queue address (64 bits).";
    IQERCD: usize = 0xb0 => "Invalidation queue error record (64 bits).";
    IRTA: usize = 0xb8 => "Interrupt remapping table address (64 bits).";
    PQH: usize = 0xc0 => "Page request queue head (64 bits).";
    PQT: usize = 0xc8 => "Page request queue tail (64 bits).";
    PQA: usize = 0xd0 => "Page request queue address (64 bits).";
    PRS: usize = 0xdc => "Page request status.";
    PECTL: usize = 0xe0 => "Page request event control.";
}

/// Fields of [`VER`].
pub mod ver {
    use super::Bits;
    /// Major version.
    pub const MAJOR: Bits = Bits::new(4, 4);
}

/// Fields of [`CAP`].
pub mod cap {
    use super::Bits;
    crate::bits::fields! { Bits;
        ND: 0, 3 => "Domain identifiers have `4 + 2 * ND` bits.";
        RWBF: 4, 1 => "Writes to tables stay in a buffer until flushed.";
        PLMR: 5, 1 => "Protected low memory.";
        PHMR: 6, 1 => "Protected high memory.";
        CM: 7, 1 => "Caching mode.";
        SAGAW: 8, 5 => "Second-stage levels: bit 1 three, bit 2 four, bit 3 five.";
        MGAW: 16, 6 => "Widest address of a device, less one.";
        FRO: 24, 10 => "Offset of the fault records, in 16 bytes.";
        SS2M: 34, 1 => "Second-stage pages of 2 MiB.";
        SS1G: 35, 1 => "Second-stage pages of 1 GiB.";
        PSI: 39, 1 => "Page-selective invalidation.";
        NFR: 40, 8 => "Number of fault records, less one.";
        MAMV: 48, 6 => "Largest address mask.";
        DWD: 54, 1 => "Writes can be drained.";
        DRD: 55, 1 => "Reads can be drained.";
        FS1GP: 56, 1 => "First-stage pages of 1 GiB.";
        PI: 59, 1 => "Posted interrupts.";
        FS5LP: 60, 1 => "First-stage tables of five levels.";
        ESIRTPS: 62, 1 => "Setting the interrupt table pointer invalidates.";
        ESRTPS: 63, 1 => "Setting the root table pointer invalidates.";
    }
}

/// Fields of [`ECAP`].
pub mod ecap {
    use super::Bits;
    crate::bits::fields! { Bits;
        C: 0, 1 => "Structure and page-table reads snoop.";
        QI: 1, 1 => "Queued invalidation.";
        DT: 2, 1 => "Device TLBs.";
        IR: 3, 1 => "Interrupt remapping.";
        PT: 6, 1 => "Pass-through.";
        EIM: 4, 1 => "Interrupt remapping with identifiers of 32 bits.";
        IRO: 8, 10 => "Offset of the IOTLB registers, in 16 bytes.";
        MHMV: 20, 4 => "Largest index mask of an invalidation of interrupt entries.";
        NEST: 26, 1 => "Nested translation.";
        PRS: 29, 1 => "Page requests.";
        PSS: 35, 5 => "Width of PASIDs, less one.";
        PASID: 40, 1 => "PASIDs.";
        DIT: 41, 1 => "Device-TLB invalidations are throttled by physical function.";
        PDS: 42, 1 => "Page requests can be drained.";
        SMTS: 43, 1 => "Scalable mode.";
        SSADS: 45, 1 => "Accessed and dirty bits in the second stage.";
        SSTS: 46, 1 => "Second stage in scalable mode.";
        FSTS: 47, 1 => "First stage in scalable mode.";
        SMPWC: 48, 1 => "Walks in scalable mode can snoop.";
    }
}

/// Bits of [`GCMD`] and, at the same places, of [`GSTS`].
pub mod command {
    crate::bits::constants! {
        TE: u32 = 1 << 31 => "Translation enable.";
        SRTP: u32 = 1 << 30 => "Set root table pointer.";
        SFL: u32 = 1 << 29 => "Set fault log.";
        WBF: u32 = 1 << 27 => "Write-buffer flush.";
        QIE: u32 = 1 << 26 => "Queued invalidation enable.";
        IRE: u32 = 1 << 25 => "Interrupt remapping enable.";
        SIRTP: u32 = 1 << 24 => "Set interrupt table pointer.";
        CFI: u32 = 1 << 23 => "Interrupts in compatibility format pass.";
        /// The bits of the status that a command has to repeat: all but the one-shot ones.
        STICKY: u32 = !(SRTP | SFL | WBF | SIRTP);
    }
}

/// The registers of a message of the unit's own: bits of the control register, [`FECTL`] or
/// [`PECTL`], and offsets from it.
pub mod event {
    crate::bits::constants! {
        IM: u32 = 1 << 31 => "The message is masked.";
        DATA: usize = 4 => "Its data.";
        ADDRESS: usize = 8 => "Its address.";
        UPPER: usize = 12 => "The upper half of its address.";
    }
}

/// Fields of [`IRTA`] beside the address.
pub mod irta {
    use super::Bits;
    /// Number of entries: an exponent, less one.
    pub const SIZE: Bits = Bits::new(0, 4);
    /// Identifiers of 32 bits.
    pub const EIME: Bits = Bits::new(11, 1);
}

/// Translation table mode in [`RTADDR`] (bits 11:10).
pub mod root_mode {
    crate::bits::constants! {
        MASK: u64 = 3 << 10 => "Where the mode is.";
        LEGACY: u64 = 0 => "Legacy.";
        SCALABLE: u64 = 1 << 10 => "Scalable.";
    }
}

/// Fields of [`CCMD`].
pub mod ccmd {
    use super::Bits;
    crate::bits::fields! { Bits;
        ICC: 63, 1 => "Invalidate; falls when done.";
        CIRG: 61, 2 => "Granularity asked for: 1 global, 2 domain, 3 device.";
        CAIG: 59, 2 => "Granularity of what was done; 0: refused.";
        SID: 16, 16 => "Source.";
        DID: 0, 16 => "Domain.";
    }
}

/// Fields of the IOTLB register, 8 bytes behind the address register at `ECAP.IRO * 16`.
pub mod iotlb {
    use super::Bits;
    crate::bits::fields! { Bits;
        IVT: 63, 1 => "Invalidate; falls when done.";
        IIRG: 60, 2 => "Granularity asked for: 1 global, 2 domain, 3 page.";
        IAIG: 57, 2 => "Granularity of what was done; 0: refused.";
        DR: 49, 1 => "Drain reads.";
        DW: 48, 1 => "Drain writes.";
        DID: 32, 16 => "Domain.";
    }
}

/// Bits of [`FSTS`], and its one field.
pub mod fsts {
    use super::Bits;
    crate::bits::constants! {
        PFO: u32 = 1 => "Primary fault overflow; written 1 to clear.";
        PPF: u32 = 1 << 1 => "Primary fault pending; falls with the records.";
        IQE: u32 = 1 << 4 => "Invalidation queue error; written 1 to clear.";
        ICE: u32 = 1 << 5 => "Invalidation completion error; written 1 to clear.";
        ITE: u32 = 1 << 6 => "Device-TLB invalidation timed out; written 1 to clear.";
        FRI: Bits = Bits::new(8, 8) => "Index of the first pending record.";
    }
}

/// Bits of [`PMEN`].
pub mod pmen {
    /// Enable.
    pub const EPM: u32 = 1 << 31;
    /// Enabled.
    pub const PRS: u32 = 1;
}

/// Fields of [`IQA`] and [`PQA`] beside the address.
pub mod queue {
    use super::Bits;
    crate::bits::fields! { Bits;
        SIZE: 0, 3 => "Size as an exponent of pages.";
        WIDE: 11, 1 => "Descriptors of 256 bits ([`IQA`](super::IQA) only).";
        OFFSET: 0, 19 => "Offset of the head or the tail in bytes.";
    }
}

/// Fields of [`IQERCD`].
pub mod iqercd {
    use super::Bits;
    /// Error of a descriptor.
    pub const IQEI: Bits = Bits::new(0, 4);
    /// Device that timed out, while [`fsts::ITE`](super::fsts::ITE) is set; 0 if the unit does not
    /// tell.
    pub const ITESID: Bits = Bits::new(32, 16);
}

/// Bits of [`PRS`].
pub mod prs {
    /// Page request pending; written 1 to clear.
    pub const PPR: u32 = 1;
    /// Page request overflow; written 1 to clear.
    pub const PRO: u32 = 1 << 1;
}
