//! Layer between a driver and its hardware: none, or wrappers around the driver's parts that take away
//! the parts that a [`Sabotage`] names.
//!
//! Commands are edited in queue memory at the moment in which the driver tells the unit that they
//! are there. Layouts of queues: SMMUv3 (IHI 0070, sections 3.5 and 4), VT-d (D51397, section
//! 6.5.2), of either descriptor width, AMD-Vi (48882, sections 2.4 and 3.4), and the RISC-V IOMMU (version
//! 1.0, "Command-Queue").

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use portolan::addr::{PageSize, PhysAddr, PhysRange, TableId};
use portolan::platform::{Mmio, OutOfTableMemory, ProtocolStep, StorePairs, TableMem, Word};
use portolan_chips::memory::{ModelMemory, PairStores};
use portolan_qemu::guest_tables::GuestTables;
use portolan_qemu::mmio::Registers;
use portolan_qemu::ram::GuestRam;
use portolan_spec::{ADDRESS, amd, riscv, smmuv3, vtd};

/// Upper half of the base of RISC-V's command queue.
const RISCV_COMMAND_BASE_HIGH: usize = riscv::reg::COMMAND_BASE + 4;
/// Errors of RISC-V's command queue that are written 1 to clear.
const RISCV_COMMAND_ERRORS: u32 =
    riscv::reg::queue::MEMORY_FAULT | riscv::reg::queue::TIME_OUT | riscv::reg::queue::ILLEGAL;

/// The first two words of a command or descriptor.
pub type Words = [u64; 2];

/// Memory of queues, read and written in words.
pub trait QueueMemory {
    /// The word at `at`; 0 if the address is not in memory.
    fn load(&self, at: PhysAddr) -> u64;

    /// Writes the word at `at`.
    fn store(&self, at: PhysAddr, value: u64);
}

impl<W: Word> QueueMemory for Arc<ModelMemory<W>> {
    fn load(&self, at: PhysAddr) -> u64 {
        let mut bytes = [0; 8];
        match self.read(at, &mut bytes) {
            Some(()) => u64::from_le_bytes(bytes),
            None => 0,
        }
    }

    fn store(&self, at: PhysAddr, value: u64) {
        let _ = self.write_u64(at, value);
    }
}

impl QueueMemory for GuestRam {
    fn load(&self, at: PhysAddr) -> u64 {
        self.read64(at).unwrap_or(0)
    }

    fn store(&self, at: PhysAddr, value: u64) {
        let _ = self.write64(at, value);
    }
}

/// Kind of registers and queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interface {
    /// Commands of 16 bytes, indices with a wrap bit.
    Smmuv3,
    /// Descriptors of 16 or 32 bytes, byte offsets.
    Vtd,
    /// Commands of 16 bytes, byte offsets.
    Amd,
    /// Commands of 16 bytes, indices; bases are written in halves.
    Riscv,
    /// Registers only, without a queue.
    Registers,
}

/// Treatment of cache lines that the driver asks to write back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cleans {
    /// Commands are executed.
    Done,
    /// Commands are lost.
    Lost,
}

/// Parts of a driver's work that are taken away.
#[derive(Clone, Copy, Debug)]
pub struct Sabotage {
    /// Edits the commands that become visible to the unit at once.
    pub commands: fn(&mut [Words]),
    /// Edits the commands with which the driver tries again: once after each error of the queue that
    /// it has acknowledged.
    pub again: fn(&mut [Words]),
    /// Returns the value that the driver reads from a register of four bytes, by its offset and true value.
    pub read: fn(usize, u32) -> u32,
    /// Returns if a write to a register arrives, by its offset and value.
    pub write: fn(usize, u32) -> Arrives,
    /// Returns the write of eight bytes that arrives instead, as offset and value; where commands
    /// are register writes.
    pub bend: fn(usize, u64) -> (usize, u64),
    /// Tells if cache lines are written back.
    pub cleans: Cleans,
    /// Stores of two words, on machines that have them.
    pub pairs: PairStores,
    /// A register that is never read: the driver reads the value that it wrote there last.
    pub unread: Option<usize>,
}

/// Arrival of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrives {
    /// The write arrives.
    Yes,
    /// The write is lost.
    No,
    /// This value arrives instead.
    As(u32),
    /// All writes but the first are lost.
    Once,
}

impl Sabotage {
    /// No sabotage.
    pub const NONE: Self = Self {
        commands: |_| {},
        again: |_| {},
        read: |_, value| value,
        write: |_, _| Arrives::Yes,
        bend: |offset, value| (offset, value),
        cleans: Cleans::Done,
        pairs: PairStores::AtOnce,
        unread: None,
    };

    /// Commands are edited, and nothing else.
    pub const fn of_commands(commands: fn(&mut [Words])) -> Self {
        Self { commands, ..Self::NONE }
    }
}

/// Layer between a driver and its hardware. The types are always those of a sabotage, so that each driver is compiled
/// once.
#[derive(Clone, Copy, Debug)]
pub enum Seam {
    /// No layer: commands are not inspected.
    Bare,
    /// A sabotage.
    Of(Sabotage),
}

/// Registers of a model behind a seam.
pub type ModelRegs<R, W = AtomicU64> = Tampered<Arc<R>, Arc<ModelMemory<W>>>;
/// Memory of a model behind a seam.
pub type ModelTables<W = AtomicU64> = Unclean<Arc<ModelMemory<W>>>;
/// Registers of QEMU behind a seam.
pub type QemuRegs = Tampered<Registers, GuestRam>;

impl Seam {
    pub(super) const fn sabotage(self) -> Sabotage {
        match self {
            Self::Bare => Sabotage::NONE,
            Self::Of(sabotage) => sabotage,
        }
    }

    fn tampered<R: Mmio, Q: QueueMemory>(self, regs: R, queue: Q, of: Interface) -> Tampered<R, Q> {
        let interface = match self {
            Self::Bare => Interface::Registers,
            Self::Of(_) => of,
        };
        Tampered::new(regs, queue, interface, self.sabotage())
    }

    /// Memory of a model as the driver is to have it.
    pub(super) fn tables<W: Word>(self, memory: &Arc<ModelMemory<W>>) -> ModelTables<W> {
        Unclean::new(memory.clone(), self.sabotage().cleans)
    }

    /// Makes the layer, and the registers behind it.
    pub(super) fn model<R: Mmio, W: Word>(
        self,
        registers: &Arc<R>,
        memory: &Arc<ModelMemory<W>>,
        interface: Interface,
    ) -> (ModelRegs<R, W>, ModelTables<W>) {
        let tampered = self.tampered(registers.clone(), memory.clone(), interface);
        (tampered, self.tables(memory))
    }

    /// Registers of QEMU as the driver is to have them.
    pub(super) fn qemu(self, regs: Registers, memory: &GuestTables, of: Interface) -> QemuRegs {
        self.tampered(regs, memory.ram().clone(), of)
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Queue {
    base: u64,
    tail: u64,
}

/// Registers with commands that are edited on the way.
#[derive(Debug)]
pub struct Tampered<R, Q> {
    registers: R,
    memory: Q,
    interface: Interface,
    sabotage: Sabotage,
    queue: Mutex<Queue>,
    /// Writes that arrive once.
    arrived: Mutex<BTreeSet<(usize, u32)>>,
    /// Last written to [`Sabotage::unread`].
    written: AtomicU32,
    /// Set if an error was acknowledged, and no command was edited because of it.
    erred: AtomicBool,
}

impl<R: Mmio, Q: QueueMemory> Tampered<R, Q> {
    /// Makes a layer in front of `registers`, for a queue in `memory`.
    pub fn new(registers: R, memory: Q, interface: Interface, sabotage: Sabotage) -> Self {
        Self {
            registers,
            memory,
            interface,
            sabotage,
            queue: Mutex::default(),
            arrived: Mutex::default(),
            written: AtomicU32::new(0),
            erred: AtomicBool::new(false),
        }
    }

    /// Edits the commands between the old and the new tail. Returns the status writes of waits that
    /// are none any more, which the driver must not miss.
    fn edit(&self, tail: u64) -> Vec<(PhysAddr, u64)> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let (slots, bytes) = self.geometry(queue.base);
        let base = match self.interface {
            // The page's number is two bits lower than the address.
            Interface::Riscv => queue.base << 2,
            _ => queue.base,
        };
        let base = base & ADDRESS;
        // Positions count slots, with a wrap bit where the interface has one.
        let (positions, end) = match self.interface {
            Interface::Smmuv3 => (2 * slots, tail % (2 * slots)),
            Interface::Riscv => (slots, tail % slots),
            _ => (slots, tail / bytes % slots),
        };
        let mut at = queue.tail;
        queue.tail = end;
        drop(queue);
        let mut places = Vec::new();
        while at != end {
            places.push(base + at % slots * bytes);
            at = (at + 1) % positions;
        }
        let word = |place: u64| self.memory.load(PhysAddr::new(place));
        let before: Vec<Words> = places.iter().map(|&p| [word(p), word(p + 8)]).collect();
        let mut after = before.clone();
        (self.sabotage.commands)(&mut after);
        if self.erred.load(Ordering::Relaxed) {
            let unedited = after.clone();
            (self.sabotage.again)(&mut after);
            self.erred.store(after == unedited, Ordering::Relaxed);
        }
        let mut signals = Vec::new();
        for ((place, old), new) in places.into_iter().zip(before).zip(after) {
            if old == new {
                continue;
            }
            self.memory.store(PhysAddr::new(place), new[0]);
            self.memory.store(PhysAddr::new(place + 8), new[1]);
            match self.interface {
                Interface::Vtd if is_vtd_wait(old) && !is_vtd_wait(new) => {
                    let data = vtd::descriptor::wait::DATA.of(old[0]);
                    signals.push((PhysAddr::new(old[1] & !3), data));
                }
                Interface::Amd if is_amd_wait(old) && !is_amd_wait(new) => {
                    let at = old[0] & amd::command::wait::ADDRESS;
                    signals.push((PhysAddr::new(at), old[1]));
                }
                Interface::Riscv if is_riscv_fence(old) && !is_riscv_fence(new) => {
                    let data = riscv::command::fence::DATA.of(old[0]);
                    signals.push((PhysAddr::new(old[1] << 2), data));
                }
                _ => {}
            }
        }
        signals
    }

    /// Slots and bytes of each.
    fn geometry(&self, base: u64) -> (u64, u64) {
        match self.interface {
            Interface::Smmuv3 => (1 << smmuv3::reg::BASE_LOG2SIZE.of(base), 16),
            Interface::Amd => (1 << amd::reg::LENGTH.of(base), 16),
            Interface::Riscv => (2 << riscv::reg::LENGTH.of(base), 16),
            Interface::Vtd | Interface::Registers => {
                let bytes = 16 << vtd::reg::queue::WIDE.of(base);
                ((0x1000 << vtd::reg::queue::SIZE.of(base)) / bytes, bytes)
            }
        }
    }

    /// Notes a write of four bytes, half of a base.
    fn note_half(&self, offset: usize, value: u32) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let (base, value) = (queue.base, u64::from(value));
        let base = match (self.interface, offset) {
            (Interface::Riscv, riscv::reg::COMMAND_BASE) => base >> 32 << 32 | value,
            (Interface::Riscv, RISCV_COMMAND_BASE_HIGH) => base & 0xffff_ffff | value << 32,
            _ => return,
        };
        *queue = Queue { base, tail: 0 };
    }

    /// Notes a write of eight bytes.
    fn note(&self, offset: usize, value: u64) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let base = match self.interface {
            Interface::Smmuv3 => Some(smmuv3::reg::CMDQ_BASE),
            Interface::Vtd => Some(vtd::reg::IQA),
            Interface::Amd => Some(amd::reg::COMMAND_BASE),
            // Written in halves, if at all.
            Interface::Riscv | Interface::Registers => None,
        };
        if base == Some(offset) {
            *queue = Queue { base: value, tail: 0 };
        }
    }

    /// Value of a write of four bytes that arrives, if it does.
    fn arriving(&self, offset: usize, value: u32) -> Option<u32> {
        match (self.sabotage.write)(offset, value) {
            Arrives::No => None,
            Arrives::As(other) => Some(other),
            Arrives::Once => {
                let mut arrived = self.arrived.lock().unwrap_or_else(PoisonError::into_inner);
                arrived.insert((offset, value)).then_some(value)
            }
            Arrives::Yes => Some(value),
        }
    }

    /// Tells if a write acknowledges an error of the queue: GERROR.CMDQ_ERR, FSTS.IQE, or those of cqcsr.
    fn acknowledges(&self, offset: usize, value: u32) -> bool {
        use smmuv3::reg;
        let read = |offset| self.registers.read32(offset);
        match (self.interface, offset) {
            (Interface::Smmuv3, reg::GERRORN) => {
                (read(reg::GERROR) ^ read(reg::GERRORN)) & reg::gerror::CMDQ != 0
            }
            (Interface::Vtd, vtd::reg::FSTS) => read(offset) & value & vtd::reg::fsts::IQE != 0,
            (Interface::Riscv, riscv::reg::COMMAND_CONTROL) => {
                read(offset) & value & RISCV_COMMAND_ERRORS != 0
            }
            _ => false,
        }
    }

    fn tail_at(&self) -> Option<usize> {
        match self.interface {
            Interface::Smmuv3 => Some(smmuv3::reg::CMDQ_PROD),
            Interface::Vtd => Some(vtd::reg::IQT),
            Interface::Amd => Some(amd::reg::COMMAND_TAIL),
            Interface::Riscv => Some(riscv::reg::COMMAND_TAIL),
            Interface::Registers => None,
        }
    }
}

/// Tells if a descriptor of VT-d is a wait that writes a status.
pub(crate) fn is_vtd_wait(words: Words) -> bool {
    use vtd::descriptor::{TYPE, kind, wait};
    TYPE.of(words[0]) == kind::WAIT && wait::SW.of(words[0]) != 0
}

/// Tells if a command of AMD-Vi is a COMPLETION_WAIT that stores.
pub(crate) fn is_amd_wait(words: Words) -> bool {
    use amd::command::{OPCODE, opcode, wait};
    OPCODE.of(words[0]) == opcode::COMPLETION_WAIT && wait::STORE.of(words[0]) != 0
}

/// Tells if a command of the RISC-V IOMMU is an IOFENCE.C that stores.
pub(crate) fn is_riscv_fence(words: Words) -> bool {
    use riscv::command::{OPCODE, fence, opcode};
    OPCODE.of(words[0]) == opcode::FENCE && fence::AV.of(words[0]) != 0
}

impl<R: Mmio, Q: QueueMemory + Send + Sync> Mmio for Tampered<R, Q> {
    fn read32(&self, offset: usize) -> u32 {
        if self.sabotage.unread == Some(offset) {
            return self.written.load(Ordering::Relaxed);
        }
        (self.sabotage.read)(offset, self.registers.read32(offset))
    }

    fn write32(&self, offset: usize, value: u32) {
        if self.sabotage.unread == Some(offset) {
            self.written.store(value, Ordering::Relaxed);
        }
        let Some(value) = self.arriving(offset, value) else { return };
        self.note_half(offset, value);
        let signals =
            if self.tail_at() == Some(offset) { self.edit(value.into()) } else { Vec::new() };
        if self.acknowledges(offset, value) {
            self.erred.store(true, Ordering::Relaxed);
        }
        self.registers.write32(offset, value);
        for (at, data) in signals {
            self.memory.store(at, data);
        }
    }

    fn read64(&self, offset: usize) -> u64 {
        let value = self.registers.read64(offset);
        let [low, high] = [value as u32, (value >> 32) as u32];
        let low = (self.sabotage.read)(offset, low);
        let high = (self.sabotage.read)(offset + 4, high);
        u64::from(high) << 32 | u64::from(low)
    }

    fn write64(&self, offset: usize, value: u64) {
        self.note(offset, value);
        if self.tail_at() == Some(offset) {
            return self.write32(offset, value as u32);
        }
        let [low, high] = [value as u32, (value >> 32) as u32];
        let low = self.arriving(offset, low);
        if let Some((low, high)) = low.zip(self.arriving(offset + 4, high)) {
            self.registers.write64(offset, u64::from(high) << 32 | u64::from(low));
        }
    }
}

/// Table memory whose cleaning may be lost.
#[derive(Clone, Debug)]
pub struct Unclean<M> {
    memory: M,
    cleans: Cleans,
}

impl<M> Unclean<M> {
    /// Over `memory`.
    pub fn new(memory: M, cleans: Cleans) -> Self {
        Self { memory, cleans }
    }
}

impl<W: Word, M: TableMem<W>> TableMem<W> for Unclean<M> {
    fn alloc(&self, size: PageSize) -> Result<PhysAddr, OutOfTableMemory> {
        self.memory.alloc(size)
    }

    fn free(&self, table: PhysAddr, size: PageSize) {
        self.memory.free(table, size);
    }

    fn table(&self, table: PhysAddr, size: PageSize) -> &[W] {
        self.memory.table(table, size)
    }

    fn clean(&self, bytes: PhysRange) {
        if self.cleans == Cleans::Done {
            self.memory.clean(bytes);
        }
    }

    fn clean_barrier(&self) {
        self.memory.clean_barrier();
    }

    fn invalidate(&self, bytes: PhysRange) {
        self.memory.invalidate(bytes);
    }

    fn pairs(&self) -> Option<&dyn StorePairs<W>> {
        self.memory.pairs()
    }

    fn protocol_step(&self, of: TableId, step: ProtocolStep) {
        self.memory.protocol_step(of, step);
    }
}
