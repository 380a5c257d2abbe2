//! A cache line: its owner, its sharers, and the time at which it is free.

use super::scheduler::Core;

/// Kind of an access to a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LineAccess {
    Read,
    /// A write, or a read and a write in one step.
    Write,
}

/// A line that one CPU has for itself, or that several have for reading.
#[derive(Debug, Default)]
pub(super) struct Line {
    owner: Option<u16>,
    /// Bit by CPU: has it for reading, the owner included.
    sharers: [u64; 4],
    /// Time at which the last transfer of it ends, in picoseconds.
    free_at: u64,
}

impl Line {
    fn has(&self, cpu: usize) -> bool {
        self.sharers[cpu / 64] >> (cpu % 64) & 1 != 0
    }

    /// The current CPU accesses it, which takes `hit` if the CPU has it.
    pub(super) fn touch(&mut self, core: &mut Core, access: LineAccess, hit: u64) {
        let cpu = core.current();
        let is_here = match access {
            LineAccess::Read => self.has(cpu),
            LineAccess::Write => self.owner == Some(cpu as u16),
        };
        if is_here {
            core.counters.hits += 1;
            core.advance(hit);
            return;
        }
        match access {
            LineAccess::Read => self.read(core),
            LineAccess::Write => self.write(core),
        }
    }

    fn read(&mut self, core: &mut Core) {
        let cpu = core.current();
        let free_at = self.transfer(core);
        // The owner has to be asked; a line that is only shared is there for several at a time.
        self.free_at = match self.owner.take() {
            Some(_) => core.now(),
            None => free_at + core.ticks.share,
        };
        self.sharers[cpu / 64] |= 1 << (cpu % 64);
    }

    fn write(&mut self, core: &mut Core) {
        let cpu = core.current();
        self.transfer(core);
        self.free_at = core.now();
        self.owner = Some(cpu as u16);
        let mut others = std::mem::take(&mut self.sharers);
        others[cpu / 64] &= !(1 << (cpu % 64));
        self.sharers[cpu / 64] = 1 << (cpu % 64);
        let at = core.now();
        for (word, mut bits) in others.into_iter().enumerate() {
            while bits != 0 {
                core.disturb(word * 64 + bits.trailing_zeros() as usize, at);
                bits &= bits - 1;
            }
        }
    }

    /// `cpu` has it for itself from `at` on: a lock was handed to it.
    pub(super) fn hand_to(&mut self, cpu: usize, at: u64) {
        self.owner = Some(cpu as u16);
        self.sharers = [0; 4];
        self.sharers[cpu / 64] = 1 << (cpu % 64);
        self.free_at = at;
    }

    /// Brings it here; returns when the transfer began.
    fn transfer(&self, core: &mut Core) -> u64 {
        let wait = self.free_at.saturating_sub(core.now());
        core.counters.transfers += 1;
        core.advance(wait);
        let begin = core.now();
        core.advance(core.ticks.transfer);
        begin
    }
}
