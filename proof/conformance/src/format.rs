//! The formats under test, by name, each with its independent description.

use std::fmt;
use std::str::FromStr;

use portolan::addr::PageSize;
use portolan::table::Access;
use portolan::table::format::{
    AmdLevels, AmdSizes, AmdV1, Armv8Config, Armv8Stage1, Armv8Stage2, DirtyTracking, Format,
    Riscv, RiscvContiguity, RiscvLevels, RiscvMemoryTypes, SplitRule, Tegra, TegraMemory,
    VtdFirstLevels, VtdFirstStage, VtdLevels, VtdSecondStage,
};
use portolan_sim::decode::TableFormat;

macro_rules! formats {
    ($($name:ident = $text:literal => $what:literal;)*) => {
        /// A format with a granule or a number of levels.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum FormatName {$(#[doc = $what] $name),*}

        impl FormatName {
            /// Every one.
            pub const ALL: [Self; [$($text),*].len()] = [$(Self::$name),*];

            /// The name, as it is written on a command line.
            pub const fn as_str(self) -> &'static str {
                match self {$(Self::$name => $text),*}
            }
        }
    };
}

formats! {
    Armv8S1Granule4K = "armv8-s1-4k" => "VMSAv8-64 stage 1, 4 KiB, 48-bit input.";
    Armv8S1Granule16K = "armv8-s1-16k" => "VMSAv8-64 stage 1, 16 KiB, 47-bit input.";
    Armv8S1Granule64K = "armv8-s1-64k" => "VMSAv8-64 stage 1, 64 KiB, 52-bit input and output.";
    Armv8S2Granule4K = "armv8-s2-4k" => "VMSAv8-64 stage 2, 4 KiB, 39-bit input.";
    Armv8S2Granule16K = "armv8-s2-16k" => "VMSAv8-64 stage 2, 16 KiB, 48-bit input.";
    Armv8S2Granule64K = "armv8-s2-64k" => "VMSAv8-64 stage 2, 64 KiB, 42-bit input, two levels.";
    VtdSs3 = "vtd-ss-3" => "VT-d second stage, 3 levels.";
    VtdSs4 = "vtd-ss-4" => "VT-d second stage, 4 levels.";
    VtdSs5 = "vtd-ss-5" => "VT-d second stage, 5 levels.";
    VtdFs4 = "vtd-fs-4" => "VT-d first stage, 4 levels.";
    VtdFs5 = "vtd-fs-5" => "VT-d first stage, 5 levels.";
    AmdV1Levels3 = "amd-v1-3" => "AMD-Vi version 1, 3 levels.";
    AmdV1Levels4 = "amd-v1-4" => "AMD-Vi version 1, 4 levels.";
    AmdV1Between = "amd-v1-between" => "AMD-Vi version 1, 4 levels, with sizes between those of the levels.";
    Tegra = "tegra" => "Tegra SMMU with 34-bit memory addresses.";
    RiscvSv39 = "riscv-sv39" => "RISC-V Sv39.";
    RiscvSv48 = "riscv-sv48" => "RISC-V Sv48.";
    RiscvSv57 = "riscv-sv57" => "RISC-V Sv57.";
    RiscvSv39x4 = "riscv-sv39x4" => "RISC-V second stage, Sv39x4.";
    RiscvSv48x4 = "riscv-sv48x4" => "RISC-V second stage, Sv48x4.";
    RiscvSv57x4 = "riscv-sv57x4" => "RISC-V second stage, Sv57x4.";
    RiscvSv39Napot = "riscv-sv39-napot" => "RISC-V Sv39 with leaves of 64 KiB.";
    RiscvSv48x4Napot = "riscv-sv48x4-napot" => "RISC-V second stage, Sv48x4, with leaves of 64 KiB.";
}

/// Work on a format whose type is known.
pub trait Visitor {
    /// The outcome.
    type Output;

    /// Does it; `model` describes the same format to the independent decoder.
    fn visit<F: Format>(self, format: F, model: TableFormat) -> Self::Output;
}

impl FormatName {
    /// Tells if the architecture knows break-before-make.
    pub const fn may_need_break(self) -> bool {
        use FormatName as N;
        matches!(
            self,
            N::Armv8S1Granule4K
                | N::Armv8S1Granule16K
                | N::Armv8S1Granule64K
                | N::Armv8S2Granule4K
                | N::Armv8S2Granule16K
                | N::Armv8S2Granule64K
        )
    }

    /// Tells if it is one of RISC-V's.
    const fn is_riscv(self) -> bool {
        use FormatName as N;
        matches!(
            self,
            N::RiscvSv39
                | N::RiscvSv48
                | N::RiscvSv57
                | N::RiscvSv39x4
                | N::RiscvSv48x4
                | N::RiscvSv57x4
                | N::RiscvSv39Napot
                | N::RiscvSv48x4Napot
        )
    }

    /// The bit that the hardware changes in a leaf when it is written through, and the value that it
    /// then has; `None` if the format keeps no dirty state.
    pub const fn dirty_mark(self) -> Option<(u64, u64)> {
        use FormatName as N;
        match self {
            // AP[2] is cleared.
            N::Armv8S1Granule4K | N::Armv8S1Granule16K | N::Armv8S1Granule64K => Some((1 << 7, 0)),
            // S2AP[1] is set.
            N::Armv8S2Granule4K | N::Armv8S2Granule16K | N::Armv8S2Granule64K => {
                Some((1 << 7, 1 << 7))
            }
            N::VtdSs3 | N::VtdSs4 | N::VtdSs5 => Some((1 << 9, 1 << 9)),
            N::VtdFs4 | N::VtdFs5 => Some((1 << 6, 1 << 6)),
            N::AmdV1Levels3 | N::AmdV1Levels4 | N::AmdV1Between => Some((1 << 6, 1 << 6)),
            N::Tegra => None,
            // D is set.
            _ => Some((1 << 7, 1 << 7)),
        }
    }

    /// The bit of a leaf that hands its dirty state to the hardware: a clean leaf that has it can be
    /// written all the same, though its permissions say otherwise.
    pub const fn dirty_managed(self) -> Option<u64> {
        match self {
            // DBM.
            _ if self.may_need_break() => Some(1 << 51),
            // W.
            _ if self.is_riscv() => Some(1 << 2),
            _ => None,
        }
    }

    /// Access that a device has where `access` was asked for; `None` if the format cannot express it.
    pub fn effective(self, access: Access) -> Option<Access> {
        let data = access.intersection(Access::READ | Access::WRITE);
        if data.is_empty() {
            return None;
        }
        match self {
            Self::Armv8S1Granule4K | Self::Armv8S1Granule16K | Self::Armv8S1Granule64K => {
                Some(access | Access::READ)
            }
            Self::Armv8S2Granule4K | Self::Armv8S2Granule16K | Self::Armv8S2Granule64K => {
                Some(access)
            }
            _ if self.is_riscv() => Some(access | Access::READ),
            _ if access.contains(Access::EXECUTE) => None,
            Self::VtdFs4 | Self::VtdFs5 => Some(access | Access::READ),
            // The force-coherent bit of a leaf keeps the kind of memory.
            Self::AmdV1Levels3 | Self::AmdV1Levels4 | Self::AmdV1Between => Some(access),
            _ => Some(data),
        }
    }

    /// Calls `visitor` with the format.
    pub fn visit<V: Visitor>(
        self,
        split: SplitRule,
        dirty: DirtyTracking,
        visitor: V,
    ) -> V::Output {
        let arm = |input_lg2, output_lg2| Armv8Config { input_lg2, output_lg2, split, dirty };
        let second = |levels| VtdSecondStage { levels, output_lg2: 52, dirty };
        let first = |levels| VtdFirstStage { levels, output_lg2: 46, dirty };
        macro_rules! armv8 {
            ($stage:ident, $model:ident, $lg2:literal, $input:literal, $output:literal) => {
                visitor.visit(
                    known($stage::<$lg2>::new(arm($input, $output))),
                    known(TableFormat::$model(PageSize::of_lg2($lg2), $input, $output)),
                )
            };
        }
        macro_rules! riscv {
            ($root:literal, $levels:ident, $model:ident, $count:literal, $contiguity:ident) => {
                visitor.visit(
                    riscv::<$root>(RiscvLevels::$levels, RiscvContiguity::$contiguity, dirty),
                    known(TableFormat::$model($count)),
                )
            };
        }
        let vtd_ss = |levels| known(TableFormat::vtd_second_stage(levels));
        let vtd_fs = |levels| known(TableFormat::vtd_first_stage(levels));
        let amd_v1 = |levels| known(TableFormat::amd_v1(levels));
        match self {
            Self::Armv8S1Granule4K => armv8!(Armv8Stage1, armv8_stage1, 12, 48, 48),
            Self::Armv8S1Granule16K => armv8!(Armv8Stage1, armv8_stage1, 14, 47, 48),
            Self::Armv8S1Granule64K => armv8!(Armv8Stage1, armv8_stage1, 16, 52, 52),
            Self::Armv8S2Granule4K => armv8!(Armv8Stage2, armv8_stage2, 12, 39, 44),
            Self::Armv8S2Granule16K => armv8!(Armv8Stage2, armv8_stage2, 14, 48, 48),
            Self::Armv8S2Granule64K => armv8!(Armv8Stage2, armv8_stage2, 16, 42, 52),
            Self::VtdSs3 => visitor.visit(second(VtdLevels::Three), vtd_ss(3)),
            Self::VtdSs4 => visitor.visit(second(VtdLevels::Four), vtd_ss(4)),
            Self::VtdSs5 => visitor.visit(second(VtdLevels::Five), vtd_ss(5)),
            Self::VtdFs4 => visitor.visit(first(VtdFirstLevels::Four), vtd_fs(4)),
            Self::VtdFs5 => visitor.visit(first(VtdFirstLevels::Five), vtd_fs(5)),
            Self::AmdV1Levels3 => visitor.visit(amd(AmdLevels::Three, dirty), amd_v1(3)),
            Self::AmdV1Levels4 => visitor.visit(amd(AmdLevels::Four, dirty), amd_v1(4)),
            Self::AmdV1Between => {
                let sizes = AmdSizes::Between;
                visitor.visit(AmdV1 { sizes, ..amd(AmdLevels::Four, dirty) }, amd_v1(4))
            }
            Self::RiscvSv39 => riscv!(12, Three, riscv_first_stage, 3, Absent),
            Self::RiscvSv48 => riscv!(12, Four, riscv_first_stage, 4, Absent),
            Self::RiscvSv57 => riscv!(12, Five, riscv_first_stage, 5, Absent),
            Self::RiscvSv39x4 => riscv!(14, Three, riscv_second_stage, 3, Absent),
            Self::RiscvSv48x4 => riscv!(14, Four, riscv_second_stage, 4, Absent),
            Self::RiscvSv57x4 => riscv!(14, Five, riscv_second_stage, 5, Absent),
            Self::RiscvSv39Napot => riscv!(12, Three, riscv_first_stage, 3, Svnapot),
            Self::RiscvSv48x4Napot => riscv!(14, Four, riscv_second_stage, 4, Svnapot),
            Self::Tegra => {
                let memory = TegraMemory::Bits34;
                visitor.visit(Tegra { memory }, known(TableFormat::tegra(34)))
            }
        }
    }
}

/// The formats' constructors refuse only widths that do not exist; those in this file do.
fn known<T, E: fmt::Debug>(format: Result<T, E>) -> T {
    format.expect("the widths in this file exist")
}

const fn amd(levels: AmdLevels, dirty: DirtyTracking) -> AmdV1 {
    AmdV1 { levels, output_lg2: 52, dirty, sizes: AmdSizes::Levels }
}

const fn riscv<const ROOT: u32>(
    levels: RiscvLevels,
    contiguity: RiscvContiguity,
    dirty: DirtyTracking,
) -> Riscv<ROOT> {
    Riscv { contiguity, levels, output_lg2: 56, memory_types: RiscvMemoryTypes::Svpbmt, dirty }
}

impl fmt::Display for FormatName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// No format has this name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownFormat(
    /// The name.
    pub String,
);

impl fmt::Display for UnknownFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = FormatName::ALL.map(FormatName::as_str).join(", ");
        write!(f, "no table format is called `{}`; there are: {names}", self.0)
    }
}

impl std::error::Error for UnknownFormat {}

impl FromStr for FormatName {
    type Err = UnknownFormat;

    fn from_str(name: &str) -> Result<Self, UnknownFormat> {
        Self::ALL
            .into_iter()
            .find(|format| format.as_str() == name)
            .ok_or_else(|| UnknownFormat(name.to_owned()))
    }
}
