//! Hardware counters: events of the unit's work.
//!
//! RISC-V IOMMU Architecture Specification, version 1.0, sections "Performance-monitoring event counters",
//! "Performance-monitoring event selectors" and "Performance-monitoring counter overflow status".
//!
//! Not supported: events of an implementation's own, counting by address space or by tag, interrupts on
//! overflow.

use super::features::RiscvFeature;
use super::queue::{MOST, Used, inhibits};
use super::tables::Directory;
use super::unit::RiscvIommu;
use portolan::addr::StreamId;
use portolan::iommu::IommuError;
use portolan::platform::{Mmio, UnitPlatform};
use portolan_spec::riscv::reg::{self, event};
use thiserror::Error;

/// The fewest bits that a counter can have.
const FEWEST: u64 = u32::MAX as u64;
/// Number of reads of a counter that overflows meanwhile: it then has as many events before it
/// again.
const LOOKS: u32 = 4;

/// Event that can be counted.
///
/// *Context.* Interrupt: a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// Requests with addresses for the unit to translate.
    Untranslated,
    /// Requests by translations that a device keeps.
    Translated,
    /// Requests of devices for translations.
    TranslationRequests,
    /// Requests that no cache of translations could answer.
    Misses,
    /// Walks of the device directory.
    DeviceWalks,
    /// Walks of a process directory.
    ProcessWalks,
    /// Walks of first-stage tables.
    FirstWalks,
    /// Walks of second-stage tables.
    SecondWalks,
}

impl Event {
    const fn id(self) -> u64 {
        match self {
            Self::Untranslated => 1,
            Self::Translated => 2,
            Self::TranslationRequests => 3,
            Self::Misses => 4,
            Self::DeviceWalks => 5,
            Self::ProcessWalks => 6,
            Self::FirstWalks => 7,
            Self::SecondWalks => 8,
        }
    }
}

/// A counter that counts, until it is stopped.
///
/// *Context.* Interrupt: a value.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub struct EventCounter {
    index: usize,
}

/// Error of a hardware counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CounterError {
    /// The unit has no counters.
    #[error("the unit has no hardware counters")]
    Absent,
    /// All counters are in use.
    #[error("all hardware counters are in use")]
    Full,
    /// No free counter of the unit's counts that, or of one device.
    #[error("no free hardware counter counts {event:?}")]
    Event {
        /// The event that the unit does not count.
        event: Event,
    },
    /// The unit has no such stream.
    #[error("no stream {} behind this unit", stream.get())]
    NoSuchStream {
        /// The stream that the counter cannot name.
        stream: StreamId,
    },
    /// It is another unit's.
    #[error("the counter is not in use here")]
    NotInUse,
    /// The unit is gone, or a register makes no sense.
    #[error(transparent)]
    Iommu(#[from] IommuError),
}

/// *Context.* Interrupt.
impl<P: UnitPlatform> RiscvIommu<P> {
    /// The registers of the counters, if there are any and the unit is there.
    fn monitored(&self) -> Result<&P::Registers, CounterError> {
        let control = &self.shared.control;
        if !control.features.has.contains(RiscvFeature::COUNTERS) {
            return Err(CounterError::Absent);
        }
        control.read(reg::COMMAND_CONTROL)?;
        Ok(&control.regs)
    }

    /// Counts an event from now on, of one stream or of all, with a free counter.
    ///
    /// *Context.* Interrupt.
    ///
    /// # Errors
    /// See [`CounterError`].
    pub fn count_event(
        &self,
        event: Event,
        of: Option<StreamId>,
    ) -> Result<EventCounter, CounterError> {
        let regs = self.monitored()?;
        let mut word = event::ID.at(event.id());
        if let Some(stream) = of {
            let no_such = CounterError::NoSuchStream { stream };
            let device = Directory::has(self.streams_lg2(), stream).ok_or(no_such)?;
            word |= event::DV.at(1) | event::DID.at(device.into());
        }
        let mut used = self.shared.monitor.0.lock();
        let mut error = CounterError::Full;
        for index in 0..MOST {
            if used[index].is_some() {
                continue;
            }
            let (counter, selector) = (reg::COUNTERS + 8 * index, reg::EVENTS + 8 * index);
            // It stands still. How wide it is, is told by what it keeps.
            self.shared.control.write(counter, u64::MAX);
            let mask = regs.read64(counter);
            if mask == 0 {
                continue;
            }
            if mask < FEWEST || mask & mask.wrapping_add(1) != 0 {
                let (offset, value) = (counter, mask);
                return Err(IommuError::Nonsense { offset, value }.into());
            }
            self.shared.control.write(counter, 0);
            self.shared.control.write(selector, word);
            if regs.read64(selector) != word {
                self.shared.control.write(selector, 0);
                error = CounterError::Event { event };
                continue;
            }
            let before = 0;
            used[index] = Some(Used { word, mask, before });
            regs.write32(reg::COUNTER_INHIBIT, inhibits(&used));
            return Ok(EventCounter { index });
        }
        Err(error)
    }

    /// Number of events since the counter was started. A counter has 32 bits at least, and has to
    /// be read before it overflows twice.
    ///
    /// *Context.* Interrupt.
    ///
    /// # Errors
    /// [`CounterError::NotInUse`] for another unit's; if the unit is gone or counts backwards.
    pub fn read_counter(&self, counter: &EventCounter) -> Result<u64, CounterError> {
        let regs = self.monitored()?;
        let index = counter.index;
        let mut used = self.shared.monitor.0.lock();
        let used = used.get_mut(index).and_then(Option::as_mut);
        let used = used.ok_or(CounterError::NotInUse)?;
        let (offset, mut value) = (reg::COUNTERS + 8 * index, 0);
        for _ in 0..LOOKS {
            let before = regs.read64(offset);
            let overflown = regs.read32(reg::COUNTER_OVERFLOW) >> (index + 1) & 1 == 1;
            value = regs.read64(offset);
            if before > value || value > used.mask {
                continue;
            }
            if overflown {
                used.before = used.before.wrapping_add(used.mask).wrapping_add(1);
                let upper = reg::EVENTS + 8 * index + 4;
                regs.write32(upper, (used.word >> 32) as u32);
            }
            return Ok(used.before.wrapping_add(value));
        }
        Err(IommuError::Nonsense { offset, value }.into())
    }

    /// Stops a counter: returns the number of events.
    ///
    /// *Context.* Interrupt.
    ///
    /// # Errors
    /// As [`RiscvIommu::read_counter`]; the counter is free nevertheless.
    pub fn stop_counter(&self, counter: EventCounter) -> Result<u64, CounterError> {
        let last = self.read_counter(&counter);
        let regs = self.monitored()?;
        let mut used = self.shared.monitor.0.lock();
        if let Some(used) = used.get_mut(counter.index) {
            *used = None;
        }
        regs.write32(reg::COUNTER_INHIBIT, inhibits(&used));
        self.shared.control.write(reg::EVENTS + 8 * counter.index, 0);
        last
    }

    /// Clock cycles of the unit's, from an unknown beginning, in 63 bits at most.
    ///
    /// *Context.* Interrupt.
    ///
    /// # Errors
    /// [`CounterError::Absent`]; if the unit is gone.
    pub fn cycles(&self) -> Result<u64, CounterError> {
        let regs = self.monitored()?;
        Ok(reg::CYCLE.of(regs.read64(reg::CYCLES)))
    }
}
