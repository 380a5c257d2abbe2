//! Settings of a unit, that an embedder chooses.
//!
//! *Context.* Interrupt: everything here is a value.

use crate::promise::TrustedDescription;
use crate::reservations::Reservations;
use portolan::addr::Iova;
use portolan::dma::Doorbell;
use portolan::inval::{CombineOptions, Quirks};
use portolan::platform::Nanos;
use portolan::table::format::{DirtyTracking, RiscvContiguity};
use portolan_tables::imsic::InterruptFiles;

/// Settings of a unit.
///
/// ```no_run
/// # use portolan::iommu::IommuError;
/// # use portolan::platform::UnitPlatform;
/// # use portolan_hw::riscv::{Config, RiscvIommu, Signal};
/// /// A platform device of 2^16 devices, whose interrupts are wires.
/// fn open<P: UnitPlatform>(
///     registers: P::Registers, memory: P::Memory, cpus: P,
/// ) -> Result<RiscvIommu<P>, IommuError> {
///     let mut config = Config::default();
///     config.streams_lg2 = 16;
///     config.signal = Signal::Wired;
///     RiscvIommu::enable(registers, memory, cpus, config)
/// }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Longest wait for the hardware, each time: for commands, the longest time in which the unit
    /// fetches none.
    pub limit: Nanos,
    /// Commands in the command queue as an exponent, from 8 to 15.
    pub queue_lg2: u32,
    /// Records in the fault queue as an exponent, from 7 to 15.
    pub faults_lg2: u32,
    /// Records in the queue of page requests as an exponent, from 8 to 15; `None` for no queue. With one,
    /// devices whose TLB is used
    /// ([`use_device_tlb`](portolan::iommu::IommuDomains::use_device_tlb)) may send requests.
    pub requests_lg2: Option<u32>,
    /// Width of the numbers of devices in bits, up to 24. Wider ones are not of this unit.
    pub streams_lg2: u32,
    /// Quirks that the invalidation plans respect, beyond the hardware's own word.
    pub quirks: Quirks,
    /// Makes CPUs that invalidate at the same time submit together; each submits its own where it
    /// is `None`. See [`Combiner`](portolan::inval::Combiner) for a caller's wait then.
    pub combining: Option<CombineOptions>,
    /// Dirty state in domains' tables: the pages that devices have written
    /// ([`read_and_clear_dirty`](portolan::table::PageTable::read_and_clear_dirty)), where the unit
    /// sets accessed and dirty bits.
    pub dirty: DirtyTracking,
    /// Leaves of 64 KiB in domains (Svnapot). Every unit has to know them and none says so in a
    /// register; QEMU 10's takes them for addresses that are not there. Off, unless an embedder
    /// that knows the unit sets it.
    pub contiguity: RiscvContiguity,
    /// Way in which the unit tells of faults.
    pub signal: Signal,
    /// Addresses reserved for streams: memory that firmware's devices go on using, doorbells.
    pub reserved: Reservations,
    /// Settings for messages of devices, if they go through MSI page tables. New domains then have
    /// second-stage tables, since there are MSI page tables only beside those.
    pub interrupts: Option<Messages>,
}

/// Settings by which a unit lets messages of devices through.
///
/// ```
/// use portolan::addr::{Iova, PhysAddr};
/// use portolan_hw::TrustedDescription;
/// use portolan_hw::riscv::{Config, InterruptFiles, Messages};
/// let files = InterruptFiles::new(PhysAddr::new(0x2800_0000), 4);
/// let mut config = Config::default();
/// // SAFETY: the device tree has the files there.
/// let described = unsafe { TrustedDescription::new() };
/// config.interrupts = Some(Messages::new(files, described));
/// // Devices write their messages there; a stream has 2^lg2_entries pages of it.
/// assert_eq!(config.interrupts.map(|of| of.window), Some(Iova::new(0xe000_0000)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Messages {
    /// The first address of those that devices write messages to: below 4 GiB, which devices with
    /// addresses of 32 bits reach, aligned to its length, and not 0. Nothing is mapped there. It must not
    /// be where bridges before the unit take addresses for functions' registers.
    pub window: Iova,
    /// Its length in bytes as an exponent.
    pub window_lg2: u32,
    /// Entries for each stream as an exponent, up to 8. Each entry takes a page of the window: as many
    /// streams as there is room for can have interrupts.
    pub lg2_entries: u32,
    /// Interrupt files to which messages are written in the end.
    pub(super) files: InterruptFiles,
}

impl Messages {
    /// To `files`, by 256 MiB from 0xe000_0000 on, with 64 entries for each of 1,024 streams.
    /// `_description` is the promise that they are no memory.
    pub const fn new(files: InterruptFiles, _description: TrustedDescription) -> Self {
        Self { window: Iova::new(0xe000_0000), window_lg2: 28, lg2_entries: 6, files }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            limit: Nanos::from_millis(1000),
            queue_lg2: 8,
            faults_lg2: 7,
            requests_lg2: None,
            streams_lg2: 16,
            quirks: Quirks::default(),
            combining: None,
            dirty: DirtyTracking::Off,
            contiguity: RiscvContiguity::Absent,
            signal: Signal::None,
            reserved: Reservations::default(),
            interrupts: None,
        }
    }
}

/// Way in which a unit tells that there is something for
/// [`next_fault`](portolan::iommu::Iommu::next_fault). The handler reads until there is nothing
/// left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Signal {
    /// It does not.
    #[default]
    None,
    /// By its first wire, which is raised until it is read.
    Wired,
    /// By a message.
    Message {
        /// Address to which it is written: a multiple of 4, of at most 56 bits.
        address: Doorbell,
        /// Value that is written there.
        data: u32,
    },
}
