//! The table formats, and the geometry of each.

use portolan::addr::{Iova, PageSize};
use thiserror::Error;

use super::{Decoded, amd, armv8, riscv, tegra, vtd};

/// A table format with its widths, made by the functions below, which check them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TableFormat {
    kind: EntryLayout,
    granule: PageSize,
    index_lg2: u8,
    /// Additional index bits of the root table.
    root_more_lg2: u8,
    input_lg2: u8,
    output_lg2: u8,
}

/// Layout of the entries, for any widths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum EntryLayout {
    Armv8Stage1,
    Armv8Stage2,
    VtdSecondStage,
    VtdFirstStage,
    Tegra,
    AmdV1,
    RiscvFirstStage,
    RiscvSecondStage,
}

/// Widths that a format does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FormatError {
    /// The format does not have this granule.
    #[error("a granule of 2^{0} bytes does not exist in this format")]
    Granule(u32),
    /// Input addresses too narrow or too wide.
    #[error("input addresses of {0} bits do not exist in this format")]
    Input(u8),
    /// Output addresses too narrow or too wide.
    #[error("output addresses of {0} bits do not exist in this format")]
    Output(u8),
    /// The format does not have this number of levels.
    #[error("{0} levels do not exist in this format")]
    Levels(u8),
}

impl TableFormat {
    /// Layout of its entries.
    pub(crate) fn kind(&self) -> EntryLayout {
        self.kind
    }

    /// VMSAv8-64 stage 1, granule 4, 16 or 64 KiB.
    ///
    /// # Errors
    /// [`FormatError`] if the architecture does not have the widths.
    pub fn armv8_stage1(granule: PageSize, input: u8, output: u8) -> Result<Self, FormatError> {
        Self::armv8(EntryLayout::Armv8Stage1, granule, input, output)
    }

    /// VMSAv8-64 stage 2, granule 4, 16 or 64 KiB, without concatenated roots.
    ///
    /// # Errors
    /// [`FormatError`] if the architecture does not have the widths.
    pub fn armv8_stage2(granule: PageSize, input: u8, output: u8) -> Result<Self, FormatError> {
        Self::armv8(EntryLayout::Armv8Stage2, granule, input, output)
    }

    fn armv8(
        kind: EntryLayout,
        granule: PageSize,
        input_lg2: u8,
        output_lg2: u8,
    ) -> Result<Self, FormatError> {
        let (granule_lg2, widest) = match granule.lg2() {
            12 => (12, 48),
            14 => (14, 48),
            16 => (16, 52),
            other => return Err(FormatError::Granule(other)),
        };
        if input_lg2 <= granule_lg2 || input_lg2 > widest {
            return Err(FormatError::Input(input_lg2));
        }
        if output_lg2 <= granule_lg2 || output_lg2 > widest {
            return Err(FormatError::Output(output_lg2));
        }
        Ok(Self {
            kind,
            granule,
            index_lg2: granule_lg2 - 3,
            root_more_lg2: 0,
            input_lg2,
            output_lg2,
        })
    }

    /// VT-d second stage of 3, 4 or 5 levels, with addresses of 52 bits.
    ///
    /// # Errors
    /// [`FormatError::Levels`].
    pub fn vtd_second_stage(levels: u8) -> Result<Self, FormatError> {
        if !(3..=5).contains(&levels) {
            return Err(FormatError::Levels(levels));
        }
        Ok(Self {
            kind: EntryLayout::VtdSecondStage,
            granule: PageSize::SIZE_4K,
            index_lg2: 9,
            root_more_lg2: 0,
            input_lg2: 12 + 9 * levels,
            output_lg2: 52,
        })
    }

    /// VT-d first stage (the x86-64 layout) of 4 or 5 levels. Addresses of the upper, sign-extended
    /// half count as beyond the table.
    ///
    /// # Errors
    /// [`FormatError::Levels`].
    pub fn vtd_first_stage(levels: u8) -> Result<Self, FormatError> {
        if !(4..=5).contains(&levels) {
            return Err(FormatError::Levels(levels));
        }
        Ok(Self {
            kind: EntryLayout::VtdFirstStage,
            granule: PageSize::SIZE_4K,
            index_lg2: 9,
            root_more_lg2: 0,
            // The top bit of the index is the sign.
            input_lg2: 12 + 9 * levels - 1,
            output_lg2: 52,
        })
    }

    /// Tegra's two levels, with memory addresses of 32 or 34 bits.
    ///
    /// # Errors
    /// [`FormatError::Output`].
    pub fn tegra(output_lg2: u8) -> Result<Self, FormatError> {
        if output_lg2 != 32 && output_lg2 != 34 {
            return Err(FormatError::Output(output_lg2));
        }
        Ok(Self {
            kind: EntryLayout::Tegra,
            granule: PageSize::SIZE_4K,
            index_lg2: 10,
            root_more_lg2: 0,
            input_lg2: 32,
            output_lg2,
        })
    }

    /// AMD-Vi host tables of 3, 4 or 5 levels, with addresses of 52 bits.
    ///
    /// # Errors
    /// [`FormatError::Levels`].
    pub fn amd_v1(levels: u8) -> Result<Self, FormatError> {
        Ok(Self { kind: EntryLayout::AmdV1, ..Self::vtd_second_stage(levels)? })
    }

    /// RISC-V's Sv39, Sv48 or Sv57, of 3, 4 or 5 levels. Addresses of the upper, sign-extended half count as
    /// beyond the table.
    ///
    /// # Errors
    /// [`FormatError::Levels`].
    pub fn riscv_first_stage(levels: u8) -> Result<Self, FormatError> {
        let plain = Self::vtd_second_stage(levels)?;
        Ok(Self {
            kind: EntryLayout::RiscvFirstStage,
            input_lg2: plain.input_lg2 - 1,
            output_lg2: 56,
            ..plain
        })
    }

    /// RISC-V's Sv39x4, Sv48x4 or Sv57x4, whose root has four times as many entries.
    ///
    /// # Errors
    /// [`FormatError::Levels`].
    pub fn riscv_second_stage(levels: u8) -> Result<Self, FormatError> {
        let plain = Self::vtd_second_stage(levels)?;
        Ok(Self {
            kind: EntryLayout::RiscvSecondStage,
            root_more_lg2: 2,
            input_lg2: plain.input_lg2 + 2,
            output_lg2: 56,
            ..plain
        })
    }

    /// Smallest page, which is the size of a table too, but for a larger root.
    pub fn granule(&self) -> PageSize {
        self.granule
    }

    /// Size of a table of `level`.
    pub fn table_size(&self, level: u8) -> PageSize {
        PageSize::of_lg2(self.granule.lg2() + u32::from(self.more_lg2(level)))
    }

    /// Additional index bits of a table at `level`, compared with other tables.
    fn more_lg2(&self, level: u8) -> u8 {
        if level + 1 == self.levels() { self.root_more_lg2 } else { 0 }
    }

    /// Width of input addresses.
    pub fn input_lg2(&self) -> u8 {
        self.input_lg2
    }

    /// Width of output addresses.
    pub fn output_lg2(&self) -> u8 {
        self.output_lg2
    }

    /// Number of levels.
    pub fn levels(&self) -> u8 {
        let below = self.granule.lg2() as u8 + self.root_more_lg2;
        (self.input_lg2 - below).div_ceil(self.index_lg2)
    }

    /// Bytes of an entry.
    pub fn entry_bytes(&self) -> u64 {
        match self.kind {
            EntryLayout::Tegra => 4,
            _ => 8,
        }
    }

    /// Span of one entry of `level`.
    pub fn span(&self, level: u8) -> PageSize {
        PageSize::of_lg2(self.granule.lg2() + u32::from(self.index_lg2) * u32::from(level))
    }

    /// Tells if `iova` fits the table's width.
    pub fn holds(&self, iova: Iova) -> bool {
        iova.get() >> self.input_lg2 == 0
    }

    /// Index of the entry for `iova` in a table of `level`.
    pub fn index(&self, iova: Iova, level: u8) -> u64 {
        let width = self.index_lg2 + self.more_lg2(level);
        (iova.get() >> self.span(level).lg2()) & ((1 << width) - 1)
    }

    /// Decodes `raw` at `level`.
    pub fn decode(&self, raw: u64, level: u8) -> Decoded {
        let granule = self.granule.lg2();
        match self.kind {
            EntryLayout::Armv8Stage1 => armv8::stage1(granule, self.output_lg2, raw, level),
            EntryLayout::Armv8Stage2 => armv8::stage2(granule, self.output_lg2, raw, level),
            EntryLayout::VtdSecondStage => vtd::second_stage(raw, level),
            EntryLayout::VtdFirstStage => vtd::first_stage(raw, level),
            EntryLayout::AmdV1 => amd::entry(raw, level),
            EntryLayout::RiscvFirstStage | EntryLayout::RiscvSecondStage => {
                riscv::entry(raw, level)
            }
            EntryLayout::Tegra => tegra::entry(self.output_lg2, raw, level),
        }
    }
}
