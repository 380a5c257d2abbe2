//! Errors of a handover, a small one per act.

use portolan::addr::{PhysAddr, StreamId};
use portolan::iommu::{InterruptSource, IommuError};
use portolan::platform::ClaimError;
use portolan::table::AdoptTableError;
use thiserror::Error;

/// Reason for which no unit of a record can be taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RecordError {
    /// It does not begin as a record does.
    #[error("no record of a handover is there")]
    NoRecord,
    /// It has another layout.
    #[error("a record of version {version}")]
    Version {
        /// Its version.
        version: u32,
    },
    /// It is not as long as it says, or as its directory needs.
    #[error("{bytes} bytes of a record of {length} bytes")]
    Length {
        /// Bytes that are there.
        bytes: usize,
        /// Bytes that it says.
        length: u64,
    },
    /// It has more units than any machine.
    #[error("a record of {units} units")]
    TooMany {
        /// Number of units.
        units: u32,
    },
    /// The header or the directory was changed.
    #[error("header and directory have the checksum {stored:#x} instead of {computed:#x}")]
    Checksum {
        /// Checksum in the record.
        stored: u32,
        /// Checksum of the bytes that are there.
        computed: u32,
    },
}

/// Reason for which one unit's section of a record is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SectionError {
    /// The record has nothing of the unit.
    #[error("the record has no unit at {base}")]
    Absent {
        /// Address of its registers.
        base: PhysAddr,
    },
    /// The record has it twice.
    #[error("the record has two units at {base}")]
    Twice {
        /// Address of its registers.
        base: PhysAddr,
    },
    /// The unit there is of another kind.
    #[error("the record has a unit of kind {kind}")]
    Kind {
        /// Its number in the record.
        kind: u32,
    },
    /// It is not in the record.
    #[error("a section of {length} bytes at {offset} is outside of the record")]
    Outside {
        /// Its offset.
        offset: u32,
        /// Its length.
        length: u32,
    },
    /// It was changed.
    #[error("a section has the checksum {stored:#x} instead of {computed:#x}")]
    Checksum {
        /// Checksum in the record.
        stored: u32,
        /// Checksum of the bytes that are there.
        computed: u32,
    },
    /// A word that this library does not write.
    #[error("word {word} of a section makes no sense")]
    Word {
        /// Number of the word.
        word: usize,
    },
}

/// Reason for which a unit is not taken over. Its devices are blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum AdoptError {
    /// Of the record.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// Of its section.
    #[error(transparent)]
    Section(#[from] SectionError),
    /// A register of the unit holds something else.
    #[error("register {offset:#x} holds {value:#x}, and {recorded:#x} is recorded")]
    Register {
        /// Offset of the register.
        offset: usize,
        /// Value of the register.
        value: u64,
        /// Value in the record.
        recorded: u64,
    },
    /// One of the two kernels remaps interrupts, and the other does not.
    #[error("the former kernel and this one treat interrupts differently")]
    Interrupts,
    /// The unit is another, or can do other things.
    #[error("the unit has the features {found:x?} instead of {recorded:x?}")]
    Features {
        /// Registers of the unit.
        found: [u64; 4],
        /// Registers in the record.
        recorded: [u64; 4],
    },
    /// The unit does not translate.
    #[error("the unit does not translate")]
    Off,
    /// A table of streams is where none can be.
    #[error(transparent)]
    Claim(#[from] ClaimError),
    /// Tables of a domain are refused.
    #[error(transparent)]
    Table(#[from] AdoptTableError),
    /// Tables of a domain are of another shape than the driver's, or than the record says.
    #[error("tables at {root} have another shape than is recorded")]
    Shape {
        /// Their root.
        root: PhysAddr,
    },
    /// The entry of a stream is not the one that its attachment makes.
    #[error("the entry of stream {stream:?} is not as recorded")]
    Entry {
        /// The stream.
        stream: StreamId,
    },
    /// A table of streams leads to something that is not recorded.
    #[error("an entry of the table at {table} is not recorded")]
    Unrecorded {
        /// The table.
        table: PhysAddr,
    },
    /// The entry of an interrupt is not the one that is recorded.
    #[error("entry {index} for interrupts of {from:?} is not as recorded")]
    InterruptEntry {
        /// Its source.
        from: InterruptSource,
        /// Its index.
        index: u16,
    },
    /// A stream passes through, and the embedder gives no leave for that.
    #[error("stream {stream:?} passes through")]
    Passes {
        /// The stream.
        stream: StreamId,
    },
    /// The unit, or its driver.
    #[error(transparent)]
    Iommu(#[from] IommuError),
}

/// Error of handing a machine over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PrepareError {
    /// The memory for the record is too short. Nothing was stopped.
    #[error("the record has {needed} bytes, and there is room for {room}")]
    Room {
        /// Bytes that it has.
        needed: usize,
        /// Bytes that were given.
        room: usize,
    },
    /// It is longer than the layout allows. Nothing was stopped.
    #[error("the record would be too long")]
    TooLong,
}
