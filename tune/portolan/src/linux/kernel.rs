//! The kernel whose rules are followed: its release, its flush queues and the CPUs that it runs on.
//!
//! Read from Linux 6.12, 7.2 and 7.3: `drivers/iommu/dma-iommu.c`, `include/linux/iommu-dma.h`. Not modelled: the one
//! queue for all CPUs (`IOMMU_DMA_OPTS_SINGLE_QUEUE`, since 6.7), which only s390 asks for.

use crate::facts::Facts;
use crate::trace::{Api, Reader};

/// A release, as two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Release(pub u32, pub u32);

impl Release {
    /// Newest release whose source was read.
    pub const NEWEST: Self = Self(7, 3);
    /// The first whose `dma_iova_unlink` waits for each invalidation, with a flush queue or without.
    const UNLINK_WAITS: Self = Self(7, 3);
    /// The last whose `dma_iova_destroy` does not.
    pub(crate) const UNLINK_QUEUES: Self = Self(7, 2);
}

/// Percentage of the time in which CPUs that always run did so; the machine's start, before all of them are up, takes
/// the rest.
const ALWAYS_PCT: u32 = 95;

/// Times at which the traced CPUs run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpuTime {
    /// Timers always run: CPUs are real, or the kernel says so.
    Always,
    /// Timers run if the trace shows it: CPUs are or may be virtual, and a hypervisor may have stopped them.
    AsTraced,
}

/// Properties of the kernel that its rules depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Its release, if known.
    pub release: Option<Release>,
    /// Nanoseconds between ticks, at which timers run: 4 ms (`CONFIG_HZ=250`, as Debian has it) unless a better value
    /// is known.
    pub tick_ns: u64,
    /// Nanoseconds until a flush queue's timer is due: `IOVA_DEFAULT_FQ_TIMEOUT`.
    pub timeout_ns: u64,
    /// Entries that a CPU's flush queue holds: one fewer than `IOVA_DEFAULT_FQ_SIZE`, as one place stays empty.
    pub queue_holds: u64,
    /// CPUs of the machine, if known.
    pub cpus: Option<u32>,
    /// Times at which those run.
    pub cpu_time: CpuTime,
}

impl Default for Kernel {
    fn default() -> Self {
        Self {
            release: None,
            tick_ns: 4_000_000,
            timeout_ns: 10_000_000,
            queue_holds: 255,
            cpus: None,
            cpu_time: CpuTime::AsTraced,
        }
    }
}

impl Kernel {
    /// Kernel of the machine that `facts` are about.
    pub(crate) fn of_machine(facts: &Facts) -> Self {
        Self {
            release: facts.version().map(|(major, minor)| Release(major, minor)),
            cpus: Some(facts.cpus).filter(|cpus| *cpus > 0),
            cpu_time: match facts.cpus_ran_pct {
                _ if !facts.under_hypervisor => CpuTime::Always,
                Some(ALWAYS_PCT..) => CpuTime::Always,
                _ => CpuTime::AsTraced,
            },
            ..Self::default()
        }
    }

    /// Kernel of a trace, as far as the trace tells.
    pub fn of(reader: &Reader, facts: Option<&Facts>) -> Self {
        let told = facts.map(Self::of_machine).unwrap_or_default();
        let release = || reader.release().map(|(major, minor)| Release(major, minor));
        Self {
            release: told.release.or_else(release),
            cpus: told.cpus.or_else(|| reader.cpus()),
            ..told
        }
    }

    /// Tells if the unmap of a mapping of `pieces`, made by `api`, joins a flush queue where the kernel is lazy.
    ///
    /// `__iommu_dma_unmap` sets `queued` in its `iommu_iotlb_gather` wherever the domain has a queue, so that it
    /// neither waits nor gives the addresses back. From 6.16 to 7.2 `dma_iova_destroy` does the same
    /// (`__iommu_dma_iova_unlink` with `free_iova`). In 7.3 it calls `dma_iova_unlink`, which leaves `queued` unset
    /// and waits in `iommu_iotlb_sync`, and `dma_iova_free`, which gives the addresses back at once.
    ///
    /// A request of one piece does not use the two-step API (`blk_rq_dma_map_iter_start`).
    pub(super) fn queues(&self, api: Api, pieces: usize) -> bool {
        match api {
            Api::DmaMap => true,
            Api::Untold if pieces <= 1 => true,
            Api::TwoStep => self.release.unwrap_or(Release::NEWEST) < Release::UNLINK_WAITS,
            Api::Untold => self.release.is_none_or(|release| release < Release::UNLINK_WAITS),
        }
    }
}
