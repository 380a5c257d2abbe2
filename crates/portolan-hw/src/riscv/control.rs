//! Registers, memory and time of a unit, its counters in use, and numbers of commands.
//!
//! Registers, memory and time of a unit.
//!
//! RISC-V IOMMU Architecture Specification, version 1.0, chapter "Memory-mapped register interface":
//! registers of 64 bits may be read and written in halves, and a write of both is the upper half's
//! first.
//!
//! Hardware counters in use.
//!
//! Numbers of submitted commands, by kind.
//!
//! *Context.* Interrupt, but for functions that wait for the unit (atomic).

use super::features::Features;
use crate::chassis::{Present, wait_for};
use portolan::iommu::{Awaited, IommuError};
use portolan::platform::{Cpus, Guarded, Mmio, Nanos, UnitPlatform};
use portolan_spec::riscv::reg;
use portolan_spec::riscv::reg::{directory, queue};

/// Registers, memory, clock and features, which all parts of a unit need.
pub(super) struct RiscvControl<P: UnitPlatform> {
    pub(super) regs: P::Registers,
    pub(super) mem: P::Memory,
    pub(super) clock: P,
    pub(super) limit: Nanos,
    pub(super) features: Features,
    pub(super) counters: Counters,
}

impl<P: UnitPlatform> RiscvControl<P> {
    /// A register that never reads as all ones while the unit is there.
    pub(super) fn read(&self, offset: usize) -> Result<u32, IommuError> {
        self.regs.present32(offset)
    }

    /// Writes a register of 64 bits. The half with the mode or the length of a structure comes last, so
    /// that it never counts with half an address: [`Mmio::write64`] may write it first.
    pub(super) fn write(&self, offset: usize, value: u64) {
        self.regs.write32(offset + 4, (value >> 32) as u32);
        self.regs.write32(offset, value as u32);
    }

    /// Writes a register of 64 bits that keeps only values that the unit supports.
    pub(super) fn install(&self, offset: usize, value: u64) -> Result<(), IommuError> {
        self.write(offset, value);
        match self.regs.read64(offset) {
            u64::MAX => Err(IommuError::Gone),
            kept if kept == value => Ok(()),
            _ => Err(IommuError::Unsupported),
        }
    }

    /// Waits until a queue's last change is done, and writes its control register.
    pub(super) fn set_queue(&self, control: usize, value: u32) -> Result<(), IommuError> {
        self.await_queue(control, queue::BUSY, 0)?;
        self.regs.write32(control, value);
        Ok(())
    }

    /// Turns a queue on, with `more` of its bits, or off.
    pub(super) fn turn_queue(&self, control: usize, wanted: Turned) -> Result<(), IommuError> {
        let (value, on) = match wanted {
            Turned::On { more } => (queue::ENABLE | more, queue::ON),
            Turned::Off => (0, 0),
        };
        self.set_queue(control, value)?;
        self.await_queue(control, queue::BUSY | queue::ON, on)
    }

    fn await_queue(&self, control: usize, mask: u32, wanted: u32) -> Result<(), IommuError> {
        let look = || Ok((self.read(control)? & mask == wanted).then_some(()));
        wait_for(&self.clock, self.limit, Awaited::Control, look)
    }

    /// Value of the directory's register once no change of it is under way.
    pub(super) fn directory(&self) -> Result<u64, IommuError> {
        let look = || {
            let value = self.regs.present64(reg::DIRECTORY)?;
            Ok((directory::BUSY.of(value) == 0).then_some(value))
        };
        wait_for(&self.clock, self.limit, Awaited::Control, look)
    }

    /// Writes the directory's register once no change is under way, and returns its value after.
    pub(super) fn set_directory(&self, value: u64) -> Result<u64, IommuError> {
        self.directory()?;
        self.write(reg::DIRECTORY, value);
        self.directory()
    }
}

/// State to which a queue is turned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turned {
    /// Fetched or filled, with further bits of its control register.
    On { more: u32 },
    /// Left alone.
    Off,
}

/// Most counters of a unit.
pub(super) const MOST: usize = 31;
/// Value of `iocountinh` where the cycles alone are counted.
pub(super) const NONE: u32 = !1;

/// A counter in use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Used {
    /// Value of its selector.
    pub(super) word: u64,
    /// All that the counter can hold.
    pub(super) mask: u64,
    /// Events before its last overflow.
    pub(super) before: u64,
}

/// Hardware counters in use. Held while their registers are accessed, which waits for nothing.
#[derive(Debug)]
pub(super) struct Monitor<C: Cpus>(pub(super) Guarded<C, [Option<Used>; MOST]>);

impl<C: Cpus> Monitor<C> {
    pub(super) fn new() -> Self {
        Self(Guarded::new([None; MOST]))
    }
}

/// The counters in use count, and the cycles.
pub(super) fn inhibits(used: &[Option<Used>; MOST]) -> u32 {
    let counting = (1..).zip(used).filter(|(_, used)| used.is_some());
    counting.fold(NONE, |all, (bit, _)| all & !(1 << bit))
}

crate::chassis::counters! {
    /// A kind of command.
    CommandKind,
    /// Commands submitted since the unit was taken over, refused ones included.
    Counts {
        Wait = "IOFENCE.C" => "IOFENCE.C that stores.";
        Fence = "IOFENCE.C (fence)" => "IOFENCE.C that only keeps what is behind it back.";
        Device = "IODIR.INVAL_DDT" => "IODIR.INVAL_DDT of one device.";
        Devices = "IODIR.INVAL_DDT (all)" => "IODIR.INVAL_DDT of all devices.";
        Process = "IODIR.INVAL_PDT" => "IODIR.INVAL_PDT.";
        Pages = "IOTINVAL.VMA" => "IOTINVAL.VMA of addresses.";
        Context = "IOTINVAL.VMA (context)" => "IOTINVAL.VMA of a tag.";
        Both = "IOTINVAL.VMA (guest)" => "IOTINVAL.VMA of all tags whose second stage has a tag.";
        All = "IOTINVAL.VMA (all)" => "IOTINVAL.VMA of all tags without a second stage.";
        GuestPages = "IOTINVAL.GVMA" => "IOTINVAL.GVMA of addresses.";
        Guest = "IOTINVAL.GVMA (context)" => "IOTINVAL.GVMA of a tag.";
        Guests = "IOTINVAL.GVMA (all)" => "IOTINVAL.GVMA of all tags.";
        DeviceTlb = "ATS.INVAL" => "ATS.INVAL.";
        Response = "ATS.PRGR" => "ATS.PRGR.";
        Replaced = "IOFENCE.C (replaced)" => "IOFENCE.C in place of a refused command.";
    }
}

pub mod refusal {
    //! The codes with which [`portolan::iommu::IommuError::Refused`] says why: the bits of `cqcsr` that the
    //! unit set when it stopped.

    use portolan_spec::riscv::reg::queue;

    /// The command is malformed, or the unit does not have it.
    pub const ILLEGAL: u32 = queue::ILLEGAL;
    /// The command could not be read, or its value could not be stored.
    pub const MEMORY: u32 = queue::MEMORY_FAULT;
    /// A device did not answer.
    pub const TIME_OUT: u32 = queue::TIME_OUT;
    /// Others' commands were refused so often that work which they may have undone was not done in
    /// time.
    pub const INTERRUPTED: u32 = 0;
}
