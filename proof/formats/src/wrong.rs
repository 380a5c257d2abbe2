//! Formats with a mistake each, which the proof has to refute.

use crate::addr::{PageSize, PageSizes, PhysAddr};
use crate::configured::vtd_second;
use crate::numbers::{Family, Subject};
use crate::table::format::{
    DirtyTracking, Entry, Format, Riscv, RiscvContiguity, RiscvFirstStage, RiscvLevels,
    RiscvMemoryTypes, SplitRule, VtdSecondStage,
};
use crate::table::{Access, TableAccessError};

/// A mistake, and the format that has it.
#[derive(Clone, Debug)]
pub struct Mistake {
    /// The mistake.
    pub says: &'static str,
    /// The claim that refutes it, by the name that the proof has for it.
    pub claim: &'static str,
    /// The format.
    pub subject: Subject,
}

/// Mistakes by number.
const SHIFT: u32 = 0;
const SNOOP: u32 = 1;
const SPLIT_CLEAN: u32 = 2;
const SPLIT_WRITABLE: u32 = 3;
const SHORT_ADDRESS: u32 = 4;
const MARK: u32 = 5;
const PRESENT_BROKEN: u32 = 6;
const CLEANED_READ_ONLY: u32 = 7;
const ACCESSED_IS_DIRTY: u32 = 8;
const STEP: u32 = 9;
const TABLE_READ_ONLY: u32 = 10;
const SIZE_BIT: u32 = 11;
const PART: u32 = 12;
const PATTERN: u32 = 13;
const PRESENT_LINK: u32 = 14;
const BOTH: u32 = 15;
const EXECUTE: u32 = 16;

/// The format `F` with the mistake `M`.
#[derive(Clone, Copy, Debug)]
struct Wrong<F, const M: u32>(F);

/// The bits that are wrong if `M` is the mistake `of`.
const fn bits<const M: u32>(of: u32, bits: u64) -> u64 {
    if M == of { bits } else { 0 }
}

impl<F: Format, const M: u32> Format for Wrong<F, M> {
    type Word = F::Word;
    const GRANULE: PageSize = F::GRANULE;
    const INDEX_LG2: u32 = F::INDEX_LG2;
    const FILLED: u64 = if M == MARK { 1 << 45 } else { F::FILLED };
    const CLUSTER_LG2: u32 = F::CLUSTER_LG2;
    const LEAF_STEP: u64 = F::LEAF_STEP << bits::<M>(STEP, 1);

    fn levels(&self) -> u32 {
        self.0.levels()
    }

    fn input_lg2(&self) -> u32 {
        self.0.input_lg2()
    }

    fn output_lg2(&self) -> u32 {
        self.0.output_lg2()
    }

    fn page_sizes(&self) -> PageSizes {
        self.0.page_sizes()
    }

    fn split_rule(&self) -> SplitRule {
        self.0.split_rule()
    }

    fn dirty_tracking(&self) -> DirtyTracking {
        self.0.dirty_tracking()
    }

    fn template(&self, access: Access, level: u32) -> Result<u64, TableAccessError> {
        let both = if M == BOTH && access.contains(Access::WRITE) { 1 } else { 0 };
        let raw = self.0.template(access, level)? | bits::<M>(SNOOP, 1 << 11) | both;
        Ok(if level == 2 { raw & !bits::<M>(SIZE_BIT, 1 << 7) } else { raw })
    }

    fn leaf(template: u64, pa: PhysAddr) -> u64 {
        F::leaf(template, PhysAddr::new(pa.get() >> bits::<M>(SHIFT, 1)))
    }

    fn table(pa: PhysAddr, level: u32) -> u64 {
        F::table(pa, level) & !bits::<M>(TABLE_READ_ONLY, 1 << 1)
    }

    fn demote(raw: u64, level: u32) -> u64 {
        let raw = F::demote(raw, level) & !bits::<M>(SPLIT_CLEAN, 1 << 9);
        raw | bits::<M>(SPLIT_WRITABLE, 1 << 1)
    }

    fn broken(pa: PhysAddr) -> u64 {
        F::broken(pa) | bits::<M>(PRESENT_BROKEN, 1)
    }

    fn classify(raw: u64, level: u32) -> Entry {
        F::classify(raw & !bits::<M>(SHORT_ADDRESS, 1 << 51), level)
    }

    fn access(&self, raw: u64, level: u32) -> Access {
        self.0.access(raw | (raw & bits::<M>(EXECUTE, 1 << 2)) >> 1, level)
    }

    fn table_access(&self, raw: u64, level: u32) -> Access {
        self.0.table_access(raw, level)
    }

    fn is_reserved(&self, raw: u64, level: u32) -> bool {
        self.0.is_reserved(raw, level)
    }

    fn is_dirty(&self, raw: u64) -> bool {
        self.0.is_dirty(if M == ACCESSED_IS_DIRTY { raw << 1 } else { raw })
    }

    fn cleaned(&self, raw: u64) -> u64 {
        self.0.cleaned(raw) & !bits::<M>(CLEANED_READ_ONLY, 1 << 1)
    }

    fn leaf_lg2(raw: u64, level: u32) -> u32 {
        F::leaf_lg2(raw, level)
    }

    fn joined(first: u64, lg2: u32) -> Option<u64> {
        F::joined(first, lg2).map(|joined| joined & !bits::<M>(PATTERN, 8 << 10))
    }

    fn parted(raw: u64, level: u32, part: u64) -> u64 {
        F::parted(raw, level, if M == PART { part & 7 } else { part })
    }

    fn link(pa: PhysAddr) -> u64 {
        F::link(pa) | bits::<M>(PRESENT_LINK, 1)
    }
}

const RISCV: RiscvFirstStage = Riscv {
    levels: RiscvLevels::Five,
    output_lg2: 56,
    memory_types: RiscvMemoryTypes::Svpbmt,
    contiguity: RiscvContiguity::Svnapot,
    dirty: DirtyTracking::Off,
};

/// Makes the module of a mistake in a VT-d second stage, or of one in RISC-V's clusters.
macro_rules! wrong {
    ($($name:ident $number:ident,)* ; $($cluster:ident $of:ident,)*) => {
        $(numbers!(
            $name,
            Wrong<VtdSecondStage, $number>,
            Wrong(vtd_second(DirtyTracking::Hardware)),
            Family::VtdSecond,
            3,
            false,
            true
        );)*
        $(numbers!($cluster, Wrong<RiscvFirstStage, $of>, Wrong(RISCV), Family::RiscvFirst, 4, true, true);)*
    };
}

wrong! {
    wrong_shift SHIFT,
    wrong_snoop SNOOP,
    wrong_split_clean SPLIT_CLEAN,
    wrong_split_writable SPLIT_WRITABLE,
    wrong_short_address SHORT_ADDRESS,
    wrong_mark MARK,
    wrong_present_broken PRESENT_BROKEN,
    wrong_cleaned_read_only CLEANED_READ_ONLY,
    wrong_accessed_is_dirty ACCESSED_IS_DIRTY,
    wrong_step STEP,
    wrong_table_read_only TABLE_READ_ONLY,
    wrong_size_bit SIZE_BIT,
    wrong_present_link PRESENT_LINK,
    wrong_both BOTH,
    wrong_execute EXECUTE,
    ;
    wrong_part PART,
    wrong_pattern PATTERN,
}

/// All mistakes.
pub fn mistakes() -> Vec<Mistake> {
    let mistake = |claim, says, subject| Mistake { says, claim, subject };
    vec![
        mistake("leaf", "an address is shifted by one bit", wrong_shift::subject()),
        mistake("leaf by the specification", "a leaf sets a reserved bit", wrong_snoop::subject()),
        mistake("split", "a split loses the dirty bit", wrong_split_clean::subject()),
        mistake("split", "a split makes leaves writable", wrong_split_writable::subject()),
        mistake(
            "decoder",
            "the decoder drops the highest bit of an address",
            wrong_short_address::subject(),
        ),
        mistake("table", "the mark of full tables is a bit of the address", wrong_mark::subject()),
        mistake("empty", "a broken block is present", wrong_present_broken::subject()),
        mistake(
            "cleaned",
            "cleaning takes the right to write away",
            wrong_cleaned_read_only::subject(),
        ),
        mistake(
            "marks",
            "the accessed bit is taken for the dirty bit",
            wrong_accessed_is_dirty::subject(),
        ),
        mistake("step", "the step between neighbours is two granules", wrong_step::subject()),
        mistake(
            "table",
            "a table's entry does not let writes through",
            wrong_table_read_only::subject(),
        ),
        mistake("leaf", "a leaf of 1 GiB does not say that it is one", wrong_size_bit::subject()),
        mistake(
            "decoder",
            "an entry for instructions is taken for one for writes",
            wrong_execute::subject(),
        ),
        mistake(
            "empty",
            "a link between detached tables is present",
            wrong_present_link::subject(),
        ),
        mistake("leaf", "a leaf for writes alone can be read", wrong_both::subject()),
        mistake("cluster", "the parts of a cluster repeat after eight", wrong_part::subject()),
        mistake("cluster", "a cluster's pattern is missing", wrong_pattern::subject()),
    ]
}
