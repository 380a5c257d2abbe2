//! Interrupts: messages, by the IMSIC, and wires, by the APLIC, which sends messages of them.
//!
//! RISC-V Instruction Set Manual, volume II (`sie`, `sstatus`). Not supported: interrupts elsewhere than in
//! [`Interrupts::take`].

use alloc::boxed::Box;
use core::arch::asm;
use core::sync::atomic::{AtomicPtr, Ordering};

use portolan::iommu::Destination;
use portolan::platform::Platform;
use portolan_bare::aplic::{self, Aplic};
use portolan_bare::imsic::{Imsic, Place};
use portolan_bare::{Machine, OwnFile};

use crate::Outcome;
use crate::interrupts::{DEVICE, FAULT, OTHER};

/// The bit of `sie` that lets external interrupts in (SEIE).
const EXTERNAL: usize = 1 << 9;

/// The controller that handlers ask.
static CONTROLLER: AtomicPtr<Imsic<OwnFile>> = AtomicPtr::new(core::ptr::null_mut());

/// Entry from `boot.s` with an interrupt.
#[unsafe(no_mangle)]
extern "C" fn kernel_interrupt() {
    // SAFETY: it is null, or a value that `new` leaks.
    if let Some(controller) = unsafe { CONTROLLER.load(Ordering::Acquire).as_ref() } {
        controller.take(crate::interrupts::serve);
    }
}

/// The interrupts of the hart that calls.
pub struct Interrupts {
    machine: Machine,
    messages: &'static Imsic<OwnFile>,
}

impl Interrupts {
    /// Makes the hart's file deliver the interrupts that have a handler.
    pub fn new(machine: &Machine) -> Outcome<Self> {
        let tree = machine.device_tree().ok_or("there is no device tree")?;
        let place = Place::of(tree, super::processor()).ok_or("there is no IMSIC")?;
        let messages = Box::leak(Box::new(Imsic::new(OwnFile, place)));
        CONTROLLER.store(messages, Ordering::Release);
        for identity in [DEVICE, OTHER, FAULT] {
            messages.listen(identity.into())?;
        }
        // SAFETY: there is a handler, and all interrupts are off until `take`.
        unsafe { asm!("csrs sie, {}", in(reg) EXTERNAL, options(nostack)) };
        let machine = *machine;
        Ok(Self { machine, messages })
    }

    /// Destination of messages for this hart.
    pub fn destination(&self) -> Option<Destination> {
        Some(Destination::Physical(self.messages.place().index))
    }

    /// Takes the interrupts of a wire, which is the IOMMU's, as well.
    pub fn listen(&self, line: u32) -> Outcome<()> {
        let tree = self.machine.device_tree().ok_or("there is no device tree")?;
        let place = self.messages.place();
        // SAFETY: the device tree has the APLIC there, which does no DMA.
        let registers =
            aplic::window(tree, place).and_then(|window| unsafe { self.machine.registers(window) });
        let wires = registers.and_then(Aplic::new).ok_or("there is no APLIC")?;
        Ok(wires.listen(line, place, FAULT.into())?)
    }

    /// Takes pending interrupts; they are enabled nowhere else.
    pub fn take(&self) {
        // SAFETY: the handler changes only registers that any function may.
        unsafe { asm!("csrsi sstatus, 2", "csrci sstatus, 2", clobber_abi("C")) };
    }
}
