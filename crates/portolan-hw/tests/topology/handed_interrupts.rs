//! Interrupts of a device that one kernel hands to the next with its unit: they arrive throughout, and are closed where
//! the unit is refused.

use std::mem;

use portolan::addr::{Iova, RequesterId, StreamId};
use portolan::iommu::{
    Destination, InterruptSource, InterruptTarget, IommuDomains, MsiMessage, Vector,
};
use portolan_chips::amd::AmdRegisters;
use portolan_chips::chips::SKYLAKE_SP;
use portolan_chips::riscv::{RiscvRegisters, RiscvSetup};
use portolan_chips::vtd::VtdRegisters;
use portolan_hw::interrupt::Remapping;
use portolan_hw::topology::{Adoption, Iommus, Options, Topology};
use portolan_sim::decode::AccessKind;

use super::handed_over::preserved;
use super::machine::{
    DEVICE, Kernel, Machine, REGISTERS, SECOND, Unit, amd, described, dmar_remapping, ivrs_with,
    riscv, vtd,
};
use super::riscv::{INTERRUPT_FILES, platform_device};

/// CPU and number of an interrupt.
type Arrived = (u32, u8);

/// Entry of an I/O APIC, number 2, whose requester is 0:14.0.
const IO_APIC: [u8; 8] = [72, 0, 0, 0, 2, 0xa0, 0, 1];

const FIRST: Arrived = (3, 0x32);
const LATER: Arrived = (1, 0x33);

fn target((cpu, vector): Arrived) -> InterruptTarget {
    InterruptTarget::new(Vector::new(vector).unwrap(), Destination::Physical(cpu))
}

/// A machine, its firmware's table, and the interrupt that arrives if a stream writes a message.
struct Scene<R> {
    machine: Machine<R>,
    topology: fn() -> Topology,
    send: fn(&Machine<R>, StreamId, MsiMessage) -> Option<Arrived>,
}

impl<R: Unit> Scene<R> {
    fn options() -> Options {
        let mut options = Options::default();
        options.interrupts = Some(Remapping::default());
        options
    }

    fn source(iommus: &Iommus<Kernel>) -> (InterruptSource, StreamId) {
        let (_, stream) = iommus.unit_of(DEVICE).unwrap();
        (InterruptSource::Requester(RequesterId::new(stream.get() as u16)), stream)
    }

    fn unit(iommus: &Iommus<Kernel>) -> &dyn IommuDomains {
        &**iommus.unit_of(DEVICE).unwrap().0
    }

    fn adopt(&self, record: &[u8]) -> (Iommus<Kernel>, Adoption) {
        let (kernel, options) = (self.machine.kernel(), Self::options());
        (self.topology)().adopt(kernel, options, described(), record, preserved()).unwrap()
    }

    /// A device that a former kernel left at work: its message, and the record.
    fn left(&self) -> (StreamId, MsiMessage, Vec<u8>) {
        let kernel = self.machine.kernel();
        let former = (self.topology)().enable(kernel, Self::options(), described()).unwrap();
        mem::forget(former.trusted_device(DEVICE).unwrap());
        let (source, stream) = Self::source(&former);
        let interrupts = Self::unit(&former).interrupts().unwrap();
        let interrupt = interrupts.allocate(source, target(FIRST)).unwrap();
        let message = interrupts.message(&interrupt).unwrap();
        let mut record = vec![0; 1 << 16];
        let prepared = former.prepare(&mut record).unwrap();
        assert_eq!(prepared.left_out, []);
        record.truncate(prepared.bytes);
        drop(former);
        assert_eq!((self.send)(&self.machine, stream, message), Some(FIRST));
        (stream, message, record)
    }

    fn goes_on(&self) {
        let (stream, message, record) = self.left();
        let arrives = || (self.send)(&self.machine, stream, message);
        let (next, adoption) = self.adopt(&record);
        assert_eq!(adoption.refused, []);
        let named: Vec<_> = adoption.interrupts.iter().map(|(_, one)| one.target).collect();
        assert_eq!((named, arrives()), (vec![target(FIRST)], Some(FIRST)));
        let device = next.trusted_device(DEVICE).unwrap();
        let (source, _) = Self::source(&next);
        let interrupts = Self::unit(&next).interrupts().unwrap();
        let [mut own] = <[_; 1]>::try_from(interrupts.adopted_interrupts(source).unwrap()).unwrap();
        assert_eq!(interrupts.message(&own), Ok(message));
        assert_eq!(arrives(), Some(FIRST));
        // It is the next kernel's to move and to end.
        let to = InterruptTarget::new(target(FIRST).vector, target(LATER).destination);
        interrupts.retarget(&mut own, to).unwrap();
        assert_eq!(arrives(), Some((LATER.0, FIRST.1)));
        interrupts.free(own).unwrap();
        assert_eq!(arrives(), None);
        drop(device);
    }

    fn is_closed_if_refused(&self) {
        let (stream, message, mut record) = self.left();
        *record.last_mut().unwrap() ^= 1;
        let (next, adoption) = self.adopt(&record);
        assert_eq!((adoption.refused.len(), adoption.interrupts), (1, vec![]));
        assert_eq!((self.send)(&self.machine, stream, message), None);
        let (source, _) = Self::source(&next);
        let interrupts = Self::unit(&next).interrupts().unwrap();
        assert_eq!(interrupts.adopted_interrupts(source).unwrap(), []);
    }

    fn both(make: impl Fn() -> Self) {
        make().goes_on();
        make().is_closed_if_refused();
    }
}

#[test]
fn interrupts_behind_vtd_go_on() {
    // Arrandale's unit has no queue.
    Scene::both(|| Scene {
        machine: vtd(SKYLAKE_SP.identification),
        topology: || Topology::from_acpi([&dmar_remapping(REGISTERS)[..]]).unwrap(),
        send: |machine: &Machine<VtdRegisters>, stream, message| {
            let arrived = machine.unit.message(stream, message.address, message.data).ok()?;
            Some((arrived.destination, arrived.vector))
        },
    });
}

#[test]
fn interrupts_behind_amd_s_unit_go_on() {
    Scene::both(|| Scene {
        machine: amd(),
        topology: || Topology::from_acpi([&ivrs_with(SECOND, &IO_APIC)[..]]).unwrap(),
        send: |machine: &Machine<AmdRegisters>, stream, message| {
            let arrived = machine.other.message(stream, message.address, message.data)?;
            Some((arrived.destination, arrived.vector))
        },
    });
}

#[test]
fn interrupts_behind_a_riscv_unit_go_on() {
    let mut setup = RiscvSetup::default();
    setup.identification = setup.identification.extended();
    Scene::both(|| Scene {
        machine: riscv(&setup),
        topology: || Topology::from_device_tree(&platform_device()).unwrap(),
        send: |machine: &Machine<RiscvRegisters>, stream, message| {
            let at = Iova::new(message.address);
            let found = machine.unit.dma(stream, None, at, AccessKind::Write, 4).ok()?;
            let file = found.first()?.pa.get().checked_sub(INTERRUPT_FILES)?;
            // Each hart has a file for a guest behind its own.
            Some(((file >> 13) as u32, message.data as u8))
        },
    });
}
