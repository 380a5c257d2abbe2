//! Registers (chapter 11 of revision 4.1).
//!
//! *Context.* Interrupt: everything here is a value.

use super::Bits;

/// Architecture version.
pub const VER: usize = 0x0;
/// Capabilities (64 bits).
pub const CAP: usize = 0x8;
/// Extended capabilities (64 bits).
pub const ECAP: usize = 0x10;
/// Global command.
pub const GCMD: usize = 0x18;
/// Global status.
pub const GSTS: usize = 0x1c;
/// Root table address (64 bits).
pub const RTADDR: usize = 0x20;
/// Context command (64 bits).
pub const CCMD: usize = 0x28;
/// Fault status.
pub const FSTS: usize = 0x34;
/// Fault event control.
pub const FECTL: usize = 0x38;
/// Protected memory enable.
pub const PMEN: usize = 0x64;
/// Invalidation queue head (64 bits).
pub const IQH: usize = 0x80;
/// Invalidation queue tail (64 bits).
pub const IQT: usize = 0x88;
/// Invalidation queue address (64 bits).
pub const IQA: usize = 0x90;
/// Invalidation queue error record (64 bits).
pub const IQERCD: usize = 0xb0;
/// Interrupt remapping table address (64 bits).
pub const IRTA: usize = 0xb8;
/// Page request queue head (64 bits).
pub const PQH: usize = 0xc0;
/// Page request queue tail (64 bits).
pub const PQT: usize = 0xc8;
/// Page request queue address (64 bits).
pub const PQA: usize = 0xd0;
/// Page request status.
pub const PRS: usize = 0xdc;
/// Page request event control.
pub const PECTL: usize = 0xe0;

/// Fields of [`VER`].
pub mod ver {
    use super::Bits;
    /// Major version.
    pub const MAJOR: Bits = Bits::new(4, 4);
}

/// Fields of [`CAP`].
pub mod cap {
    use super::Bits;
    /// Domain identifiers have `4 + 2 * ND` bits.
    pub const ND: Bits = Bits::new(0, 3);
    /// Writes to tables stay in a buffer until flushed.
    pub const RWBF: Bits = Bits::new(4, 1);
    /// Protected low memory.
    pub const PLMR: Bits = Bits::new(5, 1);
    /// Protected high memory.
    pub const PHMR: Bits = Bits::new(6, 1);
    /// Caching mode.
    pub const CM: Bits = Bits::new(7, 1);
    /// Second-stage levels: bit 1 three, bit 2 four, bit 3 five.
    pub const SAGAW: Bits = Bits::new(8, 5);
    /// Widest address of a device, less one.
    pub const MGAW: Bits = Bits::new(16, 6);
    /// Offset of the fault records, in 16 bytes.
    pub const FRO: Bits = Bits::new(24, 10);
    /// Second-stage pages of 2 MiB.
    pub const SS2M: Bits = Bits::new(34, 1);
    /// Second-stage pages of 1 GiB.
    pub const SS1G: Bits = Bits::new(35, 1);
    /// Page-selective invalidation.
    pub const PSI: Bits = Bits::new(39, 1);
    /// Number of fault records, less one.
    pub const NFR: Bits = Bits::new(40, 8);
    /// Largest address mask.
    pub const MAMV: Bits = Bits::new(48, 6);
    /// Writes can be drained.
    pub const DWD: Bits = Bits::new(54, 1);
    /// Reads can be drained.
    pub const DRD: Bits = Bits::new(55, 1);
    /// First-stage pages of 1 GiB.
    pub const FS1GP: Bits = Bits::new(56, 1);
    /// First-stage tables of five levels.
    pub const FS5LP: Bits = Bits::new(60, 1);
    /// Setting the interrupt table pointer invalidates.
    pub const ESIRTPS: Bits = Bits::new(62, 1);
    /// Setting the root table pointer invalidates.
    pub const ESRTPS: Bits = Bits::new(63, 1);
}

/// Fields of [`ECAP`].
pub mod ecap {
    use super::Bits;
    /// Structure and page-table reads snoop.
    pub const C: Bits = Bits::new(0, 1);
    /// Queued invalidation.
    pub const QI: Bits = Bits::new(1, 1);
    /// Device TLBs.
    pub const DT: Bits = Bits::new(2, 1);
    /// Interrupt remapping.
    pub const IR: Bits = Bits::new(3, 1);
    /// Pass-through.
    pub const PT: Bits = Bits::new(6, 1);
    /// Interrupt remapping with identifiers of 32 bits.
    pub const EIM: Bits = Bits::new(4, 1);
    /// Offset of the IOTLB registers, in 16 bytes.
    pub const IRO: Bits = Bits::new(8, 10);
    /// Largest index mask of an invalidation of interrupt entries.
    pub const MHMV: Bits = Bits::new(20, 4);
    /// Nested translation.
    pub const NEST: Bits = Bits::new(26, 1);
    /// Page requests.
    pub const PRS: Bits = Bits::new(29, 1);
    /// Width of PASIDs, less one.
    pub const PSS: Bits = Bits::new(35, 5);
    /// PASIDs.
    pub const PASID: Bits = Bits::new(40, 1);
    /// Device-TLB invalidations are throttled by physical function.
    pub const DIT: Bits = Bits::new(41, 1);
    /// Page requests can be drained.
    pub const PDS: Bits = Bits::new(42, 1);
    /// Scalable mode.
    pub const SMTS: Bits = Bits::new(43, 1);
    /// Second stage in scalable mode.
    pub const SSTS: Bits = Bits::new(46, 1);
    /// First stage in scalable mode.
    pub const FSTS: Bits = Bits::new(47, 1);
    /// Walks in scalable mode can snoop.
    pub const SMPWC: Bits = Bits::new(48, 1);
}

/// Bits of [`GCMD`] and, at the same places, of [`GSTS`].
pub mod command {
    /// Translation enable.
    pub const TE: u32 = 1 << 31;
    /// Set root table pointer.
    pub const SRTP: u32 = 1 << 30;
    /// Set fault log.
    pub const SFL: u32 = 1 << 29;
    /// Write-buffer flush.
    pub const WBF: u32 = 1 << 27;
    /// Queued invalidation enable.
    pub const QIE: u32 = 1 << 26;
    /// Interrupt remapping enable.
    pub const IRE: u32 = 1 << 25;
    /// Set interrupt table pointer.
    pub const SIRTP: u32 = 1 << 24;
    /// Interrupts in compatibility format pass.
    pub const CFI: u32 = 1 << 23;
    /// The bits of the status that a command has to repeat: all but the one-shot ones.
    pub const STICKY: u32 = !(SRTP | SFL | WBF | SIRTP);
}

/// The registers of a message of the unit's own: bits of the control register, [`FECTL`] or [`PECTL`], and
/// what is how far behind it.
pub mod event {
    /// The message is masked.
    pub const IM: u32 = 1 << 31;
    /// Its data.
    pub const DATA: usize = 4;
    /// Its address.
    pub const ADDRESS: usize = 8;
    /// The upper half of its address.
    pub const UPPER: usize = 12;
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
    /// Where the mode is.
    pub const MASK: u64 = 3 << 10;
    /// Legacy.
    pub const LEGACY: u64 = 0;
    /// Scalable.
    pub const SCALABLE: u64 = 1 << 10;
}

/// Fields of [`CCMD`].
pub mod ccmd {
    use super::Bits;
    /// Invalidate; falls when done.
    pub const ICC: Bits = Bits::new(63, 1);
    /// Granularity asked for: 1 global, 2 domain, 3 device.
    pub const CIRG: Bits = Bits::new(61, 2);
    /// Granularity of what was done; 0: refused.
    pub const CAIG: Bits = Bits::new(59, 2);
    /// Source.
    pub const SID: Bits = Bits::new(16, 16);
    /// Domain.
    pub const DID: Bits = Bits::new(0, 16);
}

/// Fields of the IOTLB register, 8 bytes behind the address register at `ECAP.IRO * 16`.
pub mod iotlb {
    use super::Bits;
    /// Invalidate; falls when done.
    pub const IVT: Bits = Bits::new(63, 1);
    /// Granularity asked for: 1 global, 2 domain, 3 page.
    pub const IIRG: Bits = Bits::new(60, 2);
    /// Granularity of what was done; 0: refused.
    pub const IAIG: Bits = Bits::new(57, 2);
    /// Drain reads.
    pub const DR: Bits = Bits::new(49, 1);
    /// Drain writes.
    pub const DW: Bits = Bits::new(48, 1);
    /// Domain.
    pub const DID: Bits = Bits::new(32, 16);
}

/// Bits of [`FSTS`], and its one field.
pub mod fsts {
    use super::Bits;
    /// Primary fault overflow; written 1 to clear.
    pub const PFO: u32 = 1;
    /// Primary fault pending; falls with the records.
    pub const PPF: u32 = 1 << 1;
    /// Invalidation queue error; written 1 to clear.
    pub const IQE: u32 = 1 << 4;
    /// Invalidation completion error; written 1 to clear.
    pub const ICE: u32 = 1 << 5;
    /// Device-TLB invalidation timed out; written 1 to clear.
    pub const ITE: u32 = 1 << 6;
    /// Index of the first pending record.
    pub const FRI: Bits = Bits::new(8, 8);
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
    /// Size as an exponent of pages.
    pub const SIZE: Bits = Bits::new(0, 3);
    /// Descriptors of 256 bits ([`IQA`](super::IQA) only).
    pub const WIDE: Bits = Bits::new(11, 1);
    /// Offset of the head or the tail in bytes.
    pub const OFFSET: Bits = Bits::new(0, 19);
}

/// Fields of [`IQERCD`].
pub mod iqercd {
    use super::Bits;
    /// What was wrong with a descriptor.
    pub const IQEI: Bits = Bits::new(0, 4);
    /// Which device timed out, while [`fsts::ITE`](super::fsts::ITE) is set; 0 if the unit does
    /// not tell.
    pub const ITESID: Bits = Bits::new(32, 16);
}

/// Bits of [`PRS`].
pub mod prs {
    /// Page request pending; written 1 to clear.
    pub const PPR: u32 = 1;
    /// Page request overflow; written 1 to clear.
    pub const PRO: u32 = 1 << 1;
}
