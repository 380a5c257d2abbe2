//! Interrupts that strike between any two steps of who uses a unit, on the same CPU.
//!
//! Locks keep them out as long as they are held. A handler that found one held would wait for ever:
//! here it panics.

extern crate std;

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::cell::{Cell, RefCell};
use core::ops::{Deref, DerefMut};
use core::sync::atomic::AtomicU64;
use std::{println, thread_local};

use portolan::addr::{CpuId, StreamId};
use portolan::iommu::{Attach, Domain as _, FaultEvent, Iommu as _, IommuError};
use portolan::platform::{Clock, Cpus, Lock, Mmio, Nanos};

use super::mock::{CAP, ECAP, Mock, Wrong};
use super::{STREAM, config, map, unmap};
use crate::vtd::spec::reg::{self, fsts};
use crate::vtd::{DeviceTlb, InterruptEntries, Mode, SecondDomain, Vtd};

const OTHER: StreamId = StreamId::new(0x0210);
const WRITE_BUFFER: u64 = 1 << 4;

thread_local! {
    /// Locks that are held.
    static HELD: Cell<u32> = const { Cell::new(0) };
    /// Steps until the interrupt; none with 0.
    static LEFT: Cell<u32> = const { Cell::new(0) };
    static HANDLER: RefCell<Option<Box<dyn Fn()>>> = const { RefCell::new(None) };
}

/// A step after which an interrupt may come.
fn step() {
    if HELD.get() != 0 || LEFT.get() == 0 {
        return;
    }
    LEFT.set(LEFT.get() - 1);
    if LEFT.get() == 0 {
        if let Some(handler) = HANDLER.take() {
            handler();
        }
    }
}

/// Whether an interrupt came in the `after`th step of `work`.
fn struck(after: u32, handler: impl Fn() + 'static, work: impl FnOnce()) -> Option<()> {
    HANDLER.set(Some(Box::new(handler)));
    LEFT.set(after);
    work();
    LEFT.set(0);
    match HANDLER.take() {
        Some(_) => None,
        None => Some(()),
    }
}

struct Masking<T>(spin::Mutex<T>);
struct Masked<'a, T>(Option<spin::MutexGuard<'a, T>>);

impl<T> Drop for Masked<'_, T> {
    fn drop(&mut self) {
        self.0 = None;
        HELD.set(HELD.get() - 1);
        step();
    }
}

impl<T> Deref for Masked<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().unwrap()
    }
}

impl<T> DerefMut for Masked<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().unwrap()
    }
}

impl<T: Send> Lock<T> for Masking<T> {
    type Guard<'a>
        = Masked<'a, T>
    where
        T: 'a;

    fn new(value: T) -> Self {
        Self(spin::Mutex::new(value))
    }

    fn lock(&self) -> Masked<'_, T> {
        step();
        self.try_lock()
            .expect("a lock that the interrupted code holds")
    }

    fn try_lock(&self) -> Option<Masked<'_, T>> {
        let held = self.0.try_lock()?;
        HELD.set(HELD.get() + 1);
        Some(Masked(Some(held)))
    }

    fn into_inner(self) -> T {
        self.0.into_inner()
    }
}

/// Registers and the CPU of a mock.
#[derive(Clone, Debug)]
struct Cpu(Mock);

impl Mmio for Cpu {
    fn read32(&self, offset: usize) -> u32 {
        step();
        self.0.read32(offset)
    }

    fn write32(&self, offset: usize, value: u32) {
        self.0.write32(offset, value);
        step();
    }

    fn write64(&self, offset: usize, value: u64) {
        self.0.write64(offset, value);
        step();
    }
}

impl Clock for Cpu {
    fn now(&self) -> Nanos {
        step();
        self.0.now()
    }
}

impl Cpus for Cpu {
    type Word = AtomicU64;
    type Lock<T: Send> = Masking<T>;

    fn count(&self) -> usize {
        1
    }

    fn current(&self) -> CpuId {
        CpuId::new(0)
    }
}

type Iommu = Vtd<Cpu, Mock, Cpu>;
type Second = SecondDomain<Cpu, Mock, Cpu>;

struct Rig {
    mock: Mock,
    unit: Arc<Iommu>,
    domain: Arc<Second>,
    handlers: Arc<Second>,
}

/// Two streams with a domain each, one of them for the handler.
fn rig(cap: u64, ecap: u64) -> Rig {
    let mock = Mock::new(cap, ecap);
    let (regs, clock) = (Cpu(mock.clone()), Cpu(mock.clone()));
    let unit = Vtd::enable(regs, mock.clone(), clock, config(Mode::Legacy)).unwrap();
    let domain = Arc::new(unit.second_stage().unwrap());
    let handlers = Arc::new(unit.second_stage().unwrap());
    if ecap & 4 != 0 {
        let physical = STREAM.get() as u16;
        let device = DeviceTlb { depth: 4, physical };
        unit.use_device_tlb(STREAM, device).unwrap();
    }
    unit.attach(STREAM, &domain).unwrap();
    unit.attach(OTHER, &handlers).unwrap();
    domain.sync(&mut map(&*domain, 4)).unwrap();
    handlers.sync(&mut map(&*handlers, 4)).unwrap();
    let unit = Arc::new(unit);
    Rig {
        mock,
        unit,
        domain,
        handlers,
    }
}

/// Reads a fault and takes memory back, as a handler of the unit's or a device's interrupt may.
fn handler(rig: &Rig) -> impl Fn() + 'static {
    let (mock, unit, domain) = (
        rig.mock.clone(),
        Arc::clone(&rig.unit),
        Arc::clone(&rig.handlers),
    );
    move || {
        // A write of the interrupted code's stream that its table may not let through.
        mock.set(0x220, super::BASE.get());
        mock.set(0x228, 1 << 63 | 5 << 32 | u64::from(STREAM.get()));
        mock.set(reg::FSTS, mock.reg(reg::FSTS) | u64::from(fsts::PPF));
        let fault = unit.next_fault().unwrap();
        assert!(matches!(fault, Some(FaultEvent::Fault(_))), "{fault:?}");
        domain.sync(&mut unmap(&*domain, 4)).unwrap();
        if unit.features().has.contains(crate::vtd::Has::QUEUE) {
            let queue = unit.queue();
            queue
                .invalidate_interrupt_entries(InterruptEntries::All)
                .unwrap();
        }
    }
}

#[test]
fn a_handler_takes_memory_back_whatever_it_interrupts() {
    for (cap, ecap) in [
        (CAP, ECAP),
        (CAP, ECAP | 4),
        (CAP | WRITE_BUFFER, ECAP),
        (CAP | WRITE_BUFFER, ECAP & !2),
    ] {
        let mut after = 0;
        loop {
            after += 1;
            let rig = rig(cap, ecap);
            let (unit, domain) = (Arc::clone(&rig.unit), Arc::clone(&rig.domain));
            let work = || {
                domain.sync(&mut unmap(&*domain, 4)).unwrap();
                unit.block(STREAM).unwrap();
                unit.attach(STREAM, &domain).unwrap();
                unit.device_gone(STREAM).unwrap();
            };
            if struck(after, handler(&rig), work).is_none() {
                break;
            }
        }
        println!("{cap:#x} {ecap:#x}: struck after each of {after} steps");
        assert!(after > 40);
    }
}

#[test]
fn a_handler_is_not_failed_by_the_refusal_or_the_device_of_whom_it_interrupts() {
    let silent = Wrong::Silent(STREAM.get() as u16);
    for wrong in [silent, Wrong::DeviceTimesOut, Wrong::Refuse(3, 1)] {
        for after in 1.. {
            let rig = rig(CAP, ECAP | 4);
            let mut owed = unmap(&*rig.domain, 4);
            rig.mock.wrong(wrong);
            let domain = Arc::clone(&rig.domain);
            let work = || {
                let error = IommuError::from(domain.sync(&mut owed).unwrap_err());
                assert!(matches!(error, IommuError::Refused { .. }), "{error}");
                let _ = domain.sync(&mut owed);
            };
            if struck(after, handler(&rig), work).is_none() {
                assert!(after > 20, "{wrong:?}: {after}");
                break;
            }
        }
    }
}
