//! A unit with a previous owner: no access of a device comes to mean a physical address.

use portolan::iommu::Attach;
use portolan_chips::interrupts::{Masking, Scenario, sweep};

use super::super::{Config, Implementation, Inherited, WaitForSafe};
use super::kit::{Kit, Machine, bank, few, first, stream};
use alloc::boxed::Box;

/// Stream 0x20 goes through bank 1, stream 0x21 and 0x30 through none; streams that match nothing
/// pass. The last register is in use.
const IN_USE: [(usize, u32); 8] = [
    (0x800, 0x8000_0020),
    (0xc00, 0x0000_0001),
    (0x804, 0x8000_0021),
    (0xc04, 0x0002_0000),
    (0x81c, 0x8000_0030),
    (0xc1c, 0x0002_0000),
    (bank(1, 0x00), 0x1),
    (0x00, 0x0),
];

/// Fails if an access of those streams reaches memory untranslated.
fn none_passes(machine: &Machine) {
    for id in [0x20, 0x21, 0x30] {
        assert_eq!(machine.reach(id, 0x5000), None, "stream {id:#x} passes");
    }
}

/// Devices try at each step of enabling the unit: those that the unit knows from before, and
/// others.
fn take_over(config: impl Fn() -> Config, after: fn(&Machine)) {
    for known in [true, false] {
        let steps = sweep(Masking::Present, || {
            let machine = few(&IN_USE);
            if known {
                none_passes(&machine);
            }
            let (by_driver, by_device) = (machine.clone(), machine.clone());
            let config = config();
            Scenario {
                body: Box::new(move || {
                    let unit = by_driver.enable(config).unwrap();
                    after(&by_driver);
                    unit.attach(stream(0x20), &first(&unit)).unwrap();
                }),
                handler: Box::new(move || none_passes(&by_device)),
                after: Box::new(|| {}),
            }
        });
        assert!(steps > 50, "{steps}");
    }
}

#[test]
fn what_was_translated_before_is_translated_or_refused_and_never_passed() {
    take_over(Config::default, |machine| {
        let registers = [0, 0x800, 0x804, bank(1, 0)];
        let found = registers.map(|offset| machine.reg32(offset));
        assert_eq!(found, [0x1c36, 0, 0, 0]);
    });
}

#[test]
fn firmware_is_tried_on_a_register_that_matches_nothing() {
    // The last register's stream would pass for a moment.
    let config = || Config {
        implementation: Implementation::Qualcomm(WaitForSafe::Off),
        inherited: Inherited::Blocked,
        ..Config::default()
    };
    take_over(config, |_| {});
}
