//! The local APIC of the CPU that calls: interrupts taken, and other CPUs started.
//!
//! Intel 64 and IA-32 architectures software developer's manual, volume 3, sections 9.4 (initialisation of
//! several processors) and 11.4 to 11.8 (local APIC). Not supported: the mode of x2APIC.
//!
//! *Context.* Interrupt, but for [`LocalApic::start`], which waits (task).

use portolan::addr::{PhysAddr, PhysRange};
use portolan::iommu::Destination;
use portolan::platform::{Clock, Mmio, Nanos, poll};

const IDENTIFIER: usize = 0x20;
const VERSION: usize = 0x30;
const END_OF_INTERRUPT: usize = 0xb0;
const SPURIOUS: usize = 0xf0;
const COMMAND: usize = 0x300;
const TARGET: usize = 0x310;
/// Versions of APICs that are in the processor.
const VERSIONS: core::ops::RangeInclusive<u32> = 0x10..=0x1f;
/// Bytes of the registers.
const BYTES: u64 = 0x1000;

/// The APIC is on; its spurious interrupts, which there are none of, are the last vector.
const ON: u32 = 0x1ff;
/// Commands to a processor: INIT, and the start of its code.
const INIT: u32 = 0x4500;
const START: u32 = 0x4600;
const UNDER_WAY: u32 = 1 << 12;
/// Between the two, and for the interrupt to be delivered.
const REST: Nanos = Nanos::from_millis(10);
const DELIVERY: Nanos = Nanos::from_millis(100);

/// The registers, which each CPU finds at the same place.
#[derive(Clone, Copy, Debug)]
pub struct LocalApic<R> {
    registers: R,
}

impl<R: Mmio> LocalApic<R> {
    /// Range of the registers, by [`madt::local_apic`](crate::madt::local_apic).
    pub fn window(at: PhysAddr) -> Option<PhysRange> {
        PhysRange::from_len(at, BYTES)
    }

    /// The APIC with these registers; `None` if they are none: in the mode of x2APIC they are not there.
    pub fn new(registers: R) -> Option<Self> {
        let version = registers.read32(VERSION) & 0xff;
        VERSIONS.contains(&version).then_some(Self { registers })
    }

    /// Has this CPU take interrupts, once its flag lets it.
    pub fn enable(&self) {
        self.registers.write32(SPURIOUS, ON);
    }

    /// Destination of interrupts for this CPU.
    pub fn destination(&self) -> Destination {
        Destination::Physical(self.registers.read32(IDENTIFIER) >> 24)
    }

    /// The interrupt that was taken last is served.
    pub fn end(&self) {
        self.registers.write32(END_OF_INTERRUPT, 0);
    }

    /// Has the processor whose APIC has the number `apic` begin in real mode at the start of page `page`,
    /// which is one of the lowest 256.
    ///
    /// # Errors
    /// The time waited, if the APIC does not deliver.
    pub fn start(&self, clock: &impl Clock, apic: u8, page: u8) -> Result<(), Nanos> {
        let send = |command: u32| {
            self.registers.write32(TARGET, u32::from(apic) << 24);
            self.registers.write32(COMMAND, command);
            let sent = || (self.registers.read32(COMMAND) & UNDER_WAY == 0).then_some(());
            poll(clock, DELIVERY, sent)
        };
        // Twice, as old processors want it; one that runs already does not mind.
        let start = START | u32::from(page);
        for command in [INIT, start, start] {
            send(command)?;
            let _ = poll(clock, REST, || None::<()>);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use alloc::vec::Vec;
    use std::sync::Mutex;

    /// Writes, in order; and the values that the version and the command register read as.
    struct Fake(Mutex<Vec<(usize, u32)>>, u32, u32);

    impl Mmio for &Fake {
        fn read32(&self, offset: usize) -> u32 {
            match offset {
                VERSION => self.1,
                COMMAND => self.2,
                _ => 0x0500_0000,
            }
        }

        fn write32(&self, offset: usize, value: u32) {
            self.0.lock().unwrap().push((offset, value));
        }
    }

    /// A clock on which each look takes a millisecond.
    struct Looks(core::cell::Cell<u64>);

    impl Clock for Looks {
        fn now(&self) -> Nanos {
            self.0.set(self.0.get() + 1);
            Nanos::from_millis(self.0.get())
        }
    }

    #[test]
    fn a_processor_is_reset_and_told_twice_where_it_begins() {
        let fake = Fake(Mutex::default(), 0x5_0014, 0);
        let apic = LocalApic::new(&fake).unwrap();
        assert_eq!(apic.destination(), Destination::Physical(5));
        let clock = Looks(core::cell::Cell::new(0));
        assert_eq!(apic.start(&clock, 3, 0x9f), Ok(()));
        let told = [0x4500, 0x469f, 0x469f].map(|what| [(0x310, 3 << 24), (0x300, what)]);
        assert_eq!(*fake.0.lock().unwrap(), told.concat());
        let stuck = Fake(Mutex::default(), 0x14, UNDER_WAY);
        let apic = LocalApic::new(&stuck).unwrap();
        assert!(apic.start(&clock, 3, 0x9f).is_err());
        assert!(LocalApic::new(&Fake(Mutex::default(), u32::MAX, 0)).is_none());
    }
}
