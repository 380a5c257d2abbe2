//! Drivers over units that tell nonsense, refuse commands, stand still or go away, at any point.
#![allow(missing_docs)]

mod noise;
#[path = "../../../../crates/portolan/tests/support/promised.rs"]
mod promised;
mod rig;
mod smmuv2;
mod tegra;

use noise::nonsense_in_registers;
use portolan::iommu::{Awaited, IommuError};
use portolan_chips::inject::{Drain, RegisterFaults};
use rig::{Amd, Bench, Driver, Iommu as _, Legacy, Registers, Riscv, Scalable, SmmuV3};

/// `IQE`, `ICE` and `ITE` of VT-d's fault status register.
const VTD_ERRORS: [u32; 3] = [1 << 4, 1 << 5, 1 << 6];
/// `CERROR_ILL`, `CERROR_ABT` and `CERROR_ATC_INV_SYNC` of the SMMU's command queue.
const SMMU_ERRORS: [u32; 3] = [1, 2, 3];
/// AMD-Vi errors: no entry in the log, ILLEGAL_COMMAND_ERROR and COMMAND_HARDWARE_ERROR.
const AMD_ERRORS: [u32; 3] = [0, 5, 6];
/// `cmd_ill`, `cqmf` and `cmd_to` of the RISC-V IOMMU's command queue.
const RISCV_ERRORS: [u32; 3] = [1 << 10, 1 << 8, 1 << 9];

/// Tables of a domain with one run of pages.
const LEVELS: usize = 4;

fn nothing() -> RegisterFaults {
    RegisterFaults::default()
}

fn refuse(n: u64, code: u32) -> RegisterFaults {
    RegisterFaults { refuse: Some((n, code)), ..nothing() }
}

fn gone_from(n: u64) -> RegisterFaults {
    RegisterFaults { gone_from: Some(n), ..nothing() }
}

/// Tells if the unit or a device said no, to this caller's command or to another's.
fn is_refusal(error: &IommuError) -> bool {
    matches!(
        error,
        IommuError::Refused { .. }
            | IommuError::DeviceSilent { .. }
            | IommuError::Interrupted { .. }
    )
}

/// The n-th command is refused, for each n: its caller gets the error, and everything can go on.
fn refused_at_any_command<D: Driver>(codes: [u32; 3]) {
    for code in codes {
        let mut told = 0;
        for n in 1.. {
            let bench = Bench::<D>::new();
            bench.unit.inject(refuse(n, code));
            let driver = match bench.enable() {
                Ok(driver) => driver,
                Err(error) => {
                    let typed = is_refusal(&error);
                    assert!(typed, "command {n}, code {code:#x}: {error}");
                    continue;
                }
            };
            let errors = bench.everything(&driver);
            for error in &errors {
                let typed = is_refusal(error);
                assert!(typed, "command {n}, code {code:#x}: {error}");
            }
            told += errors.len();
            let closed = D::close(driver);
            let used_up = bench.unit.consumed() < n;
            bench.is_sound();
            if let Err(error) = closed {
                // Memory that the unit may still use is kept.
                let typed = is_refusal(&error);
                assert!(typed && bench.memory.live() > 0, "command {n}: {error}");
                continue;
            }
            // A domain whose end was refused, with no caller that could be told, keeps its tables.
            let most = if errors.is_empty() && !used_up { LEVELS } else { 0 };
            let live = bench.memory.live();
            assert!(live <= most, "command {n}, code {code:#x}: {live}");
            if used_up {
                break;
            }
        }
        println!("{}: code {code:#x}, told {told} times", D::NAME);
    }
}

/// Makes all reads return ones from the n-th access on, for each n.
fn gone_from_any_access<D: Driver>() {
    let mut told = 0;
    for n in 1.. {
        let bench = Bench::<D>::new();
        bench.unit.inject(gone_from(n));
        let before = bench.unit.now_ns();
        let mut heard = 0;
        match bench.enable() {
            Ok(driver) => {
                heard += bench.everything_without_help(&driver).len();
                let used_up = bench.unit.accesses() < n;
                drop(driver);
                if used_up {
                    assert_eq!(heard, 0);
                    break;
                }
            }
            Err(error) => {
                heard += 1;
                let typed = matches!(error, IommuError::Gone | IommuError::Nonsense { .. });
                assert!(typed, "access {n}: {error}");
            }
        }
        told += u64::from(heard > 0);
        bench.is_sound();
        // Found out from the values that are read, not at the end of each wait.
        let waited = bench.unit.now_ns() - before;
        // For each failure, and two domains and the unit that are let go.
        let most = (heard as u64 + 3) * D::LIMIT.get() / 2;
        assert!(waited <= most, "access {n}: {waited} ns");
    }
    println!("{}: told of {told} departures", D::NAME);
    assert!(told > 20);
}

/// Stops queues at the n-th operation, for each n; then they continue.
fn never_drains<D: Driver>() {
    let mut told = 0;
    for n in 0..rig::OPERATIONS {
        let bench = Bench::<D>::new();
        let driver = bench.enable().unwrap();
        let stuck = RegisterFaults { drain: Drain::Never, ..nothing() };
        let errors = bench.everything_from(&driver, n, stuck);
        for error in &errors {
            let timed_out = matches!(error, IommuError::TimedOut { .. });
            assert!(timed_out, "operation {n}: {error}");
        }
        told += errors.len();
        D::close(driver).unwrap();
        bench.is_sound();
        assert_eq!(bench.memory.live(), 0, "operation {n}");
    }
    println!("{}: timed out {told} times", D::NAME);
    assert!(told > 3);
}

/// Stops queues for ever: dropping everything ends in time, and frees nothing in use.
fn never_drains_again<D: Driver>() {
    let bench = Bench::<D>::new();
    let driver = bench.enable().unwrap();
    bench.unit.inject(RegisterFaults { drain: Drain::Never, control: Drain::Never, ..nothing() });
    assert!(!bench.everything_without_help(&driver).is_empty());
    let (live, before) = (bench.memory.live(), bench.unit.now_ns());
    drop(driver);
    // Two streams, and the unit itself, some of it in several steps.
    let waited = bench.unit.now_ns() - before;
    assert!(waited < 16 * D::LIMIT.get(), "{waited} ns");
    assert!(bench.memory.live() > 0 && bench.memory.live() <= live);
    bench.unit.inject(nothing());
    // Going on, the unit meets nothing that was freed.
    bench.reach_everything();
    bench.is_sound();
}

/// Control registers are not acknowledged.
fn never_acknowledges<D: Driver>() {
    let bench = Bench::<D>::new();
    bench.unit.inject(RegisterFaults { control: Drain::Never, ..nothing() });
    let before = bench.unit.now_ns();
    let error = bench.enable().err();
    let control = |awaited| matches!(awaited, Awaited::Control | Awaited::WriteBuffer);
    let typed = matches!(error, Some(IommuError::TimedOut { awaited, .. }) if control(awaited));
    assert!(typed, "{error:?}");
    assert!(bench.unit.now_ns() - before < 3 * D::LIMIT.get());
}

/// Tests of a driver, by the functions that they are.
macro_rules! of {
    ($($driver:ident: $module:ident { $($test:ident($($argument:expr)?))* })*) => {$(
        mod $module {
            use super::*;

            $(
                #[test]
                fn $test() {
                    $crate::$test::<$driver>($($argument)?);
                }
            )*
        }
    )*};
}

pub(crate) use of;

/// Tests for drivers with a queue of commands.
macro_rules! of_queues {
    ($($driver:ident: $module:ident, $errors:expr;)*) => {
        of! {
            $($driver: $module {
                gone_from_any_access()
                never_drains()
                never_drains_again()
                never_acknowledges()
                refused_at_any_command($errors)
                nonsense_in_registers()
            })*
        }
    };
}

of_queues! {
    Legacy: vtd_legacy, VTD_ERRORS;
    Scalable: vtd_scalable, VTD_ERRORS;
    Registers: vtd_registers, VTD_ERRORS;
    SmmuV3: smmuv3, SMMU_ERRORS;
    Amd: amd, AMD_ERRORS;
    Riscv: riscv, RISCV_ERRORS;
}
