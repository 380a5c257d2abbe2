//! The functions of a format, each from 64-bit numbers to one.

/// Layout that a specification describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// VT-d second stage.
    VtdSecond,
    /// VT-d first stage.
    VtdFirst,
    /// AMD-Vi version 1.
    Amd,
    /// Armv8 stage 1, with the exponent of its granule.
    ArmFirst(u32),
    /// Armv8 stage 2, with the exponent of its granule.
    ArmSecond(u32),
    /// RISC-V, a first stage.
    RiscvFirst,
    /// RISC-V, a second stage.
    RiscvSecond,
    /// Tegra.
    Tegra,
}

/// Function of numbers.
#[derive(Clone, Copy, Debug)]
pub enum Call {
    /// Of one.
    One(fn(u64) -> u64),
    /// Of two.
    Two(fn(u64, u64) -> u64),
    /// Of three.
    Three(fn(u64, u64, u64) -> u64),
}

/// A format with its functions.
#[derive(Clone, Debug)]
pub struct Subject {
    /// Name of the module.
    pub name: &'static str,
    /// Its specification's layout.
    pub family: Family,
    /// Levels that have leaves, the lowest first.
    pub levels: u32,
    /// Width of output addresses.
    pub output_lg2: u32,
    /// Exponents of the smallest page and of the entries of a table.
    pub granule_lg2: u32,
    /// Exponent of the number of entries of a table.
    pub index_lg2: u32,
    /// Exponents of the numbers of leaves of clusters, each with a table's level.
    pub clusters: Vec<(u32, u32)>,
    /// Width of an entry in bits.
    pub word_bits: u32,
    /// True if the hardware keeps dirty bits.
    pub keeps_dirty: bool,
    /// True if leaves tell devices from memory.
    pub tells_devices: bool,
    /// True if neighbours differ by a step that is the same everywhere.
    pub has_step: bool,
    /// True if a broken block's entry remembers a table.
    pub remembers: bool,
    /// Functions by name.
    pub functions: &'static [(&'static str, Call)],
}

/// Makes the module `$name` of the format `$format`, whose value is `$value`.
macro_rules! numbers {
    ($name:ident, $format:ty, $value:expr, $family:expr, $levels:literal, $devices:literal, $remembers:literal) => {
        #[allow(missing_docs)]
        pub mod $name {
            use super::*;
            use crate::addr::PhysAddr;
            use crate::numbers::{Call, Subject};
            use crate::platform::Word;
            use crate::table::Access;
            use crate::table::format::{DirtyTracking, Entry, Format};

            type F = $format;

            #[inline(always)]
            fn format() -> F {
                $value
            }

            #[inline(never)]
            pub fn expressible(access: u64, level: u64) -> u64 {
                let access = Access::from_bits_truncate(access as u8);
                u64::from(format().template(access, level as u32).is_ok())
            }

            #[inline(never)]
            pub fn leaf(access: u64, pa: u64, level: u64) -> u64 {
                let access = Access::from_bits_truncate(access as u8);
                match format().template(access, level as u32) {
                    Ok(template) => F::leaf(template, PhysAddr::new(pa)),
                    Err(_) => 0,
                }
            }

            #[inline(never)]
            pub fn kind(raw: u64, level: u64) -> u64 {
                match F::classify(raw, level as u32) {
                    Entry::Empty => 0,
                    Entry::Broken(_) => 1,
                    Entry::Table(_) => 2,
                    Entry::Leaf(_) => 3,
                }
            }

            #[inline(never)]
            pub fn address(raw: u64, level: u64) -> u64 {
                match F::classify(raw, level as u32) {
                    Entry::Empty => 0,
                    Entry::Broken(pa) | Entry::Table(pa) | Entry::Leaf(pa) => pa.get(),
                }
            }

            #[inline(never)]
            pub fn access(raw: u64, level: u64) -> u64 {
                u64::from(format().access(raw, level as u32).bits())
            }

            #[inline(never)]
            pub fn let_through(raw: u64, level: u64) -> u64 {
                u64::from(format().table_access(raw, level as u32).bits())
            }

            #[inline(never)]
            pub fn reserved(raw: u64, level: u64) -> u64 {
                u64::from(format().is_reserved(raw, level as u32))
            }

            #[inline(never)]
            pub fn table(pa: u64, level: u64) -> u64 {
                F::table(PhysAddr::new(pa), level as u32)
            }

            #[inline(never)]
            pub fn full(raw: u64) -> u64 {
                raw | F::FILLED
            }

            #[inline(never)]
            pub fn part(raw: u64, pa: u64, level: u64) -> u64 {
                F::leaf(F::demote(raw, level as u32), PhysAddr::new(pa))
            }

            #[inline(never)]
            pub fn following(raw: u64) -> u64 {
                raw.wrapping_add(F::LEAF_STEP)
            }

            #[inline(never)]
            pub fn broken(pa: u64) -> u64 {
                F::broken(PhysAddr::new(pa))
            }

            #[inline(never)]
            pub fn link(pa: u64) -> u64 {
                F::link(PhysAddr::new(pa))
            }

            #[inline(never)]
            pub fn unlink(raw: u64) -> u64 {
                F::unlink(raw).get()
            }

            #[inline(never)]
            pub fn dirty(raw: u64) -> u64 {
                u64::from(format().is_dirty(raw))
            }

            #[inline(never)]
            pub fn cleaned(raw: u64) -> u64 {
                format().cleaned(raw)
            }

            #[inline(never)]
            pub fn size(raw: u64, level: u64) -> u64 {
                u64::from(F::leaf_lg2(raw, level as u32))
            }

            #[inline(never)]
            pub fn joined(first: u64, lg2: u64) -> u64 {
                F::joined(first, lg2 as u32).unwrap_or(0)
            }

            #[inline(never)]
            pub fn parted(raw: u64, level: u64, part: u64) -> u64 {
                F::parted(raw, level as u32, part)
            }

            fn clusters() -> Vec<(u32, u32)> {
                let of = |level| {
                    let span = F::GRANULE.lg2() + level * F::INDEX_LG2;
                    let sizes: Vec<u32> = format().page_sizes().iter().map(|of| of.lg2()).collect();
                    let larger = sizes.into_iter().filter_map(move |lg2| lg2.checked_sub(span));
                    larger
                        .filter(|lg2| (1..F::INDEX_LG2).contains(lg2))
                        .map(move |lg2| (level, lg2))
                };
                (0..format().levels()).flat_map(of).collect()
            }

            pub fn subject() -> Subject {
                Subject {
                    name: stringify!($name),
                    family: $family,
                    levels: $levels,
                    output_lg2: format().output_lg2(),
                    granule_lg2: F::GRANULE.lg2(),
                    index_lg2: F::INDEX_LG2,
                    clusters: clusters(),
                    word_bits: 8 << <F as Format>::Word::LG2_BYTES,
                    keeps_dirty: format().dirty_tracking() == DirtyTracking::Hardware,
                    tells_devices: $devices,
                    has_step: F::LEAF_STEP != 0,
                    remembers: $remembers,
                    functions: &[
                        ("expressible", Call::Two(expressible)),
                        ("leaf", Call::Three(leaf)),
                        ("kind", Call::Two(kind)),
                        ("address", Call::Two(address)),
                        ("access", Call::Two(access)),
                        ("let_through", Call::Two(let_through)),
                        ("reserved", Call::Two(reserved)),
                        ("table", Call::Two(table)),
                        ("full", Call::One(full)),
                        ("part", Call::Three(part)),
                        ("following", Call::One(following)),
                        ("broken", Call::One(broken)),
                        ("link", Call::One(link)),
                        ("unlink", Call::One(unlink)),
                        ("dirty", Call::One(dirty)),
                        ("cleaned", Call::One(cleaned)),
                        ("size", Call::Two(size)),
                        ("joined", Call::Two(joined)),
                        ("parted", Call::Three(parted)),
                    ],
                }
            }
        }
    };
}
