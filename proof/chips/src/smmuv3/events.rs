//! Event records and the event queue: sections 7.2 and 7.3.

use portolan::addr::PhysAddr;

use super::registers::{Registers, irq};
use super::{EventRecord, SmmuRegisters, State};
use crate::inject::DmaFault;
use portolan_sim::decode::AccessKind;
use portolan_sim::request::Request;

pub(super) const BAD_STREAM: u8 = 0x02;
pub(super) const STE_FETCH: u8 = 0x03;
pub(super) const BAD_STE: u8 = 0x04;
pub(super) const STREAM_DISABLED: u8 = 0x06;
pub(super) const BAD_SUBSTREAM: u8 = 0x08;
pub(super) const CD_FETCH: u8 = 0x09;
pub(super) const BAD_CD: u8 = 0x0a;
pub(super) const WALK_ABORT: u8 = 0x0b;
pub(super) const TRANSLATION: u8 = 0x10;
pub(super) const ADDRESS_SIZE: u8 = 0x11;
pub(super) const ACCESS: u8 = 0x12;
pub(super) const PERMISSION: u8 = 0x13;
pub(super) const TLB_CONFLICT: u8 = 0x20;

/// Stage that refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtStage {
    One,
    /// Both stages, with the address between them.
    Two(u64),
}

/// Purpose of the access that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    Descriptor,
    Table,
    Input,
}

/// Reason why an access is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SmmuV3Refusal {
    /// No record.
    Silent,
    /// Event without an address.
    Configuration { code: u8 },
    /// Event with the address of the structure that could not be read.
    Fetch { code: u8, at: PhysAddr },
    /// Event of a failed translation.
    Translation { code: u8, stage: AtStage, class: Class },
    /// Event of a failed translation; the access waits.
    Stalled { code: u8, stage: AtStage, class: Class },
    /// Failed translation in a context that does not record it.
    Unrecorded { code: u8 },
}

/// Cached structure: its contents, or the event that reading it ends in.
pub(super) type Cached<T> = Result<T, SmmuV3Refusal>;

impl SmmuV3Refusal {
    pub fn code(self) -> u8 {
        match self {
            Self::Silent => 0,
            Self::Configuration { code }
            | Self::Fetch { code, .. }
            | Self::Translation { code, .. }
            | Self::Stalled { code, .. }
            | Self::Unrecorded { code } => code,
        }
    }

    pub(super) fn record(self, of: Request) -> Option<EventRecord> {
        let Request { stream, pasid, iova, access } = of;
        let substream = pasid.map_or(0, |pasid| 1 << 11 | u64::from(pasid.get()) << 12);
        let first = u64::from(self.code()) | substream | u64::from(stream.get()) << 32;
        let read = match access {
            AccessKind::Read => 1 << 35,
            AccessKind::Write => 0,
        };
        let words = match self {
            Self::Silent | Self::Unrecorded { .. } => return None,
            Self::Configuration { .. } => [first, 0, 0, 0],
            Self::Fetch { at, .. } => [first, 0, 0, at.get() & 0x000f_ffff_ffff_fff8],
            Self::Translation { stage, class, code } | Self::Stalled { stage, class, code } => {
                let (second, ipa) = match stage {
                    AtStage::One => (0, 0),
                    AtStage::Two(ipa) => (1 << 39, ipa & 0x000f_ffff_ffff_f000),
                };
                let class = match class {
                    Class::Descriptor => 0,
                    Class::Table => 1,
                    Class::Input => 2,
                } << 40;
                let class = if code == WALK_ABORT { 1 << 40 } else { class };
                [first, read | second | class, iova.get(), ipa]
            }
        };
        Some(EventRecord { words })
    }
}

impl SmmuRegisters {
    /// Records a refusal and returns the fault for the device.
    pub(super) fn refuse(
        &self,
        state: &mut State,
        refusal: SmmuV3Refusal,
        of: Request,
    ) -> DmaFault {
        state.counts.faults += 1;
        let hidden = refusal.code() == BAD_STREAM && state.own.registers.cr2 & 2 == 0;
        let record = refusal.record(of);
        if let Some(record) = record.filter(|_| !hidden) {
            state.own.events.push(record);
            self.append(state, record);
        }
        DmaFault::of(of, refusal.code().into())
    }

    /// Tells if an event would find room.
    pub(super) fn has_event_room(&self, state: &State) -> bool {
        let registers = &state.own.registers;
        let most = self.setup.identification.field(1, 16, 5);
        let lg2 = ((registers.eventq_base & 0x1f) as u32).min(most);
        let (prod, cons) = (registers.eventq_prod, registers.eventq_cons);
        let there = prod.wrapping_sub(cons) & ((2 << lg2) - 1);
        registers.cr0 & 1 << 2 != 0 && there < 1 << lg2
    }

    pub(super) fn append(&self, state: &mut State, record: EventRecord) {
        let Registers { cr0, eventq_base, eventq_prod, eventq_cons, .. } = &mut state.own.registers;
        if *cr0 & 1 << 2 == 0 {
            state.counts.lost_events += 1;
            return;
        }
        let most = self.setup.identification.field(1, 16, 5);
        let lg2 = ((*eventq_base & 0x1f) as u32).min(most);
        let mask = (1u32 << lg2) - 1;
        let wrap = 1u32 << lg2;
        let (prod, cons) = (*eventq_prod, *eventq_cons);
        let full = prod & mask == cons & mask && (prod ^ cons) & wrap != 0;
        if full {
            state.counts.lost_events += 1;
            // The overflow flag differs from its acknowledgement until software copies it.
            if (prod ^ cons) >> 31 == 0 {
                *eventq_prod ^= 1 << 31;
            }
            return;
        }
        let base = *eventq_base & 0x000f_ffff_ffff_ffe0;
        let mut written = Some(());
        for (i, word) in record.words.iter().enumerate() {
            let at = base + u64::from(prod & mask) * 32 + 8 * i as u64;
            written = written.and(self.memory.write_u64(PhysAddr::new(at), *word));
        }
        if written.is_none() {
            state.own.registers.raise(1 << 2);
            return;
        }
        let next = prod.wrapping_add(1) & (mask | wrap);
        *eventq_prod = prod & 1 << 31 | next;
        if (prod ^ cons) & (mask | wrap) == 0 {
            state.own.registers.signal(irq::EVENTS);
        }
    }
}
