//! A machine of the model as a platform, and firmware's tables of it.

use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use portolan::addr::{PageSize, PciFunction, PhysAddr, PhysRange};
use portolan::platform::{AliasedMemory, Mmio, Nanos, Platform, SpinLock, TableMem};
use portolan_chips::amd::{AmdIdentification, AmdRegisters, AmdSetup};
use portolan_chips::memory::{ModelMemory, Visibility};
use portolan_chips::riscv::{RiscvRegisters, RiscvSetup};
use portolan_chips::smmuv2::{SmmuV2Registers, SmmuV2Setup};
use portolan_chips::smmuv3::{Beside, SmmuIdentification, SmmuRegisters, SmmuSetup};
use portolan_chips::vtd::{VtdIdentification, VtdRegisters, VtdSetup};
use portolan_hw::TrustedDescription;
use portolan_sim::clock::{Tick, VirtualClock};
use portolan_sim::tables::Lag;

/// The function 0:3.0, and one beside it.
pub(crate) const DEVICE: PciFunction = PciFunction::of(0, 3, 0);
pub(crate) const OTHER: PciFunction = PciFunction::of(0, 4, 0);
pub(crate) const REGISTERS: u64 = 0xfed9_0000;
/// Address of the second unit's registers.
pub(crate) const OTHER_REGISTERS: u64 = 0xfedb_0000;
/// A display that firmware has at work, and its frames.
pub(crate) const DISPLAY: PciFunction = PciFunction::of(0, 2, 0);
pub(crate) const FRAMES: u64 = 0x7000_0000;

/// The second function that AMD's unit is known by.
pub(crate) const SECOND: PciFunction = PciFunction::of(0, 1, 2);

/// Words of configuration space: function, offset, word.
pub(crate) type PciWords = &'static [(PciFunction, u16, u32)];

/// A machine with two units of the model.
#[derive(Debug)]
pub(crate) struct Machine<R> {
    /// At [`REGISTERS`].
    pub(crate) unit: Arc<R>,
    /// At [`OTHER_REGISTERS`].
    pub(crate) other: Arc<R>,
    pub(crate) clock: Arc<VirtualClock>,
    pub(crate) memory: Arc<ModelMemory>,
    pub(crate) config: PciWords,
    /// Its platform switches units on.
    pub(crate) switches_power: bool,
}

impl<R: Unit> Machine<R> {
    /// Part of it that drivers see.
    pub(crate) fn kernel(&self) -> Kernel {
        Kernel {
            units: [self.unit.clone(), self.other.clone()],
            clock: self.clock.clone(),
            memory: self.memory.clone(),
            config: self.config,
            switches_power: self.switches_power,
        }
    }
}

/// Registers of the model, and their steps while drivers wait.
pub(crate) trait Unit: Mmio + Tick + 'static {}

impl<R: Mmio + Tick + 'static> Unit for R {}

/// A machine as drivers see it, of any units: so they are compiled once.
#[derive(Clone)]
pub(crate) struct Kernel {
    units: [Arc<dyn Unit>; 2],
    clock: Arc<VirtualClock>,
    memory: Arc<ModelMemory>,
    config: PciWords,
    switches_power: bool,
}

/// The registers that a driver asked for, and no others.
pub(crate) struct Window {
    unit: Arc<dyn Unit>,
    bytes: usize,
}

impl Window {
    /// Offset at which the unit has the register of `offset`: SMMUs of one page have those of the second (the indices
    /// of two queues) in the first.
    fn at(&self, offset: usize) -> usize {
        assert!(offset < self.bytes, "{offset:#x} is not in the window");
        match (self.bytes, offset) {
            (0x1_0000, 0xa8 | 0xac | 0xc8 | 0xcc) => offset + 0x1_0000,
            _ => offset,
        }
    }
}

impl Mmio for Window {
    fn read32(&self, offset: usize) -> u32 {
        self.unit.read32(self.at(offset))
    }

    fn write32(&self, offset: usize, value: u32) {
        self.unit.write32(self.at(offset), value);
    }

    // Commands of SMMUv2 are one write.
    fn write64(&self, offset: usize, value: u64) {
        self.unit.write64(self.at(offset), value);
    }
}

fn page_of(layout: Layout) -> PageSize {
    PageSize::of_lg2(layout.size().next_power_of_two().max(4096).trailing_zeros())
}

// SAFETY: the model hands out each block of its memory once, and its words never move.
unsafe impl Platform for Kernel {
    type Word = AtomicU64;
    type Lock<T: Send> = SpinLock<T>;
    type Registers = Window;

    fn now(&self) -> Nanos {
        Nanos::new(self.clock.now_ns())
    }

    fn relax(&self) {
        self.clock.advance_ns(1000);
        self.units.iter().for_each(|unit| unit.tick());
    }

    fn alloc(&self, layout: Layout) -> Option<PhysAddr> {
        self.memory.alloc(page_of(layout)).ok()
    }

    /// Past the caches, to where a walker or a device that does not snoop looks.
    fn alloc_uncached(&self, layout: Layout) -> Option<AliasedMemory> {
        let at = Platform::alloc(self, layout)?;
        let virt = NonNull::from(self.memory.uncached(at, page_of(layout))).cast();
        Some(AliasedMemory { at, virt })
    }

    unsafe fn free(&self, at: PhysAddr, layout: Layout) {
        self.memory.free(at, page_of(layout));
    }

    unsafe fn virt(&self, at: PhysAddr) -> NonNull<u8> {
        let page = at.align_down(PageSize::SIZE_4K);
        let words = self.memory.table(page, PageSize::SIZE_4K);
        // SAFETY: the byte is inside the page.
        unsafe { NonNull::from(words).cast::<u8>().add((at.get() & 0xfff) as usize) }
    }

    fn clean(&self, lines: PhysRange) {
        self.memory.clean(lines);
    }

    fn power_on(&self, _registers: PhysRange) -> bool {
        self.switches_power
    }

    fn pci_config(&self, function: PciFunction, offset: u16) -> Option<u32> {
        let at = |(of, at, _): &&(PciFunction, u16, u32)| (*of, *at) == (function, offset);
        self.config.iter().find(at).map(|(_, _, word)| *word)
    }

    unsafe fn registers(&self, window: PhysRange) -> Option<Window> {
        let bytes = usize::try_from(window.len_minus_one() + 1).ok()?;
        let [unit, other] = &self.units;
        let unit = match window.start().get() {
            REGISTERS => unit.clone(),
            OTHER_REGISTERS => other.clone(),
            _ => return None,
        };
        Some(Window { unit, bytes })
    }

    fn clean_barrier(&self) {}

    fn invalidate(&self, _: PhysRange) {}

    fn flush_wanted(&self) {}

    fn drop_later(&self, left: portolan::platform::LeftBehind) {
        drop(left);
    }
}

/// A machine of models is as the test's tables describe it.
pub(crate) fn described() -> TrustedDescription {
    // SAFETY: its devices reach no memory of the process.
    unsafe { TrustedDescription::new() }
}

pub(crate) fn memory() -> Arc<ModelMemory> {
    let base = PhysAddr::new(0x8000_0000);
    Arc::new(ModelMemory::new(base, 1 << 12, Visibility::AtOnce))
}

fn machine<R>(
    config: PciWords,
    unit: impl Fn(Arc<VirtualClock>, Arc<ModelMemory>) -> R,
) -> Machine<R> {
    machine_with(memory(), config, unit)
}

fn machine_with<R>(
    memory: Arc<ModelMemory>,
    config: PciWords,
    unit: impl Fn(Arc<VirtualClock>, Arc<ModelMemory>) -> R,
) -> Machine<R> {
    let clock = Arc::new(VirtualClock::new());
    let [unit, other] = [(); 2].map(|()| Arc::new(unit(clock.clone(), memory.clone())));
    Machine { unit, other, clock, memory, config, switches_power: false }
}

pub(crate) fn vtd(identification: VtdIdentification) -> Machine<VtdRegisters> {
    machine(&[], |clock, memory| {
        let setup = VtdSetup { identification, clock, ..VtdSetup::default() };
        VtdRegisters::new(setup, memory)
    })
}

/// With a unit that does not snoop, and sees what the CPU wrote once its lines are written back.
pub(crate) fn vtd_without_snooping() -> Machine<VtdRegisters> {
    let base = PhysAddr::new(0x8000_0000);
    let memory = ModelMemory::new(base, 1 << 12, Visibility::Late(Lag::CacheLines));
    machine_with(Arc::new(memory), &[], |clock, memory| {
        let identification = VtdIdentification::default().not_coherent();
        let setup = VtdSetup { identification, clock, ..VtdSetup::default() };
        VtdRegisters::new(setup, memory)
    })
}

pub(crate) fn old_smmu(setup: &SmmuV2Setup) -> Machine<SmmuV2Registers> {
    machine(&[], |clock, memory| {
        let setup = SmmuV2Setup { clock, ..setup.clone() };
        SmmuV2Registers::new(setup, memory)
    })
}

pub(crate) fn smmu(identification: SmmuIdentification) -> Machine<SmmuRegisters> {
    machine(&[], |clock, memory| {
        let setup = SmmuSetup { identification, clock, ..SmmuSetup::default() };
        SmmuRegisters::new(setup, memory)
    })
}

/// With enhanced command queues: two control pages of two.
pub(crate) fn smmu_with_enhanced_queues() -> Machine<SmmuRegisters> {
    machine(&[], |clock, memory| {
        let beside = Beside::Enhanced { pages_lg2: 1, queues_lg2: 1 };
        let identification = SmmuIdentification::able();
        let setup = SmmuSetup { identification, beside, clock, ..SmmuSetup::default() };
        SmmuRegisters::new(setup, memory)
    })
}

/// The unit's own functions, with capability blocks at 0x40.
const CAPABILITIES: PciWords = {
    let (first, second) = (PciFunction::of(0, 0, 2), SECOND);
    &[
        (first, 0x40, 0x1b03_400f),
        (first, 0x44, 1),
        (first, 0x48, 0),
        (first, 0x4c, 0),
        (first, 0x50, 0x0018_2800),
        (second, 0x40, 0x1b03_400f),
        (second, 0x44, 1),
        (second, 0x48, 0),
        (second, 0x4c, 0),
        (second, 0x50, 0x0018_2800),
    ]
};

pub(crate) fn amd() -> Machine<AmdRegisters> {
    amd_of(AmdIdentification::default())
}

pub(crate) fn amd_of(identification: AmdIdentification) -> Machine<AmdRegisters> {
    machine(CAPABILITIES, |clock, memory| {
        let setup = AmdSetup { identification, clock, ..AmdSetup::default() };
        AmdRegisters::new(setup, memory)
    })
}

pub(crate) fn riscv(setup: &RiscvSetup) -> Machine<RiscvRegisters> {
    machine(&[], |clock, memory| {
        let setup = RiscvSetup { clock, ..setup.clone() };
        RiscvRegisters::new(setup, memory)
    })
}

pub(crate) fn table(signature: [u8; 4], body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 36];
    bytes[..4].copy_from_slice(&signature);
    bytes.extend(body);
    let length = bytes.len() as u32;
    bytes[4..8].copy_from_slice(&length.to_le_bytes());
    let sum = bytes.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
    bytes[9] = sum.wrapping_neg();
    bytes
}

/// DMAR of a machine with addresses of so many bits.
pub(crate) fn dmar_of(address_lg2: u8, structures: &[Vec<u8>]) -> Vec<u8> {
    let mut body = vec![address_lg2 - 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    body.extend(structures.iter().flatten());
    table(*b"DMAR", &body)
}

/// Unit of a DMAR: for the devices of `scopes`, or for all others.
pub(crate) fn drhd(registers: u64, scopes: Option<&[u8]>) -> Vec<u8> {
    let length = 16 + scopes.map_or(0, <[u8]>::len) as u8;
    let mut body = vec![0, 0, length, 0, u8::from(scopes.is_none()), 0, 0, 0];
    body.extend(registers.to_le_bytes());
    body.extend(scopes.unwrap_or_default());
    body
}

/// DMAR with one unit for all of segment 0.
pub(crate) fn dmar(registers: u64) -> Vec<u8> {
    dmar_of(48, &[drhd(registers, None)])
}

/// The same of a machine whose interrupts are remapped.
pub(crate) fn dmar_remapping(registers: u64) -> Vec<u8> {
    let mut body = dmar(registers)[36..].to_vec();
    body[1] = 1;
    table(*b"DMAR", &body)
}

/// As [`dmar`] with memory of the display.
pub(crate) fn dmar_with_memory() -> Vec<u8> {
    let mut display = vec![1, 0, 32, 0, 0, 0, 0, 0];
    display.extend(FRAMES.to_le_bytes());
    display.extend((FRAMES + 0xfff).to_le_bytes());
    display.extend([1, 8, 0, 0, 0, 0, 2, 0]);
    dmar_of(48, &[drhd(REGISTERS, None), display])
}

/// DMAR with two units: one for the device 0:3.0 and for devices behind the bridge 0:1.0, then one for all others.
pub(crate) fn dmar_with_scopes([one, other]: [u64; 2]) -> Vec<u8> {
    let scopes = [1, 8, 0, 0, 0, 0, 3, 0, 2, 8, 0, 0, 0, 0, 1, 0];
    dmar_of(48, &[drhd(one, Some(&scopes)), drhd(other, None)])
}

/// SMMU of an IORT, and the number of streams, from the display's on, for which memory is reserved.
#[derive(Clone, Copy)]
pub(crate) struct Iort {
    pub(crate) flags: u32,
    pub(crate) model: u32,
    pub(crate) streams: u32,
}

/// Coherent.
pub(crate) const IORT: Iort = Iort { flags: 1, model: 0, streams: 1 };

pub(crate) fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// An SMMU of version 2 in `bytes` from `base` on: 76 bytes and two global interrupts, no mappings.
pub(crate) fn old_smmu_node(base: u64, bytes: u64, model: u32) -> Vec<u8> {
    let mut node = vec![3, 92, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    node.extend([base, bytes].map(u64::to_le_bytes).concat());
    // Coherent; interrupts from 76 on.
    node.extend(words(&[model, 2, 76, 0, 92, 0, 92]));
    node.extend([0; 92 - 16 - 44]);
    node
}

/// IORT of a maker, with one SMMU of version 2 behind the root complex of segment 0, and memory of the display.
pub(crate) fn iort_of_old_smmu(maker: [u8; 14], bytes: u64, model: u32) -> Vec<u8> {
    let mut body = words(&[3, 48, 0]);
    body.extend(old_smmu_node(REGISTERS, bytes, model));
    body.extend(root_complex(&[[0, 0xffff, 48]]));
    body.extend(display_memory(1));
    let mut table = table(*b"IORT", &body);
    table[10..24].copy_from_slice(&maker);
    table[9] = 0;
    let sum = table.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
    table[9] = sum.wrapping_neg();
    table
}

/// Memory that a display and more streams behind it go on using, by the node at 48.
fn display_memory(streams: u32) -> Vec<u8> {
    let mut node = vec![6, 68, 0, 3, 0, 0, 0, 0];
    node.extend(words(&[1, 48, 5 << 2, 1, 28]));
    node.extend(FRAMES.to_le_bytes());
    node.extend(0x1000u64.to_le_bytes());
    let display = DISPLAY.requester.get().into();
    node.extend(words(&[0, 0, streams - 1, display, 48, 0]));
    node
}

/// An SMMU of version 3: 68 bytes, no mappings.
pub(crate) fn smmu_node(base: u64, flags: u32, model: u32) -> Vec<u8> {
    let mut node = vec![4, 68, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    node.extend(base.to_le_bytes());
    node.extend(words(&[flags, 0, 0, 0, model, 0, 0, 0, 0, 0, 0]));
    node
}

/// The root complex of segment 0: 40 bytes and mappings of 20, each one to one: the first requester, the number of
/// those that follow, and the SMMU's node.
pub(crate) fn root_complex(mappings: &[[u32; 3]]) -> Vec<u8> {
    let count = mappings.len() as u8;
    let length = 40 + 20 * count;
    let mut node = vec![2, length, 0, 3, 0, 0, 0, 0, count, 0, 0, 0, 40, 0, 0, 0];
    node.extend(words(&[0, 0, 0, 0, 64, 0]));
    for &[first, more, smmu] in mappings {
        node.extend(words(&[first, more, first, smmu, 0]));
    }
    node
}

impl Iort {
    /// IORT with one SMMU of version 3 behind the root complex of segment 0.
    pub(crate) fn bytes(self) -> Vec<u8> {
        // Three nodes, from offset 48 on.
        let mut body = words(&[3, 48, 0]);
        body.extend(smmu_node(REGISTERS, self.flags, self.model));
        body.extend(root_complex(&[[0, 0xffff, 48]]));
        body.extend(display_memory(self.streams));
        table(*b"IORT", &body)
    }
}

/// IORT with two SMMUs: one for the functions of bus 0 up to 0:3.7, then one for all others.
pub(crate) fn iort_of_two([one, other]: [u64; 2]) -> Vec<u8> {
    let mut body = words(&[3, 48, 0]);
    body.extend(smmu_node(one, 1, 0));
    body.extend(smmu_node(other, 1, 0));
    body.extend(root_complex(&[[0, 0x1f, 48], [0x20, 0xffdf, 48 + 68]]));
    table(*b"IORT", &body)
}

/// IVRS with two blocks of units: at 0:0.2, for [`OTHER`] and for 0:5.0, which accesses memory as 0:5.1,
/// and at `second`, for all from 0:2.0 to 0:3.7; and with memory of the display.
pub(crate) fn ivrs(second: PciFunction) -> Vec<u8> {
    ivrs_with(second, &[])
}

/// The same, of which the second unit has more entries.
pub(crate) fn ivrs_with(second: PciFunction, more: &[u8]) -> Vec<u8> {
    let unit = |function: PciFunction, registers: u64, entries: &[u8]| {
        let mut block = vec![0x10, 0, 24 + entries.len() as u8, 0];
        block.extend(function.requester.get().to_le_bytes());
        block.extend([0x40, 0]);
        block.extend(registers.to_le_bytes());
        block.extend([0; 8]);
        block.extend(entries);
        block
    };
    let mut body = vec![0; 12];
    body.extend(unit(
        PciFunction::of(0, 0, 2),
        REGISTERS,
        &[2, 0x20, 0, 0, 0x42, 0x28, 0, 0, 0, 0x29, 0, 0],
    ));
    let all = [&[3, 0x10, 0, 0, 4, 0x1f, 0, 0][..], more].concat();
    body.extend(unit(second, OTHER_REGISTERS, &all));
    // For one device; mapped one to one, readable and writable.
    body.extend([0x21, 0b0111, 32, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    body.extend(FRAMES.to_le_bytes());
    body.extend(0x1000u64.to_le_bytes());
    table(*b"IVRS", &body)
}
