//! Commands that a unit refuses (IHI 0070, section 7.1), and who is told.

use super::*;
use crate::smmuv3::spec::command::error;

/// Refusals remembered for producers that have not asked yet.
pub(super) const FAILURES: usize = 32;

/// A refused command.
#[derive(Clone, Copy, Debug)]
pub(super) struct Failure {
    position: u64,
    code: u32,
    /// Whose it was; `None` if it may have been anybody's before who asked a device.
    owner: Option<u64>,
}

impl<R: Mmio, M: TableMem<AtomicU64>, C: Cpus> CommandQueue<R, M, C> {
    /// Whether a command of `ticket`, complete up to `position`, was refused.
    pub(super) fn verdict(&self, ticket: &Ticket, position: u64) -> Result<(), IommuError> {
        if self.failed.load(Ordering::Acquire) == ticket.failed {
            return Ok(());
        }
        let concerns = |failure: &Failure| match failure.owner {
            Some(owner) => owner == ticket.owner,
            None => {
                let commands = ticket.first..position;
                ticket.devices == Has::Yes && commands.contains(&failure.position)
            }
        };
        let ring = self.ring.lock();
        let dropped = ring.forgotten.filter(|f| f.position >= ticket.first);
        let mine = ring.failures.iter().find(|failure| concerns(failure));
        match mine.copied().or(dropped) {
            Some(Failure { code, .. }) => Err(IommuError::Refused { code }),
            None => Ok(()),
        }
    }

    /// Reads how far the unit is, and puts it back to work if it stopped at a command.
    pub(super) fn observe(&self, ring: &mut Ring) -> Result<(), IommuError> {
        let value = self.machine.read(reg::CMDQ_CONS)?;
        let mask = (2u64 << self.lg2) - 1;
        let left = ring.produced.wrapping_sub(value.into()) & mask;
        if left > ring.produced - ring.consumed {
            let offset = reg::CMDQ_CONS;
            let value = value.into();
            return Err(IommuError::Nonsense { offset, value });
        }
        ring.consumed = ring.produced - left;
        self.done.fetch_max(ring.consumed, Ordering::Release);
        let code = reg::CONS_ERR.of(value.into()) as u32;
        if left == 0 || code == 0 {
            return Ok(());
        }
        let errors = self.machine.errors()?;
        if errors & reg::gerror::SFM != 0 {
            self.set_stopped();
            return Err(IommuError::Stopped);
        }
        if errors & reg::gerror::CMDQ != 0 {
            self.recover(ring, code)?;
        }
        Ok(())
    }

    /// The unit stopped at the command at `ring.consumed`.
    fn recover(&self, ring: &mut Ring, code: u32) -> Result<(), IommuError> {
        let position = ring.consumed;
        let slot = self.slot(position);
        let owner = match code {
            // It will be fetched again; if that never works, the wait ends.
            error::ABT => return self.machine.acknowledge(reg::gerror::CMDQ),
            // The sync is done again; whoever waits behind it is told.
            error::ATC_INV_SYNC => None,
            _ => {
                self.fill(slot, &command::sync());
                self.machine.barrier();
                Some(ring.owners[slot])
            }
        };
        let known = ring.failures.iter().any(|f| f.position == position);
        if !known {
            if ring.failures.is_full() {
                ring.forgotten = ring.failures.pop_at(0);
            }
            ring.failures.push(Failure {
                position,
                code,
                owner,
            });
            self.failed.fetch_add(1, Ordering::Release);
        }
        self.machine.acknowledge(reg::gerror::CMDQ)
    }
}
