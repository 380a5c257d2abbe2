//! What implementations do beyond the architecture, or differently.
//!
//! [`Implementation::Qualcomm`] has three peculiarities, as publicly known from Linux's driver:
//! its firmware watches writes to stream-to-context registers, it hands streams over that are in
//! use, and an invalidation may wait until real-time devices agree (wait-for-safe).

use portolan::inval::{Quirks, WalkFlush};
use portolan::platform::Nanos;

/// Whose unit it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Implementation {
    /// As the architecture says, and Arm's own MMU-500.
    Arm,
    /// Qualcomm's, on top of an MMU-500.
    Qualcomm(WaitForSafe),
}

/// Whether an invalidation waits until real-time devices (displays, cameras) agree.
///
/// Turning it off is a call of the machine's firmware, which is the embedder's to make before the
/// unit is taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitForSafe {
    /// It does not, or not any more.
    Off,
    /// It does, so much longer at most: added to the deadline of each synchronisation. Plans then
    /// prefer fewer writes, since other devices are throttled meanwhile.
    On {
        /// Longest wait for the devices.
        longest: Nanos,
    },
}

/// What becomes of streams that somebody else set up before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inherited {
    /// They are blocked.
    Blocked,
    /// They pass through until they are moved: a display goes on showing its picture.
    PassThrough,
}

/// With wait-for-safe, more page commands than this in one plan become one for the context.
const FEW: u64 = 16;

impl Implementation {
    /// What plans are to know.
    pub fn quirks(self) -> Quirks {
        let quirks = Quirks::default();
        match self {
            Self::Arm => quirks,
            // Page by page a table's worth takes longer than all the walks that follow.
            Self::Qualcomm(wait) => Quirks {
                walk_flush: WalkFlush::ByContext,
                context_above: match wait {
                    WaitForSafe::Off => quirks.context_above,
                    WaitForSafe::On { .. } => FEW,
                },
                ..quirks
            },
        }
    }

    /// What becomes of inherited streams unless the embedder says otherwise.
    pub fn inherited(self) -> Inherited {
        match self {
            Self::Arm => Inherited::Blocked,
            Self::Qualcomm(_) => Inherited::PassThrough,
        }
    }

    /// What a synchronisation may take longer.
    pub(super) fn patience(self) -> Nanos {
        match self {
            Self::Qualcomm(WaitForSafe::On { longest }) => longest,
            _ => Nanos::new(0),
        }
    }

    /// Whether firmware may bend writes to stream-to-context registers.
    pub(super) fn watched(self) -> Watched {
        match self {
            Self::Arm => Watched::No,
            Self::Qualcomm(_) => Watched::Perhaps,
        }
    }
}

/// Whether somebody stands between the driver and the registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Watched {
    No,
    /// To be found out.
    Perhaps,
}
