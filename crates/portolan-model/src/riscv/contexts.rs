//! Device contexts: words in, what they say out. Sections "Device-context fields" and "Device-context
//! configuration checks".

use portolan::addr::PhysAddr;

use super::RiscvIdentification;
use super::faults::Refusal;
use crate::decode::{TableFormat, TableRoot};

/// Words of a context; zeros behind its own.
pub(super) type Words = [u64; 8];

/// What a context says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Context {
    /// Neither stage has tables.
    Passes,
    /// The first stage has.
    First(Tables),
    /// The second stage has.
    Second(Tables),
}

/// Tables of a stage, and what tags their translations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tables {
    pub tag: u32,
    pub table: TableRoot,
}

/// Bits of each word that a context may set: those of what is modelled.
const ALLOWED: Words = [
    1,
    u64::MAX,
    0xffff_f000,
    0xf000_0fff_ffff_ffff,
    0,
    (1 << 52) - 1,
    (1 << 52) - 1,
    0,
];

fn field(word: u64, low: u32, bits: u32) -> u64 {
    (word >> low) & ((1 << bits) - 1)
}

/// What the words of a context say that counts.
pub(super) fn decode(words: Words, id: &RiscvIdentification) -> Result<Context, Refusal> {
    let malformed = Err(Refusal::Malformed);
    let allowed = |(word, allowed): (&u64, &u64)| word & !allowed == 0;
    if !words.iter().zip(&ALLOWED).all(allowed) {
        return malformed;
    }
    let [_, second, attributes, first, ..] = words;
    let root = |word| PhysAddr::new(field(word, 0, 44) << 12);
    let levels = |word| match field(word, 60, 4) {
        mode @ 8..=10 => Some(mode as u8 - 5),
        _ => None,
    };
    match (field(first, 60, 4), field(second, 60, 4)) {
        (0, 0) => Ok(Context::Passes),
        (_, 0) => {
            let levels = levels(first).filter(|levels| id.walks_first(*levels));
            let format = levels.map(TableFormat::riscv_first_stage);
            let Some(Ok(format)) = format else {
                return malformed;
            };
            let root = root(first);
            Ok(Context::First(Tables {
                tag: field(attributes, 12, 20) as u32,
                table: TableRoot { root, format },
            }))
        }
        (0, _) => {
            let levels = levels(second).filter(|levels| id.walks_second(*levels));
            let format = levels.map(TableFormat::riscv_second_stage);
            let root = root(second);
            let (Some(Ok(format)), 0) = (format, root.get() & 0x3fff) else {
                return malformed;
            };
            Ok(Context::Second(Tables {
                tag: field(second, 44, 16) as u32,
                table: TableRoot { root, format },
            }))
        }
        _ => malformed,
    }
}
