//! A unit is turned off, and so devices reach all memory, without leave.

use core::sync::atomic::AtomicU32;

use portolan::platform::UnitPlatform;
use portolan_hw::amd::AmdVi;
use portolan_hw::riscv::RiscvIommu;
use portolan_hw::tegra_smmu::TegraSmmu;
use portolan_hw::vtd::Vtd;

fn vtd<P: UnitPlatform>(unit: Vtd<P>) {
    let _ = unit.release();
}

fn amd<P: UnitPlatform>(unit: AmdVi<P>) {
    let _ = unit.release();
}

fn riscv<P: UnitPlatform>(unit: RiscvIommu<P>) {
    let _ = unit.release();
}

fn tegra<P: UnitPlatform<AtomicU32>>(unit: TegraSmmu<P>) {
    let _ = unit.release();
}

fn main() {}
