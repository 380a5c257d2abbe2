//! Interrupt handlers on the CPU that they interrupt: they strike at each register access and each
//! look at the clock, unless the CPU holds a lock, which keeps them out.

extern crate std;

use super::mock::mock;
use super::*;
use core::cell::{Cell, RefCell};
use core::sync::atomic::{AtomicU64, Ordering};
use portolan::addr::CpuId;
use portolan::inval::SyncError;
use portolan::platform::{Clock, Cpus, Interrupts, IrqGuard, IrqLock, Lock, Mmio};
use std::rc::Rc;

std::thread_local! {
    /// Locks held by this CPU.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
    /// The handler is running.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
    static STRIKES: Cell<u32> = const { Cell::new(0) };
    static HANDLER: RefCell<Option<Rc<dyn Fn()>>> = const { RefCell::new(None) };
}

/// An interrupt, if they are let in.
fn strike() {
    let handler = HANDLER.with_borrow(Clone::clone);
    let Some(handler) = handler.filter(|_| DEPTH.get() == 0 && !INSIDE.get()) else {
        return;
    };
    INSIDE.set(true);
    STRIKES.set(STRIKES.get() + 1);
    handler();
    INSIDE.set(false);
}

struct Line;

impl Interrupts for Line {
    fn disable() -> usize {
        DEPTH.replace(DEPTH.get() + 1)
    }

    fn restore(before: usize) {
        DEPTH.set(before);
        strike();
    }
}

/// A lock of a machine with one CPU: if it is not free, it never will be.
struct OnlyLock<T>(IrqLock<T, Line>);

impl<T: Send> Lock<T> for OnlyLock<T> {
    type Guard<'a>
        = IrqGuard<'a, T, Line>
    where
        T: 'a;

    fn new(value: T) -> Self {
        Self(Lock::new(value))
    }

    fn lock(&self) -> Self::Guard<'_> {
        self.0.try_lock().expect("the CPU waits for itself")
    }

    fn try_lock(&self) -> Option<Self::Guard<'_>> {
        self.0.try_lock()
    }

    fn into_inner(self) -> T {
        self.0.into_inner()
    }
}

/// One CPU, whose locks keep interrupts out.
#[derive(Debug, Default)]
struct Cpu(AtomicU64);

impl Clock for Cpu {
    fn now(&self) -> Nanos {
        strike();
        Nanos::new(self.0.fetch_add(1_000, Ordering::Relaxed))
    }
}

impl Cpus for Cpu {
    type Word = AtomicU64;
    type Lock<T: Send> = OnlyLock<T>;

    fn count(&self) -> usize {
        1
    }

    fn current(&self) -> CpuId {
        CpuId::new(0)
    }
}

/// Registers at whose accesses interrupts strike.
struct Struck(Mock);

impl Mmio for Struck {
    fn read32(&self, offset: usize) -> u32 {
        strike();
        let value = self.0.read32(offset);
        strike();
        value
    }

    fn write32(&self, offset: usize, value: u32) {
        strike();
        self.0.write32(offset, value);
        strike();
    }
}

type Struckmmu = Smmu<Arc<Struck>, Memory, Cpu>;
type Tables = FirstStage<12, Arc<Struck>, Memory, Cpu>;

fn pay(domain: &Tables, mut owed: Gather) -> Result<(), SyncError<IommuError>> {
    domain.sync(&mut owed)
}

/// What handlers do: they serve errors, read faults, and take a buffer of their own back.
fn handler(driver: &Arc<Struckmmu>, domain: &Arc<Tables>) -> impl Fn() + use<> {
    let (driver, domain) = (Arc::downgrade(driver), Arc::downgrade(domain));
    let turn = Cell::new(0u64);
    move || {
        let (Some(driver), Some(domain)) = (driver.upgrade(), domain.upgrade()) else {
            return;
        };
        driver.service_errors().unwrap();
        while driver.next_fault().unwrap().is_some() {}
        assert_eq!(driver.next_page_request(), Ok(None));
        turn.set(turn.get() + 1);
        let page = 0x40_0000 + ((turn.get() % 64) << 12);
        pay(&domain, debt(&*domain, page)).unwrap();
    }
}

/// All that a driver does in other contexts.
fn work(unit: &Mock, driver: &Struckmmu, domain: &Arc<Tables>) {
    let other = Arc::new(driver.first_stage::<12>(&OPTIONS()).unwrap());
    let (plain, ats) = (StreamId::new(3), StreamId::new(0x303));
    driver.enable_ats(ats).unwrap();
    driver.enable_pasids(ats, 12).unwrap();
    for target in [domain, &other, domain] {
        driver.attach(plain, target).unwrap();
        driver.attach(ats, target).unwrap();
        driver.attach_pasid(ats, Pasid::new(5), target).unwrap();
        for page in 0..8 {
            pay(target, debt(&**target, page << 12)).unwrap();
        }
    }
    driver.pass_through(plain).unwrap();
    // A stalled access, and a command that is refused: its handler comes at once.
    unit.record([0x1234_0000_0010, 1 << 31 | 0x77, 0, 0]);
    let illegal = (op::CFGI_STE, error::ILL, 1);
    unit.script.lock().refuse.push(illegal);
    driver.silence(plain).unwrap_err();
    driver.block(plain).unwrap();
    driver.disable_ats(ats).unwrap();
    driver.device_gone(ats).unwrap();
}

#[test]
fn handlers_that_strike_anywhere_find_no_lock_of_their_own_cpu() {
    for msi in [0, MSI] {
        let mem = memory(64);
        let unit = mock(&mem);
        unit.script.lock().pace = Some(2);
        let identity = FULL[0].1 | msi;
        unit.script.lock().registers.insert(reg::IDR0, identity);
        let registers = Arc::new(Struck(unit.clone()));
        let driver = Smmu::enable(registers, mem.clone(), Cpu::default(), config());
        let driver = Arc::new(driver.unwrap());
        let domain = Arc::new(driver.first_stage::<12>(&OPTIONS()).unwrap());
        STRIKES.set(0);
        HANDLER.set(Some(Rc::new(handler(&driver, &domain))));
        work(&unit, &driver, &domain);
        HANDLER.set(None);
        driver.disable().unwrap();
        assert!(STRIKES.get() > 250, "{}", STRIKES.get());
        drop((domain, driver));
        assert_eq!((mem.live(), DEPTH.get()), (0, 0));
    }
}
