//! Interrupts: a device raises its own and no other device's, and the IOMMU reports by one the
//! accesses that it refused.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use portolan::addr::{Iova, RequesterId};
use portolan::iommu::{
    FaultEvent, Interrupt, InterruptSource, InterruptTarget, IommuDomains, MsiMessage,
    RemapInterrupts, Vector,
};
use portolan::platform::{Guarded, Nanos, poll};
use portolan_bare::Machine;
use portolan_bare::pci::Function;
use portolan_hw::interrupt::ApicMode;
use portolan_hw::interrupt::compose::plain_message;
use portolan_hw::topology::{FaultInterrupt, Iommus};

use crate::arch::Interrupts;
use crate::edu::Edu;
use crate::guarded::{forget_faults, recorded};
use crate::{Outcome, say};

/// The device's interrupt, another device's, and the IOMMU's own.
pub const DEVICE: u8 = 0x40;
pub const OTHER: u8 = 0x41;
pub const FAULT: u8 = 0x42;
/// Time in which a pending interrupt arrives.
const SOON: Nanos = Nanos::from_millis(1000);
const A_WHILE: Nanos = Nanos::from_millis(20);
/// An address that nothing is mapped at.
const NOWHERE: u64 = 0x10_0000;

/// Number of interrupts that came of each of the two devices.
static CAME: [AtomicU32; 2] = [const { AtomicU32::new(0) }; 2];

/// State that the handler of the IOMMU's interrupt needs.
struct Faults {
    unit: Arc<dyn IommuDomains>,
    last: Guarded<Machine, Option<FaultEvent>>,
}

static FAULTS: AtomicPtr<Faults> = AtomicPtr::new(core::ptr::null_mut());

/// Serves an interrupt, on the CPU that it came to: one of a device, or else the IOMMU's.
pub fn serve(number: u32) {
    if let Some(came) = [DEVICE, OTHER].iter().position(|of| u32::from(*of) == number) {
        CAME[came].fetch_add(1, Ordering::Relaxed);
        return;
    }
    // SAFETY: it is null, or a value that `show` leaks.
    if let Some(faults) = unsafe { FAULTS.load(Ordering::Acquire).as_ref() } {
        while let Ok(Some(event)) = faults.unit.next_fault() {
            *faults.last.lock() = Some(event);
        }
    }
}

fn came() -> [u32; 2] {
    CAME.each_ref().map(|of| of.load(Ordering::Relaxed))
}

/// Parts that raise and deliver interrupts.
struct Scene<'a> {
    machine: Machine,
    iommus: &'a Iommus<Machine>,
    unit: &'a Arc<dyn IommuDomains>,
    device: &'a Function,
    edu: Edu,
    interrupts: Interrupts,
}

pub fn show(
    machine: Machine,
    iommus: &Iommus<Machine>,
    device: &Function,
    other: &Function,
) -> Outcome<()> {
    let scene = Scene {
        machine,
        iommus,
        unit: iommus.unit_of(device.at())?.0,
        device,
        edu: Edu::new(machine, device)?,
        interrupts: Interrupts::new(&machine)?,
    };
    match scene.unit.interrupts() {
        Some(remapping) => scene.remapped(remapping, other)?,
        None => say!("interrupts are not remapped"),
    }
    scene.faults()
}

impl Scene<'_> {
    fn target(&self, vector: u8) -> Outcome<InterruptTarget> {
        let vector = Vector::new(vector).ok_or("that vector is the CPU's own")?;
        let destination = self.interrupts.destination().ok_or("this CPU takes no messages")?;
        Ok(InterruptTarget::new(vector, destination))
    }

    /// Allocates an interrupt for `function`; returns it with its message.
    fn allocate(&self, function: &Function, vector: u8) -> Outcome<(Interrupt, MsiMessage)> {
        let remapping = self.unit.interrupts().ok_or("interrupts are not remapped")?;
        // Under the number by which the unit knows it.
        let (_, stream) = self.iommus.unit_of(function.at())?;
        let source = InterruptSource::Requester(RequesterId::new(stream.get() as u16));
        let interrupt = remapping.allocate(source, self.target(vector)?)?;
        let message = remapping.message(&interrupt)?;
        Ok((interrupt, message))
    }

    /// Lets the device write `message`; returns how often its own and the other interrupt arrive.
    fn raise(&self, message: MsiMessage) -> Outcome<[u32; 2]> {
        let before = came();
        self.device.set_message(message)?;
        self.edu.raise();
        let any = || {
            self.interrupts.take();
            (came() != before).then_some(())
        };
        // An interrupt that does not come is waited for as well.
        let _ = poll(&self.machine, A_WHILE, any);
        let after = came();
        Ok([after[0] - before[0], after[1] - before[1]])
    }

    /// The device's own interrupt arrives; another's does not, nor its own once that is given back.
    fn remapped(&self, remapping: &dyn RemapInterrupts, other: &Function) -> Outcome<()> {
        let (own, message) = self.allocate(self.device, DEVICE)?;
        // If each device has a table, the second entry does not exist in this one.
        let _first = self.allocate(other, OTHER)?;
        let (_second, forged) = self.allocate(other, OTHER)?;
        if self.raise(message)? != [1, 0] {
            return Err("a device's own interrupt did not arrive".into());
        }
        say!("interrupt: arrived");
        self.must_be_refused(forged, "another device's interrupt")?;
        remapping.free(own)?;
        self.must_be_refused(message, "an interrupt given back")
    }

    fn must_be_refused(&self, message: MsiMessage, what: &str) -> Outcome<()> {
        forget_faults(self.unit)?;
        if self.raise(message)? != [0, 0] {
            return Err("a device raised an interrupt that is not its own".into());
        }
        let recorded = recorded(self.machine, self.iommus, self.device.at())?;
        say!("{what}: refused, {recorded}");
        Ok(())
    }

    /// Enables the IOMMU's interrupt for recorded faults; returns if it has one.
    fn signal_faults(&self) -> Outcome<bool> {
        // There is one unit.
        match self.iommus.fault_interrupt(0)? {
            FaultInterrupt::Message => self.unit.signal_faults(Some(self.target(FAULT)?))?,
            FaultInterrupt::Function(at) => {
                let target = self.target(FAULT)?;
                let message = plain_message(&target, ApicMode::XApic)?;
                let space = self.machine.pci(at).ok_or("the IOMMU is no PCI function")?;
                Function::new(at, space).set_message(message)?;
                self.unit.signal_faults(Some(target))?;
            }
            FaultInterrupt::Lines(lines) => {
                self.interrupts.listen(lines.event)?;
                self.interrupts.listen(lines.gerror)?;
            }
            FaultInterrupt::Wire(wire) => self.interrupts.listen(wire.specifier[0])?,
            FaultInterrupt::Global(wire) => self.interrupts.listen(wire.interrupt)?,
            FaultInterrupt::Absent => return Ok(false),
        }
        Ok(true)
    }

    /// A refused access raises the unit's own interrupt, whose handler reads the record.
    fn faults(&self) -> Outcome<()> {
        let (unit, last) = (self.unit.clone(), Guarded::new(None));
        let faults: &Faults = Box::leak(Box::new(Faults { unit, last }));
        FAULTS.store(core::ptr::from_ref(faults).cast_mut(), Ordering::Release);
        if !self.signal_faults()? {
            say!("faults do not interrupt");
            return Ok(());
        }
        forget_faults(self.unit)?;
        // The device is not open, and reaches nothing.
        self.edu.write(Iova::new(NOWHERE), 16)?;
        let seen = || {
            self.interrupts.take();
            *faults.last.lock()
        };
        match poll(&self.machine, SOON, seen) {
            Ok(FaultEvent::Fault(record)) => say!("fault, by interrupt: {:?}", record.reason),
            Ok(_) => return Err("records of faults were lost".into()),
            // Then it is not there to be read either.
            Err(_) => match recorded(self.machine, self.iommus, self.device.at())?.as_str() {
                "not recorded" => say!("fault, by interrupt: not recorded"),
                _ => return Err("a recorded fault raised no interrupt".into()),
            },
        }
        Ok(())
    }
}
