//! Interrupt handlers that use the unit whose user they interrupted, at each of its steps.

use crate::promise::tests::all_memory;
use alloc::boxed::Box;
use alloc::sync::Arc;

use portolan::addr::StreamId;
use portolan::iommu::{Attach, Domain as _, FaultEvent, Iommu as _, IommuError};
use portolan_chips::interrupts::{Masking, Scenario, sweep};
use portolan_chips::vtd::VtdMachine;

use super::kit::{CAP, ECAP, Iommu, Kit as _, REFUSED, new_machine};
use super::{STREAM, Second, config, map, unmap};
use crate::chassis::tests::suite::Driven;
use crate::vtd::{DeviceTlb, InterruptEntries, Mode};

const OTHER: StreamId = StreamId::new(0x0210);
const WRITE_BUFFER: u64 = 1 << 4;

struct Rig {
    machine: VtdMachine,
    unit: Arc<Iommu>,
    domain: Arc<Second>,
    handlers: Arc<Second>,
}

/// Two streams with a domain each, one of them for the handler.
fn rig(cap: u64, ecap: u64) -> Rig {
    let machine = new_machine(cap, ecap);
    let unit = machine.enable(config(Mode::Legacy)).unwrap();
    let domain = Arc::new(unit.second_stage().unwrap());
    let handlers = Arc::new(unit.second_stage().unwrap());
    if ecap & 4 != 0 {
        let physical = STREAM.get() as u16;
        let device = DeviceTlb { depth: 4, physical, twice: false };
        unit.use_device_tlb(STREAM, device, all_memory()).unwrap();
    }
    unit.attach(STREAM, &domain).unwrap();
    unit.attach(OTHER, &handlers).unwrap();
    domain.sync(&mut map(&*domain, 4)).unwrap();
    handlers.sync(&mut map(&*handlers, 4)).unwrap();
    let unit = Arc::new(unit);
    Rig { machine, unit, domain, handlers }
}

/// Reads a fault and takes memory back, as a handler of the unit's or a device's interrupt may.
fn handler(rig: &Rig) -> impl Fn() + 'static {
    let (machine, unit, domain) =
        (rig.machine.clone(), Arc::clone(&rig.unit), Arc::clone(&rig.handlers));
    move || {
        // A write of the interrupted code's stream that its table may not let through.
        let word = 5 << 32 | u64::from(STREAM.get());
        machine.record(super::BASE.get(), word);
        let fault = unit.next_fault().unwrap();
        assert!(matches!(fault, Some(FaultEvent::Fault(_))), "{fault:?}");
        domain.sync(&mut unmap(&*domain, 4)).unwrap();
        if unit.features().has.contains(crate::vtd::VtdFeature::QUEUE) {
            let queue = unit.queue();
            queue.invalidate_interrupt_entries(InterruptEntries::All).unwrap();
        }
    }
}

#[test]
fn a_handler_takes_memory_back_whatever_it_interrupts() {
    for (cap, ecap) in
        [(CAP, ECAP), (CAP, ECAP | 4), (CAP | WRITE_BUFFER, ECAP), (CAP | WRITE_BUFFER, ECAP & !2)]
    {
        let steps = sweep(Masking::Present, || {
            let rig = rig(cap, ecap);
            let handler = Box::new(handler(&rig));
            Scenario {
                handler,
                after: Box::new(|| {}),
                body: Box::new(move || {
                    let Rig { unit, domain, .. } = rig;
                    domain.sync(&mut unmap(&*domain, 4)).unwrap();
                    unit.block(STREAM).unwrap();
                    unit.attach(STREAM, &domain).unwrap();
                    unit.device_gone(STREAM).unwrap();
                }),
            }
        });
        assert!(steps > 40, "{cap:#x} {ecap:#x}: {steps}");
    }
}

#[test]
fn a_handler_is_not_failed_by_the_refusal_or_the_device_of_whom_it_interrupts() {
    let wrongs: [fn(&VtdMachine); 3] = [
        |machine| machine.silent(STREAM.get() as u16),
        |machine| machine.device_times_out(),
        |machine| machine.refuse_kind(3, 1, REFUSED),
    ];
    for wrong in wrongs {
        let steps = sweep(Masking::Present, || {
            let rig = rig(CAP, ECAP | 4);
            let mut owed = unmap(&*rig.domain, 4);
            wrong(&rig.machine);
            let handler = Box::new(handler(&rig));
            Scenario {
                handler,
                after: Box::new(|| {}),
                body: Box::new(move || {
                    let rig = rig;
                    let error = IommuError::from(rig.domain.sync(&mut owed).unwrap_err());
                    let refused = matches!(
                        error,
                        IommuError::Refused { .. } | IommuError::DeviceSilent { .. }
                    );
                    assert!(refused, "{error}");
                    let _ = rig.domain.sync(&mut owed);
                }),
            }
        });
        assert!(steps > 20, "{steps}");
    }
}
