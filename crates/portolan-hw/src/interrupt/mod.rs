//! Interrupt remapping: its settings, and the common parts of both kinds of unit.
//!
//! [`compose`] has the words that devices and I/O APICs are given, as functions of nothing but their
//! arguments. Each unit's own module has its table: a table of a unit behind VT-d, of a stream behind
//! AMD-Vi. They are used through [`RemapInterrupts`](portolan::iommu::RemapInterrupts).
//!
//! *Context.* Interrupt: everything here is a value; where memory is taken, it says so.

pub mod compose;
mod slots;

pub(crate) use slots::Slots;

/// Identifiers of local interrupt controllers. Behind a RISC-V IOMMU they are the places of harts
/// among those of the interrupt controller, in both modes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ApicMode {
    /// Of 8 bits.
    #[default]
    XApic,
    /// Of 32 bits. Where firmware asks for it to be left alone (the opt-out flag of DMAR) a kernel
    /// stays with [`ApicMode::XApic`].
    X2Apic,
}

/// Interrupt remapping of a unit.
///
/// From the moment on at which it does, a message that chooses CPU and vector itself is refused: of
/// devices, and of I/O APICs and timers without an entry. A kernel masks those before.
///
/// ```
/// use portolan_hw::interrupt::{ApicMode, Remapping};
/// let mut wanted = Remapping::default();
/// wanted.apic = ApicMode::X2Apic;
/// wanted.lg2_entries = 14;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Remapping {
    /// Form of destinations.
    pub apic: ApicMode,
    /// Entries of each table, as an exponent: of a unit's behind VT-d (8 to 16), of a stream's behind
    /// AMD-Vi, where more than 9 are cut off, and behind a RISC-V IOMMU, where more than 8 are.
    pub lg2_entries: u32,
}

impl Default for Remapping {
    /// 4,096 entries, for controllers with identifiers of 8 bits.
    fn default() -> Self {
        Self { apic: ApicMode::XApic, lg2_entries: 12 }
    }
}
