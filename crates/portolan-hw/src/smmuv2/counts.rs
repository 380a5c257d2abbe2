//! How many registers were written, by kind.
//!
//! *Context.* Interrupt: everything here is a value.

use core::sync::atomic::{AtomicU64, Ordering};

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $name:literal;)*) => {
        /// A kind of register write.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum WriteKind {$($(#[$doc])* $kind),*}

        impl WriteKind {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$kind),*];

            /// The register's name in the specification.
            pub const fn name(self) -> &'static str {
                match self {$(Self::$kind => $name),*}
            }
        }
    };
}

kinds! {
    /// Invalidation by address, all levels.
    TlbiVa = "TLBIVA";
    /// Invalidation by address, the last level only.
    TlbiVal = "TLBIVAL";
    /// Invalidation by ASID.
    TlbiAsid = "TLBIASID";
    /// Invalidation by second-stage address, all levels.
    TlbiIpas2 = "TLBIIPAS2";
    /// Invalidation by second-stage address, the last level only.
    TlbiIpas2l = "TLBIIPAS2L";
    /// Invalidation by VMID.
    TlbiVmid = "TLBIVMID";
    /// Invalidation of everything.
    TlbiAllNsnh = "TLBIALLNSNH";
    /// Invalidation of everything of the hypervisor's.
    TlbiAllH = "TLBIALLH";
    /// Synchronisation of a context bank.
    TlbSync = "TLBSYNC";
    /// Synchronisation of all.
    TlbGlobalSync = "sTLBGSYNC";
    /// Stream match registers.
    StreamMatch = "SMR";
    /// Stream-to-context registers.
    StreamToContext = "S2CR";
    /// Faults cleared, stalls answered.
    Fault = "FSR";
    /// Everything else.
    Configuration = "configuration";
}

/// Writes since the unit was taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteCounts([u64; WriteKind::ALL.len()]);

impl WriteCounts {
    /// Writes of one kind.
    pub fn of(&self, kind: WriteKind) -> u64 {
        self.0[kind as usize]
    }

    /// Writes of all kinds.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}

#[derive(Debug, Default)]
pub(super) struct Counters([AtomicU64; WriteKind::ALL.len()]);

impl Counters {
    pub(super) fn add(&self, kind: WriteKind) {
        self.0[kind as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn read(&self) -> WriteCounts {
        let read = |kind: usize| self.0[kind].load(Ordering::Relaxed);
        WriteCounts(core::array::from_fn(read))
    }
}
