//! Interrupts that are posted to virtual CPUs, and the log of those for CPUs that sleep.
//!
//! AMD I/O Virtualization Technology (IOMMU) Specification (48882), revision 3.10, sections 2.2.5.3 (entries with
//! GuestMode), 2.7 (guest virtual APIC log) and 3.4 (its registers). The unit sets the bit of the vector in the backing
//! page and then reads IsRun, GALogIntr, the destination and GATag, of which it keeps no copy: a virtual CPU that is
//! moved, stops or sleeps costs one store for each of its interrupts. Without stores of pairs it costs two more where
//! bits 31:24 of its destination change, since they are in the other word.
//!
//! An entry that comes to lead to a page, or ceases to, changes in both words, by one store of a pair. Without such
//! stores it is closed meanwhile, and a message that arrives is refused: the monitor raises one interrupt itself, which
//! a guest's driver has to expect anyway.
//!
//! Not supported: posting with identifiers of 8 bits; notifications of other CPUs than the destination (GAPPI); the
//! log's interrupt by the MSI capability; posted interrupts in a record for another kernel.

use super::config::Config;
use super::features::{AmdFeature, Features};
use super::log::{Logging, Oldest};
use super::sleepers::Sleepers;
use super::tables::InterruptSlots;
use super::unit::AmdVi;
use crate::chassis::entry::{WORDS, Words};
use crate::interrupt::ApicMode;
use core::sync::atomic::{AtomicU64, Ordering, fence};
use portolan::inval::Walker;
use portolan::iommu::{
    ApicPosting, Destination, GuestCpu, GuestTag, Interrupt, InterruptError, InterruptTarget,
    IommuError, Posting,
};
use portolan::platform::{TableMem, UnitPlatform};
use portolan_spec::amd::guest_log;
use portolan_spec::amd::interrupt::{self as field, posted, wide};
use portolan_spec::amd::reg::{GUEST_LOG_TARGET, control};

/// Bits of an entry's words of which the unit keeps no copy.
const FRESH: [u64; 2] = [
    posted::LOGGED | posted::RUNS | wide::DESTINATION.mask() | posted::TAG.mask(),
    wide::DESTINATION_HIGH.mask(),
];

/// Interrupt for a virtual CPU that sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SleeperEvent {
    /// This virtual CPU has one that is pending.
    Wake(GuestTag),
    /// Some were lost: any virtual CPU that sleeps may have one, and is looked at.
    Lost,
}

impl Features {
    /// Checks that the unit posts interrupts, if a log for them is asked for.
    pub(super) fn can_post(&self, config: &Config) -> Result<(), IommuError> {
        let wide = config.interrupts.is_some_and(|wanted| wanted.apic == ApicMode::X2Apic);
        match config.sleepers_lg2 {
            Some(_) if !wide || !self.has.contains(AmdFeature::GUEST_APIC) => {
                Err(IommuError::Unsupported)
            }
            _ => Ok(()),
        }
    }
}

/// The words of an entry that posts.
pub(super) fn entry(to: &ApicPosting) -> Result<Words, InterruptError> {
    let page = to.page.get().get();
    if page & !posted::PAGE != 0 {
        return Err(InterruptError::Unposted);
    }
    let (state, at) = match to.cpu {
        GuestCpu::Runs(Destination::Physical(at)) => (posted::RUNS, u64::from(at)),
        GuestCpu::Runs(other) => return Err(InterruptError::Destination(other)),
        GuestCpu::Waits => (0, 0),
        GuestCpu::Sleeps => (posted::LOGGED, 0),
    };
    let mut words = [0; WORDS];
    words[0] = field::REMAPPED
        | posted::GUEST
        | state
        | wide::DESTINATION.at(at & 0x00ff_ffff)
        | posted::TAG.at(to.tag.get().into());
    let vector = wide::VECTOR.at(to.vector.get().into());
    words[1] = page | vector | wide::DESTINATION_HIGH.at(at >> 24);
    Ok(words)
}

/// Contents of an entry of which bits alone change that the unit keeps no copy of, one store behind the other.
pub(super) fn stages(old: &Words, new: &Words) -> [Words; 3] {
    let (mut stopped, mut last) = (*old, *new);
    // A virtual CPU that does not run has no destination.
    let moves = new[0] & posted::RUNS != 0 && old[1] != new[1];
    if moves {
        // A mix of two destinations is none that the caller named.
        stopped[0] &= !posted::RUNS;
    } else {
        last[1] = old[1];
    }
    let mut elsewhere = stopped;
    elsewhere[1] = last[1];
    [stopped, elsewhere, last]
}

/// Changes an entry to one that posts. `forget` waits until the unit has forgotten its copy.
fn post(
    table: &InterruptSlots,
    mem: &impl TableMem<AtomicU64>,
    index: u16,
    new: &Words,
    forget: impl FnMut() -> Result<(), IommuError>,
) -> Result<(), IommuError> {
    let at = table.wide(index);
    let mut now = at.read(mem);
    let same = |word: usize| (now[word] ^ new[word]) & !FRESH[word] == 0;
    if !same(0) || !same(1) {
        return table.set(mem, index, new, forget);
    }
    if !at.write_pair(mem, 0, [new[0], new[1]]) {
        for stage in stages(&now, new) {
            let differs = |(word, value): &(usize, u64)| now[*word] != *value;
            for (word, value) in stage.into_iter().enumerate().filter(differs) {
                at.write(mem, word, value);
                at.publish(mem, Walker::Coherent);
            }
            now = stage;
        }
    }
    // An interrupt whose bit was set before the unit could see this is pending when the caller looks.
    fence(Ordering::SeqCst);
    Ok(())
}

impl<P: UnitPlatform> AmdVi<P> {
    /// Has an interrupt be pending in a backing page from now on.
    pub(super) fn post_to_page(
        &self,
        interrupt: &Interrupt,
        to: Posting,
    ) -> Result<(), InterruptError> {
        let (Posting::Apic(wanted), Some(_)) = (to, &self.shared.logs.sleepers) else {
            return Err(InterruptError::Unposted);
        };
        let words = entry(&wanted)?;
        self.with_used(interrupt, |table, stream, index| {
            let forget = || self.forget_interrupts(stream);
            post(table, &self.shared.control.mem, index, &words, forget)?;
            table.slots.redirect(index, to);
            Ok(())
        })
    }

    fn sleepers(&self) -> Result<&Sleepers<P>, IommuError> {
        self.shared.logs.sleepers.as_ref().ok_or(IommuError::Unsupported)
    }

    /// The oldest interrupt for a virtual CPU that sleeps, if any.
    ///
    /// *Context.* Interrupt.
    ///
    /// # Errors
    /// [`IommuError::Unsupported`] without a log ([`Config::sleepers_lg2`](super::Config::sleepers_lg2)); if the unit
    /// is gone or a register makes no sense.
    pub fn next_sleeper(&self) -> Result<Option<SleeperEvent>, IommuError> {
        let (Sleepers { log, cut, .. }, unit) = (self.sleepers()?, &self.shared.control);
        log.acknowledge(unit);
        let [record, _] = match log.take(unit, |_| {})? {
            Oldest::Record(record) => record,
            Oldest::Unwritten => return Ok(None),
            Oldest::Nothing => {
                let stopped = log.restart(unit)? == Logging::TurnedOn;
                let lost = cut.swap(false, Ordering::Relaxed) || stopped;
                return Ok(lost.then_some(SleeperEvent::Lost));
            }
        };
        Ok(Some(match guest_log::CODE.of(record) {
            guest_log::INTERRUPT => {
                SleeperEvent::Wake(GuestTag::new(guest_log::TAG.of(record) as u32))
            }
            // Never written, or of a kind that no unit has.
            _ => SleeperEvent::Lost,
        }))
    }

    /// Makes the unit interrupt `target` whenever there is something for [`AmdVi::next_sleeper`], or ends that with
    /// `None`. The handler reads until there is nothing left, and so does the caller that has switched the interrupt
    /// on: earlier records may send none.
    ///
    /// *Context.* Atomic, one caller at a time.
    ///
    /// # Errors
    /// As [`AmdVi::next_sleeper`].
    pub fn signal_sleepers(&self, target: Option<InterruptTarget>) -> Result<(), IommuError> {
        *self.sleepers()?.signals.lock() = target;
        self.signal(control::GUEST_LOG_INTERRUPT, GUEST_LOG_TARGET, target)
    }

    /// Goes on with a unit whose log has begun again.
    pub(super) fn resume_sleepers(&self) -> Result<(), IommuError> {
        let Some(sleepers) = &self.shared.logs.sleepers else { return Ok(()) };
        sleepers.cut.store(true, Ordering::Relaxed);
        let target = *sleepers.signals.lock();
        self.signal(control::GUEST_LOG_INTERRUPT, GUEST_LOG_TARGET, target)
    }
}
