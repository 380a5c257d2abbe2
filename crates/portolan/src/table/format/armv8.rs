//! VMSAv8-64 tables, stage 1 and stage 2, with granules of 4, 16 and 64 KiB.
//!
//! Arm Architecture Reference Manual (DDI 0487), sections D8.3 (descriptor formats) and D8.4.6
//! (hardware update of dirty state); SMMUv3 (IHI 0070) uses the same descriptors. Arm numbers
//! levels from the root: its level 3 is level 0 here.
//!
//! Output addresses up to 48 bits, and up to 52 with the 64 KiB granule. Not supported: the
//! contiguous hint, 52-bit addresses with the smaller granules, concatenated stage-2 roots, tables'
//! access-flag updates (bit 10 of table entries stays clear).
//!
//! *Context.* Interrupt: functions of values.

use core::sync::atomic::AtomicU64;

use super::{DirtyTracking, Entry, Format, SplitRule};
use crate::addr::{PageSize, PageSizes, PhysAddr};
use crate::table::{Access, TableAccessError};
use thiserror::Error;

const VALID: u64 = 1;
const TABLE_OR_PAGE: u64 = 1 << 1;
const ATTR_DEVICE: u64 = 1 << 2;
const AP_UNPRIVILEGED: u64 = 1 << 6;
const AP_READ_ONLY: u64 = 1 << 7;
const SH_INNER: u64 = 0b11 << 8;
const ACCESSED: u64 = 1 << 10;
const NOT_GLOBAL: u64 = 1 << 11;
const DIRTY_MANAGED: u64 = 1 << 51;
const PXN: u64 = 1 << 53;
const UXN: u64 = 1 << 54;
const UXN_TABLE: u64 = 1 << 60;
const AP_TABLE_PRIVILEGED: u64 = 1 << 61;
const AP_TABLE_READ_ONLY: u64 = 1 << 62;

const S2_NORMAL: u64 = 0b1111 << 2;
const S2_DEVICE: u64 = 0b0001 << 2;
const S2_READ: u64 = 1 << 6;
const S2_WRITE: u64 = 1 << 7;
const S2_XN: u64 = 1 << 54;

/// Software's mark in entries that are not valid.
const BROKEN: u64 = 1 << 9;
/// Software's mark in entries that point at tables, one of the ignored bits 58:52.
const FILLED: u64 = 1 << 52;

/// Widths and abilities common to both stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Armv8Config {
    /// Width of input addresses.
    pub input_lg2: u32,
    /// Width of output addresses.
    pub output_lg2: u32,
    /// Way in which blocks are split: direct with break-before-make level 2 only.
    pub split: SplitRule,
    /// Dirty state that the hardware updates.
    pub dirty: DirtyTracking,
}

/// A width that the granule does not allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Armv8ConfigError {
    /// Input addresses are too narrow for two levels or too wide for the granule.
    #[error("input addresses of {0} bits do not fit the granule")]
    Input(u32),
    /// Output addresses are too wide for the granule.
    #[error("output addresses of {0} bits do not fit the granule")]
    Output(u32),
}

impl Armv8Config {
    /// Tells if a leaf becomes writable when it is written: hardware has to keep dirty state for
    /// that.
    fn is_dirty_managed(self, raw: u64) -> bool {
        raw & DIRTY_MANAGED != 0 && self.dirty == DirtyTracking::Hardware
    }

    fn check(self, granule: u32) -> Result<Self, Armv8ConfigError> {
        let widest = if granule == 16 { 52 } else { 48 };
        let narrowest = granule + (granule - 3) + 1;
        if self.input_lg2 < narrowest || self.input_lg2 > widest {
            return Err(Armv8ConfigError::Input(self.input_lg2));
        }
        if self.output_lg2 <= granule || self.output_lg2 > widest {
            return Err(Armv8ConfigError::Output(self.output_lg2));
        }
        Ok(self)
    }
}

#[inline]
const fn encode_address<const G: u32>(pa: u64) -> u64 {
    if G == 16 {
        (pa & 0x0000_ffff_ffff_0000) | ((pa >> 48) & 0xf) << 12
    } else {
        pa & 0x0000_ffff_ffff_ffff
    }
}

#[inline]
const fn decode_address<const G: u32>(raw: u64) -> PhysAddr {
    let low = raw & 0x0000_ffff_ffff_ffff & !((1 << G) - 1);
    PhysAddr::new(if G == 16 { low | ((raw >> 12) & 0xf) << 48 } else { low })
}

macro_rules! stage {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        ///
        /// `G` is the exponent of the granule: 12, 14 or 16.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name<const G: u32>(Armv8Config);

        impl<const G: u32> $name<G> {
            /// Tables of the given widths.
            ///
            /// # Errors
            /// If the granule does not allow a width.
            pub fn new(config: Armv8Config) -> Result<Self, Armv8ConfigError> {
                config.check(G).map(Self)
            }

            /// The widths and abilities.
            pub fn config(&self) -> Armv8Config {
                self.0
            }
        }

        impl<const G: u32> Format for $name<G> {
            type Word = AtomicU64;
            const GRANULE: PageSize = PageSize::of_lg2(G);
            const INDEX_LG2: u32 = G - 3;
            const FILLED: u64 = FILLED;
            // With granules of 64 KiB, the highest bits of an address are below the others.
            const LEAF_STEP: u64 = if G == 16 { 0 } else { 1 << G };

            #[inline]
            fn levels(&self) -> u32 {
                (self.0.input_lg2 - G).div_ceil(G - 3)
            }

            #[inline]
            fn input_lg2(&self) -> u32 {
                self.0.input_lg2
            }

            #[inline]
            fn output_lg2(&self) -> u32 {
                self.0.output_lg2
            }

            fn page_sizes(&self) -> PageSizes {
                let block = PageSize::of_lg2(G + (G - 3));
                let sizes = PageSizes::default().with(Self::GRANULE).with(block);
                let giant = G == 12 && self.levels() > 2;
                if giant { sizes.with(PageSize::SIZE_1G) } else { sizes }
            }

            fn split_rule(&self) -> SplitRule {
                self.0.split
            }

            fn dirty_tracking(&self) -> DirtyTracking {
                self.0.dirty
            }

            fn template(&self, access: Access, level: u32) -> Result<u64, TableAccessError> {
                let kind = if level == 0 { VALID | TABLE_OR_PAGE } else { VALID };
                Ok(kind | ACCESSED | self.attributes(access)?)
            }

            #[inline]
            fn leaf(template: u64, pa: PhysAddr) -> u64 {
                template | encode_address::<G>(pa.get())
            }

            #[inline]
            fn table(pa: PhysAddr, _level: u32) -> u64 {
                encode_address::<G>(pa.get()) | VALID | TABLE_OR_PAGE
            }

            fn demote(raw: u64, level: u32) -> u64 {
                let address = encode_address::<G>(0x000f_ffff_ffff_ffff & !((1 << G) - 1));
                let kind = if level == 1 { TABLE_OR_PAGE } else { 0 };
                raw & !address | kind
            }

            #[inline]
            fn broken(pa: PhysAddr) -> u64 {
                encode_address::<G>(pa.get()) | BROKEN
            }

            #[inline]
            fn classify(raw: u64, level: u32) -> Entry {
                if raw & VALID != 0 {
                    let pa = decode_address::<G>(raw);
                    if level > 0 && raw & TABLE_OR_PAGE != 0 {
                        Entry::Table(pa)
                    } else {
                        Entry::Leaf(pa)
                    }
                } else if raw & BROKEN != 0 {
                    Entry::Broken(decode_address::<G>(raw))
                } else {
                    Entry::Empty
                }
            }

            fn access(&self, raw: u64, _level: u32) -> Access {
                self.decode_access(raw)
            }

            fn table_access(&self, raw: u64, _level: u32) -> Access {
                Self::let_through(raw)
            }

            /// A leaf without its access flag counts: hardware that does not set it refuses it.
            fn is_reserved(&self, raw: u64, level: u32) -> bool {
                match Self::classify(raw, level) {
                    Entry::Leaf(_) => {
                        raw & ACCESSED == 0 || (raw & TABLE_OR_PAGE == 0) == (level == 0)
                    }
                    _ => false,
                }
            }

            fn is_dirty(&self, raw: u64) -> bool {
                raw & DIRTY_MANAGED != 0 && self.writable_now(raw)
            }

            fn cleaned(&self, raw: u64) -> u64 {
                if raw & DIRTY_MANAGED == 0 { raw } else { self.without_write(raw) }
            }
        }
    };
}

stage! {
    /// Stage 1. A leaf that can be written can be read as well: the format has no write-only.
    Armv8Stage1
}
stage! {
    /// Stage 2.
    Armv8Stage2
}

impl<const G: u32> Armv8Stage1<G> {
    /// Memory attributes as a context descriptor's MAIR wants them: index 0 is normal write-back
    /// memory, index 1 device memory (nGnRE).
    pub const MAIR: u64 = 0x04ff;

    fn attributes(&self, access: Access) -> Result<u64, TableAccessError> {
        if !access.intersects(Access::READ.union(Access::WRITE)) {
            return Err(TableAccessError { access });
        }
        let mut raw = AP_UNPRIVILEGED | SH_INNER | NOT_GLOBAL;
        if !access.contains(Access::EXECUTE) {
            raw |= UXN | PXN;
        }
        if access.contains(Access::DEVICE) {
            raw |= ATTR_DEVICE;
        }
        match (access.contains(Access::WRITE), self.0.dirty) {
            (false, _) => raw |= AP_READ_ONLY,
            (true, DirtyTracking::Hardware) => raw |= AP_READ_ONLY | DIRTY_MANAGED,
            (true, DirtyTracking::Off) => {}
        }
        Ok(raw)
    }

    fn decode_access(&self, raw: u64) -> Access {
        let mut access = Access::empty();
        if raw & AP_UNPRIVILEGED != 0 {
            let writable = raw & AP_READ_ONLY == 0 || self.0.is_dirty_managed(raw);
            access = Access::READ;
            access.set(Access::WRITE, writable);
        }
        access.set(Access::EXECUTE, raw & UXN == 0);
        access.set(Access::DEVICE, raw & ATTR_DEVICE != 0);
        access
    }

    /// `APTable` and `UXNTable`. `NSTable` means nothing to streams that are not secure.
    fn let_through(raw: u64) -> Access {
        let mut access = Access::all();
        if raw & AP_TABLE_PRIVILEGED != 0 {
            access.remove(Access::READ_WRITE);
        }
        if raw & AP_TABLE_READ_ONLY != 0 {
            access.remove(Access::WRITE);
        }
        if raw & UXN_TABLE != 0 {
            access.remove(Access::EXECUTE);
        }
        access
    }

    fn writable_now(&self, raw: u64) -> bool {
        raw & AP_READ_ONLY == 0
    }

    fn without_write(&self, raw: u64) -> u64 {
        raw | AP_READ_ONLY
    }
}

impl<const G: u32> Armv8Stage2<G> {
    fn attributes(&self, access: Access) -> Result<u64, TableAccessError> {
        if !access.intersects(Access::READ.union(Access::WRITE)) {
            return Err(TableAccessError { access });
        }
        let memory = if access.contains(Access::DEVICE) { S2_DEVICE } else { S2_NORMAL };
        let mut raw = memory | SH_INNER;
        if access.contains(Access::READ) {
            raw |= S2_READ;
        }
        match (access.contains(Access::WRITE), self.0.dirty) {
            (false, _) => {}
            (true, DirtyTracking::Off) => raw |= S2_WRITE,
            (true, DirtyTracking::Hardware) => raw |= DIRTY_MANAGED,
        }
        if !access.contains(Access::EXECUTE) {
            raw |= S2_XN;
        }
        Ok(raw)
    }

    fn decode_access(&self, raw: u64) -> Access {
        let mut access = Access::empty();
        access.set(Access::READ, raw & S2_READ != 0);
        let writable = raw & S2_WRITE != 0 || self.0.is_dirty_managed(raw);
        access.set(Access::WRITE, writable);
        access.set(Access::EXECUTE, raw & S2_XN == 0);
        access.set(Access::DEVICE, raw & S2_NORMAL == S2_DEVICE);
        access
    }

    /// Second-stage tables take nothing away.
    fn let_through(_raw: u64) -> Access {
        Access::all()
    }

    fn writable_now(&self, raw: u64) -> bool {
        raw & S2_WRITE != 0
    }

    fn without_write(&self, raw: u64) -> u64 {
        raw & !S2_WRITE
    }
}

#[cfg(test)]
mod tests;
