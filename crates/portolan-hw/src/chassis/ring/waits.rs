//! Waits for a sync or for room, and gives each producer the outcome of its commands.

use super::service::Progress;
use super::*;
use crate::chassis::refusals::RefusedBecause;
use crate::chassis::wait_while_it_works;
use portolan::addr::StreamId;
use portolan::iommu::Awaited;

/// Looks at memory between two looks at registers.
const LOOKS: u32 = 256;

impl<C: Cpus> Ring<C> {
    /// Waits for `sync` behind the commands of `ticket`. As long as the unit works through the
    /// commands in front, the limit does not run out. *Context.* Atomic.
    pub(crate) fn complete<U: Unit<Cpus = C>>(
        &self,
        unit: &U,
        ticket: &Ticket,
        sync: Sync,
        asked: &dyn Fn(Option<u16>) -> bool,
    ) -> Result<Outcome, IommuError> {
        let (mem, clock, limit) = unit.machine();
        let words = self.numbers.map(|block| block.words(mem));
        let number = words.and_then(|words| words.get((sync.number % NUMBERS) as usize));
        // The outcome, as far as is known without a register.
        let outcome = || {
            // A later sync with the same word stands for this one, too. What no sync writes there is not
            // believed.
            let later = number
                .map_or(u32::MAX, |number| (Word::load(number) as u32).wrapping_sub(sync.number));
            let complete = later < 1 << 31 && later % NUMBERS == 0
                || U::INDEX_COMPLETES && self.done.load(Ordering::Acquire) >= sync.position;
            if self.news.load(Ordering::Relaxed) == ticket.news {
                return complete.then_some(Ok(Outcome::Done));
            }
            // A sync that was refused or taken never comes, unless the index tells.
            if !complete && U::INDEX_COMPLETES {
                return None;
            }
            let verdict = self.verdict::<U>(ticket, sync, asked);
            (complete || verdict != Ok(Outcome::Done)).then_some(verdict)
        };
        let mut looks = 0u32;
        let look = || {
            let known = outcome();
            looks = looks.wrapping_add(1);
            if known.is_some() || number.is_some() && looks % LOOKS != 0 {
                return known;
            }
            // The holder of the lock finds out as well.
            let state = self.state.try_lock()?;
            match self.service_locked(unit, state) {
                Ok(_) => outcome(),
                Err(error) => Some(Err(error)),
            }
        };
        // What others have had done behind it says nothing of this sync.
        let progress = || {
            let progress = self.service_locked(unit, self.state.lock())?;
            Ok(progress.head.min(sync.position))
        };
        wait_while_it_works(clock, limit, Awaited::Completion, look, progress)
    }

    /// Returns the outcome of the commands of `ticket`, which are complete with `sync`, where
    /// something was refused since they were begun.
    #[cold]
    pub(crate) fn verdict<U: Unit>(
        &self,
        ticket: &Ticket,
        sync: Sync,
        asked: &dyn Fn(Option<u16>) -> bool,
    ) -> Result<Outcome, IommuError> {
        let concern = self.state.lock().refusals.concern(ticket, sync);
        let silent = concern.map_err(|why| IommuError::Refused {
            code: match why {
                RefusedBecause::Code(code) => code,
                RefusedBecause::Overwritten => U::OVERWRITTEN,
            },
        })?;
        // Without the lock: who asked what may take another.
        match silent.iter().find(|stream| asked(**stream)) {
            Some(stream) => {
                let stream = stream.map(|stream| StreamId::new(stream.into()));
                Err(IommuError::DeviceSilent { stream })
            }
            None if U::ABORTS_SYNCS && !silent.is_empty() => Ok(Outcome::Again),
            None => Ok(Outcome::Done),
        }
    }

    /// Waits until the unit's progress is `enough`.
    fn wait_until<U: Unit<Cpus = C>>(
        &self,
        unit: &U,
        awaited: Awaited,
        enough: impl Fn(Progress) -> bool,
    ) -> Result<(), IommuError> {
        let look = || {
            let state = self.state.try_lock()?;
            match self.service_locked(unit, state) {
                Ok(progress) => enough(progress).then_some(Ok(())),
                Err(error) => Some(Err(error)),
            }
        };
        let progress = || Ok(self.service_locked(unit, self.state.lock())?.head);
        let (_, clock, limit) = unit.machine();
        wait_while_it_works(clock, limit, awaited, look, progress)
    }

    pub(super) fn wait_for_room<U: Unit<Cpus = C>>(&self, unit: &U) -> Result<(), IommuError> {
        let enough = |progress: Progress| progress.free >= self.needed();
        self.wait_until(unit, Awaited::QueueRoom, enough)
    }

    /// Waits until the unit has fetched everything. *Context.* Atomic.
    pub(crate) fn drain<U: Unit<Cpus = C>>(&self, unit: &U) -> Result<(), IommuError> {
        let all = self.shape.slots() - u64::from(U::TURN_BITS == 0);
        self.wait_until(unit, Awaited::Completion, |progress| progress.free == all)
    }
}
