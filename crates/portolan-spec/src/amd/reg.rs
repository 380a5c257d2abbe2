//! Registers (3.4), all of 64 bits.

use super::Bits;

crate::bits::constants! {
    DEVICE_TABLE: usize = 0x0 => "Device table base.";
    COMMAND_BASE: usize = 0x8 => "Command buffer base.";
    EVENT_BASE: usize = 0x10 => "Event log base.";
    CONTROL: usize = 0x18 => "Control.";
    EXCLUSION_BASE: usize = 0x20 => "Exclusion range base.";
    EXCLUSION_LIMIT: usize = 0x28 => "Exclusion range limit.";
    FEATURES: usize = 0x30 => "Extended features.";
    /// Target of the unit's interrupts for events, where [`control::WIDE_OWN`] is set.
    EVENT_TARGET: usize = 0x170;
    FEATURES2: usize = 0x1a0 => "Extended features, second register.";
    GUEST_LOG_TARGET: usize = 0x180 => "The same for the guest virtual APIC log.";
    GUEST_LOG_BASE: usize = 0xe0 => "Guest virtual APIC log base.";
    GUEST_LOG_TAIL_COPY: usize = 0xe8 => "Address to which the unit writes that log's tail.";
    GUEST_LOG_HEAD: usize = 0x2040 => "Guest virtual APIC log head.";
    GUEST_LOG_TAIL: usize = 0x2048 => "Guest virtual APIC log tail.";
    REQUEST_BASE: usize = 0x38 => "Page request log base.";
    COMMAND_HEAD: usize = 0x2000 => "Command buffer head.";
    COMMAND_TAIL: usize = 0x2008 => "Command buffer tail.";
    EVENT_HEAD: usize = 0x2010 => "Event log head.";
    EVENT_TAIL: usize = 0x2018 => "Event log tail.";
    STATUS: usize = 0x2020 => "Status.";
    REQUEST_HEAD: usize = 0x2030 => "Page request log head.";
    REQUEST_TAIL: usize = 0x2038 => "Page request log tail.";
    /// Numbers of banks and of counters, with [`features::COUNTERS`]; the window then has 512 KiB.
    COUNTERS: usize = 0x4000;

    TABLE_SIZE: Bits = Bits::new(0, 9) => "[`DEVICE_TABLE`]: pages of 4 KiB, less one.";
    /// Bases of buffers and logs: bytes in units of 16, as an exponent from 8 to 15.
    LENGTH: Bits = Bits::new(56, 4);
    POINTER: Bits = Bits::new(0, 19) => "Heads and tails: offset in bytes.";
    INDEX: Bits = Bits::new(4, 15) => "Heads and tails: offset in bytes, in units of 16.";
}

/// Bits of [`CONTROL`].
pub mod control {
    use super::Bits;
    crate::bits::constants! {
        ENABLE: u64 = 1 => "The IOMMU is enabled.";
        EVENT_LOG: u64 = 1 << 2 => "Events are logged.";
        EVENT_INTERRUPT: u64 = 1 << 3 => "An interrupt for each event.";
        WAIT_INTERRUPT: u64 = 1 << 4 => "Interrupts by COMPLETION_WAIT.";
        COHERENT: u64 = 1 << 10 => "Reads of the device table snoop.";
        COMMANDS: u64 = 1 << 12 => "Commands are fetched.";
        TUNNEL: u64 = 1 << 1 => "HtTunEn: HyperTransport traffic is tunnelled.";
        /// InvTimeOut: longest time that a device's TLB may take to answer an invalidation.
        DEVICE_TLB_LIMIT: Bits = Bits::new(5, 3);
        PASS_POSTED: u64 = 1 << 8 => "PassPW: posted writes of the unit's own may pass others.";
        RESPONSES_PASS: u64 = 1 << 9 => "ResPassPW: responses to the unit may pass posted writes.";
        ISOCHRONOUS: u64 = 1 << 11 => "Isoc: the unit's own reads are isochronous.";
        REQUEST_LOG: u64 = 1 << 13 => "PPRLogEn: page requests are logged.";
        REQUEST_INTERRUPT: u64 = 1 << 14 => "PPRIntEn: an interrupt for each page request.";
        REQUESTS: u64 = 1 << 15 => "PPREn: page requests are served.";
        GUESTS: u64 = 1 << 16 => "GTEn: guest tables are used where entries say so.";
        WIDE_ENTRIES: u64 = 1 << 17 => "GAEn: entries of interrupt tables have two words.";
        /// GAMEn: entries of interrupt tables may post; value 1 for guest virtual APICs.
        GUEST_APIC: Bits = Bits::new(25, 3);
        GUEST_LOG: u64 = 1 << 28 => "GALogEn: interrupts for guests are logged.";
        GUEST_LOG_INTERRUPT: u64 = 1 << 29 => "GAIntEn: an interrupt for each of them.";
        SEGMENTS: u64 = 7 << 34 => "DevTblSegEn: the device table is in several segments.";
        /// PPRAutoRspEn: page requests for which the log has no room are answered by the unit.
        AUTO_RESPONSE: u64 = 1 << 39;
        WIDE_DESTINATIONS: u64 = 1 << 50 => "XTEn: their destinations have 32 bits.";
        /// IntCapXTEn: the unit's own interrupts go where registers say, and not by its MSI capability.
        WIDE_OWN: u64 = 1 << 51;
        /// GCR3TRPMode: the address of a GCR3 table is translated by the host tables of its entry.
        ROOTS_OVER_HOST: u64 = 1 << 58;
    }
}

/// Fields of [`FEATURES`].
pub mod features {
    use super::Bits;
    crate::bits::constants! {
        REQUESTS: u64 = 1 << 1 => "PPRSup: page requests.";
        WIDE_DESTINATIONS: u64 = 1 << 2 => "XTSup: destinations of interrupts may have 32 bits.";
        INVALIDATE_ALL: u64 = 1 << 6 => "IASup: INVALIDATE_IOMMU_ALL.";
        COUNTERS: u64 = 1 << 9 => "PCSup: performance counters.";
        WIDE_ENTRIES: u64 = 1 << 7 => "GASup: entries of interrupt tables may have two words.";
        /// GAMSup: entries of interrupt tables may post; value 1 for guest virtual APICs.
        GUEST_APIC: Bits = Bits::new(21, 3);
        MARKS: u64 = 1 << 49 | 1 << 52 => "HASup, HDSup: marks in leaves of host tables.";
        AUTO_RESPONSE: u64 = 1 << 41 => "PPRAutoRspSup: the unit answers page requests that it cannot log.";
        REQUESTS_BY_ENTRY: u64 = 1 << 50 => "EPHSup: entries say who may send page requests.";
        /// GTSup, GIoSup: guest tables, for accesses without a PASID as well.
        GUESTS: u64 = 1 << 4 | 1 << 48;
        /// GATS: guest tables of up to four levels and so many more; 2 and 3 are reserved.
        GUEST_LEVELS: Bits = Bits::new(12, 2);
        /// GLXSup: GCR3 tables of one level and so many more; 3 is reserved.
        GUEST_ROOTS: Bits = Bits::new(14, 2);
        PASID_BITS: Bits = Bits::new(32, 5) => "PASmax: width of PASIDs in bits, less one.";
        /// Host tables of up to four levels and so many more; 3 is reserved.
        HOST_LEVELS: Bits = Bits::new(10, 2);
    }
}

/// Fields of [`FEATURES2`].
pub mod features2 {
    crate::bits::constants! {
        ROOTS_OVER_HOST: u64 = 1 << 3 => "GCR3TRPMode: [`super::control::ROOTS_OVER_HOST`] is there.";
    }
}

/// Bits of [`STATUS`].
pub mod status {
    crate::bits::constants! {
        EVENT_OVERFLOW: u64 = 1 => "Events were lost; written 1 to clear.";
        EVENT_INTERRUPT: u64 = 1 << 1 => "An event came; written 1 to clear.";
        WAIT_INTERRUPT: u64 = 1 << 2 => "A COMPLETION_WAIT interrupted; written 1 to clear.";
        EVENT_RUNS: u64 = 1 << 3 => "Events are being logged.";
        COMMANDS_RUN: u64 = 1 << 4 => "Commands are being fetched.";
        REQUEST_OVERFLOW: u64 = 1 << 5 => "Page requests were lost; written 1 to clear.";
        REQUEST_INTERRUPT: u64 = 1 << 6 => "A page request came; written 1 to clear.";
        REQUESTS_RUN: u64 = 1 << 7 => "Page requests are being logged.";
        GUEST_LOG_OVERFLOW: u64 = 1 << 9 => "Interrupts for guests were lost; written 1 to clear.";
        GUEST_LOG_INTERRUPT: u64 = 1 << 10 => "An interrupt for a guest came; written 1 to clear.";
        GUEST_LOG_RUNS: u64 = 1 << 8 => "Interrupts for guests are being logged.";
    }
}
