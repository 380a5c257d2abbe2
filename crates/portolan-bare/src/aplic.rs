//! RISC-V's controller of interrupt wires, where it passes each on as a message.
//!
//! RISC-V Advanced Interrupt Architecture, version 1.0, sections 4.5 (registers) and 4.9 (messages);
//! devicetree binding `riscv,aplic`. Firmware says where messages go (`mmsiaddrcfg`). Not supported: wires
//! that are raised until they are served, and delivery without messages.
//!
//! *Context.* Interrupt; [`window`] walks the device tree.

use portolan::addr::PhysRange;
use portolan::platform::Mmio;
use portolan_tables::fdt::DeviceTree;
use thiserror::Error;

use crate::imsic::Place;
use crate::tree;

/// The domain; for each source its trigger; a source that is enabled; for each source the destination
/// of its message.
const DOMAIN: usize = 0x0000;
const SOURCES: usize = 0x0000;
const ENABLE: usize = 0x1edc;
const TARGETS: usize = 0x3000;

/// The domain's interrupts are on, and are messages.
const ON: u32 = 1 << 8;
const MESSAGES: u32 = 1 << 2;
/// A source that becomes pending where its wire rises.
const RISING: u32 = 4;
/// Shift of the hart's number in a target.
const HART: u32 = 18;
/// Sources are numbered from 1 on, and harts have 14 bits.
const MOST_SOURCES: u32 = 1023;
const MOST_HARTS: u32 = 1 << 14;

/// The registers of the controller that sends messages to the file at `place`.
pub fn window(tree: DeviceTree<'_>, place: &Place) -> Option<PhysRange> {
    let parent = Some(place.controller);
    let mut nodes = tree::nodes(tree).filter(|node| node.is("riscv,aplic"));
    let node = nodes.find(|node| node.cell("msi-parent", 0) == parent)?;
    node.reg()
}

/// Error of a wire that is to interrupt.
///
/// *Context.* Interrupt: a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum WireError {
    /// The domain has no such wire.
    #[error("the APLIC has no wire {wire}")]
    NoSuchWire {
        /// Number of the wire.
        wire: u32,
    },
    /// The domain cannot send that interrupt there.
    #[error("the APLIC cannot send hart {hart} the interrupt {identity}")]
    Target {
        /// Index of the hart.
        hart: u32,
        /// Interrupt.
        identity: u32,
    },
}

/// One domain.
#[derive(Clone, Copy, Debug)]
pub struct Aplic<R> {
    registers: R,
}

impl<R: Mmio> Aplic<R> {
    /// Switches the domain on; `None` if it does not send messages. Its sources are as they were.
    pub fn new(registers: R) -> Option<Self> {
        registers.write32(DOMAIN, ON | MESSAGES);
        let sends = registers.read32(DOMAIN) & MESSAGES != 0;
        sends.then_some(Self { registers })
    }

    /// Has the edge-triggered wire `source` send the hart of `place` the interrupt `identity`.
    ///
    /// # Errors
    /// See [`WireError`].
    pub fn listen(&self, source: u32, place: &Place, identity: u32) -> Result<(), WireError> {
        if !place.has(identity) || place.index >= MOST_HARTS {
            return Err(WireError::Target { hart: place.index, identity });
        }
        if !(1..=MOST_SOURCES).contains(&source) {
            return Err(WireError::NoSuchWire { wire: source });
        }
        let at = 4 * source as usize;
        self.registers.write32(SOURCES + at, RISING);
        // A source that the domain does not have stays inactive.
        if self.registers.read32(SOURCES + at) != RISING {
            return Err(WireError::NoSuchWire { wire: source });
        }
        self.registers.write32(TARGETS + at, place.index << HART | identity);
        self.registers.write32(ENABLE, source);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use alloc::vec::Vec;
    use portolan::addr::PhysAddr;
    use std::sync::Mutex;

    /// Writes, in order; and the mask of the bits that registers keep.
    struct Fake(Mutex<Vec<(usize, u32)>>, u32);

    impl Mmio for &Fake {
        fn read32(&self, offset: usize) -> u32 {
            let wrote = self.0.lock().unwrap();
            let mut wrote = wrote.iter().rev();
            wrote.find(|(at, _)| *at == offset).map_or(0, |(_, value)| value & self.1)
        }

        fn write32(&self, offset: usize, value: u32) {
            self.0.lock().unwrap().push((offset, value));
        }
    }

    const PLACE: Place =
        Place { page: PhysAddr::new(0x2800_1000), index: 1, last: 255, controller: 6 };

    /// Words that a person wrote down from the figures of section 4.5.
    #[test]
    fn a_wire_that_rises_is_a_message_to_the_hart() {
        let fake = Fake(Mutex::default(), u32::MAX);
        let aplic = Aplic::new(&fake).unwrap();
        assert_eq!(aplic.listen(0x24, &PLACE, 0x42), Ok(()));
        let wrote = [(0, 0x104), (0x90, 4), (0x3090, 0x4_0042), (0x1edc, 0x24)];
        assert_eq!(*fake.0.lock().unwrap(), wrote);
        for (source, identity) in [(0, 1), (1024, 1), (1, 0), (1, 256)] {
            assert!(aplic.listen(source, &PLACE, identity).is_err());
        }
    }

    #[test]
    fn what_is_not_there_is_not_listened_to() {
        assert!(Aplic::new(&Fake(Mutex::default(), 0)).is_none());
        // The domain is there, and a source is another one's.
        let others = Fake(Mutex::default(), !RISING);
        let others = Aplic { registers: &others };
        assert_eq!(others.listen(7, &PLACE, 1), Err(WireError::NoSuchWire { wire: 7 }));
    }
}
