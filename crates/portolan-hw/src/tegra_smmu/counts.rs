//! How many registers were written, by what the write does.
//!
//! *Context.* Interrupt: everything here is a value.

use core::sync::atomic::{AtomicU64, Ordering};

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $name:literal;)*) => {
        /// What an access to a register does.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum WriteKind {$($(#[$doc])* $kind,)*}

        impl WriteKind {
            /// Every one.
            pub const ALL: &[Self] = &[$(Self::$kind),*];

            /// The register, and what of it.
            pub const fn name(self) -> &'static str {
                match self {$(Self::$kind => $name,)*}
            }
        }
    };
}

kinds! {
    /// SMMU_CONFIG, TLB_CONFIG and PTC_CONFIG.
    Config = "CONFIG";
    /// PTB_ASID: which directory is written next.
    SelectAsid = "PTB_ASID";
    /// PTB_DATA: a directory.
    Directory = "PTB_DATA";
    /// The ASID register of a swgroup.
    SwgroupAsid = "SWGROUP_ASID";
    /// Enable bits of clients.
    Enables = "TRANSLATION_ENABLE";
    /// TLB_FLUSH of everything.
    TlbAll = "TLB_FLUSH_ALL";
    /// TLB_FLUSH of an address space.
    TlbAsid = "TLB_FLUSH_ASID";
    /// TLB_FLUSH of 4 MiB of an address space.
    TlbSection = "TLB_FLUSH_SECTION";
    /// TLB_FLUSH of 16 KiB of an address space.
    TlbGroup = "TLB_FLUSH_GROUP";
    /// PTC_FLUSH of everything.
    PtcAll = "PTC_FLUSH_ALL";
    /// PTC_FLUSH_HI: the upper address bits of a line.
    PtcHigh = "PTC_FLUSH_HI";
    /// PTC_FLUSH of a line.
    PtcLine = "PTC_FLUSH_LINE";
    /// INTSTATUS: a fault is acknowledged.
    Acknowledge = "INTSTATUS";
    /// PTB_ASID read, so that what was written before is complete.
    ReadBack = "READ_BACK";
}

const KINDS: usize = WriteKind::ALL.len();

/// Accesses since the unit was taken over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts([u64; KINDS]);

impl Counts {
    /// Of one kind.
    pub fn of(&self, kind: WriteKind) -> u64 {
        self.0[kind as usize]
    }

    /// Writes of all kinds.
    pub fn writes(&self) -> u64 {
        let reads = self.of(WriteKind::ReadBack);
        self.0.iter().sum::<u64>() - reads
    }

    /// What came since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut these = *self;
        for (count, before) in these.0.iter_mut().zip(earlier.0) {
            *count = count.saturating_sub(before);
        }
        these
    }
}

#[derive(Debug, Default)]
pub(super) struct Counters([AtomicU64; KINDS]);

impl Counters {
    pub(super) fn add(&self, kind: WriteKind) {
        self.0[kind as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn read(&self) -> Counts {
        let mut counts = Counts::default();
        for (to, from) in counts.0.iter_mut().zip(&self.0) {
            *to = from.load(Ordering::Relaxed);
        }
        counts
    }
}
