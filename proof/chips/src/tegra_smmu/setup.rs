//! Setup of a Tegra SMMU, and its counts.

use std::collections::BTreeMap;
use std::sync::Arc;

use portolan::addr::{PageSize, StreamId};

use crate::unit::{Conditions, Sums, Told};
use portolan_sim::clock::VirtualClock;
use portolan_sim::iommu::Temper;

/// Chip that the SMMU is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TegraChip {
    /// Tegra 3.
    Tegra30,
    /// Tegra 4.
    Tegra114,
    /// Tegra K1.
    Tegra124,
    /// Tegra X1.
    Tegra210,
}

/// A client that devices of tests are behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TegraClient {
    /// The number of its swgroup.
    pub stream: StreamId,
    /// Offset of the register that names the swgroup's address space.
    pub register: usize,
    /// The clients that read and write, if they exist.
    pub clients: [Option<u8>; 2],
}

const fn client(stream: u32, register: usize, clients: [Option<u8>; 2]) -> TegraClient {
    TegraClient { stream: StreamId::new(stream), register, clients }
}

impl TegraChip {
    /// Address spaces.
    pub const fn asids(self) -> u32 {
        match self {
            Self::Tegra30 | Self::Tegra114 => 4,
            Self::Tegra124 | Self::Tegra210 => 128,
        }
    }

    /// Lowest bit of the address space in a flush of the TLB.
    pub(super) const fn flush_asid_lsb(self) -> u32 {
        match self {
            Self::Tegra30 | Self::Tegra114 => 29,
            Self::Tegra124 | Self::Tegra210 => 24,
        }
    }

    /// A line of the PTC: one access to memory.
    pub const fn line(self) -> PageSize {
        match self {
            Self::Tegra30 => PageSize::of_lg2(4),
            Self::Tegra114 | Self::Tegra124 => PageSize::of_lg2(5),
            Self::Tegra210 => PageSize::of_lg2(6),
        }
    }

    /// Width of memory addresses.
    pub const fn memory_lg2(self) -> u8 {
        match self {
            Self::Tegra30 | Self::Tegra114 => 32,
            Self::Tegra124 | Self::Tegra210 => 34,
        }
    }

    /// Clients: some that read and write, and the camera, which writes.
    pub const fn clients(self) -> [TegraClient; 3] {
        const HOST1X: [Option<u8>; 2] = [Some(0x16), Some(0x36)];
        const PCIE: [Option<u8>; 2] = [Some(0x0e), Some(0x31)];
        const AUDIO: [Option<u8>; 2] = [Some(0x15), Some(0x35)];
        match self {
            Self::Tegra30 => [
                client(12, 0x250, HOST1X),
                client(7, 0x238, PCIE),
                client(6, 0x280, [Some(0x0d), Some(0x2c)]),
            ],
            Self::Tegra114 => [
                client(8, 0x250, HOST1X),
                client(7, 0x254, AUDIO),
                client(14, 0x280, [None, Some(0x2c)]),
            ],
            Self::Tegra124 => [
                client(6, 0x250, HOST1X),
                client(3, 0x238, PCIE),
                client(25, 0x280, [None, Some(0x72)]),
            ],
            Self::Tegra210 => [
                client(6, 0x250, HOST1X),
                client(3, 0x238, PCIE),
                client(23, 0x280, [None, Some(0x72)]),
            ],
        }
    }

    /// The camera's swgroup.
    pub const fn camera(self) -> StreamId {
        self.clients()[2].stream
    }
}

/// All that a Tegra SMMU is made from.
#[derive(Clone, Debug)]
pub struct TegraSetup {
    /// Chip that it is in.
    pub chip: TegraChip,
    /// Behaviour of its caches. In realistic mode, the TLB has as many lines of four pages as the IOTLB has entries,
    /// and the PTC as many lines as the walk cache.
    pub temper: Temper,
    /// The clock on which callers wait for it.
    pub clock: Arc<VirtualClock>,
}

impl TegraSetup {
    /// Adversarial.
    pub fn of(chip: TegraChip) -> Self {
        Self { chip, temper: Temper::Adversarial, clock: Arc::default() }
    }
}

impl Conditions for TegraSetup {
    fn conditions(&self) -> (&Temper, &Arc<VirtualClock>) {
        (&self.temper, &self.clock)
    }
}

/// Purpose of an access to a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RegisterUse {
    /// SMMU_CONFIG, TLB_CONFIG or PTC_CONFIG written.
    Config,
    /// PTB_ASID written.
    PtbAsid,
    /// PTB_DATA written.
    PtbData,
    /// A swgroup's address space written.
    SwgroupAsid,
    /// Enables of clients written.
    TranslationEnable,
    /// TLB_FLUSH of everything.
    TlbFlushAll,
    /// TLB_FLUSH of an address space.
    TlbFlushAsid,
    /// TLB_FLUSH of a section.
    TlbFlushSection,
    /// TLB_FLUSH of a group.
    TlbFlushGroup,
    /// PTC_FLUSH of everything.
    PtcFlushAll,
    /// PTC_FLUSH_HI written.
    PtcFlushHi,
    /// PTC_FLUSH of a line.
    PtcFlushLine,
    /// INTSTATUS written.
    Intstatus,
    /// PTB_ASID read.
    ReadBack,
}

/// Counts of events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TegraCounts {
    /// Register accesses that arrived, by use.
    pub registers: BTreeMap<RegisterUse, u64>,
    /// Translations that needed a walk.
    pub misses: u64,
    /// Lines read from memory.
    pub line_reads: u64,
    /// Accesses that went through.
    pub accesses: u64,
    /// Accesses that did not.
    pub faults: u64,
    /// Faults that came while another stood in the record.
    pub lost_faults: u64,
}

impl TegraCounts {
    /// Register accesses of one use.
    pub fn of(&self, what: RegisterUse) -> u64 {
        self.registers.get(&what).copied().unwrap_or(0)
    }

    /// Registers written, for any use.
    pub fn writes(&self) -> u64 {
        let all: u64 = self.registers.values().sum();
        all - self.of(RegisterUse::ReadBack)
    }
}

impl Told for TegraCounts {
    fn told(&self, sums: Sums) -> Self {
        Self { accesses: sums.accesses, ..self.clone() }
    }
}
