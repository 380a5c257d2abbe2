//! Arm's interrupt controller, as far as lines and one CPU go.
//!
//! Arm Generic Interrupt Controller architecture specification, version 2.0 (IHI 0048B), sections 4.3 (the
//! distributor's registers) and 4.4 (a CPU's). Not supported: versions 1, 3 and 4; messages; lines that
//! last until they are acknowledged.
//!
//! *Context.* Interrupt.

use portolan::addr::{PhysAddr, PhysRange};
use portolan::platform::Mmio;
use thiserror::Error;

/// The distributor: switched on, and for each line its enable bit, the CPUs that take it, and its trigger.
const CONTROL: usize = 0x000;
const ENABLE: usize = 0x100;
const TARGETS: usize = 0x800;
const TRIGGERS: usize = 0xc00;
/// The CPU's part: switched on, the priority below which lines are delivered, the line that came,
/// and the end of its service.
const PRIORITIES: usize = 0x004;
const ACKNOWLEDGE: usize = 0x00c;
const END: usize = 0x010;

/// Lines below are a CPU's own; from the last ones on there are none.
const FIRST_LINE: u32 = 32;
const NO_LINE: u32 = 1020;
/// Bits of an acknowledged interrupt that name the line.
const LINE: u32 = 0x3ff;
/// Bytes of each of the two windows.
const BYTES: u64 = 0x1000;

/// Error of a line that the controller does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the interrupt controller has no line {line}")]
pub struct NoSuchLine {
    /// Number of the line.
    pub line: u32,
}

/// The distributor, and the part of the CPU that calls.
#[derive(Clone, Copy, Debug)]
pub struct Gic<R> {
    distributor: R,
    cpu: R,
}

impl<R: Mmio> Gic<R> {
    /// The registers of the part at `at`, by [`madt::gic`](crate::madt::gic).
    pub fn window(at: PhysAddr) -> Option<PhysRange> {
        PhysRange::from_len(at, BYTES)
    }

    /// Switches both on, for all priorities; no line is enabled.
    pub fn new(distributor: R, cpu: R) -> Self {
        distributor.write32(CONTROL, 1);
        cpu.write32(PRIORITIES, 0xff);
        cpu.write32(CONTROL, 1);
        Self { distributor, cpu }
    }

    /// Has the first CPU take the interrupts of an edge-triggered line.
    ///
    /// # Errors
    /// [`NoSuchLine`].
    pub fn listen(&self, line: u32) -> Result<(), NoSuchLine> {
        if !(FIRST_LINE..NO_LINE).contains(&line) {
            return Err(NoSuchLine { line });
        }
        let set = |first: usize, bits: u32, value: u32| {
            let per_word = 32 / bits;
            let (word, at) = ((line / per_word) as usize * 4, line % per_word * bits);
            let old = self.distributor.read32(first + word);
            let new = old & !(((1 << bits) - 1) << at) | value << at;
            self.distributor.write32(first + word, new);
        };
        set(TRIGGERS, 2, 2);
        set(TARGETS, 8, 1);
        // Zeros change nothing there.
        let (word, bit) = ((line / 32) as usize * 4, line % 32);
        self.distributor.write32(ENABLE + word, 1 << bit);
        Ok(())
    }

    /// Takes the interrupt that came, if one did, serves it, and ends it.
    pub fn take(&self, serve: impl FnOnce(u32)) {
        let came = self.cpu.read32(ACKNOWLEDGE);
        if came & LINE < NO_LINE {
            serve(came & LINE);
            self.cpu.write32(END, came);
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use alloc::vec::Vec;
    use core::cell::RefCell;

    /// Writes, in order; and the value that every register reads as.
    struct Fake(std::sync::Mutex<Vec<(usize, u32)>>, u32);

    impl Mmio for &Fake {
        fn read32(&self, _offset: usize) -> u32 {
            self.1
        }

        fn write32(&self, offset: usize, value: u32) {
            self.0.lock().unwrap().push((offset, value));
        }
    }

    fn fake(value: u32) -> Fake {
        Fake(std::sync::Mutex::default(), value)
    }

    /// Words that a person wrote down from the figures of section 4.3.
    #[test]
    fn a_line_is_edge_triggered_and_the_first_cpus() {
        let (distributor, cpu) = (fake(0xffff_ffff), fake(0));
        let gic = Gic::new(&distributor, &cpu);
        assert_eq!([31, 1020, u32::MAX].map(|line| gic.listen(line).is_err()), [true; 3]);
        assert_eq!(gic.listen(106), Ok(()));
        let wrote = core::mem::take(&mut *distributor.0.lock().unwrap());
        let lines = [(0x000, 1), (0xc18, 0xffef_ffff), (0x868, 0xff01_ffff), (0x10c, 1 << 10)];
        assert_eq!(wrote, lines);
        assert_eq!(*cpu.0.lock().unwrap(), [(0x4, 0xff), (0, 1)]);
    }

    #[test]
    fn what_came_is_served_and_ended_and_nothing_else_is() {
        for (came, served) in [(0x406a, &[106][..]), (1023, &[])] {
            let (distributor, cpu) = (fake(0), fake(came));
            let gic = Gic::new(&distributor, &cpu);
            let all = RefCell::new(Vec::new());
            gic.take(|line| all.borrow_mut().push(line));
            assert_eq!(*all.borrow(), served);
            let ended = cpu.0.lock().unwrap().contains(&(0x10, came));
            assert_eq!(ended, !served.is_empty());
        }
    }
}
