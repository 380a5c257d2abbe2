//! CPUs of Linux's code, each a thread at a time, whichever shared objects it calls.

use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// CPUs that the shim is built for.
const CPUS: usize = 2;

static LOCKS: [Mutex<()>; CPUS] = [const { Mutex::new(()) }; CPUS];

/// The right of a thread to be a CPU.
pub(super) struct HeldCpu {
    number: u32,
    _guard: MutexGuard<'static, ()>,
}

impl HeldCpu {
    pub(super) fn number(&self) -> u32 {
        self.number
    }
}

/// Makes the calling thread CPU `number` until all that this returns is dropped; waits for another thread that
/// holds that CPU. A thread that is a CPU already stays that.
pub(super) fn hold(number: u32) -> Rc<HeldCpu> {
    thread_local! {
        static HELD: RefCell<Weak<HeldCpu>> = const { RefCell::new(Weak::new()) };
    }
    HELD.with_borrow(Weak::upgrade).unwrap_or_else(|| {
        let number = number % CPUS as u32;
        let guard = LOCKS[number as usize].lock();
        let held = HeldCpu { number, _guard: guard.unwrap_or_else(PoisonError::into_inner) };
        let held = Rc::new(held);
        HELD.set(Rc::downgrade(&held));
        held
    })
}
