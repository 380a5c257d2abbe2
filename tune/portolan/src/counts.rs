//! Commands and waits of machines, as numbers: replays, the rules of Linux and reproductions report them.

use portolan_cli::display;
use portolan_sim::counters::Counters;
use serde::{Deserialize, Serialize};

/// Invalidation commands by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Invalidations {
    /// Single pages.
    pub page: u64,
    /// Ranges.
    pub range: u64,
    /// Commands for a whole context.
    pub context: u64,
    /// Everything.
    pub global: u64,
}

impl Invalidations {
    /// Number of all commands.
    pub fn total(&self) -> u64 {
        self.page + self.range + self.context + self.global
    }

    /// Commands that a model has counted.
    pub fn of(counters: &Counters) -> Self {
        let kinds = counters.invalidations;
        Self { page: kinds.page, range: kinds.range, context: kinds.context, global: kinds.global }
    }

    /// Both, added up.
    pub fn plus(self, other: Self) -> Self {
        Self {
            page: self.page.saturating_add(other.page),
            range: self.range.saturating_add(other.range),
            context: self.context.saturating_add(other.context),
            global: self.global.saturating_add(other.global),
        }
    }

    /// Commands since `before`.
    pub fn since(self, before: Self) -> Self {
        Self {
            page: self.page - before.page,
            range: self.range - before.range,
            context: self.context - before.context,
            global: self.global - before.global,
        }
    }
}

/// Memory that stayed reachable after unmap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Exposed {
    /// Most bytes at once.
    pub max_bytes: u64,
    /// Most of them at once that their owner could use for something else already.
    pub reusable_bytes: u64,
    /// Longest time from unmap to the end of the invalidation that covers it.
    pub max_us: f64,
}

/// Invalidation commands and waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CommandCounts {
    /// Register writes that invalidate by page.
    pub page: u64,
    /// Register writes that invalidate by range.
    pub range: u64,
    /// Register writes that invalidate by context.
    pub context: u64,
    /// Waits for completion.
    pub sync: u64,
}

impl CommandCounts {
    /// Commands and waits that a model has counted.
    pub fn of(counters: &Counters) -> Self {
        let kinds = counters.invalidations;
        Self { page: kinds.page, range: kinds.range, context: kinds.context, sync: counters.syncs }
    }

    /// Both, added up.
    pub fn plus(self, other: Self) -> Self {
        Self {
            page: self.page + other.page,
            range: self.range + other.range,
            context: self.context + other.context,
            sync: self.sync + other.sync,
        }
    }

    /// Commands and waits since `before`.
    pub fn since(self, before: Self) -> Self {
        Self {
            page: self.page - before.page,
            range: self.range - before.range,
            context: self.context - before.context,
            sync: self.sync - before.sync,
        }
    }
}

/// Registers of Tegra's SMMU written by one operation, by the effect of the write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RegisterWrites {
    /// All register writes.
    pub writes: u64,
    /// The whole page-table cache.
    pub ptc_flush_all: u64,
    /// Upper address bits of a line of it.
    pub ptc_flush_hi: u64,
    /// A line of it.
    pub ptc_flush_line: u64,
    /// An address space in the translation buffer.
    pub tlb_flush_asid: u64,
    /// 4 MiB in it.
    pub tlb_flush_section: u64,
    /// 16 KiB in it.
    pub tlb_flush_group: u64,
    /// Reads that wait for the writes.
    pub read_backs: u64,
}

impl RegisterWrites {
    /// Heads of [`columns`](Self::columns), and the order in which they are left out if they do not all fit.
    pub const HEADS: [(&str, u8); 8] = [
        ("writes", 0),
        ("PTC all", 2),
        ("PTC line", 1),
        ("PTC upper bits", 3),
        ("TLB space", 4),
        ("TLB 4 MiB", 5),
        ("TLB 16 KiB", 6),
        ("reads", 0),
    ];

    /// The numbers as text.
    pub fn columns(mut self) -> [String; 8] {
        self.fields().map(|number| display::grouped(*number))
    }

    fn fields(&mut self) -> [&mut u64; 8] {
        [
            &mut self.writes,
            &mut self.ptc_flush_all,
            &mut self.ptc_flush_line,
            &mut self.ptc_flush_hi,
            &mut self.tlb_flush_asid,
            &mut self.tlb_flush_section,
            &mut self.tlb_flush_group,
            &mut self.read_backs,
        ]
    }

    /// Adds the counts of another operation.
    pub fn add(&mut self, other: &Self) {
        let mut other = *other;
        for (sum, more) in self.fields().into_iter().zip(other.fields()) {
            *sum += *more;
        }
    }

    /// Writes and reads since `before`.
    pub fn since(mut self, mut before: Self) -> Self {
        for (now, before) in self.fields().into_iter().zip(before.fields()) {
            *now -= *before;
        }
        self
    }

    /// Average for each of `operations`, rounded down.
    pub fn each(mut self, operations: u64) -> Self {
        for sum in self.fields() {
            *sum /= operations.max(1);
        }
        self
    }
}
