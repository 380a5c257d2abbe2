//! Interrupt messages: section 2.2.5, with entries of 32 bits and, where the control register says so, of two
//! words, of which some are posted (2.2.5.3). And the unit's own (3.4.31).

use portolan::addr::{PhysAddr, StreamId};

use super::registers::{Registers, control};
use super::{AmdRegisters, State};
use portolan_sim::decode::WalkMemory;

/// Interrupt that arrives at the CPUs' interrupt controllers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AmdInterrupt {
    /// The vector.
    pub vector: u8,
    /// The identifier, or the logical address.
    pub destination: u32,
}

/// End of a message that is not refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AmdDelivered {
    /// An interrupt arrives at the CPUs.
    Arrived(AmdInterrupt),
    /// It is pending in a backing page, and the CPU with this identifier is told by its doorbell.
    Rung(u32),
    /// It is pending in a backing page, and no CPU is told.
    Pending,
}

/// Form of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EntryForm {
    /// Of 32 bits.
    Short,
    /// Of two words, with destinations of 8 bits.
    Wide,
    /// Of two words, with destinations of 32 bits.
    WideDestinations,
}

/// Bit of a record for a refused interrupt.
const INTERRUPT: u64 = 1 << 51;
/// IO_PAGE_FAULT.
const PAGE_FAULT: u64 = 2;

pub(super) fn field(word: u64, low: u32, bits: u32) -> u64 {
    (word >> low) & ((1 << bits) - 1)
}

/// Tells if an entry of two words counts and has GuestMode.
pub(super) fn is_posted([low, _]: [u64; 2]) -> bool {
    field(low, 7, 1) == 1 && low & 1 == 1
}

impl EntryForm {
    fn of(registers: &Registers) -> Self {
        match registers.control & (control::GUEST_APIC | control::X2APIC) {
            0 | control::X2APIC => Self::Short,
            control::GUEST_APIC => Self::Wide,
            _ => Self::WideDestinations,
        }
    }

    /// Reads an entry; a short one is the lower half of a word.
    fn read(self, memory: &impl WalkMemory, table: u64, index: u16) -> Option<[u64; 2]> {
        let index = u64::from(index);
        let read = |at| memory.read_u64(PhysAddr::new(at));
        match self {
            Self::Short => {
                let both = read(table + index / 2 * 8)?;
                Some([both >> (index % 2 * 32) & 0xffff_ffff, 0])
            }
            Self::Wide | Self::WideDestinations => {
                Some([read(table + index * 16)?, read(table + index * 16 + 8)?])
            }
        }
    }

    /// Decodes an entry; nothing if it remaps none, or is malformed.
    fn decode(self, [low, high]: [u64; 2]) -> Option<AmdInterrupt> {
        // GuestMode counts as one of the reserved bits, where nothing is posted.
        let (reserved, vector, destination) = match self {
            Self::Short => {
                (field(low, 7, 1) | field(low, 24, 8), field(low, 16, 8), field(low, 8, 8))
            }
            Self::Wide => {
                (field(low, 7, 1) | low >> 16 | high >> 8, field(high, 0, 8), field(low, 8, 8))
            }
            Self::WideDestinations => (
                field(low, 7, 1) | low >> 32 | field(high, 8, 48),
                field(high, 0, 8),
                field(low, 8, 24) | field(high, 56, 8) << 24,
            ),
        };
        let arrives = low & 1 == 1 && reserved == 0;
        arrives.then_some(AmdInterrupt { vector: vector as u8, destination: destination as u32 })
    }
}

impl AmdRegisters {
    /// Lets the device with identifier `stream` (its low 16 bits) write `data` to `address` in the window of
    /// interrupt messages. Returns the interrupt that arrives; `None` if the unit refuses it, which is logged.
    pub fn message(&self, stream: StreamId, address: u64, data: u32) -> Option<AmdInterrupt> {
        match self.deliver(stream, address, data)? {
            AmdDelivered::Arrived(interrupt) => Some(interrupt),
            AmdDelivered::Rung(_) | AmdDelivered::Pending => None,
        }
    }

    /// Drops all copies of interrupt tables' entries, as a cache with little room does at any time.
    pub fn evict_interrupts(&self) {
        self.lock().own.interrupts.clear();
    }

    /// As [`AmdRegisters::message`], with interrupts that are posted.
    pub fn deliver(&self, stream: StreamId, address: u64, data: u32) -> Option<AmdDelivered> {
        let mut state = self.lock();
        self.go_on(&mut state);
        let arrived = self.remap(&mut state, stream.get() as u16, address, data);
        if arrived.is_none() {
            state.counts.faults += 1;
            let low = PAGE_FAULT << 60 | INTERRUPT | u64::from(stream.get() & 0xffff);
            self.log(&mut state, [low, address]);
        }
        arrived
    }

    fn remap(
        &self,
        state: &mut State,
        device: u16,
        address: u64,
        data: u32,
    ) -> Option<AmdDelivered> {
        let destination = (address >> 12) as u32 & 0xff;
        let plain = AmdInterrupt { vector: data as u8, destination };
        let plain = Some(AmdDelivered::Arrived(plain));
        if !state.own.registers.enabled() {
            return plain;
        }
        let word = self.interrupt_word(state, device)?;
        if word & 1 == 0 {
            return plain;
        }
        // Fixed and arbitrated alone are remapped.
        if field(data.into(), 8, 3) > 1 {
            return None;
        }
        match field(word, 60, 2) {
            1 => return plain,
            2 => {}
            _ => return None,
        }
        let index = field(data.into(), 0, 11) as u16;
        if u64::from(index) >> field(word, 1, 4) != 0 {
            return None;
        }
        let form = EntryForm::of(&state.own.registers);
        let table = word & 0x000f_ffff_ffff_ffc0;
        let kept = state.own.interrupts.get(&(device, index)).copied();
        let entry = match kept {
            Some(kept) => kept,
            None => {
                let entry = form.read(&self.memory.snooped(), table, index)?;
                state.own.interrupts.insert((device, index), entry);
                entry
            }
        };
        let posts = state.own.registers.control & control::POSTED != 0;
        if posts && form != EntryForm::Short && is_posted(entry) {
            let again = || form.read(&self.memory.snooped(), table, index);
            return self.post(state, device, entry, again);
        }
        form.decode(entry).map(AmdDelivered::Arrived)
    }

    /// Interrupts of the unit's own, oldest first: where each went, or `None` for one by the MSI
    /// capability.
    pub fn own_interrupts(&self) -> Vec<Option<AmdInterrupt>> {
        self.lock().own.sent.clone()
    }

    /// The word of the device's entry on interrupts, kept or from memory.
    fn interrupt_word(&self, state: &mut State, device: u16) -> Option<u64> {
        if let Some(kept) = state.own.interrupt_words.get(&device) {
            return Some(*kept);
        }
        let base = state.own.registers.device_table;
        let offset = u64::from(device) * 32;
        if offset >= ((base & 0x1ff) + 1) << 12 {
            return None;
        }
        let at = (base & 0x000f_ffff_ffff_f000) + offset + 16;
        let word = self.memory.snooped().read_u64(PhysAddr::new(at))?;
        state.own.interrupt_words.insert(device, word);
        Some(word)
    }
}

/// Notes that the unit sends an interrupt of its own, for which a register has `target`.
pub(super) fn send_own(state: &mut State, target: u64) {
    let registers = &state.own.registers;
    let by_register = registers.control & control::OWN_TARGETS != 0;
    state.own.sent.push(by_register.then_some(AmdInterrupt {
        vector: field(target, 32, 8) as u8,
        destination: (field(target, 8, 24) | field(target, 56, 8) << 24) as u32,
    }));
}
