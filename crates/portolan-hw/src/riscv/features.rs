//! Features of a unit, from its registers, and the settings that an embedder chooses beside them.
//!
//! RISC-V IOMMU Architecture Specification, version 1.0, section "IOMMU capabilities", and the
//! extensions for ranges and for entries above the leaves.
//!
//! *Context.* Interrupt: everything here is a value.

use crate::chassis::Present;
use crate::promise::TrustedDescription;
use crate::reservations::Reservations;
use bitflags::bitflags;
use portolan::addr::{Iova, PageSize};
use portolan::dma::Doorbell;
use portolan::inval::{
    Caching, Capabilities, CombineOptions, LeafOnly, PageForm, Quirks, RangeForm, WalkFlush,
    Walker, WriteBuffer,
};
use portolan::iommu::IommuError;
use portolan::platform::{Mmio, Nanos};
use portolan::table::format::{DirtyTracking, RiscvContiguity};
use portolan_spec::riscv::Bits;
use portolan_spec::riscv::context::{BASE_WORDS, EXTENDED_WORDS};
use portolan_spec::riscv::reg::{self, capability};
use portolan_tables::imsic::InterruptFiles;

/// Largest range of one command, as an exponent of pages: with one more, all addresses are meant.
pub(super) const MAX_LG2_PAGES: u8 = 51;
/// With more commands than this, each of a page, the whole context is forgotten instead, where the
/// unit has no ranges: a quarter of the smallest command queue, so that a flush of many addresses
/// neither fills the queue nor makes others wait for as many commands. The IOTLB bounds the walks
/// that are repeated.
pub(super) const MOST_PAGES: u64 = 64;
/// Major version of the specification that the driver follows.
const MAJOR: u64 = 1;
/// Bits that the address of a message never has: it is a multiple of 4.
const ALIGNED: u64 = 3;
/// Widths of physical addresses that are believed: with fewer bits there were no 4 GiB.
const OUTPUT_LG2: core::ops::RangeInclusive<u32> = 32..=56;

bitflags! {
    /// Features that a unit has or has not.
    ///
    /// *Context.* Interrupt: a value.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct RiscvFeature: u32 {
        /// First-stage tables of three levels (Sv39).
        const FIRST_3 = 1;
        /// First-stage tables of four levels (Sv48).
        const FIRST_4 = 1 << 1;
        /// First-stage tables of five levels (Sv57).
        const FIRST_5 = 1 << 2;
        /// Second-stage tables of three levels (Sv39x4).
        const SECOND_3 = 1 << 3;
        /// Second-stage tables of four levels (Sv48x4).
        const SECOND_4 = 1 << 4;
        /// Second-stage tables of five levels (Sv57x4).
        const SECOND_5 = 1 << 5;
        /// MSI page tables (`MSI_FLAT`).
        const MESSAGE_TABLES = 1 << 6;
        /// ATS and page requests, and registers of a queue for them.
        const ATS = 1 << 7;
        /// Structures of either endianness (`END`).
        const EITHER_ENDIAN = 1 << 8;
        /// Interrupts by messages (`IGS`).
        const MESSAGES = 1 << 9;
        /// Interrupts by wires (`IGS`).
        const WIRES = 1 << 10;
        /// Invalidation by address of entries above the leaves (`NL`).
        const NON_LEAF = 1 << 11;
        /// Invalidation of ranges (`S`).
        const RANGES = 1 << 12;
        /// Memory types in tables (`Svpbmt`).
        const MEMORY_TYPES = 1 << 13;
        /// PASIDs of 8 bits (`PD8`).
        const PASIDS_8 = 1 << 14;
        /// PASIDs of 17 bits (`PD17`).
        const PASIDS_17 = 1 << 15;
        /// PASIDs of 20 bits (`PD20`).
        const PASIDS_20 = 1 << 16;
        /// Hardware counters (`HPM`).
        const COUNTERS = 1 << 17;
        /// Accessed and dirty bits that the unit sets (`AMO_HWAD`).
        const UPDATES = 1 << 18;
        /// Memory-resident interrupt files (`MSI_MRIF`).
        const INTERRUPT_FILES = 1 << 19;
        /// Updates of these by atomic operations (`AMO_MRIF`).
        const ATOMIC_FILES = 1 << 20;
    }
}

/// The fields of one bit.
const FLAGS: [(Bits, RiscvFeature); 19] = [
    (capability::SV39, RiscvFeature::FIRST_3),
    (capability::SV48, RiscvFeature::FIRST_4),
    (capability::SV57, RiscvFeature::FIRST_5),
    (capability::SV39X4, RiscvFeature::SECOND_3),
    (capability::SV48X4, RiscvFeature::SECOND_4),
    (capability::SV57X4, RiscvFeature::SECOND_5),
    (capability::MSI_FLAT, RiscvFeature::MESSAGE_TABLES),
    (capability::ATS, RiscvFeature::ATS),
    (capability::END, RiscvFeature::EITHER_ENDIAN),
    (capability::NL, RiscvFeature::NON_LEAF),
    (capability::S, RiscvFeature::RANGES),
    (capability::SVPBMT, RiscvFeature::MEMORY_TYPES),
    (capability::PD8, RiscvFeature::PASIDS_8),
    (capability::PD17, RiscvFeature::PASIDS_17),
    (capability::PD20, RiscvFeature::PASIDS_20),
    (capability::HPM, RiscvFeature::COUNTERS),
    (capability::AMO_HWAD, RiscvFeature::UPDATES),
    (capability::MSI_MRIF, RiscvFeature::INTERRUPT_FILES),
    (capability::AMO_MRIF, RiscvFeature::ATOMIC_FILES),
];

/// Features of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// Features that it has.
    pub has: RiscvFeature,
    /// Version of the specification that it follows: the major one in bits 7:4, the minor one in bits
    /// 3:0.
    pub version: u8,
    /// Width of physical addresses in bits.
    pub output_lg2: u32,
}

impl Features {
    /// Reads the registers.
    ///
    /// # Errors
    /// [`IommuError::Gone`]; [`IommuError::Unsupported`] for another version of the specification;
    /// [`IommuError::Nonsense`] for a width or for interrupts that cannot be.
    pub(crate) fn read(regs: &impl Mmio) -> Result<Self, IommuError> {
        let offset = reg::CAPABILITIES;
        let value = regs.present64(offset)?;
        let version = capability::VERSION.of(value);
        if version >> 4 != MAJOR {
            return Err(IommuError::Unsupported);
        }
        let interrupts = match capability::IGS.of(value) {
            capability::MESSAGES => RiscvFeature::MESSAGES,
            capability::WIRES => RiscvFeature::WIRES,
            capability::BOTH => RiscvFeature::MESSAGES | RiscvFeature::WIRES,
            _ => return Err(IommuError::Nonsense { offset, value }),
        };
        let output_lg2 = capability::PAS.of(value) as u32;
        if !OUTPUT_LG2.contains(&output_lg2) {
            return Err(IommuError::Nonsense { offset, value });
        }
        let set = FLAGS.iter().filter(|(field, _)| field.of(value) == 1);
        Ok(Self {
            has: set.fold(interrupts, |all, (_, has)| all | *has),
            version: version as u8,
            output_lg2,
        })
    }

    /// Tells if the unit can raise interrupts in this way.
    pub(super) fn can_signal(&self, signal: Signal) -> bool {
        match signal {
            Signal::None => true,
            Signal::Wired => self.has.contains(RiscvFeature::WIRES),
            Signal::Message { address, .. } => {
                let address = address.at();
                let fits = reg::MESSAGE_ADDRESS.at(address.get()) == address.get();
                self.has.contains(RiscvFeature::MESSAGES) && fits && address.get() & ALIGNED == 0
            }
        }
    }

    /// Words of a device context.
    pub(super) fn context_words(&self) -> usize {
        if self.has.contains(RiscvFeature::MESSAGE_TABLES) { EXTENDED_WORDS } else { BASE_WORDS }
    }

    /// Capabilities of the hardware for invalidation plans.
    pub fn capabilities(&self) -> Capabilities {
        Capabilities {
            granule: PageSize::SIZE_4K,
            page: PageForm::Granule,
            range: if self.has.contains(RiscvFeature::RANGES) {
                RangeForm::PowerOfTwo { max_lg2_pages: MAX_LG2_PAGES }
            } else {
                RangeForm::Absent
            },
            leaf_only: LeafOnly::Present,
            walker: Walker::Coherent,
            caching: Caching::PresentOnly,
            write_buffer: WriteBuffer::Absent,
        }
    }

    /// `quirks` for this unit: without the extension for entries above the leaves, an address names
    /// leaves alone, and copies of freed tables go with the whole context; without ranges, so do
    /// more than [`MOST_PAGES`] pages.
    pub(super) fn quirks(&self, mut quirks: Quirks) -> Quirks {
        if !self.has.contains(RiscvFeature::NON_LEAF) {
            quirks.walk_flush = WalkFlush::ByContext;
        }
        if !self.has.contains(RiscvFeature::RANGES) {
            quirks.context_above = quirks.context_above.min(MOST_PAGES);
        }
        quirks
    }
}

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
