//! A unit is turned off, and so devices reach all memory, without leave.

use core::sync::atomic::{AtomicU32, AtomicU64};

use portolan::platform::{Cpus, Mmio, TableMem};
use portolan_hw::amd::AmdVi;
use portolan_hw::riscv::RiscvIommu;
use portolan_hw::tegra_smmu::TegraSmmu;
use portolan_hw::vtd::Vtd;

fn vtd<R: Mmio, M: TableMem<AtomicU64>, C: Cpus>(unit: Vtd<R, M, C>) {
    let _ = unit.release();
}

fn amd<R: Mmio, M: TableMem<AtomicU64>, C: Cpus>(unit: AmdVi<R, M, C>) {
    let _ = unit.release();
}

fn riscv<R: Mmio, M: TableMem<AtomicU64>, C: Cpus>(unit: RiscvIommu<R, M, C>) {
    let _ = unit.release();
}

fn tegra<R: Mmio, M: TableMem<AtomicU32>, C: Cpus>(unit: TegraSmmu<R, M, C>) {
    let _ = unit.release();
}

fn main() {}
