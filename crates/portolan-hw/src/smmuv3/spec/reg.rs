//! Registers of the non-secure programming interface, pages 0 and 1 (IHI 0070, section 6.3).
//!
//! *Context.* Interrupt: everything here is a value.

use super::fields;

/// Bytes of the two pages of registers, each of 64 KiB.
pub const WINDOW_BYTES: usize = 0x2_0000;

/// Identification 0: stages, formats, coherency, message-signalled interrupts.
pub const IDR0: usize = 0x0000;
/// Identification 1: widths of identifiers, sizes of queues.
pub const IDR1: usize = 0x0004;
/// Identification 3: range invalidation, block-size changes.
pub const IDR3: usize = 0x000c;
/// Identification 5: output size, granules.
pub const IDR5: usize = 0x0014;
/// Implementation identification: see [`iidr`].
pub const IIDR: usize = 0x0018;
/// Control 0: enables.
pub const CR0: usize = 0x0020;
/// What of [`CR0`] has taken effect.
pub const CR0ACK: usize = 0x0024;
/// Control 1: memory attributes of queues and tables.
pub const CR1: usize = 0x0028;
/// Control 2.
pub const CR2: usize = 0x002c;
/// What happens to accesses while the unit is disabled.
pub const GBPA: usize = 0x0044;
/// Interrupt enables.
pub const IRQ_CTRL: usize = 0x0050;
/// What of [`IRQ_CTRL`] has taken effect.
pub const IRQ_CTRLACK: usize = 0x0054;
/// Global errors, each by a change of its bit.
pub const GERROR: usize = 0x0060;
/// Which of them were seen: the bit is made equal.
pub const GERRORN: usize = 0x0064;
/// Where the message of a global error goes; 0 for a wire (64 bits).
pub const GERROR_IRQ_CFG0: usize = 0x0068;
/// Stream table.
pub const STRTAB_BASE: usize = 0x0080;
/// Its size and form.
pub const STRTAB_BASE_CFG: usize = 0x0088;
/// Command queue.
pub const CMDQ_BASE: usize = 0x0090;
/// Where software writes next.
pub const CMDQ_PROD: usize = 0x0098;
/// Where the unit reads next, and why it stopped.
pub const CMDQ_CONS: usize = 0x009c;
/// Event queue.
pub const EVENTQ_BASE: usize = 0x00a0;
/// Where the message of an event goes; 0 for a wire (64 bits).
pub const EVENTQ_IRQ_CFG0: usize = 0x00b0;
/// Page-request queue.
pub const PRIQ_BASE: usize = 0x00c0;
/// Where the message of a page request goes; 0 for a wire (64 bits).
pub const PRIQ_IRQ_CFG0: usize = 0x00d0;
/// Where the unit writes events next (page 1).
pub const EVENTQ_PROD: usize = 0x1_00a8;
/// Where software reads events next (page 1).
pub const EVENTQ_CONS: usize = 0x1_00ac;
/// Where the unit writes page requests next (page 1).
pub const PRIQ_PROD: usize = 0x1_00c8;
/// Where software reads page requests next (page 1).
pub const PRIQ_CONS: usize = 0x1_00cc;

/// Fields of [`IIDR`].
pub mod iidr {
    super::super::fields! {
        /// Who made it: a JEP106 code.
        IMPLEMENTER: 0, 0, 12;
        /// Minor revision, the p of r0p1.
        REVISION: 0, 12, 4;
        /// Major revision, the r of r0p1.
        VARIANT: 0, 16, 4;
        /// Product.
        PRODUCT: 0, 20, 12;
    }
}

/// Fields of [`IDR0`].
pub mod idr0 {
    super::super::fields! {
        /// Stage 2.
        S2P: 0, 0, 1;
        /// Stage 1.
        S1P: 0, 1, 1;
        /// Table formats.
        TTF: 0, 2, 2;
        /// Coherent access to tables and queues.
        COHACC: 0, 4, 1;
        /// Hardware update of access flags and dirty state.
        HTTU: 0, 6, 2;
        /// EL2 contexts.
        HYP: 0, 9, 1;
        /// Address translation service.
        ATS: 0, 10, 1;
        /// ASIDs of 16 bits.
        ASID16: 0, 12, 1;
        /// Message-signalled interrupts.
        MSI: 0, 13, 1;
        /// Page requests.
        PRI: 0, 16, 1;
        /// VMIDs of 16 bits.
        VMID16: 0, 18, 1;
        /// Two-level context descriptor tables.
        CD2L: 0, 19, 1;
        /// Endianness of table walks.
        TTENDIAN: 0, 21, 2;
        /// Stall or terminate.
        STALL_MODEL: 0, 24, 2;
        /// Two-level stream tables.
        ST_LEVEL: 0, 27, 2;
    }
}

/// Fields of [`IDR1`].
pub mod idr1 {
    super::super::fields! {
        /// Bits of a stream number.
        SIDSIZE: 0, 0, 6;
        /// Bits of a substream number.
        SSIDSIZE: 0, 6, 5;
        /// Largest page-request queue, as an exponent.
        PRIQS: 0, 11, 5;
        /// Largest event queue, as an exponent.
        EVENTQS: 0, 16, 5;
        /// Largest command queue, as an exponent.
        CMDQS: 0, 21, 5;
        /// The base registers give relative addresses (only with presets).
        REL: 0, 28, 1;
        /// The queues are where they are.
        QUEUES_PRESET: 0, 29, 1;
        /// The tables are where they are.
        TABLES_PRESET: 0, 30, 1;
    }
}

/// Fields of [`IDR3`].
pub mod idr3 {
    super::super::fields! {
        /// Range invalidation and level hints.
        RIL: 0, 10, 1;
        /// Levels of break-before-make that can be left out.
        BBML: 0, 11, 2;
    }
}

/// Fields of [`IDR5`].
pub mod idr5 {
    super::super::fields! {
        /// Output address size.
        OAS: 0, 0, 3;
        /// 4 KiB.
        GRAN4K: 0, 4, 1;
        /// 16 KiB.
        GRAN16K: 0, 5, 1;
        /// 64 KiB.
        GRAN64K: 0, 6, 1;
        /// Virtual address extension.
        VAX: 0, 10, 2;
    }
}

/// Bits of [`CR0`] and [`CR0ACK`].
pub mod cr0 {
    /// Translation.
    pub const SMMUEN: u32 = 1;
    /// Page-request queue.
    pub const PRIQEN: u32 = 1 << 1;
    /// Event queue.
    pub const EVENTQEN: u32 = 1 << 2;
    /// Command queue.
    pub const CMDQEN: u32 = 1 << 3;
    /// Translated requests are checked.
    pub const ATSCHK: u32 = 1 << 4;
    /// All of the enables.
    pub const ALL: u32 = SMMUEN | PRIQEN | EVENTQEN | CMDQEN | ATSCHK;
}

/// Values of [`CR1`].
pub mod cr1 {
    /// Queues and tables in inner shareable, write-back memory.
    pub const WRITE_BACK: u32 = 0b11 << 10 | 1 << 8 | 1 << 6 | 0b11 << 4 | 1 << 2 | 1;
    /// Queues and tables in outer shareable, non-cacheable memory.
    pub const NON_CACHEABLE: u32 = 0b10 << 10 | 0b10 << 4;
}

/// Bits of [`CR2`].
pub mod cr2 {
    /// Unknown streams are recorded.
    pub const RECINVSID: u32 = 1 << 1;
    /// The processors' own broadcast invalidation is ignored.
    pub const PTM: u32 = 1 << 2;
}

/// Bits of [`GBPA`].
pub mod gbpa {
    /// Everything is aborted.
    pub const ABORT: u32 = 1 << 20;
    /// The register is being written.
    pub const UPDATE: u32 = 1 << 31;
}

/// Bits of [`IRQ_CTRL`].
pub mod irq {
    /// Global errors.
    pub const GERROR: u32 = 1;
    /// Page requests.
    pub const PRIQ: u32 = 1 << 1;
    /// Events.
    pub const EVENTQ: u32 = 1 << 2;
}

/// Bits of [`GERROR`] and [`GERRORN`].
pub mod gerror {
    /// The command queue stopped.
    pub const CMDQ: u32 = 1;
    /// An event could not be written.
    pub const EVENTQ_ABT: u32 = 1 << 2;
    /// A page request could not be written.
    pub const PRIQ_ABT: u32 = 1 << 3;
    /// A command's message could not be written.
    pub const MSI_CMDQ_ABT: u32 = 1 << 4;
    /// An event's message could not be written.
    pub const MSI_EVENTQ_ABT: u32 = 1 << 5;
    /// A page request's message could not be written.
    pub const MSI_PRIQ_ABT: u32 = 1 << 6;
    /// A global error's message could not be written.
    pub const MSI_GERROR_ABT: u32 = 1 << 7;
    /// Service failure mode: the unit has stopped.
    pub const SFM: u32 = 1 << 8;
    /// All that are defined.
    pub const ALL: u32 = CMDQ | EVENTQ_ABT | PRIQ_ABT | 0xf0 | SFM;
}

fields! {
    /// Field of the base registers: reads allocate in caches.
    BASE_ALLOCATE: 0, 62, 1;
    /// Field of the queue base registers: entries, as an exponent.
    BASE_LOG2SIZE: 0, 0, 5;
    /// Field of [`STRTAB_BASE_CFG`]: streams, as an exponent.
    STRTAB_LOG2SIZE: 0, 0, 6;
    /// Field of [`STRTAB_BASE_CFG`]: streams of a second-level table, as an exponent.
    STRTAB_SPLIT: 0, 6, 5;
    /// Field of [`STRTAB_BASE_CFG`]: 0 for linear, 1 for two levels.
    STRTAB_FMT: 0, 16, 2;
    /// Field of [`CMDQ_CONS`]: why the queue stopped.
    CONS_ERR: 0, 24, 7;
}

/// Bit of an event or page-request queue's index register: overflow, and its acknowledgement.
pub const OVERFLOW: u32 = 1 << 31;
