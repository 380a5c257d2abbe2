//! The formats, each with some widths and abilities.

use crate::numbers::{Family, Subject};
use crate::table::format::{
    AmdLevels, AmdSizes, AmdV1, Armv8Config, Armv8Stage1, Armv8Stage2, DirtyTracking, Riscv,
    RiscvContiguity, RiscvFirstStage, RiscvLevels, RiscvMemoryTypes, RiscvSecondStage, SplitRule,
    Tegra, TegraMemory, VtdFirstLevels, VtdFirstStage, VtdLevels, VtdSecondStage,
};

const OFF: DirtyTracking = DirtyTracking::Off;
const KEPT: DirtyTracking = DirtyTracking::Hardware;

const fn arm(lg2: u32, dirty: DirtyTracking) -> Armv8Config {
    Armv8Config { input_lg2: lg2, output_lg2: lg2, split: SplitRule::Direct, dirty }
}

const fn riscv<const ROOT: u32>(
    memory_types: RiscvMemoryTypes,
    contiguity: RiscvContiguity,
    dirty: DirtyTracking,
) -> Riscv<ROOT> {
    Riscv { levels: RiscvLevels::Five, output_lg2: 56, memory_types, contiguity, dirty }
}

pub(crate) const fn vtd_second(dirty: DirtyTracking) -> VtdSecondStage {
    VtdSecondStage { levels: VtdLevels::Five, output_lg2: 52, dirty }
}

const VTD_FIRST: VtdFirstStage =
    VtdFirstStage { levels: VtdFirstLevels::Five, output_lg2: 52, dirty: KEPT };

numbers!(vtd_second_stage, VtdSecondStage, vtd_second(OFF), Family::VtdSecond, 3, false, true);
numbers!(
    vtd_second_stage_dirty,
    VtdSecondStage,
    vtd_second(KEPT),
    Family::VtdSecond,
    3,
    false,
    true
);
numbers!(vtd_first_stage, VtdFirstStage, VTD_FIRST, Family::VtdFirst, 3, true, true);
numbers!(
    amd_version_1,
    AmdV1,
    AmdV1 { dirty: KEPT, ..AmdV1::new(AmdLevels::Five, 52) },
    Family::Amd,
    4,
    true,
    true
);
numbers!(
    amd_version_1_between,
    AmdV1,
    AmdV1 { sizes: AmdSizes::Between, ..AmdV1::new(AmdLevels::Five, 52) },
    Family::Amd,
    4,
    true,
    true
);
numbers!(
    arm_first_4k,
    Armv8Stage1<12>,
    made(Armv8Stage1::new(arm(48, OFF))),
    Family::ArmFirst(12),
    3,
    true,
    true
);
numbers!(
    arm_first_4k_dirty,
    Armv8Stage1<12>,
    made(Armv8Stage1::new(arm(48, KEPT))),
    Family::ArmFirst(12),
    3,
    true,
    true
);
numbers!(
    arm_first_16k,
    Armv8Stage1<14>,
    made(Armv8Stage1::new(arm(48, KEPT))),
    Family::ArmFirst(14),
    2,
    true,
    true
);
numbers!(
    arm_first_64k,
    Armv8Stage1<16>,
    made(Armv8Stage1::new(arm(52, KEPT))),
    Family::ArmFirst(16),
    2,
    true,
    true
);
numbers!(
    arm_second_4k,
    Armv8Stage2<12>,
    made(Armv8Stage2::new(arm(48, OFF))),
    Family::ArmSecond(12),
    3,
    true,
    true
);
numbers!(
    arm_second_4k_dirty,
    Armv8Stage2<12>,
    made(Armv8Stage2::new(arm(48, KEPT))),
    Family::ArmSecond(12),
    3,
    true,
    true
);
numbers!(
    arm_second_16k,
    Armv8Stage2<14>,
    made(Armv8Stage2::new(arm(48, KEPT))),
    Family::ArmSecond(14),
    2,
    true,
    true
);
numbers!(
    arm_second_64k,
    Armv8Stage2<16>,
    made(Armv8Stage2::new(arm(52, KEPT))),
    Family::ArmSecond(16),
    2,
    true,
    true
);
numbers!(
    riscv_first_stage,
    RiscvFirstStage,
    riscv(RiscvMemoryTypes::Svpbmt, RiscvContiguity::Svnapot, OFF),
    Family::RiscvFirst,
    4,
    true,
    true
);
numbers!(
    riscv_first_stage_dirty,
    RiscvFirstStage,
    riscv(RiscvMemoryTypes::Absent, RiscvContiguity::Absent, KEPT),
    Family::RiscvFirst,
    4,
    false,
    true
);
numbers!(
    riscv_second_stage,
    RiscvSecondStage,
    riscv(RiscvMemoryTypes::Absent, RiscvContiguity::Svnapot, OFF),
    Family::RiscvSecond,
    4,
    false,
    true
);
numbers!(
    riscv_second_stage_dirty,
    RiscvSecondStage,
    riscv(RiscvMemoryTypes::Svpbmt, RiscvContiguity::Absent, KEPT),
    Family::RiscvSecond,
    4,
    true,
    true
);
numbers!(tegra_32, Tegra, Tegra { memory: TegraMemory::Bits32 }, Family::Tegra, 2, false, false);
numbers!(tegra_34, Tegra, Tegra { memory: TegraMemory::Bits34 }, Family::Tegra, 2, false, false);

/// The format of a configuration that its granule allows.
#[inline(always)]
fn made<F, E: core::fmt::Debug>(format: Result<F, E>) -> F {
    format.expect("widths that the granule allows")
}

/// All formats.
pub fn all() -> Vec<Subject> {
    vec![
        vtd_second_stage::subject(),
        vtd_second_stage_dirty::subject(),
        vtd_first_stage::subject(),
        amd_version_1::subject(),
        amd_version_1_between::subject(),
        arm_first_4k::subject(),
        arm_first_4k_dirty::subject(),
        arm_first_16k::subject(),
        arm_first_64k::subject(),
        arm_second_4k::subject(),
        arm_second_4k_dirty::subject(),
        arm_second_16k::subject(),
        arm_second_64k::subject(),
        riscv_first_stage::subject(),
        riscv_first_stage_dirty::subject(),
        riscv_second_stage::subject(),
        riscv_second_stage_dirty::subject(),
        tegra_32::subject(),
        tegra_34::subject(),
    ]
}
