//! Operations of a trace: kind, place and device.

use std::hash::Hasher;

use portolan::addr::PhysAddr;
use portolan::dma::Direction;

/// Unit of the lists of events.
pub(super) const PAGE: u64 = 4096;

/// Addresses from `start` to `last`, inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AddressRange {
    pub(super) start: u64,
    pub(super) last: u64,
}

impl AddressRange {
    pub(super) fn contains(self, address: u64) -> bool {
        (self.start..=self.last).contains(&address)
    }
}

/// Lifetime of a mapping: one transfer, or the driver's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// `dma_map_*`.
    Streaming,
    /// `dma_alloc*`.
    Coherent,
}

/// The kernel's interface that made a map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Api {
    /// `dma_map_*` or `dma_alloc_*`, which have an event of their own.
    DmaMap,
    /// `dma_iova_try_alloc` and `dma_iova_link`, since 6.16: only their work on the table has events.
    TwoStep,
    /// Any: the trace has no `dma:*` events so far.
    #[default]
    Untold,
}

/// A mapping of the trace; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MapId(pub u64);

/// A device of the trace: an index of [`Summary::devices`](super::Summary::devices).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(pub u32);

/// A physically contiguous piece of a mapping, to the byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// First address.
    pub pa: PhysAddr,
    /// Length in bytes.
    pub bytes: u64,
}

/// Task of a CPU at the time of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Running {
    /// The idle task: an interrupt came, and the CPU is idle again after it.
    Idle,
    /// A task other than the idle task, by its number; 0 if the line has none.
    Task(u32),
}

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op<'r> {
    /// Line number.
    pub line: u64,
    /// Text of the line.
    pub text: &'r [u8],
    /// Time stamp.
    pub time_ns: u64,
    /// CPU.
    pub cpu: u16,
    /// Task of that CPU.
    pub running: Running,
    /// As in [`At::timers_late`].
    pub timers_late: Option<bool>,
    /// Device.
    pub device: DeviceId,
    /// The operation.
    pub kind: OpKind<'r>,
}

/// Kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpKind<'r> {
    /// A map.
    Map {
        /// Its name.
        id: MapId,
        /// Streaming or coherent.
        class: Class,
        /// Direction of the transfer; `None` for Linux's `DMA_NONE`.
        direction: Option<Direction>,
        /// Size of the operation.
        bytes: u64,
        /// Offset of the first byte in its page.
        offset: u16,
        /// The memory; whole pages where table events told.
        pieces: &'r [Piece],
        /// DMA address in the traced system.
        dma: u64,
        /// Bytes that were bounced for it.
        bounced: u64,
        /// The interface that made it.
        api: Api,
    },
    /// The end of a map.
    Unmap {
        /// The mapping that is unmapped.
        id: MapId,
        /// Streaming or coherent.
        class: Class,
    },
}

/// Run of a timer, in jiffies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimerRun {
    /// The tick for which it was due.
    pub(crate) due: u64,
    /// The tick that was counted last.
    pub(crate) now: u64,
}

/// Place and time of an event.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    pub(super) line: u64,
    pub(super) time_ns: u64,
    pub(super) cpu: u16,
    pub(super) running: Running,
    pub(super) timers_late: Option<bool>,
}

/// Position in the trace.
#[derive(Clone, Copy, Debug)]
pub struct At {
    /// The trace's time, which never steps back.
    pub now_ns: u64,
    /// The CPU.
    pub cpu: u16,
    /// Task of that CPU.
    pub running: Running,
    /// True if that CPU ran its last timer a tick late, false if on time; `None` if the trace does not tell.
    pub timers_late: Option<bool>,
}

/// A fast mixing hash for small keys; not for keys that an attacker picks to collide: those only
/// slow the reading of their own trace.
#[derive(Default)]
pub(crate) struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(byte.into());
        }
    }

    fn write_u32(&mut self, n: u32) {
        self.write_u64(n.into());
    }

    fn write_u64(&mut self, n: u64) {
        let mixed = (self.0 ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 29);
    }
}
