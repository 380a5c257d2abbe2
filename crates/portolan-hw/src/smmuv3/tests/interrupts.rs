//! Interrupt handlers that use the unit whose user they interrupted, at each of its steps.

use super::*;
use crate::promise::tests::all_memory;
use alloc::boxed::Box;
use portolan_chips::interrupts::{Masking, Scenario, sweep};

/// All that a driver does in other contexts.
fn work(unit: &SmmuMachine, driver: &Driver, domain: &Arc<First>) {
    let other = first(driver);
    let (plain, ats) = (StreamId::new(3), StreamId::new(0x303));
    driver.enable_ats(ats, all_memory()).unwrap();
    driver.enable_pasids(ats, 12).unwrap();
    for target in [domain, &other] {
        driver.attach(plain, target).unwrap();
        driver.attach(ats, target).unwrap();
        driver.attach_pasid(ats, Pasid::new(5), target).unwrap();
        for page in 0..2 {
            target.sync(&mut debt(&**target, page << 12)).unwrap();
        }
    }
    driver.pass_through(plain, all_memory()).unwrap();
    // A stalled access, and a command that is refused: its handler comes at once.
    unit.record([0x1234_0000_0010, 1 << 31 | 0x77, 0, 0]);
    unit.refuse_kind((op::CFGI_STE, error::ILL, 1));
    driver.silence(plain).unwrap_err();
    driver.block(plain).unwrap();
    driver.disable_ats(ats).unwrap();
    driver.device_gone(ats).unwrap();
}

/// A handler serves errors, reads faults, and takes a buffer of its own back.
fn busy(msi: u32) -> Scenario {
    let (unit, driver) = changed(config(), |id| id.idr[0] |= msi);
    unit.drain(SLOWLY);
    let driver = Arc::new(driver);
    let domain = first(&driver);
    let (worked, at_work, of_work) = (unit.clone(), driver.clone(), domain.clone());
    let (handled, of_handler) = (Arc::downgrade(&driver), Arc::downgrade(&domain));
    Scenario {
        body: Box::new(move || work(&worked, &at_work, &of_work)),
        handler: Box::new(move || {
            let handled = handled.upgrade().unwrap();
            let of_handler = of_handler.upgrade().unwrap();
            handled.service_errors().unwrap();
            while handled.next_fault().unwrap().is_some() {}
            assert_eq!(handled.next_page_request(), Ok(None));
            of_handler.sync(&mut debt(&*of_handler, 0x40_0000)).unwrap();
        }),
        after: Box::new(move || {
            drop(domain);
            driver.disable().unwrap();
            drop(driver);
            assert_eq!(unit.live(), 0);
            unit.expect_obedience();
        }),
    }
}

#[test]
fn handlers_that_strike_anywhere_find_no_lock_of_their_own_cpu() {
    for msi in [0, MSI] {
        let steps = sweep(Masking::Present, || busy(msi));
        assert!(steps > 250, "{steps}");
    }
}
