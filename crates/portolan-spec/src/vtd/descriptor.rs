//! Invalidation descriptors (6.5.2) and the page-group response (7.6.1) of revision 4.1.
//!
//! A descriptor of 128 bits is two words; one of 256 bits has two more, which all kinds here leave
//! zero.
//!
//! *Context.* Interrupt: everything here is a value.

use super::Bits;

/// The first two words of a descriptor.
pub type Words = [u64; 2];

crate::bits::fields! { Bits;
    TYPE: 0, 4 => "Word 0 of all: what it is.";
    GRANULARITY: 4, 2 => "Word 0 of invalidations: granularity.";
    DID: 16, 16 => "Word 0 of most: domain.";
    PASID: 32, 20 => "Word 0 of those that name one: PASID.";
    AM: 0, 6 => "Word 1 of IOTLB invalidations: address mask, an exponent of pages.";
    IH: 6, 1 => "Word 1 of IOTLB invalidations: leaves only.";
}

/// Values of [`TYPE`].
pub mod kind {
    crate::bits::constants! {
        CONTEXT: u64 = 1 => "The context cache is invalidated.";
        IOTLB: u64 = 2 => "The IOTLB is invalidated.";
        DEVICE_TLB: u64 = 3 => "A device's TLB is invalidated.";
        INTERRUPT_ENTRIES: u64 = 4 => "The interrupt entry cache is invalidated.";
        WAIT: u64 = 5 => "The unit says when all in front is complete.";
        PASID_IOTLB: u64 = 6 => "The IOTLB is invalidated by PASID.";
        PASID_CACHE: u64 = 7 => "The PASID cache is invalidated.";
        PASID_DEVICE_TLB: u64 = 8 => "A device's TLB is invalidated by PASID.";
        RESPONSE: u64 = 9 => "A group of page requests is answered.";
    }
}

/// Context cache (6.5.2.1). Granularity 1: global, 2: domain, 3: device.
pub mod context {
    use super::Bits;
    /// Word 0: source.
    pub const SID: Bits = Bits::new(32, 16);
}

/// IOTLB (6.5.2.3). Granularity 1: global, 2: domain, 3: pages.
pub mod iotlb {
    use super::Bits;
    /// Word 0: drain writes.
    pub const DW: Bits = Bits::new(6, 1);
    /// Word 0: drain reads.
    pub const DR: Bits = Bits::new(7, 1);
}

/// PASID-based IOTLB (6.5.2.4). Granularity 2: all of the PASID, 3: pages.
pub mod pasid_iotlb {
    /// Granularity: all of a PASID.
    pub const ALL: u64 = 2;
    /// Granularity: pages of a PASID.
    pub const PAGES: u64 = 3;
}

/// PASID cache (6.5.2.2). Granularity 0: domain, 1: PASID, 3: global.
pub mod pasid_cache {
    /// Granularity: a PASID of a domain.
    pub const PASID: u64 = 1;
    /// Granularity: the whole cache.
    pub const GLOBAL: u64 = 3;
}

/// Device TLB (6.5.2.5). Word 1 has the address in place.
pub mod device_tlb {
    use super::Bits;
    crate::bits::constants! {
        PFSID_LOW: Bits = Bits::new(12, 4) => "Word 0: physical function, low four bits.";
        /// Word 0: invalidations that the device takes at a time, 0 for 32.
        DEPTH: Bits = Bits::new(16, 5);
        SID: Bits = Bits::new(32, 16) => "Word 0: source.";
        PFSID_HIGH: Bits = Bits::new(52, 12) => "Word 0: physical function, high twelve bits.";
        /// Word 1: more than a page; the lowest zero address bit from 12 tells the size.
        SIZE: u64 = 1;
    }
}

/// PASID-based device TLB (6.5.2.6). Word 1 has the address in place.
pub mod pasid_device_tlb {
    use super::Bits;
    crate::bits::constants! {
        /// Word 0: invalidations that the device takes at a time, 0 for 32.
        DEPTH: Bits = Bits::new(4, 5);
        PFSID_LOW: Bits = Bits::new(12, 4) => "Word 0: physical function, low four bits.";
        SID: Bits = Bits::new(16, 16) => "Word 0: source.";
        PFSID_HIGH: Bits = Bits::new(52, 12) => "Word 0: physical function, high twelve bits.";
        SIZE: u64 = 1 << 11 => "Word 1: more than a page.";
    }
}

/// Interrupt entry cache (6.5.2.7).
pub mod interrupt {
    use super::Bits;
    crate::bits::fields! { Bits;
        SELECTIVE: 4, 1 => "Word 0: entries by index; otherwise all.";
        IM: 27, 5 => "Word 0: index mask, an exponent of entries.";
        IIDX: 32, 16 => "Word 0: index.";
    }
}

/// Wait (6.5.2.8). Word 1 is the address of the status.
pub mod wait {
    use super::Bits;
    crate::bits::fields! { Bits;
        SW: 5, 1 => "Word 0: write the status.";
        FN: 6, 1 => "Word 0: everything before completes before anything after begins.";
        PD: 7, 1 => "Word 0: page requests and responses are drained before it completes (7.10).";
        DATA: 32, 32 => "Word 0: what to write.";
    }
}

/// Page-group response (7.6.1).
pub mod response {
    use super::Bits;
    crate::bits::fields! { Bits;
        PASID_PRESENT: 4, 1 => "Word 0: there is a PASID.";
        CODE: 12, 4 => "Word 0: answer: 0 success, 1 invalid request, 15 failure.";
        RID: 16, 16 => "Word 0: source.";
        LAST: 2, 1 => "Word 1: the group's last request was seen.";
        GROUP: 3, 9 => "Word 1: group.";
    }
}
