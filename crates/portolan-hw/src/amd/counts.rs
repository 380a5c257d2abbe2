//! How many commands were submitted, by kind.

use core::sync::atomic::{AtomicU64, Ordering};

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident, $kind:ident;)*) => {
        /// A kind of command.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Kind {$($kind),*}

        /// Commands submitted since the unit was taken over, refused ones included.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counts {$($(#[$doc])* pub $name: u64),*}

        #[derive(Debug, Default)]
        pub(super) struct Counters {$($name: AtomicU64),*}

        impl Counters {
            pub(super) fn add(&self, kind: Kind) {
                let counter = match kind {$(Kind::$kind => &self.$name),*};
                counter.fetch_add(1, Ordering::Relaxed);
            }

            pub(super) fn read(&self) -> Counts {
                Counts {$($name: self.$name.load(Ordering::Relaxed)),*}
            }
        }

        impl Counts {
            /// Of all kinds.
            ///
            /// *Context.* Interrupt.
            pub fn total(&self) -> u64 {
                [$(self.$name),*].iter().sum()
            }
        }
    };
}

kinds! {
    /// COMPLETION_WAIT that stores.
    wait, Wait;
    /// COMPLETION_WAIT that only keeps what is behind it back.
    fence, Fence;
    /// INVALIDATE_DEVTAB_ENTRY.
    device_entry, DeviceEntry;
    /// INVALIDATE_INTERRUPT_TABLE.
    interrupts, Interrupts;
    /// INVALIDATE_IOMMU_PAGES of some pages.
    pages, Pages;
    /// INVALIDATE_IOMMU_PAGES of all pages of a domain.
    domain, Domain;
    /// INVALIDATE_IOMMU_ALL.
    all, All;
    /// COMPLETION_WAIT in place of a refused command.
    replaced, Replaced;
}
