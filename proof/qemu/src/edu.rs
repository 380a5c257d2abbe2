//! QEMU's educational device, as a source of four-byte DMA writes. QEMU, docs/specs/edu.rst.
//!
//! [`Edu`], over qtest: the device's own DMA engine needs a running clock, which a stopped machine does not
//! have. Its MSI does not: raising the interrupt writes four bytes at the message's address through the IOMMU,
//! at once. Of those bytes only the low 16 bits are free; the high ones are zero.
//!
//! [`Engine`], by the registers alone, for a process in a machine that runs, which has them.

use portolan::addr::Iova;
use portolan::platform::Mmio;
use portolan_spec::pci::id;
use thiserror::Error;

use crate::mmio::Registers;
use crate::pci::{Function, Pci, PciError};
use crate::qtest::{Batch, QtestError};

/// Vendor and device.
pub const ID: (u16, u16) = (0x1234, 0x11e8);

const INTERRUPT_RAISE: u64 = 0x60;
const INTERRUPT_ACKNOWLEDGE: u64 = 0x64;
const IDENTIFICATION: u64 = 0;
/// First address of the engine's own memory, and its size in bytes.
const BUFFER: u64 = 0x4_0000;
const BUFFER_BYTES: u64 = 4096;
const DMA_FROM: usize = 0x80;
const DMA_TO: usize = 0x88;
const DMA_BYTES: usize = 0x90;
const DMA_COMMAND: usize = 0x98;
const DMA_RUN: u64 = 1;
const DMA_TO_MEMORY: u64 = 1 << 1;
/// Number of looks at the engine that a wait takes at most; QEMU takes 100 ms of the guest's time
/// for a transfer.
const WAITS: u32 = 1000;
/// Bytes that [`Engine::load`] reads: a word of four bytes for each value of a byte, which is its first.
pub const TABLE_BYTES: u64 = 4 * 256;

/// Reason why there was no write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum EduError {
    /// QEMU did not answer.
    #[error(transparent)]
    Qtest(#[from] QtestError),
    /// The device is missing or unexpected.
    #[error(transparent)]
    Pci(#[from] PciError),
    /// The address is not a multiple of four.
    #[error("{iova} is not a multiple of 4")]
    Unaligned {
        /// The address.
        iova: Iova,
    },
    /// The DMA engine does not become idle.
    #[error("the device's DMA engine is busy, and stays so")]
    Busy,
    /// The address is in the window of interrupt messages, where nothing is memory.
    #[error("{iova} is an interrupt message, not memory")]
    Message {
        /// The address.
        iova: Iova,
    },
}

/// The device, with DMA enabled.
#[derive(Clone, Debug)]
pub struct Edu {
    function: Function,
    registers: Registers,
    msi: u16,
}

impl Edu {
    /// The first one of the machine.
    ///
    /// # Errors
    /// [`EduError::Pci`] if there is none.
    pub fn find(pci: &Pci) -> Result<Self, EduError> {
        Self::new(pci.first(ID.0, ID.1)?)
    }

    /// Takes over a device: enables its DMA and its MSI.
    ///
    /// # Errors
    /// [`EduError`].
    pub fn new(function: &Function) -> Result<Self, EduError> {
        let registers = function.bar(0)?;
        let msi = function.capability(id::MSI)?;
        function.enable()?;
        // Enable one vector.
        let control = function.read16(msi + 2)?;
        function.write16(msi + 2, control & !0x70 | 1)?;
        let function = function.clone();
        Ok(Self { function, registers, msi })
    }

    /// Its PCI function.
    pub fn function(&self) -> &Function {
        &self.function
    }

    /// Version and magic: the low byte is 0xed.
    ///
    /// # Errors
    /// [`QtestError`].
    pub fn identification(&self) -> Result<u32, QtestError> {
        self.function.qtest().read32(self.registers.base() + IDENTIFICATION)
    }

    /// Lets the device write `value`, zero-extended, as four bytes at `iova`.
    ///
    /// The write is over, or blocked, when this returns; the device does not say which. One send.
    ///
    /// # Errors
    /// [`EduError::Unaligned`]; [`EduError::Message`] for 0xfee00000 to 0xfeefffff, which x86 takes
    /// for interrupts; [`EduError::Qtest`].
    pub fn dma_write32(&self, iova: Iova, value: u16) -> Result<(), EduError> {
        if !iova.get().is_multiple_of(4) {
            return Err(EduError::Unaligned { iova });
        }
        if iova.get() >> 20 == 0xfee {
            return Err(EduError::Message { iova });
        }
        let mut batch = Batch::new();
        self.append_dma_write32(&mut batch, iova, value);
        self.function.qtest().submit(&batch)?;
        Ok(())
    }

    /// Lets the device raise its interrupt by a message: it writes `data` to `address`, which need not be in the
    /// window of interrupt messages.
    ///
    /// # Errors
    /// [`QtestError`].
    pub fn interrupt(&self, address: u64, data: u16) -> Result<(), QtestError> {
        let mut batch = Batch::new();
        self.append_dma_write32(&mut batch, Iova::new(address), data);
        self.function.qtest().submit(&batch)?;
        Ok(())
    }

    /// Adds the commands of [`Edu::dma_write32`] to a batch, unchecked.
    pub fn append_dma_write32(&self, batch: &mut Batch, iova: Iova, value: u16) {
        let config = |offset| self.function.config_address(self.msi + offset);
        let base = self.registers.base();
        batch
            .write32(config(4), iova.get() as u32)
            .write32(config(8), (iova.get() >> 32) as u32)
            .write16(config(0xc), value)
            .write32(base + INTERRUPT_RAISE, 1)
            .write32(base + INTERRUPT_ACKNOWLEDGE, 1);
    }
}

/// The device's DMA engine by its registers only, on a machine whose clock runs.
///
/// It writes memory out of 4 KiB of its own, which it has from memory. So that it can write any word, wherever it is,
/// [`Engine::load`] has it read a table once.
#[derive(Clone, Debug)]
pub struct Engine<R> {
    registers: R,
    wait: fn(&R),
}

impl<R: Mmio> Engine<R> {
    /// The engine behind `registers`, BAR 0. `wait` lets the machine's clock run on, a millisecond or more.
    pub const fn new(registers: R, wait: fn(&R)) -> Self {
        Self { registers, wait }
    }

    /// Lets the device read the table at `iova`, [`TABLE_BYTES`] bytes that `fill` puts there word by word.
    ///
    /// # Errors
    /// [`EduError::Busy`].
    pub fn load(&self, iova: Iova, mut fill: impl FnMut(u64, u32)) -> Result<(), EduError> {
        (0..256).for_each(|byte| fill(4 * u64::from(byte), byte));
        self.run(iova.get(), BUFFER, TABLE_BYTES, DMA_RUN)
    }

    /// Lets the device write the four bytes of `value` at `iova`, little-endian, with a transfer for each byte up to
    /// the highest that is not zero. When this returns, they are over or blocked; the device does not say which.
    ///
    /// # Errors
    /// [`EduError::Busy`].
    pub fn write32(&self, iova: Iova, value: u32) -> Result<(), EduError> {
        let mut rest = value;
        for (bytes, at) in [4, 3, 2, 1].into_iter().zip(iova.get()..) {
            let word = BUFFER + 4 * u64::from(rest & 0xff);
            self.run(word, at, bytes, DMA_RUN | DMA_TO_MEMORY)?;
            rest >>= 8;
            if rest == 0 {
                break;
            }
        }
        Ok(())
    }

    fn run(&self, from: u64, to: u64, bytes: u64, command: u64) -> Result<(), EduError> {
        debug_assert!(bytes < BUFFER_BYTES);
        self.idle()?;
        // Registers of eight bytes, each to be written at once.
        let writes = [(DMA_FROM, from), (DMA_TO, to), (DMA_BYTES, bytes)];
        for (register, value) in writes.into_iter().chain([(DMA_COMMAND, command)]) {
            self.registers.write64(register, value);
        }
        self.idle()
    }

    fn idle(&self) -> Result<(), EduError> {
        for _ in 0..WAITS {
            if self.registers.read32(DMA_COMMAND) & DMA_RUN as u32 == 0 {
                return Ok(());
            }
            (self.wait)(&self.registers);
        }
        Err(EduError::Busy)
    }
}

#[cfg(test)]
mod tests;
