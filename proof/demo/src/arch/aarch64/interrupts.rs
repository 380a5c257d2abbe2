//! Interrupts of lines, by the GIC.
//!
//! Arm architecture reference manual for A-profile, D1.3 (exceptions) and C5.2 (DAIF). Not supported:
//! messages; interrupts elsewhere than in [`Interrupts::take`].

use alloc::boxed::Box;
use core::arch::asm;
use core::sync::atomic::{AtomicPtr, Ordering};

use portolan::iommu::Destination;
use portolan::platform::Platform;
use portolan_bare::gic::Gic;
use portolan_bare::{Machine, Registers, madt};

use crate::Outcome;

/// The controller that handlers ask.
static CONTROLLER: AtomicPtr<Gic<Registers>> = AtomicPtr::new(core::ptr::null_mut());

/// Entry from `boot.s` with an interrupt.
#[unsafe(no_mangle)]
extern "C" fn kernel_interrupt() {
    // SAFETY: it is null, or a value that `new` leaks.
    if let Some(controller) = unsafe { CONTROLLER.load(Ordering::Acquire).as_ref() } {
        controller.take(crate::interrupts::serve);
    }
}

/// The first CPU's interrupts.
pub struct Interrupts(&'static Gic<Registers>);

impl Interrupts {
    /// Switches the controller on.
    pub fn new(machine: &Machine) -> Outcome<Self> {
        let places = machine.tables().find_map(madt::gic);
        let (distributor, cpu) = places.ok_or("there is no GIC")?;
        // SAFETY: the MADT has the GIC there, whose parts do no DMA.
        let part = |at| unsafe { machine.registers(Gic::<Registers>::window(at)?) };
        let parts = part(distributor).zip(part(cpu));
        let (distributor, cpu) = parts.ok_or("the GIC is not mapped")?;
        let controller = Box::leak(Box::new(Gic::new(distributor, cpu)));
        CONTROLLER.store(controller, Ordering::Release);
        Ok(Self(controller))
    }

    /// Destination of messages for this CPU.
    pub fn destination(&self) -> Option<Destination> {
        None
    }

    /// Takes a line's interrupts as well.
    pub fn listen(&self, line: u32) -> Outcome<()> {
        Ok(self.0.listen(line)?)
    }

    /// Takes pending interrupts; they are enabled nowhere else.
    pub fn take(&self) {
        // SAFETY: the handler changes only registers that any function may.
        unsafe { asm!("msr daifclr, #2", "isb", "msr daifset, #2", clobber_abi("C")) };
    }
}
