//! Two units in one topology: each serves its own devices, one that is on already is taken over, and one
//! that does not come up is named: its devices are refused, the other's are served.

use portolan::addr::{Iova, PciFunction, PhysAddr};
use portolan::dma::Direction;
use portolan::iommu::IommuError;
use portolan::platform::{Mmio, Nanos};
use portolan_chips::inject::{Drain, RegisterFaults, Violation};
use portolan_chips::smmuv3::{SmmuIdentification, SmmuRegisters};
use portolan_chips::vtd::{VtdIdentification, VtdRegisters};
use portolan_hw::topology::{EnableError, Iommus, OpenError, Options, Topology};
use portolan_sim::clock::Tick;
use portolan_sim::decode::AccessKind;

use super::machine::{
    DEVICE, DISPLAY, Kernel, Machine, OTHER, OTHER_REGISTERS, PciWords, REGISTERS, described,
    dmar_with_scopes, iort_of_two, smmu, vtd,
};
use super::{driver, opened, packet};

const BOTH: [u64; 2] = [REGISTERS, OTHER_REGISTERS];
/// Where there is no unit.
const NOWHERE: u64 = 0xfe00_0000;
/// Three waits of the drivers, and a little.
const LONGEST: Nanos = Nanos::from_millis(3_100);

/// What both register models do.
trait Model: Mmio + Tick + Sized + 'static {
    fn machine() -> Machine<Self>;
    /// Firmware's table of two units.
    fn table(units: [u64; 2]) -> Vec<u8>;
    /// Functions that the first unit serves by that table, and functions that the second does.
    const SERVED: [&[PciFunction]; 2];
    fn go_wrong(&self, faults: RegisterFaults);
    fn wrong_by_driver(&self) -> Vec<Violation>;
    /// Where a write by `function` gets to.
    fn reach(&self, function: PciFunction, at: Iova) -> Option<u64>;
}

const BRIDGE: PciFunction = PciFunction::of(0, 1, 0);
const BEHIND: PciFunction = PciFunction::of(2, 0, 0);

impl Model for VtdRegisters {
    fn machine() -> Machine<Self> {
        const CONFIG: PciWords = &[(BRIDGE, 0xc, 1 << 16), (BRIDGE, 0x18, 0x0004_0200)];
        Machine { config: CONFIG, ..vtd(VtdIdentification::default()) }
    }

    fn table(units: [u64; 2]) -> Vec<u8> {
        dmar_with_scopes(units)
    }

    const SERVED: [&[PciFunction]; 2] = [&[DEVICE, BEHIND], &[OTHER, DISPLAY]];

    fn go_wrong(&self, faults: RegisterFaults) {
        self.inject(faults);
    }

    fn wrong_by_driver(&self) -> Vec<Violation> {
        self.violations()
    }

    fn reach(&self, function: PciFunction, at: Iova) -> Option<u64> {
        let stream = function.requester.stream();
        let found = self.dma(stream, None, at, AccessKind::Write, 8).ok()?;
        found.first().map(|piece| piece.pa.get())
    }
}

impl Model for SmmuRegisters {
    fn machine() -> Machine<Self> {
        smmu(SmmuIdentification::default())
    }

    fn table(units: [u64; 2]) -> Vec<u8> {
        iort_of_two(units)
    }

    const SERVED: [&[PciFunction]; 2] = [&[DEVICE, DISPLAY], &[OTHER, BEHIND]];

    fn go_wrong(&self, faults: RegisterFaults) {
        self.inject(faults);
    }

    fn wrong_by_driver(&self) -> Vec<Violation> {
        self.violations()
    }

    fn reach(&self, function: PciFunction, at: Iova) -> Option<u64> {
        let stream = function.requester.stream();
        let found = self.dma(stream, None, at, AccessKind::Write, 8).ok()?;
        found.first().map(|piece| piece.pa.get())
    }
}

fn both<R>(machine: &Machine<R>) -> [&R; 2] {
    [&machine.unit, &machine.other]
}

/// Each function does DMA through its own unit and reaches nothing by the other one.
fn all_work<R: Model>(machine: &Machine<R>) {
    let iommus = opened(machine.kernel(), &R::table(BOTH));
    assert_eq!(iommus.units().len(), 2);
    let [one, other] = both(machine);
    let mut open = Vec::new();
    for (functions, own, beside) in [(R::SERVED[0], one, other), (R::SERVED[1], other, one)] {
        for &function in functions {
            let device = iommus.trusted_device(function).expect("a device");
            driver(&device, |at| {
                assert_eq!(beside.reach(function, at), None, "{function}");
                own.reach(function, at)
            });
            open.push(device);
        }
    }
    drop((open, iommus));
    for unit in both(machine) {
        assert_eq!(unit.wrong_by_driver(), []);
    }
}

#[test]
fn the_devices_of_two_units_are_each_served_by_their_own() {
    all_work(&VtdRegisters::machine());
    all_work(&SmmuRegisters::machine());
}

/// Another kernel leaves the first unit on, or both, with a buffer mapped.
fn taken_over<R: Model>(left: [&[PciFunction]; 2]) {
    let machine = &R::machine();
    let before = opened(machine.kernel(), &R::table(BOTH));
    let mapped = left.concat().into_iter().map(|function| {
        let device = before.trusted_device(function).expect("a device");
        let rx = device.map(packet(), Direction::FromDevice).expect("mapped");
        let at = rx.iova();
        core::mem::forget((rx, device));
        (function, at)
    });
    let mapped: Vec<_> = mapped.collect();
    core::mem::forget(before);
    let iommus = opened(machine.kernel(), &R::table(BOTH));
    for (function, at) in mapped {
        for unit in both(machine) {
            assert_eq!(unit.reach(function, at), None, "{function}");
        }
    }
    drop(iommus);
    all_work(machine);
}

#[test]
fn units_that_are_on_already_are_taken_over_with_nothing_mapped() {
    taken_over::<VtdRegisters>(VtdRegisters::SERVED);
    taken_over::<SmmuRegisters>(SmmuRegisters::SERVED);
}

/// All is enabled but the unit of number `bad`, in time; and why that is not.
fn enabled_without<R: Model>(
    machine: &Machine<R>,
    units: [u64; 2],
    bad: usize,
) -> (Iommus<Kernel>, EnableError) {
    let table = R::table(units);
    let topology = Topology::from_acpi([&table[..]]).expect("a table");
    let begun = machine.clock.now_ns();
    let iommus = topology.enable(machine.kernel(), Options::default(), described());
    let iommus = iommus.expect("the other unit");
    let took = machine.clock.now_ns() - begun;
    assert!(took <= LONGEST.get(), "after {took} ns");
    let failed = iommus.units()[bad].as_ref().err();
    let failed = *failed.expect("it is not enabled");
    let (EnableError::Iommu { window, .. } | EnableError::NoRegisters { window }) = failed else {
        panic!("{failed}");
    };
    assert_eq!(window.start(), PhysAddr::new(units[bad]));
    let name = format!("{:#x}", units[bad]);
    assert!(failed.to_string().contains(&name), "{failed}");
    (iommus, failed)
}

/// Devices of the unit of number `bad` are refused by name, and the other one's do DMA.
fn others_are_served<R: Model>(machine: &Machine<R>, units: [u64; 2], bad: usize) -> EnableError {
    let (iommus, error) = enabled_without(machine, units, bad);
    for &function in R::SERVED[bad] {
        let refused = OpenError::NotEnabled { function, unit: bad, error };
        assert_eq!(iommus.trusted_device(function).err(), Some(refused));
        let said = refused.to_string();
        assert!(said.contains(&function.to_string()), "{said}");
    }
    let good = 1 - bad;
    for &function in R::SERVED[good] {
        let unit = both(machine)[good];
        assert_eq!(unit.reach(function, Iova::new(0x1234_5000)), None);
        let device = iommus.trusted_device(function).expect("a device");
        driver(&device, |at| unit.reach(function, at));
    }
    for unit in both(machine) {
        assert_eq!(unit.wrong_by_driver(), []);
    }
    error
}

/// One of two units does not come up: its devices are refused, the other's are served.
fn one_fails<R: Model>() {
    let never = RegisterFaults { control: Drain::Never, ..RegisterFaults::NONE };
    for faults in [RegisterFaults::GONE, RegisterFaults::STUCK, never] {
        for bad in [0, 1] {
            let machine = &R::machine();
            both(machine)[bad].go_wrong(faults);
            let failed = others_are_served(machine, BOTH, bad);
            let EnableError::Iommu { error, .. } = failed else {
                panic!("{failed}");
            };
            let dead = faults == RegisterFaults::GONE;
            assert_eq!(error == IommuError::Gone, dead, "{faults:?}: {error}");
            assert_eq!(matches!(error, IommuError::TimedOut { .. }), !dead, "{error}");
            // Once the unit answers, all of it is brought up, over what was left.
            both(machine)[bad].go_wrong(RegisterFaults::NONE);
            all_work(machine);
        }
    }
    // Where there is no unit; at address 0.
    for nowhere in [NOWHERE, 0] {
        for bad in [0, 1] {
            let mut units = BOTH;
            units[bad] = nowhere;
            let failed = others_are_served(&R::machine(), units, bad);
            assert!(matches!(failed, EnableError::NoRegisters { .. }));
        }
    }
}

#[test]
fn devices_of_a_unit_that_does_not_come_up_are_refused_by_name_and_the_others_are_served() {
    one_fails::<VtdRegisters>();
    one_fails::<SmmuRegisters>();
}

#[test]
fn a_machine_of_which_no_unit_comes_up_is_refused_with_the_first_reason() {
    let machine = VtdRegisters::machine();
    for unit in both(&machine) {
        unit.go_wrong(RegisterFaults::GONE);
    }
    let table = VtdRegisters::table(BOTH);
    let topology = Topology::from_acpi([&table[..]]).expect("a table");
    let failed = topology.enable(machine.kernel(), Options::default(), described()).err();
    let Some(EnableError::Iommu { window, error }) = failed else {
        panic!("{failed:?}");
    };
    assert_eq!(window.start(), PhysAddr::new(REGISTERS));
    assert_eq!(error, IommuError::Gone);
}
