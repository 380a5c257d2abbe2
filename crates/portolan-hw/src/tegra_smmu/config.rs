//! Settings of a unit, the chips, and numbers of register writes by their effect.
//!
//! The SMMU has no identification registers: the description of the machine names the chip.
//!
//! *Context.* Interrupt: values; cloning a [`Config`] allocates.

use crate::reservations::Reservations;
use crate::tegra_smmu::swgroup;
use crate::tegra_smmu::swgroup::Swgroup;
use portolan::addr::{PageSize, StreamId};
use portolan::inval::{CombineOptions, Quirks};
use portolan::platform::Nanos;
use portolan::table::format::TegraMemory;
use portolan_spec::tegra_smmu::reg;
use portolan_spec::tegra_smmu::reg::{ptc_config, tlb_config, tlb_flush};

/// Options of a unit.
///
/// ```no_run
/// # use core::sync::atomic::AtomicU32;
/// # use portolan::iommu::IommuError;
/// # use portolan::platform::UnitPlatform;
/// # use portolan_hw::tegra_smmu::{Chip, Config, TegraSmmu};
/// /// The unit of a Tegra X1.
/// fn open<P: UnitPlatform<AtomicU32>>(
///     registers: P::Registers, memory: P::Memory, cpus: P,
/// ) -> Result<TegraSmmu<P>, IommuError> {
///     TegraSmmu::enable(registers, memory, cpus, Config::of(Chip::Tegra210))
/// }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Chip of the unit.
    pub chip: Chip,
    /// Longest wait for the hardware, each time.
    pub limit: Nanos,
    /// With more lines of the page-table cache to flush than this, all of them at once.
    pub lines_at_most: u64,
    /// Quirks that the plans respect, beyond the hardware's own word.
    pub quirks: Quirks,
    /// Makes CPUs that invalidate at the same time submit together; each submits its own where it
    /// is `None`. See [`Combiner`](portolan::inval::Combiner) for a caller's wait then.
    pub combining: Option<CombineOptions>,
    /// Memory that firmware reserves for swgroups: a display's framebuffer (a device tree's
    /// `memory-region` with `iommu-addresses`).
    pub reserved: Reservations,
}

impl Config {
    /// The usual for `chip`.
    pub fn of(chip: Chip) -> Self {
        Self {
            chip,
            limit: Nanos::from_millis(1000),
            lines_at_most: 16,
            quirks: Quirks::default(),
            combining: None,
            reserved: Reservations::default(),
        }
    }
}

/// A chip.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Chip {
    /// Tegra 3.
    Tegra30,
    /// Tegra 4.
    Tegra114,
    /// Tegra K1, with Armv7 or Armv8 processors.
    Tegra124,
    /// Tegra X1.
    Tegra210,
}

impl Chip {
    /// Every one.
    pub const ALL: [Self; 4] = [Self::Tegra30, Self::Tegra114, Self::Tegra124, Self::Tegra210];

    /// Number of address spaces.
    pub const fn asids(self) -> u32 {
        match self {
            Self::Tegra30 | Self::Tegra114 => 4,
            Self::Tegra124 | Self::Tegra210 => 128,
        }
    }

    /// A line of the page-table cache.
    pub const fn line(self) -> PageSize {
        PageSize::of_lg2(match self {
            Self::Tegra30 => 4,
            Self::Tegra114 | Self::Tegra124 => 5,
            Self::Tegra210 => 6,
        })
    }

    /// Width of memory addresses.
    pub const fn memory(self) -> TegraMemory {
        match self {
            Self::Tegra30 | Self::Tegra114 => TegraMemory::Bits32,
            Self::Tegra124 | Self::Tegra210 => TegraMemory::Bits34,
        }
    }

    /// The same as a number of bits.
    pub const fn memory_lg2(self) -> u32 {
        match self.memory() {
            TegraMemory::Bits32 => 32,
            TegraMemory::Bits34 => 34,
        }
    }

    /// Lines of the translation buffer, each of four pages.
    pub const fn tlb_lines(self) -> u32 {
        match self {
            Self::Tegra30 => 16,
            Self::Tegra114 | Self::Tegra124 => 32,
            Self::Tegra210 => 48,
        }
    }

    /// Its swgroups.
    pub const fn swgroups(self) -> &'static [Swgroup] {
        match self {
            Self::Tegra30 => swgroup::TEGRA30,
            Self::Tegra114 => swgroup::TEGRA114,
            Self::Tegra124 => swgroup::TEGRA124,
            Self::Tegra210 => swgroup::TEGRA210,
        }
    }

    /// The swgroup of a stream.
    pub fn swgroup(self, stream: StreamId) -> Option<&'static Swgroup> {
        let mut all = self.swgroups().iter();
        all.find(|group| group.stream == stream)
    }

    /// The swgroup of a client.
    pub fn swgroup_of_client(self, client: u8) -> Option<&'static Swgroup> {
        let mut all = self.swgroups().iter();
        all.find(|group| group.clients.contains(&client))
    }

    /// Requests of the page-table cache that may be under way, and turns between clients, which the
    /// older chips do not have.
    const fn is_newer(self) -> bool {
        matches!(self, Self::Tegra124 | Self::Tegra210)
    }

    /// Value of [`reg::TLB_CONFIG`]: all lines in use.
    pub const fn tlb_config(self) -> u32 {
        let turns = if self.is_newer() { tlb_config::ROUND_ROBIN } else { 0 };
        tlb_config::HIT_UNDER_MISS | turns | (self.tlb_lines() & tlb_config::LINES)
    }

    /// Value of [`reg::PTC_CONFIG`].
    pub const fn ptc_config(self) -> u32 {
        const REQUESTS: u32 = 8;
        let limit = if self.is_newer() { REQUESTS << ptc_config::REQUEST_LIMIT_LSB } else { 0 };
        ptc_config::ENABLE | limit | ptc_config::INDEX_MAP
    }

    /// The part of [`reg::TLB_FLUSH`] that restricts it to one address space; alone it is of all
    /// addresses ([`tlb_flush::ALL`]).
    pub const fn flush_asid(self, asid: u32) -> u32 {
        let asid = asid & (self.asids() - 1);
        let lsb = match self.asids() {
            4 => tlb_flush::ASID_LSB_OF_4,
            _ => tlb_flush::ASID_LSB_OF_128,
        };
        tlb_flush::ASID_MATCH | asid << lsb
    }

    /// Bits of the `n`-th register of enables that software sets for translation.
    pub fn enables(self, n: usize) -> u32 {
        let writable = |group: &&Swgroup| group.enables == swgroup::Enables::Writable;
        let groups = self.swgroups().iter().filter(writable);
        let clients = groups.flat_map(|group| group.clients.iter().copied());
        let register = reg::ENABLES.get(n).copied();
        register.map_or(0, |register| reg::enable_bits(clients, register))
    }
}

crate::chassis::counters! {
    /// Effect of an access to a register.
    WriteKind,
    /// Accesses since the unit was taken over.
    Counts {
        Config = "CONFIG" => "SMMU_CONFIG, TLB_CONFIG and PTC_CONFIG.";
        SelectAsid = "PTB_ASID" => "PTB_ASID: which directory is written next.";
        Directory = "PTB_DATA" => "PTB_DATA: a directory.";
        SwgroupAsid = "SWGROUP_ASID" => "The ASID register of a swgroup.";
        Enables = "TRANSLATION_ENABLE" => "Enable bits of clients.";
        TlbAll = "TLB_FLUSH_ALL" => "TLB_FLUSH of everything.";
        TlbAsid = "TLB_FLUSH_ASID" => "TLB_FLUSH of an address space.";
        TlbSection = "TLB_FLUSH_SECTION" => "TLB_FLUSH of 4 MiB of an address space.";
        TlbGroup = "TLB_FLUSH_GROUP" => "TLB_FLUSH of 16 KiB of an address space.";
        PtcAll = "PTC_FLUSH_ALL" => "PTC_FLUSH of everything.";
        PtcHigh = "PTC_FLUSH_HI" => "PTC_FLUSH_HI: the upper address bits of a line.";
        PtcLine = "PTC_FLUSH_LINE" => "PTC_FLUSH of a line.";
        Acknowledge = "INTSTATUS" => "INTSTATUS: a fault is acknowledged.";
        ReadBack = "READ_BACK" => "PTB_ASID read, so that what was written before is complete.";
    }
}

impl Counts {
    /// Writes of all kinds.
    pub fn writes(&self) -> u64 {
        self.total() - self.of(WriteKind::ReadBack)
    }
}
