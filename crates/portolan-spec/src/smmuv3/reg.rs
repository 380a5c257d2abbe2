//! Registers of the non-secure programming interface, pages 0 and 1 (IHI 0070, section 6.3).
//!
//! *Context.* Interrupt: everything here is a value.

use super::fields;

crate::bits::constants! {
    WINDOW_BYTES: usize = 0x2_0000 => "Bytes of the two pages of registers, each of 64 KiB.";

    /// Identification 0: stages, formats, coherency, message-signalled interrupts.
    IDR0: usize = 0x0000;
    IDR1: usize = 0x0004 => "Identification 1: widths of identifiers, sizes of queues.";
    IDR3: usize = 0x000c => "Identification 3: range invalidation, block-size changes.";
    IDR5: usize = 0x0014 => "Identification 5: output size, granules.";
    IDR6: usize = 0x0190 => "Identification 6: enhanced command queues.";
    IIDR: usize = 0x0018 => "Implementation identification: see [`iidr`].";
    CR0: usize = 0x0020 => "Control 0: enables.";
    CR0ACK: usize = 0x0024 => "What of [`CR0`] has taken effect.";
    CR1: usize = 0x0028 => "Control 1: memory attributes of queues and tables.";
    CR2: usize = 0x002c => "Control 2.";
    GBPA: usize = 0x0044 => "What happens to accesses while the unit is disabled.";
    IRQ_CTRL: usize = 0x0050 => "Interrupt enables.";
    IRQ_CTRLACK: usize = 0x0054 => "What of [`IRQ_CTRL`] has taken effect.";
    GERROR: usize = 0x0060 => "Global errors, each by a change of its bit.";
    GERRORN: usize = 0x0064 => "Which of them were seen: the bit is made equal.";
    /// Address of the message of a global error; 0 for a wire (64 bits).
    GERROR_IRQ_CFG0: usize = 0x0068;
    STRTAB_BASE: usize = 0x0080 => "Stream table.";
    STRTAB_BASE_CFG: usize = 0x0088 => "Its size and form.";
    CMDQ_BASE: usize = 0x0090 => "Command queue.";
    CMDQ_PROD: usize = 0x0098 => "Where software writes next.";
    CMDQ_CONS: usize = 0x009c => "Where the unit reads next, and why it stopped.";
    EVENTQ_BASE: usize = 0x00a0 => "Event queue.";
    /// Address of the message of an event; 0 for a wire (64 bits).
    EVENTQ_IRQ_CFG0: usize = 0x00b0;
    PRIQ_BASE: usize = 0x00c0 => "Page-request queue.";
    /// Address of the message of a page request; 0 for a wire (64 bits).
    PRIQ_IRQ_CFG0: usize = 0x00d0;
    /// Control pages of enhanced command queues (64 bits), [`ECMDQ_PAGE_APART`] bytes from one to the next.
    ECMDQ_PAGE_BASE: usize = 0x4000;
    ECMDQ_PAGE_APART: usize = 32 => "Bytes from one of these registers to the next.";
    ECMDQ_PAGE_BYTES: usize = 0x1_0000 => "Bytes of a control page, which its queues share evenly.";
    ECMDQ_BASE: usize = 0x00 => "Queue of a control page, from its place there: memory (64 bits).";
    ECMDQ_PROD: usize = 0x08 => "Where software writes next, the enable, and the error that was seen.";
    ECMDQ_CONS: usize = 0x0c => "Where the unit reads next, if it does, and why it stopped.";
    EVENTQ_PROD: usize = 0x1_00a8 => "Where the unit writes events next (page 1).";
    EVENTQ_CONS: usize = 0x1_00ac => "Where software reads events next (page 1).";
    PRIQ_PROD: usize = 0x1_00c8 => "Where the unit writes page requests next (page 1).";
    PRIQ_CONS: usize = 0x1_00cc => "Where software reads page requests next (page 1).";
}

/// Fields of [`IIDR`].
pub mod iidr {
    super::super::fields! {
        IMPLEMENTER: 0, 0, 12 => "Who made it: a JEP106 code.";
        REVISION: 0, 12, 4 => "Minor revision, the p of r0p1.";
        VARIANT: 0, 16, 4 => "Major revision, the r of r0p1.";
        PRODUCT: 0, 20, 12 => "Product.";
    }
}

/// Fields of [`IDR0`].
pub mod idr0 {
    super::super::fields! {
        S2P: 0, 0, 1 => "Stage 2.";
        S1P: 0, 1, 1 => "Stage 1.";
        TTF: 0, 2, 2 => "Table formats.";
        COHACC: 0, 4, 1 => "Coherent access to tables and queues.";
        HTTU: 0, 6, 2 => "Hardware update of access flags and dirty state.";
        HYP: 0, 9, 1 => "EL2 contexts.";
        ATS: 0, 10, 1 => "Address translation service.";
        ASID16: 0, 12, 1 => "ASIDs of 16 bits.";
        MSI: 0, 13, 1 => "Message-signalled interrupts.";
        PRI: 0, 16, 1 => "Page requests.";
        VMID16: 0, 18, 1 => "VMIDs of 16 bits.";
        CD2L: 0, 19, 1 => "Two-level context descriptor tables.";
        TTENDIAN: 0, 21, 2 => "Endianness of table walks.";
        STALL_MODEL: 0, 24, 2 => "Stall or terminate.";
        ST_LEVEL: 0, 27, 2 => "Two-level stream tables.";
    }
}

/// Fields of [`IDR1`].
pub mod idr1 {
    super::super::fields! {
        SIDSIZE: 0, 0, 6 => "Bits of a stream number.";
        SSIDSIZE: 0, 6, 5 => "Bits of a substream number.";
        PRIQS: 0, 11, 5 => "Largest page-request queue, as an exponent.";
        EVENTQS: 0, 16, 5 => "Largest event queue, as an exponent.";
        CMDQS: 0, 21, 5 => "Largest command queue, as an exponent.";
        ATTR_TYPES_OVR: 0, 27, 1 => "Memory types and shareability of accesses can be replaced.";
        REL: 0, 28, 1 => "The base registers give relative addresses (only with presets).";
        QUEUES_PRESET: 0, 29, 1 => "The queues are where they are.";
        TABLES_PRESET: 0, 30, 1 => "The tables are where they are.";
        ECMDQ: 0, 31, 1 => "Enhanced command queues.";
    }
}

/// Fields of [`IDR6`].
pub mod idr6 {
    super::super::fields! {
        QUEUES: 0, 16, 4 => "Enhanced command queues of a control page, as an exponent.";
        PAGES: 0, 24, 4 => "Control pages, as an exponent.";
    }
}

/// Fields of a control page's base and of the registers of an enhanced command queue.
pub mod ecmdq {
    super::super::fields! {
        PRESET: 0, 0, 1 => "Field of [`ECMDQ_PAGE_BASE`](super::ECMDQ_PAGE_BASE): the page is registers.";
        ADDRESS: 0, 12, 40 => "Field of it: offset of the page from the unit's registers, in pages of 4 KiB.";
        EN: 0, 31, 1 => "Field of [`ECMDQ_PROD`](super::ECMDQ_PROD) and [`ECMDQ_CONS`](super::ECMDQ_CONS): enable.";
        ERR: 0, 23, 1 => "Field of both: an error, by a change of the bit, and the error that was seen.";
    }
}

/// Fields of [`IDR3`].
pub mod idr3 {
    super::super::fields! {
        RIL: 0, 10, 1 => "Range invalidation and level hints.";
        BBML: 0, 11, 2 => "Levels of break-before-make that can be left out.";
    }
}

/// Fields of [`IDR5`].
pub mod idr5 {
    super::super::fields! {
        OAS: 0, 0, 3 => "Output address size.";
        GRAN4K: 0, 4, 1 => "4 KiB.";
        GRAN16K: 0, 5, 1 => "16 KiB.";
        GRAN64K: 0, 6, 1 => "64 KiB.";
        VAX: 0, 10, 2 => "Virtual address extension.";
    }
}

/// Bits of [`CR0`] and [`CR0ACK`].
pub mod cr0 {
    crate::bits::constants! {
        SMMUEN: u32 = 1 => "Translation.";
        PRIQEN: u32 = 1 << 1 => "Page-request queue.";
        EVENTQEN: u32 = 1 << 2 => "Event queue.";
        CMDQEN: u32 = 1 << 3 => "Command queue.";
        ATSCHK: u32 = 1 << 4 => "Translated requests are checked.";
        ALL: u32 = SMMUEN | PRIQEN | EVENTQEN | CMDQEN | ATSCHK => "All of the enables.";
    }
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
    crate::bits::constants! {
        GERROR: u32 = 1 => "Global errors.";
        PRIQ: u32 = 1 << 1 => "Page requests.";
        EVENTQ: u32 = 1 << 2 => "Events.";
    }
}

/// Bits of [`GERROR`] and [`GERRORN`].
pub mod gerror {
    crate::bits::constants! {
        CMDQ: u32 = 1 => "The command queue stopped.";
        EVENTQ_ABT: u32 = 1 << 2 => "An event could not be written.";
        PRIQ_ABT: u32 = 1 << 3 => "A page request could not be written.";
        MSI_CMDQ_ABT: u32 = 1 << 4 => "A command's message could not be written.";
        MSI_EVENTQ_ABT: u32 = 1 << 5 => "An event's message could not be written.";
        MSI_PRIQ_ABT: u32 = 1 << 6 => "A page request's message could not be written.";
        MSI_GERROR_ABT: u32 = 1 << 7 => "A global error's message could not be written.";
        SFM: u32 = 1 << 8 => "Service failure mode: the unit has stopped.";
        CMDQP: u32 = 1 << 9 => "An enhanced command queue stopped.";
        ALL: u32 = CMDQ | EVENTQ_ABT | PRIQ_ABT | 0xf0 | SFM | CMDQP => "All that are defined.";
    }
}

fields! {
    BASE_ALLOCATE: 0, 62, 1 => "Field of the base registers: reads allocate in caches.";
    BASE_LOG2SIZE: 0, 0, 5 => "Field of the queue base registers: entries, as an exponent.";
    STRTAB_LOG2SIZE: 0, 0, 6 => "Field of [`STRTAB_BASE_CFG`]: streams, as an exponent.";
    /// Field of [`STRTAB_BASE_CFG`]: streams of a second-level table, as an exponent.
    STRTAB_SPLIT: 0, 6, 5;
    STRTAB_FMT: 0, 16, 2 => "Field of [`STRTAB_BASE_CFG`]: 0 for linear, 1 for two levels.";
    CONS_ERR: 0, 24, 7 => "Field of [`CMDQ_CONS`]: why the queue stopped.";
}

/// Bit of an event or page-request queue's index register: overflow, and its acknowledgement.
pub const OVERFLOW: u32 = 1 << 31;
