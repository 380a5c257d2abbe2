//! How many commands were submitted, by kind.
//!
//! *Context.* Interrupt: everything here is a value.

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
            pub fn total(&self) -> u64 {
                [$(self.$name),*].iter().sum()
            }
        }
    };
}

kinds! {
    /// Context cache, global.
    context_global, ContextGlobal;
    /// Context cache, of a device.
    context_device, ContextDevice;
    /// IOTLB, global.
    iotlb_global, IotlbGlobal;
    /// IOTLB, of a domain.
    iotlb_domain, IotlbDomain;
    /// IOTLB, of pages.
    iotlb_pages, IotlbPages;
    /// IOTLB of a PASID, all or pages.
    pasid_iotlb, PasidIotlb;
    /// PASID cache.
    pasid_cache, PasidCache;
    /// Device TLB, with or without PASID.
    device_tlb, DeviceTlb;
    /// Wait.
    wait, Wait;
    /// Page-group response.
    response, Response;
    /// Interrupt entry cache.
    interrupt_entries, InterruptEntries;
    /// Write-buffer flush.
    write_buffer, WriteBuffer;
    /// Descriptors put in place of refused ones.
    replaced, Replaced;
}
