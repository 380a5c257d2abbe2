//! Faults of a unit behind registers, on demand; and violations by its driver.

use portolan::addr::{Iova, Pasid, PhysAddr, StreamId};
use thiserror::Error;

use portolan_sim::decode::AccessKind;
use portolan_sim::request::Request;

/// Progress of queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Drain {
    /// Commands are executed.
    #[default]
    Runs,
    /// Commands are never looked at.
    Never,
    /// One command is executed in each period of so many virtual nanoseconds, in units with a queue.
    OneEach(u64),
}

/// Time at which commands take effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pace {
    /// Commands are executed as soon as the driver announces them.
    #[default]
    AtOnce,
    /// Commands are executed so many virtual nanoseconds later.
    After(u64),
}

/// Faults on demand. Numbers count from 1, over the unit's life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegisterFaults {
    /// Progress of queues.
    pub drain: Drain,
    /// The command that is refused, with the unit's code for the reason: of SMMUv3's `CMDQ_CONS`, of AMD's event; of
    /// VT-d bits of `FSTS`, from bit 8 the reason, and from bit 16 the device that did not answer.
    pub refuse: Option<(u64, u32)>,
    /// The register access from which all reads are ones and all writes are lost.
    pub gone_from: Option<u64>,
    /// The register access from which a lost unit is back: its power was off, and it is as after reset.
    pub back_at: Option<u64>,
    /// Effect of control registers; with [`Drain::Never`] they are never acknowledged.
    pub control: Drain,
}

impl RegisterFaults {
    /// No faults.
    pub const NONE: Self = Self {
        drain: Drain::Runs,
        refuse: None,
        gone_from: None,
        back_at: None,
        control: Drain::Runs,
    };
    /// Queues that never advance.
    pub const STUCK: Self = Self { drain: Drain::Never, ..Self::NONE };
    /// The unit answers nothing.
    pub const GONE: Self = Self { gone_from: Some(0), ..Self::NONE };
}

/// A violation by a driver, harmful or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Violation {
    /// Wrote a register that must not change while the structure that it describes is in use.
    WrittenInUse {
        /// Its offset.
        offset: usize,
    },
    /// Moved the tail of a queue beyond its free space.
    QueueOverrun {
        /// Value that was written.
        tail: u64,
    },
    /// Turned translation on before all caches were invalidated, whose contents after reset are
    /// unknown.
    EnabledUnclean,
    /// Changed more than one thing at once where only one may change.
    SeveralAtOnce {
        /// Offset of the register.
        offset: usize,
        /// Value that was written.
        value: u64,
    },
    /// Put entries of another size in place of one that was cached and used by a device.
    SizesConflict {
        /// Address that the device used.
        iova: Iova,
    },
    /// Accessed a register with a width or at an offset that it does not have.
    BadAccess {
        /// The offset of the register, in bytes.
        offset: usize,
    },
}

/// A piece of a transfer within one page of 4 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Piece {
    /// Address for the device.
    pub iova: Iova,
    /// Address in memory.
    pub pa: PhysAddr,
    /// Bytes.
    pub bytes: u64,
}

/// An access that did not go through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[error("{access:?} of {iova} by stream {} was refused with {code:#x}", stream.get())]
pub struct DmaFault {
    /// The stream of the device that reads or writes.
    pub stream: StreamId,
    /// PASID of its address space, if it has one.
    pub pasid: Option<Pasid>,
    /// The address of the access.
    pub iova: Iova,
    /// The kind of access.
    pub access: AccessKind,
    /// The architecture's number for why: an SMMUv3 event, a VT-d fault reason. Zero where the
    /// access is refused without a record.
    pub code: u32,
}

impl DmaFault {
    /// Fault for the device whose `request` is refused.
    pub fn of(request: Request, code: u32) -> Self {
        let Request { stream, pasid, iova, access } = request;
        Self { stream, pasid, iova, access, code }
    }
}

/// Splits a transfer at boundaries of 4 KiB; stops at the top of the space.
pub(crate) fn pieces(iova: Iova, bytes: u64) -> impl Iterator<Item = (Iova, u64)> {
    let mut left = bytes;
    let mut next = Some(iova);
    std::iter::from_fn(move || {
        let at = next?;
        if left == 0 {
            return None;
        }
        let piece = left.min(0x1000 - (at.get() & 0xfff));
        left -= piece;
        next = at.checked_add(piece);
        Some((at, piece))
    })
}
