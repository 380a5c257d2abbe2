//! Interrupts: a device raises its own and nobody else's, and the IOMMU says by one what it refused.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use portolan::addr::{Iova, RequesterId};
use portolan::iommu::{
    FaultEvent, Interrupt, InterruptSource, InterruptTarget, IommuDomains, MsiMessage,
    RemapInterrupts, Vector,
};
use portolan::platform::{Guarded, Nanos, poll};
use portolan_bare::Machine;
use portolan_hw::topology::Iommus;

use crate::arch::{Interrupts, VECTORS};
use crate::edu::Edu;
use crate::guarded::{forget_faults, recorded};
use crate::pci::Function;
use crate::{Outcome, say};

/// The device's interrupt, another device's, and the IOMMUs' own.
const DEVICE: u8 = VECTORS[0];
const OTHER: u8 = VECTORS[1];
const FAULT: u8 = VECTORS[2];
/// An interrupt that is on its way comes meanwhile.
const SOON: Nanos = Nanos::from_millis(1000);
const A_WHILE: Nanos = Nanos::from_millis(20);
/// An address that nothing is mapped at.
const NOWHERE: u64 = 0x10_0000;

/// How often each came.
static CAME: [AtomicU32; 256] = [const { AtomicU32::new(0) }; 256];

/// What the handler of the IOMMUs' interrupt needs.
struct Faults {
    units: Vec<Arc<dyn IommuDomains>>,
    last: Guarded<Machine, Option<FaultEvent>>,
}

static FAULTS: AtomicPtr<Faults> = AtomicPtr::new(core::ptr::null_mut());

/// Serves an interrupt, on the CPU that it came to.
pub fn serve(vector: u8) {
    CAME[usize::from(vector)].fetch_add(1, Ordering::Relaxed);
    // SAFETY: it is null, or what `show` leaks.
    let faults = unsafe { FAULTS.load(Ordering::Acquire).as_ref() };
    let Some(faults) = faults.filter(|_| vector == FAULT) else {
        return;
    };
    for unit in &faults.units {
        while let Ok(Some(event)) = unit.next_fault() {
            *faults.last.lock() = Some(event);
        }
    }
}

fn came(vector: u8) -> u32 {
    CAME[usize::from(vector)].load(Ordering::Relaxed)
}

/// What raises interrupts, and where.
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
        unit: iommus.unit_of(device.at)?.0,
        device,
        edu: Edu::new(machine, device).ok_or("the edu device has no registers")?,
        interrupts: Interrupts::new(),
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
        Ok(InterruptTarget::new(vector, self.interrupts.destination()))
    }

    /// An interrupt that `function` may raise, and the message by which it does.
    fn allocate(
        &self,
        remapping: &dyn RemapInterrupts,
        function: &Function,
        vector: u8,
    ) -> Outcome<(Interrupt, MsiMessage)> {
        // Under the number by which the unit knows it.
        let (_, stream) = self.iommus.unit_of(function.at)?;
        let source = InterruptSource::Requester(RequesterId::new(stream.get() as u16));
        let interrupt = remapping.allocate(source, self.target(vector)?)?;
        let message = remapping.message(&interrupt)?;
        Ok((interrupt, message))
    }

    /// The device writes `message`: how often its own and the other vector come.
    fn raise(&self, message: MsiMessage) -> Outcome<[u32; 2]> {
        let before = [DEVICE, OTHER].map(came);
        self.device
            .set_message(message)
            .ok_or("the device has no MSI")?;
        self.edu.raise();
        let any = || {
            self.interrupts.take();
            ([DEVICE, OTHER].map(came) != before).then_some(())
        };
        // What does not come is waited for as well.
        let _ = poll(&self.machine, A_WHILE, any);
        let after = [DEVICE, OTHER].map(came);
        Ok([after[0] - before[0], after[1] - before[1]])
    }

    /// The device's own interrupt arrives; another's does not, nor its own once that is given back.
    fn remapped(&self, remapping: &dyn RemapInterrupts, other: &Function) -> Outcome<()> {
        let (own, message) = self.allocate(remapping, self.device, DEVICE)?;
        // Where each device has a table of its own, the second entry is one that this one has not.
        let _first = self.allocate(remapping, other, OTHER)?;
        let (_second, forged) = self.allocate(remapping, other, OTHER)?;
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
        let recorded = recorded(self.machine, self.iommus, self.device.at)?;
        say!("{what}: refused, {recorded}");
        Ok(())
    }

    /// A refused access raises the unit's own interrupt, whose handler reads what was recorded.
    fn faults(&self) -> Outcome<()> {
        let target = self.target(FAULT)?;
        if self.unit.signal_faults(Some(target)).is_err() {
            say!("faults do not interrupt");
            return Ok(());
        }
        let units = self.iommus.units().to_vec();
        let last = Guarded::new(None);
        let faults: &Faults = Box::leak(Box::new(Faults { units, last }));
        FAULTS.store(core::ptr::from_ref(faults).cast_mut(), Ordering::Release);
        forget_faults(self.unit)?;
        // The device is not open, and reaches nothing.
        self.edu.write(Iova::new(NOWHERE), 16)?;
        let seen = || {
            self.interrupts.take();
            *faults.last.lock()
        };
        match poll(&self.machine, SOON, seen) {
            Ok(FaultEvent::Fault(record)) => say!("fault, by interrupt: {:?}", record.reason),
            _ => return Err("a refused access raised no interrupt".into()),
        }
        Ok(self.unit.signal_faults(None)?)
    }
}
