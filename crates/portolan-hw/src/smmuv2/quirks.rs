//! Differences of implementations from the architecture, and additions to it.
//!
//! No register names the implementation of a unit: firmware does, by IORT ([`Implementation::of_iort`]:
//! the model in the unit's node, and the maker of the table) or by the `compatible` string of a device tree.
//!
//! [`Implementation::Mmu500`]: as its Technical Reference Manual (DDI 0517) and Linux's driver have
//! it, the prefetcher of its context banks has to be off for several errata (826419, 841119 among
//! them). Its revision is in `SMMU_IDR7`.
//!
//! [`Implementation::ThunderX`]: erratum 27704 of Cavium's CN88xx. Its units share their caches, so
//! that ASIDs and VMIDs have to differ between all of them.
//!
//! [`Implementation::Qualcomm`], on top of an MMU-500, has three peculiarities, as publicly known
//! from Linux's driver: its firmware watches writes to stream-to-context registers, it hands
//! streams over that are in use ([`Inherited::PassThrough`] keeps them going), and an invalidation
//! may wait until real-time devices agree (wait-for-safe).
//!
//! *Context.* Interrupt: everything here is a value.

use portolan::inval::{Quirks, WalkFlush};
use portolan::platform::{AllMemory, Nanos};
use portolan_tables::iort::SmmuModel;
use portolan_tables::sdt::Maker;

/// Implementation of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Implementation {
    /// As the architecture says.
    Arm,
    /// Arm's MMU-500.
    Mmu500,
    /// Cavium's, in CN88xx.
    ThunderX {
        /// Context banks of all units that were taken over before this one.
        banks_before: u16,
    },
    /// Qualcomm's, on top of an MMU-500.
    Qualcomm(WaitForSafe),
}

/// Presence of invalidations that wait until real-time devices (displays, cameras) agree.
///
/// Turning it off is a call of the machine's firmware, which is the embedder's to make before the
/// unit is taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitForSafe {
    /// Invalidations do not wait, or not any more.
    Off,
    /// They wait, so much longer at most: added to the deadline of each synchronisation. Plans then
    /// prefer fewer writes, since other devices are throttled meanwhile.
    On {
        /// Longest wait for the devices.
        longest: Nanos,
    },
}

/// Treatment of streams that a previous owner set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inherited {
    /// They are blocked.
    Blocked,
    /// They pass through until they are moved, as that gives leave to: a display goes on showing its picture.
    PassThrough(AllMemory),
}

/// State of the prefetcher of an MMU-500, which walks ahead of accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prefetch {
    /// It is no MMU-500, as far as the driver was told.
    NotKnown,
    /// It is off.
    Off,
    /// It is on, and its registers do not follow.
    On,
}

/// More page commands than this in one plan become one for the context. On a SM8150 a write of TLBIVA and
/// one of TLBIASID cost the same, 121 ns (fitted on published latencies, `portolan-papers reproduce walk-flush`); the
/// walk after it takes a device three reads, 300 ns if each takes 100. So (121 + 300) / 121.
const FEW: u64 = 3;

impl Implementation {
    /// The implementation of a unit of an IORT, by the field "Model" of its node and by the table's
    /// `maker`: [`SmmuModel::of`]. `None` for a number that is not defined there. `banks_before` is the
    /// number of context banks of all units that were taken over before. Wait-for-safe is taken for off.
    pub fn of_iort(maker: Maker, model: u32, banks_before: u16) -> Option<Self> {
        Some(match SmmuModel::of(maker, model)? {
            SmmuModel::Generic => Self::Arm,
            SmmuModel::Mmu500 => Self::Mmu500,
            SmmuModel::Qualcomm => Self::Qualcomm(WaitForSafe::Off),
            SmmuModel::ThunderX => Self::ThunderX { banks_before },
        })
    }

    /// Quirks for invalidation plans.
    pub fn quirks(self) -> Quirks {
        let quirks = Quirks::default();
        match self {
            Self::Arm | Self::Mmu500 | Self::ThunderX { .. } => quirks,
            // Wait-for-safe makes each of them dearer, and few all the more worth it.
            Self::Qualcomm(_) => {
                Quirks { walk_flush: WalkFlush::ByContext, context_above: FEW, ..quirks }
            }
        }
    }

    /// Additional time that a synchronisation may take.
    pub(super) fn timeout(self) -> Nanos {
        match self {
            Self::Qualcomm(WaitForSafe::On { longest }) => longest,
            _ => Nanos::new(0),
        }
    }

    /// Tells if firmware may bend writes to stream-to-context registers.
    pub(super) fn watched(self) -> Watched {
        match self {
            Self::Qualcomm(_) => Watched::Perhaps,
            _ => Watched::No,
        }
    }

    /// Tells if the unit has the registers of an MMU-500.
    pub(super) fn is_mmu500(self) -> bool {
        matches!(self, Self::Mmu500 | Self::Qualcomm(_))
    }

    /// Bits of an ASID or VMID above the number of its bank; 0 is no bank's.
    pub(super) fn above_bank(self) -> u16 {
        match self {
            Self::ThunderX { banks_before } => banks_before.saturating_add(1),
            _ => 1,
        }
    }
}

/// Presence of firmware between the driver and the registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Watched {
    No,
    /// To be found out.
    Perhaps,
}
