//! Performance counters: events of the unit that it counts by itself.
//!
//! AMD I/O Virtualization Technology (IOMMU) Specification (48882), revision 3.10, the chapters on performance counters
//! (PCSup, the numbers of banks and counters, count, source and match registers). A counter is opened for an event and
//! for the devices, domains or address spaces that it counts for, read as often as wanted, and closed.
//!
//! Not supported: interrupts at an overflow, reports, and locks of counters for guests. A sleep ends all counters: they
//! are closed and opened again.
//!
//! *Context.* Interrupt, all methods: none waits for the hardware.

use super::counters_in_use::CounterBanks;
use super::features::AmdFeature;
use super::unit::AmdVi;
use crate::chassis::Present as _;
use portolan::addr::{Pasid, PhysAddr, StreamId};
use portolan::iommu::IommuError;
use portolan::platform::{Mmio, UnitPlatform};
use portolan_spec::amd::{counter, reg};
use thiserror::Error;

/// Readings of a count, at most: in halves its carry may fall between them.
const READINGS: usize = 4;

/// Event that a counter counts, and the accesses for which it does.
///
/// ```
/// use portolan_hw::amd::CounterEvent;
/// use portolan::addr::StreamId;
/// // Total of translated accesses (event 5) of one device.
/// let mut event = CounterEvent::new(5);
/// event.device = Some(StreamId::new(0x28));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CounterEvent {
    /// Number of the event (CSOURCE); 0 counts nothing.
    pub event: u8,
    /// The device, or all.
    pub device: Option<StreamId>,
    /// The domain identifier, or all.
    pub domain: Option<u16>,
    /// The address space, or all.
    pub pasid: Option<Pasid>,
}

impl CounterEvent {
    /// Event `event` of all accesses.
    pub const fn new(event: u8) -> Self {
        Self { event, device: None, domain: None, pasid: None }
    }
}

/// A counter that is open. One that is dropped counts on and stays in use.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a counter that is dropped stays in use"]
pub struct Counter {
    /// The device table of its unit.
    of: PhysAddr,
    bank: u8,
    number: u8,
}

/// Reason for which a counter is not opened, read or closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum AmdCounterError {
    /// The unit has no counters.
    #[error("the unit has no performance counters")]
    Absent,
    /// All counters are in use.
    #[error("all {banks} banks of {counters} counters are in use")]
    Full {
        /// Banks of the unit.
        banks: u8,
        /// Counters of each.
        counters: u8,
    },
    /// A device that the unit does not have.
    #[error("the unit has no device {device:?}")]
    NoSuchStream {
        /// The device.
        device: StreamId,
    },
    /// Event 0, which counts nothing.
    #[error("event 0 counts nothing")]
    NoEvent,
    /// The counter is another unit's.
    #[error("the counter is another unit's")]
    Foreign,
    /// The hardware failed, or does not keep what was written: a counter that other software has locked.
    #[error(transparent)]
    Iommu(#[from] IommuError),
}

/// Value of a match register for `wanted`, all of whose `bits` count.
fn matching(wanted: Option<u32>, bits: u32) -> u64 {
    wanted.map_or(0, |value| {
        counter::MATCHES | counter::VALUE.at(value.into()) | counter::MASK.at((1 << bits) - 1)
    })
}

impl Counter {
    /// Offset of one of its registers.
    fn at(&self, register: usize) -> usize {
        let (bank, number) = (usize::from(self.bank), usize::from(self.number));
        counter::FIRST + bank * counter::BANK_BYTES + number * counter::BYTES + register
    }
}

impl<P: UnitPlatform> AmdVi<P> {
    /// Numbers of the unit's counters. With [`AmdFeature::COUNTERS`] the window of registers that the embedder gives
    /// has 512 KiB, where this or [`AmdVi::open_counter`] is called.
    ///
    /// # Errors
    /// [`AmdCounterError::Absent`], [`AmdCounterError::Iommu`].
    pub fn counter_banks(&self) -> Result<CounterBanks, AmdCounterError> {
        if !self.features().has.contains(AmdFeature::COUNTERS) {
            return Err(AmdCounterError::Absent);
        }
        let value = self.shared.control.regs.present64(reg::COUNTERS)?;
        let [banks, counters] = [counter::BANKS, counter::NUMBER].map(|of| of.of(value) as u8);
        match banks == 0 || counters == 0 {
            true => Err(AmdCounterError::Absent),
            false => Ok(CounterBanks { banks, counters }),
        }
    }

    /// Opens a counter for `event`, which begins at 0.
    ///
    /// # Errors
    /// See [`AmdCounterError`]; no counter is in use then.
    pub fn open_counter(&self, event: CounterEvent) -> Result<Counter, AmdCounterError> {
        let all = self.counter_banks()?;
        if event.event == 0 {
            return Err(AmdCounterError::NoEvent);
        }
        if let Some(device) = event.device.filter(|device| self.table.has(*device).is_none()) {
            return Err(AmdCounterError::NoSuchStream { device });
        }
        let CounterBanks { banks, counters } = all;
        let taken = self.counters.with(|used| used.take(all));
        let (bank, number) = taken.ok_or(AmdCounterError::Full { banks, counters })?;
        let opened = Counter { of: self.table.at(0).table, bank, number };
        match self.begin_counting(&opened, event) {
            Ok(()) => Ok(opened),
            Err(error) => {
                self.counters.with(|used| used.give_back(opened.bank, opened.number));
                Err(error.into())
            }
        }
    }

    fn begin_counting(&self, opened: &Counter, event: CounterEvent) -> Result<(), IommuError> {
        let regs = &self.shared.control.regs;
        let written = [
            (counter::SOURCE, 0),
            (counter::DEVICE, matching(event.device.map(StreamId::get), 16)),
            (counter::DOMAIN, matching(event.domain.map(u32::from), 16)),
            (counter::PASID, matching(event.pasid.map(Pasid::get), 20)),
            (counter::COUNT, 0),
            // Last: from here on it counts.
            (counter::SOURCE, counter::EVENT.at(event.event.into())),
        ];
        for (register, value) in written {
            regs.write64(opened.at(register), value);
        }
        let offset = opened.at(counter::SOURCE);
        match regs.present64(offset)? {
            held if counter::EVENT.of(held) == u64::from(event.event) => Ok(()),
            value => Err(IommuError::Nonsense { offset, value }),
        }
    }

    /// Reads the count, which begins again at 0 behind 48 bits.
    ///
    /// # Errors
    /// [`AmdCounterError::Foreign`], [`AmdCounterError::Iommu`].
    pub fn read_counter(&self, opened: &Counter) -> Result<u64, AmdCounterError> {
        self.owns(opened)?;
        let read = || self.shared.control.regs.present64(opened.at(counter::COUNT));
        let mut count = read()?;
        for _ in 1..READINGS {
            let again = read()?;
            let carried = again >> 32 != count >> 32;
            count = again;
            if !carried {
                break;
            }
        }
        Ok(counter::COUNT_BITS.of(count))
    }

    /// Closes a counter: it counts no more, and its last count is returned.
    ///
    /// # Errors
    /// [`AmdCounterError::Foreign`], with which it stays open; [`AmdCounterError::Iommu`].
    pub fn close_counter(&self, opened: Counter) -> Result<u64, AmdCounterError> {
        self.owns(&opened)?;
        self.shared.control.regs.write64(opened.at(counter::SOURCE), 0);
        let last = self.read_counter(&opened);
        self.counters.with(|used| used.give_back(opened.bank, opened.number));
        last
    }

    fn owns(&self, opened: &Counter) -> Result<(), AmdCounterError> {
        match opened.of == self.table.at(0).table {
            true => Ok(()),
            false => Err(AmdCounterError::Foreign),
        }
    }
}
