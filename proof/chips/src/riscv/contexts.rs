//! Device contexts: words in, their meaning out. Sections "Device-context fields" and "Device-context configuration
//! checks".

use portolan::addr::PhysAddr;

use super::RiscvIdentification;
use super::faults::RiscvRefusal;
use portolan_sim::decode::{TableFormat, TableRoot};

/// Words of a context; zeros behind its own.
pub(super) type Words = [u64; 8];

/// Meaning of a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Context {
    /// Pass-through: neither stage has tables.
    Passes,
    /// The first stage has.
    First(StageTables),
    /// First stages with tables of their own for each address space.
    Processes(Processes),
    /// The second stage only; a table of messages may accompany it.
    Second(StageTables, Option<Messages>),
}

/// A process directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Processes {
    pub root: u64,
    pub levels: u32,
    /// Treatment of requests without a PASID: in address space 0, or untranslated.
    pub without: Without,
}

/// Treatment of requests without a PASID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Without {
    /// Context of address space 0 (`DPE`).
    Zero,
    /// Untranslated.
    Untranslated,
}

impl Processes {
    /// Width of the numbers of address spaces.
    pub fn lg2(&self) -> u32 {
        (8 + 9 * (self.levels - 1)).min(20)
    }
}

/// An MSI page table, and the pages that it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Messages {
    pub table: u64,
    pub mask: u64,
    pub pattern: u64,
}

impl Messages {
    /// The place of a page's entry, if it has one.
    pub fn entry(&self, page: u64) -> Option<PhysAddr> {
        if (page ^ self.pattern) & !self.mask != 0 {
            return None;
        }
        let (mut index, mut width) = (0, 0);
        for bit in (0..52).filter(|bit| self.mask >> bit & 1 == 1) {
            index |= (page >> bit & 1) << width;
            width += 1;
        }
        Some(PhysAddr::new(self.table | index << 4))
    }
}

/// Tables of a stage, and the tag of their translations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StageTables {
    pub tag: u32,
    pub table: TableRoot,
}

/// Bits of each word that a context may set: those of modelled features.
const ALLOWED: Words = [
    0x7 | 0x1f << 5,
    u64::MAX,
    0xffff_f000,
    0xf000_0fff_ffff_ffff,
    0xf000_0fff_ffff_ffff,
    (1 << 52) - 1,
    (1 << 52) - 1,
    0,
];

fn field(word: u64, low: u32, bits: u32) -> u64 {
    (word >> low) & ((1 << bits) - 1)
}

fn levels_of(word: u64) -> Option<u8> {
    match field(word, 60, 4) {
        mode @ 8..=10 => Some(mode as u8 - 5),
        _ => None,
    }
}

/// The tables of a first stage.
fn first_stage(
    first: u64,
    attributes: u64,
    id: &RiscvIdentification,
) -> Result<StageTables, RiscvRefusal> {
    let levels = levels_of(first).filter(|levels| id.walks_first(*levels));
    let format = levels.map(TableFormat::riscv_first_stage);
    let Some(Ok(format)) = format else {
        return Err(RiscvRefusal::Malformed);
    };
    let root = PhysAddr::new(field(first, 0, 44) << 12);
    Ok(StageTables { tag: field(attributes, 12, 20) as u32, table: TableRoot { root, format } })
}

/// Decodes the words of a process context, except ignored ones.
pub(super) fn decode_process(
    [attributes, first]: [u64; 2],
    id: &RiscvIdentification,
) -> Result<Context, RiscvRefusal> {
    let fits = attributes & !0xffff_f007 == 0 && first & !0xf000_0fff_ffff_ffff == 0;
    match field(first, 60, 4) {
        _ if !fits => Err(RiscvRefusal::BadProcess),
        0 => Ok(Context::Passes),
        _ => {
            let tables = first_stage(first, attributes, id);
            tables.map(Context::First).map_err(|_| RiscvRefusal::BadProcess)
        }
    }
}

/// Rights of a device to act by itself: bits of `tc`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TranslationControl(u64);

impl TranslationControl {
    /// Ask for translations and use them (`EN_ATS`).
    pub fn translates(self) -> bool {
        self.0 >> 1 & 1 == 1
    }

    /// Send page requests (`EN_PRI`).
    pub fn asks(self) -> bool {
        self.0 >> 2 & 1 == 1
    }

    /// Tells if accesses mark the leaves of second stages (`GADE`).
    pub fn marks_second(self) -> bool {
        self.0 >> 7 & 1 == 1
    }

    /// Tells if accesses mark the leaves of first stages (`SADE`).
    pub fn marks_first(self) -> bool {
        self.0 >> 8 & 1 == 1
    }

    /// The unit's own responses name the PASID (`PRPR`).
    pub fn hears_pasid(self) -> bool {
        self.0 >> 6 & 1 == 1
    }
}

/// Decodes the words of a context, except ignored ones.
pub(super) fn decode(
    words: Words,
    id: &RiscvIdentification,
) -> Result<(Context, TranslationControl), RiscvRefusal> {
    let remote = TranslationControl(words[0]);
    let (translates, asks) = (remote.translates(), remote.asks());
    // Each takes the one before.
    let takes = [
        (translates, id.has_ats()),
        (asks, translates),
        (remote.hears_pasid(), asks),
        (remote.marks_second(), id.has_updates()),
        (remote.marks_first(), id.has_updates()),
    ];
    if takes.into_iter().any(|(this, other)| this && !other) {
        return Err(RiscvRefusal::Malformed);
    }
    Ok((stages(words, id)?, remote))
}

fn stages(words: Words, id: &RiscvIdentification) -> Result<Context, RiscvRefusal> {
    let malformed = Err(RiscvRefusal::Malformed);
    let allowed = |(word, allowed): (&u64, &u64)| word & !allowed == 0;
    if !words.iter().zip(&ALLOWED).all(allowed) {
        return malformed;
    }
    let [_, second, attributes, first, message, mask, pattern, _] = words;
    let messages = match field(message, 60, 4) {
        0 => None,
        1 => Some(Messages { table: field(message, 0, 44) << 12, mask, pattern }),
        _ => return malformed,
    };
    if messages.is_some() && field(second, 60, 4) == 0 {
        return malformed;
    }
    let root = |word| PhysAddr::new(field(word, 0, 44) << 12);
    match (words[0] >> 5 & 1, words[0] >> 9 & 1) {
        (0, 0) => {}
        (0, _) => return malformed,
        (_, default) => {
            let levels = field(first, 60, 4);
            let none = field(second, 60, 4) == 0;
            if !none || !(1..=3).contains(&levels) || !id.has_processes(levels as u32) {
                return malformed;
            }
            return Ok(Context::Processes(Processes {
                root: root(first).get(),
                levels: levels as u32,
                without: match default {
                    1 => Without::Zero,
                    _ => Without::Untranslated,
                },
            }));
        }
    }
    match (field(first, 60, 4), field(second, 60, 4)) {
        (0, 0) => Ok(Context::Passes),
        (_, 0) => first_stage(first, attributes, id).map(Context::First),
        (0, _) => {
            let levels = levels_of(second).filter(|levels| id.walks_second(*levels));
            let format = levels.map(TableFormat::riscv_second_stage);
            let root = root(second);
            let (Some(Ok(format)), 0) = (format, root.get() & 0x3fff) else {
                return malformed;
            };
            let tables = StageTables {
                tag: field(second, 44, 16) as u32,
                table: TableRoot { root, format },
            };
            Ok(Context::Second(tables, messages))
        }
        _ => malformed,
    }
}
