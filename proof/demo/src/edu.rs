//! The driver of QEMU's `edu` device, which copies between its internal buffer and memory.
//!
//! QEMU: `docs/specs/edu`.

use portolan::addr::Iova;
use portolan::platform::{Mmio, Nanos, poll};
use portolan_bare::pci::Function;
use portolan_bare::{Machine, Registers};

use crate::Outcome;

pub const IDENTITY: (u16, u16) = (0x1234, 0x11e8);
/// Bits of its addresses.
pub const ADDRESS_BITS: u32 = 28;

const INTERRUPT: usize = 0x60;
const ACKNOWLEDGE: usize = 0x64;
const SOURCE: usize = 0x80;
const DESTINATION: usize = 0x88;
const COUNT: usize = 0x90;
const COMMAND: usize = 0x98;
const WINDOW: u64 = 0x1000;

const START: u64 = 1;
const TO_DEVICE: u64 = 0;
const TO_MEMORY: u64 = 2;
/// Offset of its buffer, whose first half stays zero, and that of the second half.
const BUFFER: u64 = 0x4_0000;
const SECOND_HALF: u64 = BUFFER + 2048;
/// A copy begins a tenth of a second after it was asked for.
const LIMIT: Nanos = Nanos::from_millis(5000);

pub struct Edu {
    machine: Machine,
    registers: Registers,
}

impl Edu {
    pub fn new(machine: Machine, function: &Function) -> Outcome<Self> {
        function.start();
        let registers = function.window(&machine, WINDOW);
        let registers = registers.ok_or("the edu device has no registers")?;
        Ok(Self { machine, registers })
    }

    /// Raises its interrupt, and lets go of it.
    pub fn raise(&self) {
        self.registers.write32(INTERRUPT, 1);
        self.registers.write32(ACKNOWLEDGE, 1);
    }

    /// Copies `bytes` bytes from the device to memory at `at`: zeros.
    ///
    /// The device says that it is done also if its accesses were refused.
    pub fn write(&self, at: Iova, bytes: u64) -> Outcome<()> {
        self.transfer((BUFFER, at.get()), bytes, TO_MEMORY)
    }

    /// Copies `bytes` bytes from memory at `from` to memory at `to`, by way of the device.
    pub fn copy(&self, from: Iova, to: Iova, bytes: u64) -> Outcome<()> {
        self.transfer((from.get(), SECOND_HALF), bytes, TO_DEVICE)?;
        self.transfer((SECOND_HALF, to.get()), bytes, TO_MEMORY)
    }

    fn transfer(&self, (from, to): (u64, u64), bytes: u64, direction: u64) -> Outcome<()> {
        self.begin((from, to), bytes, direction);
        self.finish()
    }

    /// Has the device copy `bytes` bytes to memory at `at`, and does not wait for it.
    pub fn begin_write(&self, at: Iova, bytes: u64) {
        self.begin((BUFFER, at.get()), bytes, TO_MEMORY);
    }

    fn begin(&self, (from, to): (u64, u64), bytes: u64, direction: u64) {
        self.registers.write64(SOURCE, from);
        self.registers.write64(DESTINATION, to);
        self.registers.write64(COUNT, bytes);
        self.registers.write64(COMMAND, START | direction);
    }

    /// Tells if a copy is under way.
    pub fn is_busy(&self) -> bool {
        self.registers.read64(COMMAND) & START != 0
    }

    /// Waits until no copy is under way.
    pub fn finish(&self) -> Outcome<()> {
        let done = || (self.registers.read64(COMMAND) & START == 0).then_some(());
        poll(&self.machine, LIMIT, done).map_err(|_| "the edu device is stuck")?;
        Ok(())
    }
}
