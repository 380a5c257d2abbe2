//! Registers that hold what was written, with the few that do more, and a list of all writes.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use portolan::addr::{PageSize, PhysAddr, StreamId};
use portolan::iommu::IommuError;
use portolan::platform::{Clock, Mmio, Nanos, SlabTables};
use spin::Mutex;

use super::super::{Config, SmmuV2};

/// Both stages, stream matching, coherent, 8 match registers.
pub const ID0: u32 = 1 << 30 | 1 << 29 | 1 << 27 | 1 << 14 | 15 << 9 | 8;
/// 8 pages of 4 KiB in each half, 4 banks, none of stage 2 only.
pub const ID1: u32 = 2 << 28 | 4;
/// All granules; 48 bits everywhere.
pub const ID2: u32 = 0b111 << 12 | 5 << 8 | 5 << 4 | 5;
/// Where banks begin, and the distance between them.
const BANKS: usize = 0x8000;
pub const PAGE: usize = 0x1000;

/// Offset of a register of a bank.
pub const fn bank(n: usize, register: usize) -> usize {
    BANKS + n * PAGE + register
}

struct State {
    values: Vec<u32>,
    log: Vec<(usize, u32)>,
}

/// What a register file of an MMU-500 does with its auxiliary registers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Auxiliary {
    /// Those of banks take writes while ACR.CACHE_LOCK is clear.
    Open,
    /// Secure software keeps them locked.
    LockedBySecure,
}

pub struct Regs {
    state: Mutex<State>,
    auxiliary: Auxiliary,
    /// A register, and the bits of it that no write changes.
    fixed: (usize, u32),
    /// Called after each write with all values.
    check: fn(&[u32], (usize, u32)),
}

impl Regs {
    pub fn new() -> Self {
        let mut values = alloc::vec![0; (BANKS + 8 * PAGE) / 4];
        (values[0x20 / 4], values[0x24 / 4], values[0x28 / 4]) = (ID0, ID1, ID2);
        Self {
            state: Mutex::new(State {
                values,
                log: Vec::new(),
            }),
            auxiliary: Auxiliary::Open,
            fixed: (0, 0),
            check: |_, _| {},
        }
    }

    pub fn with(self, values: &[(usize, u32)]) -> Self {
        for &(offset, value) in values {
            self.state.lock().values[offset / 4] = value;
        }
        self
    }

    pub fn auxiliary(self, auxiliary: Auxiliary) -> Self {
        Self { auxiliary, ..self }
    }

    pub fn fixed(self, offset: usize, bits: u32) -> Self {
        let fixed = (offset, bits);
        Self { fixed, ..self }
    }

    pub fn checked(self, check: fn(&[u32], (usize, u32))) -> Self {
        Self { check, ..self }
    }

    pub fn get(&self, offset: usize) -> u32 {
        self.state.lock().values[offset / 4]
    }

    pub fn set(&self, offset: usize, value: u32) {
        self.state.lock().values[offset / 4] = value;
    }

    pub fn take(&self) -> Vec<(usize, u32)> {
        core::mem::take(&mut self.state.lock().log)
    }
}

impl Mmio for Regs {
    fn read32(&self, offset: usize) -> u32 {
        self.get(offset)
    }

    fn write32(&self, offset: usize, value: u32) {
        let mut state = self.state.lock();
        state.log.push((offset, value));
        let lock = state.values[0x10 / 4] >> 26 & 1 == 1 && state.values[0x3c / 4] >> 4 & 0xf >= 2;
        let locked = lock || self.auxiliary == Auxiliary::LockedBySecure;
        let held = &mut state.values[offset / 4];
        match (offset >= BANKS, offset % PAGE) {
            // Fault status: ones clear.
            (true, 0x58) | (false, 0x48) => *held &= !value,
            (true, 0x04) if locked => {}
            _ if offset == self.fixed.0 => *held = value & !self.fixed.1 | *held & self.fixed.1,
            _ => *held = value,
        }
        (self.check)(&state.values, (offset, value));
    }
}

#[derive(Default)]
pub struct Ticks(AtomicU64);

portolan::one_cpu!(Ticks);

impl Clock for Ticks {
    fn now(&self) -> Nanos {
        Nanos::new(self.0.fetch_add(1_000, Ordering::Relaxed))
    }
}

pub type Tables = Arc<SlabTables<AtomicU64>>;
pub type Iommu = SmmuV2<Arc<Regs>, Tables, Ticks>;

/// Where the first table is.
pub const TABLES: u64 = 0x8000_0000;

/// A unit over `regs`.
pub fn enable(regs: Regs, config: Config) -> (Arc<Regs>, Result<Iommu, IommuError>) {
    enable_with(regs, config, PageSize::SIZE_4K)
}

/// The same with tables of `page`.
pub fn enable_with(
    regs: Regs,
    config: Config,
    page: PageSize,
) -> (Arc<Regs>, Result<Iommu, IommuError>) {
    let regs = Arc::new(regs);
    let tables = Arc::new(SlabTables::new(PhysAddr::new(TABLES), page, 16));
    let unit = SmmuV2::enable(regs.clone(), tables, Ticks::default(), config);
    regs.take();
    (regs, unit)
}

pub fn stream(n: u32) -> StreamId {
    StreamId::new(n)
}
