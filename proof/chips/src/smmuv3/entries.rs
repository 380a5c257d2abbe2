//! Stream table entries and context descriptors: words in, their meaning out. Sections 5.2 and 5.4.
//!
//! Checked are values that the architecture calls illegal and fields that the model uses; memory attributes and
//! overrides are not looked at.

use portolan::addr::{PageSize, PhysAddr};

use super::SmmuIdentification;
use portolan_sim::decode::TableFormat;

/// An entry that is not valid, or that asks for something that the SMMU cannot do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Illegal;

/// Meaning of a stream table entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamTableEntry {
    Abort,
    Bypass,
    Translate {
        stage1: Option<Stage1>,
        stage2: Option<Stage2>,
        vmid: u16,
        translations: AtsPermission,
    },
}

/// Permission of a device to ask for translations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AtsPermission {
    Given,
    Refused,
}

/// Permission of a first stage's accesses to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stalls {
    Allowed,
    Disabled,
}

/// Table of the context descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stage1 {
    pub table: PhysAddr,
    pub format: DescriptorTable,
    /// Exponent of the number of descriptors.
    pub lg2: u32,
    pub default: DefaultSubstream,
    pub stalls: Stalls,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DescriptorTable {
    Linear,
    /// Two levels; a leaf table has so many descriptors.
    TwoLevel {
        leaf_lg2: u32,
    },
}

/// Treatment of accesses without a substream, if the stream has substreams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DefaultSubstream {
    Terminate,
    Bypass,
    /// Accesses without a substream use the first descriptor, which substreams then must not use.
    First,
}

/// A second stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stage2 {
    pub format: TableFormat,
    pub root: PhysAddr,
    /// Level of the root, counted from the leaf.
    pub level: u8,
    pub records: FaultBehavior,
    pub dirty: DirtyState,
}

/// Dirty state of leaves that hand it over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DirtyState {
    /// The unit keeps it.
    Kept,
    /// A leaf that is clean cannot be written.
    Left,
}

impl DirtyState {
    /// By the flag of a descriptor, which counts where the unit can.
    fn of(flag: u64, id: &SmmuIdentification) -> Self {
        match (flag, id.field(0, 6, 2)) {
            (1, 2 | 3) => Self::Kept,
            _ => Self::Left,
        }
    }
}

/// Recording of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FaultBehavior {
    Faults,
    Nothing,
    /// Always, and the access waits.
    Stalls,
}

/// Meaning of a context descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ContextDescriptor {
    /// Table; `None` if walks through it are disabled.
    pub table: Option<(TableFormat, PhysAddr)>,
    pub asid: u16,
    pub records: FaultBehavior,
    pub dirty: DirtyState,
}

fn field(word: u64, low: u32, bits: u32) -> u64 {
    (word >> low) & ((1 << bits) - 1)
}

fn records(flag: u64) -> FaultBehavior {
    match flag {
        0 => FaultBehavior::Nothing,
        _ => FaultBehavior::Faults,
    }
}

/// Width of the 3-bit encoding of an address size, limited to the SMMU's own.
fn size(encoding: u64, id: &SmmuIdentification) -> u8 {
    let wide = [32, 36, 40, 42, 44, 48, 52];
    let wanted = wide.get(encoding as usize).copied().unwrap_or(48);
    wanted.min(id.output_lg2())
}

/// The granule that `TG0` or `S2TG` means.
fn granule(encoding: u64, id: &SmmuIdentification) -> Result<PageSize, Illegal> {
    let (page, bit) = match encoding {
        0 => (PageSize::SIZE_4K, 4),
        1 => (PageSize::SIZE_64K, 6),
        2 => (PageSize::SIZE_16K, 5),
        _ => return Err(Illegal),
    };
    if id.has(5, bit) { Ok(page) } else { Err(Illegal) }
}

/// Addresses of 52 bits exist with the 64 KiB granule only.
fn within(granule: PageSize, bits: u8) -> u8 {
    match granule {
        PageSize::SIZE_64K => bits,
        _ => bits.min(48),
    }
}

/// Decodes a stream table entry.
pub(super) fn stream_entry(
    words: [u64; 8],
    id: &SmmuIdentification,
) -> Result<StreamTableEntry, Illegal> {
    if words[0] & 1 == 0 {
        return Err(Illegal);
    }
    let config = field(words[0], 1, 3);
    let (first, second) = match config {
        0..=3 => return Ok(StreamTableEntry::Abort),
        4 => return Ok(StreamTableEntry::Bypass),
        other => (other & 1 != 0, other & 2 != 0),
    };
    if first && !id.has(0, 1) || second && !id.has(0, 0) {
        return Err(Illegal);
    }
    let vmid = if id.has(0, 0) {
        field(words[2], 0, if id.has(0, 18) { 16 } else { 8 }) as u16
    } else {
        0
    };
    Ok(StreamTableEntry::Translate {
        stage1: if first { Some(stage1(words, id)?) } else { None },
        stage2: if second { Some(stage2(words, id)?) } else { None },
        vmid,
        // Full ATS; the split-stage form is not modelled.
        translations: match field(words[1], 28, 2) {
            1 => AtsPermission::Given,
            _ => AtsPermission::Refused,
        },
    })
}

fn stage1(words: [u64; 8], id: &SmmuIdentification) -> Result<Stage1, Illegal> {
    let lg2 = field(words[0], 59, 5) as u32;
    let most = id.field(1, 6, 5);
    // Streams of EL2 and EL3 are not modelled.
    if lg2 > most || field(words[1], 30, 2) != 0 {
        return Err(Illegal);
    }
    let format = match field(words[0], 4, 2) {
        _ if lg2 == 0 => DescriptorTable::Linear,
        0 => DescriptorTable::Linear,
        _ if !id.has(0, 19) => return Err(Illegal),
        1 => DescriptorTable::TwoLevel { leaf_lg2: 6 },
        2 => DescriptorTable::TwoLevel { leaf_lg2: 10 },
        _ => return Err(Illegal),
    };
    let default = match field(words[1], 0, 2) {
        0 => DefaultSubstream::Terminate,
        1 => DefaultSubstream::Bypass,
        2 => DefaultSubstream::First,
        _ if lg2 == 0 => DefaultSubstream::First,
        _ => return Err(Illegal),
    };
    Ok(Stage1 {
        table: PhysAddr::new(words[0] & 0x000f_ffff_ffff_ffc0),
        format,
        lg2,
        default,
        stalls: if field(words[1], 27, 1) == 0 && id.field(0, 24, 2) == 0 {
            Stalls::Allowed
        } else {
            Stalls::Disabled
        },
    })
}

fn stage2(words: [u64; 8], id: &SmmuIdentification) -> Result<Stage2, Illegal> {
    let w2 = words[2];
    let aarch64 = field(w2, 51, 1) == 1 && id.has(0, 3);
    let big_endian = field(w2, 52, 1) == 1;
    let stalls = field(w2, 57, 1) == 1;
    if !aarch64 || big_endian || stalls && id.field(0, 24, 2) != 0 {
        return Err(Illegal);
    }
    let granule = granule(field(w2, 46, 2), id)?;
    let output = within(granule, size(field(w2, 48, 3), id));
    let input = 64 - field(w2, 32, 6) as u8;
    // Inputs of a second stage are as wide as the SMMU's outputs at most.
    if input > within(granule, id.output_lg2()) {
        return Err(Illegal);
    }
    let start = field(w2, 38, 2) as u8;
    let level = match granule {
        PageSize::SIZE_4K => start.checked_add(1).filter(|level| *level <= 3),
        _ => Some(start).filter(|level| *level <= 2),
    };
    let level = level.ok_or(Illegal)?;
    let format = TableFormat::armv8_stage2(granule, input, output).map_err(|_| Illegal)?;
    // The root is of at least one entry, and of at most 16 tables side by side.
    let spans = format.span(level).lg2();
    let index = granule.lg2() - 3;
    if u32::from(input) <= spans || u32::from(input) > spans + index + 4 {
        return Err(Illegal);
    }
    Ok(Stage2 {
        format,
        root: PhysAddr::new(words[3] & 0x000f_ffff_ffff_fff0),
        level,
        records: if stalls { FaultBehavior::Stalls } else { records(field(w2, 58, 1)) },
        dirty: DirtyState::of(field(w2, 55, 1), id),
    })
}

/// Decodes a context descriptor.
pub(super) fn context_descriptor(
    words: [u64; 8],
    allowed: Stalls,
    id: &SmmuIdentification,
) -> Result<ContextDescriptor, Illegal> {
    let w0 = words[0];
    let valid = field(w0, 31, 1) == 1;
    let aarch64 = field(w0, 41, 1) == 1 && id.has(0, 3);
    let big_endian = field(w0, 15, 1) == 1;
    let stalls = field(w0, 44, 1) == 1;
    // Bit 46 aborts; without it faulting accesses would be completed, unless only aborts exist.
    let completes = field(w0, 46, 1) == 0 && id.has(0, 26);
    let stalls_badly = stalls && allowed == Stalls::Disabled;
    if !valid || !aarch64 || big_endian || stalls_badly || completes {
        return Err(Illegal);
    }
    let asid = field(w0, 48, 16) as u16;
    if !id.has(0, 12) && asid > 0xff {
        return Err(Illegal);
    }
    let table = if field(w0, 14, 1) == 0 {
        let granule = granule(field(w0, 6, 2), id)?;
        let output = within(granule, size(field(w0, 32, 3), id));
        let size = field(w0, 0, 6) as u8;
        let widest = if id.field(5, 10, 2) == 1 { 52 } else { 48 };
        let input = 64 - size;
        if !(16..=39).contains(&size) && !(12..16).contains(&size)
            || input > within(granule, widest)
        {
            return Err(Illegal);
        }
        let format = TableFormat::armv8_stage1(granule, input, output).map_err(|_| Illegal)?;
        Some((format, PhysAddr::new(words[1] & 0x000f_ffff_ffff_fff0)))
    } else {
        None
    };
    Ok(ContextDescriptor {
        table,
        asid,
        records: if stalls { FaultBehavior::Stalls } else { records(field(w0, 45, 1)) },
        dirty: DirtyState::of(field(w0, 42, 1), id),
    })
}
