//! A unit that somebody else used: no access of a device comes to mean a physical address.

use portolan::iommu::Attach;

use super::super::{Config, DomainOptions, Implementation, Inherited, WaitForSafe};
use super::mock::{Regs, bank, enable, stream};
use alloc::sync::Arc;
use core::cell::Cell;

extern crate std;

std::thread_local! {
    /// Whether the unit may remember where streams went before it was taken over.
    static REMEMBERS: Cell<bool> = const { Cell::new(true) };
}

/// Stream 0x20 goes through bank 1, and stream 0x21 through none; streams that match nothing pass.
fn in_use() -> Regs {
    Regs::new().with(&[
        (0x800, 0x8000_0020),
        (0xc00, 0x0000_0001),
        (0x804, 0x8000_0021),
        (0xc04, 0x0002_0000),
        (bank(1, 0x00), 0x1),
    ])
}

/// Fails if an access of stream 0x20 or 0x21 reaches memory untranslated.
fn translated_or_refused(values: &[u32], (offset, value): (usize, u32)) {
    if offset == 0x70 {
        // What was invalidated before is complete, since nothing here takes time.
        REMEMBERS.set(false);
    }
    if std::thread::panicking() {
        return;
    }
    let at = |offset: usize| values[offset / 4];
    let context = std::format!("after {offset:#x} = {value:#x}");
    assert_eq!(at(0) & 1, 0, "{context}: everything passes");
    if REMEMBERS.get() {
        assert_eq!(
            at(bank(1, 0)) & 1,
            1,
            "{context}: a bank that is off is in use"
        );
    }
    for id in [0x20, 0x21] {
        let mut slots = (0..8).filter(|n| at(0x800 + 4 * n) == 0x8000_0000 | id);
        let Some(slot) = slots.next() else {
            assert_ne!(at(0) & 1 << 10, 0, "{context}: what matches nothing passes");
            continue;
        };
        match at(0xc00 + 4 * slot) >> 16 & 3 {
            0 => {
                let to = at(0xc00 + 4 * slot) as usize & 0xff;
                assert_eq!(
                    at(bank(to, 0)) & 1,
                    1,
                    "{context}: through a bank that is off"
                );
            }
            1 => panic!("{context}: stream {id:#x} passes"),
            _ => {}
        }
    }
}

#[test]
fn what_was_translated_before_is_translated_or_refused_and_never_passed() {
    REMEMBERS.set(true);
    let regs = in_use().checked(translated_or_refused);
    let (regs, unit) = enable(regs, Config::default());
    let unit = unit.unwrap();
    assert_eq!(regs.get(0), 0x1c36);
    assert_eq!(
        [regs.get(0x800), regs.get(0x804), regs.get(bank(1, 0))],
        [0; 3]
    );
    let domain = Arc::new(unit.first_stage::<12>(&DomainOptions::default()).unwrap());
    unit.attach(stream(0x20), &domain).unwrap();
}

#[test]
fn firmware_is_tried_on_a_register_that_matches_nothing() {
    REMEMBERS.set(true);
    // The last register is in use, and so its streams would pass for a moment.
    let regs = in_use().with(&[(0x81c, 0x8000_0030), (0xc1c, 0x0002_0000)]);
    let regs = regs.checked(|values, write| {
        translated_or_refused(values, write);
        assert_ne!(values[0xc1c / 4] >> 16, 1, "stream 0x30 passes");
    });
    let config = Config {
        implementation: Implementation::Qualcomm(WaitForSafe::Off),
        inherited: Some(Inherited::Blocked),
        ..Config::default()
    };
    assert!(enable(regs, config).1.is_ok());
}
