//! Interrupts that a unit lets through, by the device that may raise them and the CPU that takes
//! them.
//!
//! On x86 a device raises an interrupt by a write of 4 bytes to the window at 0xfee0_0000, and the
//! value and address choose the CPU and the vector. A unit that remaps interrupts lets the device
//! name an entry of a table instead: the entry has the interrupt that arrives, and the requesters
//! that may name it.
//!
//! Not here: the composition of messages and redirection entries, which is each unit's own; blocks
//! of messages of one MSI capability (MSI-X and single messages are served).

use alloc::vec::Vec;
use thiserror::Error;

use super::{GuestTag, IommuError};
use crate::addr::{PhysAddr, RequesterId, StreamId};
use crate::platform::contract::{ApicPageAddress, InterruptFileAddress, PostedAddress};

/// The number by which a CPU finds its handler (16 to 255).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Vector(u8);

impl Vector {
    /// The vector of that number; `None` for the first sixteen, which are the CPU's own.
    ///
    /// *Context.* Interrupt.
    pub const fn new(number: u8) -> Option<Self> {
        if number < 16 {
            return None;
        }
        Some(Self(number))
    }

    /// Its number.
    ///
    /// *Context.* Interrupt.
    pub const fn get(self) -> u8 {
        self.0
    }
}

/// Local interrupt controllers that take an interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Destination {
    /// The one with this identifier.
    Physical(u32),
    /// Those that this logical address selects.
    Logical(u32),
}

impl Destination {
    /// The identifier or the logical address.
    ///
    /// *Context.* Interrupt.
    pub const fn get(self) -> u32 {
        match self {
            Self::Physical(id) | Self::Logical(id) => id,
        }
    }
}

/// Choice of the CPU that takes an interrupt among those that its destination selects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Delivery {
    /// All take it.
    #[default]
    Fixed,
    /// The hardware chooses one.
    LowestPriority,
}

/// Meaning of an interrupt's line or message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Trigger {
    /// Each is one interrupt: all messages of devices.
    #[default]
    Edge,
    /// It lasts until it is acknowledged: lines at an I/O APIC.
    Level,
}

/// Interrupt that arrives when a device raises it.
///
/// ```
/// use portolan::iommu::{Destination, InterruptTarget, Vector};
/// let vector = Vector::new(0x40).ok_or("not a vector of devices")?;
/// let target = InterruptTarget::new(vector, Destination::Physical(0));
/// assert_eq!(target.vector.get(), 0x40);
/// # Ok::<(), &str>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct InterruptTarget {
    /// The handler's number.
    pub vector: Vector,
    /// Local interrupt controllers at which it arrives.
    pub destination: Destination,
    /// Choice among several.
    pub delivery: Delivery,
    /// Edge or level.
    pub trigger: Trigger,
}

impl InterruptTarget {
    /// Edge-triggered, to all that `destination` selects.
    ///
    /// *Context.* Interrupt.
    pub fn new(vector: Vector, destination: Destination) -> Self {
        Self { vector, destination, delivery: Delivery::Fixed, trigger: Trigger::Edge }
    }
}

/// Requester that may raise an interrupt. The unit compares it with the requester identifier that a
/// message carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum InterruptSource {
    /// One requester: a function, an I/O APIC, a timer.
    Requester(RequesterId),
    /// All functions of the device that `0` is a function of: for functions that send under each
    /// other's number.
    Device(RequesterId),
    /// Any requester on these buses, both included: for devices behind a bridge to conventional
    /// PCI, which puts numbers of its own on messages. All other requesters on those buses may
    /// raise the interrupt as well.
    Buses {
        /// The first bus.
        first: u8,
        /// The last bus.
        last: u8,
    },
}

impl InterruptSource {
    /// Tells if it is `stream`, and no other but functions of the same device.
    ///
    /// *Context.* Interrupt.
    pub fn is_of(self, stream: StreamId) -> bool {
        match self {
            Self::Requester(of) => of.stream() == stream,
            Self::Device(of) => of.stream().get() & !7 == stream.get() & !7,
            Self::Buses { .. } => false,
        }
    }
}

/// Message that a device writes to raise an interrupt: its MSI capability, or an entry of its MSI-X
/// table, is given both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MsiMessage {
    /// Address to which it writes.
    pub address: u64,
    /// Value that it writes. A capability with 16 bits of data takes the low half; the high one is
    /// zero.
    pub data: u32,
}

/// The active level of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Polarity {
    /// High.
    #[default]
    High,
    /// Low.
    Low,
}

/// An entry of an I/O APIC's redirection table: 64 bits, not masked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RedirectionEntry(u64);

impl RedirectionEntry {
    /// The entry of these bits.
    ///
    /// *Context.* Interrupt.
    pub const fn new(bits: u64) -> Self {
        Self(bits)
    }

    /// Its bits; the low half is written last.
    ///
    /// *Context.* Interrupt.
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// Place in memory at which a virtual CPU's interrupt is pending until the monitor takes it.
///
/// *Context.* Interrupt: a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posting {
    /// A posted-interrupt descriptor, which VT-d has.
    Descriptor(DescriptorPosting),
    /// A memory-resident interrupt file, which RISC-V IOMMUs have.
    File(FilePosting),
    /// A backing page of a virtual interrupt controller, which AMD-Vi has.
    Apic(ApicPosting),
}

/// Virtual CPU's interrupt that is pending in the backing page of its interrupt controller.
///
/// *Context.* Interrupt: a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApicPosting {
    /// The virtual CPU's [`GuestApicPage`](super::GuestApicPage).
    pub page: ApicPageAddress,
    /// The guest's number for the interrupt.
    pub vector: Vector,
    /// Number of the virtual CPU, by which the unit names it.
    pub tag: GuestTag,
    /// State of the virtual CPU. A posting in which nothing else changes waits for no hardware, and loses nothing.
    pub cpu: GuestCpu,
}

/// State of a virtual CPU, for a unit that posts interrupts to it.
///
/// *Context.* Interrupt: a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestCpu {
    /// It runs at the CPU with that physical identifier, which the unit tells of each interrupt.
    Runs(Destination),
    /// It does not run. What is pending is delivered when it does.
    Waits,
    /// It does not run before the unit names it: each interrupt is recorded for the monitor.
    Sleeps,
}

/// Virtual CPU's interrupt that is pending in a memory-resident interrupt file. Its identity is the number that the
/// device writes: the vector of the interrupt's target.
///
/// *Context.* Interrupt: a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilePosting {
    /// The virtual CPU's [`MemoryInterruptFile`](super::MemoryInterruptFile).
    pub file: InterruptFileAddress,
    /// The monitor's interrupt after each that is stored, enabled or not.
    pub notice: InterruptTarget,
}

/// Virtual CPU's interrupt that is pending in a posted-interrupt descriptor.
///
/// *Context.* Interrupt: a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DescriptorPosting {
    /// The virtual CPU's [`PostedDescriptor`](super::PostedDescriptor).
    pub descriptor: PostedAddress,
    /// The guest's number for the interrupt.
    pub vector: Vector,
    /// Set if it notifies while notifications are suppressed.
    pub urgent: bool,
}

/// Entry of a unit's interrupt table, and which use of it is meant.
///
/// *Context.* Interrupt: a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterruptPlace {
    /// Address of the table.
    pub table: PhysAddr,
    /// Index of the entry.
    pub index: u16,
    /// Number of the use, counted over all entries of the table.
    pub serial: u64,
}

/// An interrupt that a source may raise: an entry of a unit's table in use. It is given back by
/// [`RemapInterrupts::free`]; if it is dropped, its entry stays in use until its stream is blocked.
#[derive(Debug, PartialEq, Eq)]
pub struct Interrupt {
    place: InterruptPlace,
    source: InterruptSource,
    target: InterruptTarget,
}

impl Interrupt {
    /// For drivers: an interrupt that uses the entry at `place`.
    /// A handle that its unit did not give out is refused there.
    ///
    /// *Context.* Interrupt.
    pub const fn given_out(
        place: InterruptPlace,
        source: InterruptSource,
        target: InterruptTarget,
    ) -> Self {
        Self { place, source, target }
    }

    /// For drivers: its entry, and which use of it this is.
    ///
    /// *Context.* Interrupt.
    pub const fn place(&self) -> InterruptPlace {
        self.place
    }

    /// For drivers: sets the interrupt that arrives from now on.
    ///
    /// *Context.* Interrupt.
    pub fn retargeted(&mut self, target: InterruptTarget) {
        self.target = target;
    }

    /// Its index in the unit's table.
    ///
    /// *Context.* Interrupt.
    pub const fn index(&self) -> u16 {
        self.place.index
    }

    /// Requester that may raise it.
    ///
    /// *Context.* Interrupt.
    pub const fn source(&self) -> InterruptSource {
        self.source
    }

    /// Interrupt that arrives.
    ///
    /// *Context.* Interrupt.
    pub const fn target(&self) -> InterruptTarget {
        self.target
    }
}

/// Error of setting up, moving or giving back an interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum InterruptError {
    /// All entries are in use.
    #[error("all entries of the interrupt table are in use")]
    Full,
    /// The unit cannot address that destination as it is set up.
    #[error("the unit cannot send interrupts to {0:?}")]
    Destination(Destination),
    /// The unit cannot tell that source apart.
    #[error("the unit cannot verify that interrupts come from {0:?}")]
    Source(InterruptSource),
    /// The unit does not deliver that.
    #[error("the unit cannot deliver such an interrupt")]
    Target,
    /// The unit posts no interrupts, or none to that place.
    #[error("the unit posts no interrupts there")]
    Unposted,
    /// The handle is of another unit, or its entry was taken back because its stream was blocked.
    #[error("the interrupt is not in use")]
    NotInUse,
    /// The hardware failed.
    #[error(transparent)]
    Iommu(#[from] IommuError),
}

/// A unit that remaps interrupts.
///
/// An entry that is given back, or whose stream is blocked, lets nothing through once that has
/// returned `Ok`, and only then is it used for another interrupt. Where the hardware did not complete
/// the invalidation the entry stays out of use until a later one has.
///
/// *Locking.* Callers take turns, by a wait that is bounded by the unit's limit.
///
/// *Context.* Atomic, where a method does not say otherwise: they wait for the hardware.
///
/// ```
/// use portolan::addr::PciFunction;
/// use portolan::iommu::{
///     Interrupt, InterruptError, InterruptSource, InterruptTarget, MsiMessage, RemapInterrupts,
/// };
/// /// What a function's MSI capability has to hold, and the interrupt that it raises then.
/// fn message_of(
///     unit: &dyn RemapInterrupts, function: PciFunction, target: InterruptTarget,
/// ) -> Result<(Interrupt, MsiMessage), InterruptError> {
///     let source = InterruptSource::Requester(function.requester);
///     let interrupt = unit.allocate(source, target)?;
///     let message = unit.message(&interrupt)?;
///     Ok((interrupt, message))
/// }
/// ```
pub trait RemapInterrupts: Send + Sync {
    /// Lets `source` raise an interrupt that arrives as `target`.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// See [`InterruptError`]; no entry is in use for it.
    fn allocate(
        &self,
        source: InterruptSource,
        target: InterruptTarget,
    ) -> Result<Interrupt, InterruptError>;

    /// Interrupts that `source` raises since before this kernel: each once, for the device's driver, which
    /// [frees](RemapInterrupts::free) those that it has no use for. Until then they arrive as a former kernel has set
    /// them up, or end when the stream is blocked.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// [`InterruptError::Iommu`] if others have the turn for too long.
    fn adopted_interrupts(
        &self,
        _source: InterruptSource,
    ) -> Result<Vec<Interrupt>, InterruptError> {
        Ok(Vec::new())
    }

    /// Has the interrupt arrive as `target` from now on. None is lost: each arrives as one or the
    /// other, and as the new one only once this has returned. The device's message stays the same. Only where table
    /// memory has no stores of pairs ([`TableMem::pairs`](crate::platform::TableMem::pairs)), an entry of AMD-Vi of
    /// which both words change (a vector and a destination together) refuses interrupts for a moment.
    ///
    /// # Errors
    /// See [`InterruptError`]. On [`InterruptError::Iommu`] it may arrive as either.
    fn retarget(
        &self,
        interrupt: &mut Interrupt,
        target: InterruptTarget,
    ) -> Result<(), InterruptError>;

    /// Has the interrupt be pending in a virtual CPU's descriptor, file or page from now on, until it is
    /// [retargeted](RemapInterrupts::retarget). None is lost: each arrives as one or the other, and as the new one only
    /// once this has returned. What came before is pending at its former place, which the caller looks at once more,
    /// and may have sent the new notification. Only where table memory has no stores of pairs, an entry that comes to
    /// lead to a page or ceases to ([`Posting::Apic`]) refuses interrupts for a moment: afterwards the caller raises
    /// one itself.
    ///
    /// # Errors
    /// [`InterruptError::Unposted`] if the unit posts no interrupts, or none to such a place: to a descriptor above
    /// 4 GiB where table memory has no stores of pairs. On
    /// [`InterruptError::Iommu`] it may arrive as either.
    fn post(&self, _interrupt: &mut Interrupt, _to: Posting) -> Result<(), InterruptError> {
        Err(InterruptError::Unposted)
    }

    /// Takes the interrupt back: its source raises nothing by it any more.
    ///
    /// # Errors
    /// [`InterruptError::NotInUse`]; [`InterruptError::Iommu`], and the entry stays out of use.
    fn free(&self, interrupt: Interrupt) -> Result<(), InterruptError>;

    /// Takes back all interrupts of `stream`. Blocking the stream does so, too.
    ///
    /// # Errors
    /// If the hardware did not complete. The entries are closed in memory, and stay out of use.
    fn revoke(&self, stream: StreamId) -> Result<(), IommuError>;

    /// Message that the source has to write to raise the interrupt.
    ///
    /// # Errors
    /// [`InterruptError::NotInUse`], or if the unit's messages have no room for the index.
    fn message(&self, interrupt: &Interrupt) -> Result<MsiMessage, InterruptError>;

    /// Value of an I/O APIC's redirection entry that raises the interrupt.
    ///
    /// # Errors
    /// As [`RemapInterrupts::message`].
    fn redirection(
        &self,
        interrupt: &Interrupt,
        polarity: Polarity,
    ) -> Result<RedirectionEntry, InterruptError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_of_a_stream_only_if_it_names_its_device() {
        let function = RequesterId::of(2, 3, 1);
        let (same, sibling) = (function.stream(), RequesterId::of(2, 3, 4).stream());
        let other = RequesterId::of(2, 4, 1).stream();
        let of = |source: InterruptSource| [same, sibling, other].map(|at| source.is_of(at));
        let one = of(InterruptSource::Requester(function));
        let device = of(InterruptSource::Device(function));
        let buses = of(InterruptSource::Buses { first: 0, last: 9 });
        assert_eq!(one, [true, false, false]);
        assert_eq!(device, [true, true, false]);
        assert_eq!(buses, [false; 3]);
        assert_eq!([15, 16].map(Vector::new), [None, Some(Vector(16))]);
    }
}
