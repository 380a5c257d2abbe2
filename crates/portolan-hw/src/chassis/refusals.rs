//! Record of refused commands and of devices that did not answer, which a ring keeps until the
//! producers concerned have asked.

use arrayvec::ArrayVec;

use super::ring::Sync;

/// Refusals remembered.
pub(crate) const KEPT: usize = 64;

/// Names one producer's commands, from the first to the sync behind the last.
pub(super) type Owner = u64;

/// Owner of commands for which no producer waits.
pub(super) const NOBODY: Owner = 0;

/// The owner of syncs: several producers may wait for one.
pub(super) const SYNC: Owner = Owner::MAX;

/// One producer's commands in the ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket {
    pub(super) owner: Owner,
    /// Position of the first of them.
    pub(super) first: u64,
    /// Position behind the last.
    pub(super) end: u64,
    /// Value of [`Refusals::news`] when the first command was written.
    pub(super) news: u64,
}

/// One refusal.
#[derive(Clone, Copy, Debug)]
enum Refusal {
    /// The unit refused a command.
    Command { owner: Owner, position: u64, code: u32 },
    /// A device did not answer: `None` if the unit does not name it. It concerns producers that
    /// asked that device before position `before`, and whose sync is behind position `after`.
    Device { stream: Option<u16>, after: u64, before: u64 },
}

/// The last refusals.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    kept: ArrayVec<Refusal, KEPT>,
    /// Up to here refusals of commands were overwritten.
    commands: u64,
    /// Up to here a device that did not answer was overwritten.
    devices: u64,
    /// Number of additions since the start.
    pub(super) news: u64,
}

/// The devices that did not answer and that a producer may have asked; `None` for an unknown one.
pub(super) type Silent = ArrayVec<Option<u16>, { KEPT + 1 }>;

/// Something that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RefusedBecause {
    /// With this code.
    Code(u32),
    /// Perhaps: the record was overwritten.
    Overwritten,
}

impl Refusals {
    /// The command of `owner` at `position` was refused.
    pub(super) fn refuse(&mut self, owner: Owner, position: u64, code: u32) {
        let told =
            |kept: &Refusal| matches!(kept, Refusal::Command { owner: of, .. } if *of == owner);
        if owner == NOBODY || owner != SYNC && self.kept.iter().any(told) {
            return;
        }
        self.add(Refusal::Command { owner, position, code });
    }

    /// A device did not answer; the arguments are those of [`Refusal::Device`].
    pub(super) fn time_out(&mut self, stream: Option<u16>, after: u64, before: u64) {
        self.kept.retain(|kept| {
            !matches!(kept, Refusal::Device { stream: of, after: from, .. }
                if (*of, *from) == (stream, after))
        });
        self.add(Refusal::Device { stream, after, before });
    }

    fn add(&mut self, refusal: Refusal) {
        if self.kept.is_full() {
            match self.kept.remove(0) {
                Refusal::Command { position, .. } => {
                    self.commands = self.commands.max(position + 1);
                }
                Refusal::Device { before, .. } => self.devices = self.devices.max(before),
            }
        }
        self.kept.push(refusal);
        self.news += 1;
    }

    /// Returns the outcome for `ticket`, whose commands are complete with `sync`.
    pub(super) fn concern(&self, ticket: &Ticket, sync: Sync) -> Result<Silent, RefusedBecause> {
        let mut silent = Silent::new();
        for kept in &self.kept {
            match *kept {
                Refusal::Command { owner, position, code } => {
                    let shared = owner == SYNC && position + 1 == sync.position;
                    if shared || owner == ticket.owner {
                        return Err(RefusedBecause::Code(code));
                    }
                }
                Refusal::Device { stream, after, before } => {
                    if ticket.first < before && sync.position > after {
                        silent.push(stream);
                    }
                }
            }
        }
        if ticket.first < self.commands {
            return Err(RefusedBecause::Overwritten);
        }
        if ticket.first < self.devices {
            silent.push(None);
        }
        Ok(silent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticket(owner: Owner, first: u64) -> Ticket {
        Ticket { owner, first, end: first + 1, news: 0 }
    }

    /// Returns the outcome for a producer whose command is at `first` and whose sync is right
    /// behind.
    fn hears(refusals: &Refusals, owner: Owner, first: u64) -> Result<usize, RefusedBecause> {
        let position = first + 2;
        let sync = Sync { position, number: 0 };
        refusals.concern(&ticket(owner, first), sync).map(|silent| silent.len())
    }

    #[test]
    fn more_refusals_than_fit_are_told_to_all_that_it_may_have_been() {
        let mut refusals = Refusals::default();
        for owner in 1..=KEPT as Owner {
            refusals.refuse(owner, owner, 7);
            refusals.refuse(owner, owner, 8);
            refusals.refuse(NOBODY, owner, 7);
        }
        assert_eq!(hears(&refusals, 99, 0), Ok(0));
        assert_eq!(hears(&refusals, 1, 1), Err(RefusedBecause::Code(7)));
        refusals.refuse(90, 90, 7);
        // The first's was overwritten: it hears that, and so does another that began before it.
        assert_eq!(hears(&refusals, 1, 1), Err(RefusedBecause::Overwritten));
        assert_eq!(hears(&refusals, 99, 0), Err(RefusedBecause::Overwritten));
        assert_eq!(hears(&refusals, 99, 2), Ok(0));
        assert_eq!(hears(&refusals, 64, 64), Err(RefusedBecause::Code(7)));
    }

    #[test]
    fn a_refused_sync_is_told_to_all_who_wait_for_it() {
        let mut refusals = Refusals::default();
        refusals.refuse(SYNC, 5, 7);
        assert_eq!(hears(&refusals, 1, 4), Err(RefusedBecause::Code(7)));
        assert_eq!(hears(&refusals, 1, 3), Ok(0));
        assert_eq!(hears(&refusals, 1, 5), Ok(0));
    }

    #[test]
    fn more_silent_devices_than_fit_may_be_any_that_was_asked() {
        let mut refusals = Refusals::default();
        for stream in 1..=KEPT as u16 {
            for _ in 0..2 {
                refusals.time_out(Some(stream), 0, 10);
            }
        }
        assert_eq!(hears(&refusals, 1, 9), Ok(KEPT));
        assert_eq!(hears(&refusals, 1, 10), Ok(0));
        refusals.time_out(None, 20, 21);
        assert_eq!(hears(&refusals, 1, 9), Ok(KEPT));
        assert_eq!(hears(&refusals, 1, 20), Ok(1));
        assert_eq!(hears(&refusals, 1, 21), Ok(0));
    }
}
