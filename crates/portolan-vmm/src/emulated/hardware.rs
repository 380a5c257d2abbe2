//! Devices that are passed through behind an emulated unit: the host's IOMMU walks the guest's tables itself.
//!
//! The guest's memory is the second stage of the host's IOMMU, and the tables that the guest has for a device are the
//! first one. The emulated unit tells [`Hardware`] of each device's entry and of each invalidation, before the guest is
//! answered. What the entry means is the hardware's: the monitor offers its guest the kind of unit that the host has.

use std::fmt;
use std::io;

use portolan::addr::IovaRange;

/// Place of a device by its guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GuestEntry<'e> {
    /// Every access is refused.
    Blocked,
    /// Addresses are the guest's own.
    PassThrough,
    /// The guest's tables: the words of its entry of the device, as it wrote them. They are those of
    /// [`Context::with_entry`](super::Context::with_entry).
    Tables(&'e [u64]),
}

/// A device that is passed through, behind the host's IOMMU.
///
/// ```
/// use portolan::addr::IovaRange;
/// use portolan_vmm::emulated::{GuestEntry, Hardware};
/// use std::io;
///
/// /// A disk, behind VT-d of the host.
/// #[derive(Debug)]
/// struct Disk;
///
/// impl Hardware for Disk {
///     fn attach(&self, entry: GuestEntry<'_>) -> io::Result<()> {
///         match entry {
///             GuestEntry::Blocked => println!("the disk is taken from its tables"),
///             GuestEntry::Tables(words) => println!("nested tables are made of {words:x?}, and attached"),
///             _ => println!("the disk is attached to the guest's memory"),
///         }
///         Ok(())
///     }
///
///     fn invalidate(&self, range: Option<IovaRange>) -> io::Result<()> {
///         println!("the hardware is told to forget {range:?}");
///         Ok(())
///     }
/// }
/// ```
pub trait Hardware: Send + Sync + fmt::Debug {
    /// Has the device's accesses go where `entry` says.
    ///
    /// # Errors
    /// If they do not: then they go where they went before.
    fn attach(&self, entry: GuestEntry<'_>) -> io::Result<()>;

    /// Forgets translations of `range`, or of all addresses, and waits until no access uses one. It is called while the
    /// device is attached to tables.
    ///
    /// # Errors
    /// If the hardware may have one of them. The guest is not told that its command is done.
    fn invalidate(&self, range: Option<IovaRange>) -> io::Result<()>;
}
