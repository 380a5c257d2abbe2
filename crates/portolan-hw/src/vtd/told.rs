//! What producers of the invalidation queue have to tell each other: whose descriptor was refused,
//! which device timed out, and whose waits may have been aborted with it.
//!
//! Intel Virtualization Technology for Directed I/O (D51397), revision 4.1, sections 6.5.2.10 and
//! 11.4.9.9. All of it under the queue's lock, so the lists are of fixed length: where one is full,
//! more are told than would have to be, and nobody too few.

use arrayvec::ArrayVec;
use portolan::iommu::IommuError;

use super::refusal;

/// Refusals that are kept for who has yet to hear of them.
const MAX_REFUSALS: usize = 64;
/// Devices that timed out, of which is remembered whose requests those may have been.
const MAX_TIMEOUTS: usize = 16;

/// Names one attempt of a submitter, from its first descriptor to its last wait. Later ones have
/// larger numbers.
pub(super) type Owner = u64;

/// Whoever is behind descriptors that nobody waits for any more.
pub(super) const NOBODY: Owner = 0;

/// What became of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waited {
    /// Everything submitted before is complete.
    Done,
    /// A device that this submitter has asked nothing of timed out, and waits were aborted with
    /// it: what was submitted since the last wait has to be submitted again.
    Again,
}

/// The devices whose TLBs a submitter has asked to forget something.
pub(super) trait Asked {
    /// Whether `stream` is one of them.
    fn asked(&self, stream: u16) -> bool;
    /// Whether there are any.
    fn asked_any(&self) -> bool;
}

/// A device that timed out, and the last owner whose request that may have been.
#[derive(Clone, Copy, Debug)]
struct Timeout {
    stream: u16,
    last: Owner,
}

/// Waits were aborted, and these devices are why.
#[derive(Clone, Debug, Default)]
pub(super) struct Aborted {
    timeouts: ArrayVec<Timeout, MAX_TIMEOUTS>,
    /// Up to this one it may have been any device that timed out.
    any_device: Owner,
    /// Up to this one waits may have been aborted.
    last: Owner,
}

impl Aborted {
    /// What that means for `owner`, who has asked devices as `asked` says.
    pub(super) fn verdict(&self, owner: Owner, asked: &impl Asked) -> Result<Waited, IommuError> {
        let mine = |of: &&Timeout| owner <= of.last && asked.asked(of.stream);
        if let Some(of) = self.timeouts.iter().find(mine) {
            let code = refusal::device_tlb(of.stream);
            return Err(IommuError::Refused { code });
        }
        match owner <= self.any_device && asked.asked_any() {
            true => Err(IommuError::Refused {
                code: refusal::DEVICE_TLB,
            }),
            false => Ok(Waited::Again),
        }
    }
}

/// What some have yet to hear.
#[derive(Debug, Default)]
pub(super) struct Told {
    refusals: ArrayVec<(Owner, u32), MAX_REFUSALS>,
    /// Up to this one any may have had a descriptor refused: there was no room to say which.
    unsure: Owner,
    aborted: Aborted,
}

impl Told {
    /// A descriptor of `owner` was refused; `last` is the last owner so far. Returns the last one
    /// that has to ask.
    pub(super) fn refuse(&mut self, owner: Owner, code: u32, last: Owner) -> Owner {
        let known = self.refusals.iter().any(|(of, _)| *of == owner);
        if owner == NOBODY || known {
            return owner;
        }
        match self.refusals.try_push((owner, code)) {
            Ok(()) => owner,
            Err(_) => {
                self.refusals.clear();
                self.unsure = last;
                last
            }
        }
    }

    /// A device did not answer: `stream`, or an unknown one if that is 0, as it is in units that
    /// do not tell. Up to `last`, all waits may have been aborted.
    pub(super) fn timed_out(&mut self, stream: u16, last: Owner) {
        let aborted = &mut self.aborted;
        aborted.last = last;
        let mut known = aborted.timeouts.iter_mut();
        match (stream, known.find(|of| of.stream == stream)) {
            (0, _) => aborted.any_device = last,
            (_, Some(of)) => of.last = last,
            (_, None) => {
                let timeout = Timeout { stream, last };
                if aborted.timeouts.try_push(timeout).is_err() {
                    aborted.timeouts.clear();
                    aborted.any_device = last;
                }
            }
        }
    }

    /// What `owner` has to hear: that something was refused, or that its waits may have been
    /// aborted; what the latter means depends on what it asked, which is looked up after the lock.
    pub(super) fn news(&mut self, owner: Owner) -> Option<Result<Aborted, IommuError>> {
        let at = self.refusals.iter().position(|(of, _)| *of == owner);
        let refused = at.map(|at| self.refusals.swap_remove(at).1);
        let unsure = (owner <= self.unsure).then_some(refusal::DESCRIPTOR);
        if let Some(code) = refused.or(unsure) {
            return Some(Err(IommuError::Refused { code }));
        }
        (owner <= self.aborted.last).then(|| Ok(self.aborted.clone()))
    }

    /// Nobody will ask for `owner`.
    pub(super) fn forget(&mut self, owner: Owner) {
        self.refusals.retain(|(of, _)| *of != owner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Only(Option<u16>);

    impl Asked for Only {
        fn asked(&self, stream: u16) -> bool {
            self.0 == Some(stream)
        }

        fn asked_any(&self) -> bool {
            self.0.is_some()
        }
    }

    fn verdict(told: &mut Told, owner: Owner, asked: Option<u16>) -> Option<Result<Waited, u32>> {
        let news = told.news(owner)?;
        let verdict = news.and_then(|aborted| aborted.verdict(owner, &Only(asked)));
        Some(verdict.map_err(|error| match error {
            IommuError::Refused { code } => code,
            other => panic!("{other}"),
        }))
    }

    #[test]
    fn more_refusals_than_fit_are_told_to_all_that_it_may_have_been() {
        let mut told = Told::default();
        for owner in 1..=MAX_REFUSALS as Owner {
            assert_eq!(told.refuse(owner, 7, 100), owner);
        }
        assert_eq!(told.refuse(NOBODY, 7, 100), NOBODY);
        assert_eq!(verdict(&mut told, 80, None), None);
        assert_eq!(told.refuse(90, 7, 100), 100);
        for owner in [1, 64, 80, 90, 100] {
            let code = refusal::DESCRIPTOR;
            assert_eq!(verdict(&mut told, owner, None), Some(Err(code)));
        }
        assert_eq!(verdict(&mut told, 101, None), None);
    }

    #[test]
    fn more_devices_than_fit_may_be_any_that_was_asked() {
        let mut told = Told::default();
        for stream in 1..=MAX_TIMEOUTS as u16 {
            told.timed_out(stream, 10);
        }
        let known = refusal::device_tlb(3);
        assert_eq!(verdict(&mut told, 10, Some(3)), Some(Err(known)));
        let again = Some(Ok(Waited::Again));
        assert_eq!(verdict(&mut told, 10, Some(99)), again);
        told.timed_out(500, 20);
        let unknown = Some(Err(refusal::DEVICE_TLB));
        assert_eq!(verdict(&mut told, 20, Some(3)), unknown);
        assert_eq!(verdict(&mut told, 20, None), again);
        assert_eq!(verdict(&mut told, 21, Some(3)), None);
    }
}
