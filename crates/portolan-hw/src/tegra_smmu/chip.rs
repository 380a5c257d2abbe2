//! The chips, and the differences between their SMMUs.
//!
//! The SMMU has no identification registers: the description of the machine names the chip.
//!
//! *Context.* Interrupt: everything here is a value.

use crate::tegra_smmu::swgroup::{self, Swgroup};
use portolan::addr::{PageSize, StreamId};
use portolan::table::format::TegraMemory;
use portolan_spec::tegra_smmu::reg::{self, ptc_config, tlb_config, tlb_flush};

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
        let turns = match self.is_newer() {
            true => tlb_config::ROUND_ROBIN,
            false => 0,
        };
        tlb_config::HIT_UNDER_MISS | turns | (self.tlb_lines() & tlb_config::LINES)
    }

    /// Value of [`reg::PTC_CONFIG`].
    pub const fn ptc_config(self) -> u32 {
        const REQUESTS: u32 = 8;
        let limit = match self.is_newer() {
            true => REQUESTS << ptc_config::REQUEST_LIMIT_LSB,
            false => 0,
        };
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
