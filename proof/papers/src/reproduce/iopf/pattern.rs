//! Accesses of the accelerator's test, in their order.
//!
//! *Known.* Each message is read from a source buffer and written to a destination buffer of its
//! length: 512 pages for 1 MiB. The shared-address rows have 512 faults for one message and 1024
//! from 100 on: so there are two such pairs, used in turn. Entries of HiSilicon queues are 128 bytes
//! for a request and 16 for a completion.
//!
//! *Chosen.* A guest's device accesses its queues through the same second stage; a process's queues
//! are the kernel's and do not count. One message of 1 MiB takes 518 faults: with a page of requests
//! and a page of completions that leaves 4 pages for keys, vectors and other control memory
//! ([`CONTROL_PAGES`]). Each pair of buffers has a queue of its own, deep enough that 2500 requests
//! do not wrap ([`DEPTH`]): with 1024 the 5000 messages would take 1104 faults, with 4096 they take
//! the published number within a hundredth.

use anyhow::Result;
use portolan_sim::decode::AccessKind;

use super::machine::Machine;

const PAGE: u64 = 4096;
/// Bytes of a request.
const REQUEST: u64 = 128;
/// Bytes of a completion.
const COMPLETION: u64 = 16;
/// Entries of a queue: chosen, see above.
pub(super) const DEPTH: u64 = 4096;
/// Pages of control memory: chosen, see above.
pub(super) const CONTROL_PAGES: u64 = 4;
/// Pairs of buffers that are used alternately.
const PAIRS: u64 = 2;
/// Pages between two areas, so that no window reaches from one to another.
const APART: u64 = (64 << 20) / PAGE;

/// Bytes of memory that hold all of it.
pub(super) const MEMORY: u64 = 16 * APART * PAGE;

/// Owner of the queues that a device accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queues {
    /// The guest's, in its memory.
    Inside,
    /// The kernel's, elsewhere.
    Elsewhere,
}

/// Encrypts `times` messages of `bytes` bytes.
pub(super) fn encrypt(machine: &mut Machine, bytes: u64, times: u64, queues: Queues) -> Result<()> {
    let pages = bytes.div_ceil(PAGE);
    // Nothing is taken back in these runs: a pair that did not fault will not, and is then accessed
    // at its first pages only.
    let mut settled = [false; PAIRS as usize];
    for number in 0..times {
        let (pair, entry) = (number % PAIRS, number / PAIRS);
        let place = |what: u64| (pair * 5 + what) * APART;
        if queues == Queues::Inside {
            for page in 0..CONTROL_PAGES {
                machine.access(place(0) + page, AccessKind::Read)?;
            }
            let request = entry % DEPTH * REQUEST / PAGE;
            machine.access(place(1) + request, AccessKind::Read)?;
        }
        let settled = &mut settled[pair as usize];
        let reach = if *settled { 1 } else { pages };
        let mut faulted = false;
        for page in 0..reach {
            faulted |= machine.access(place(2) + page, AccessKind::Read)?;
            faulted |= machine.access(place(3) + page, AccessKind::Write)?;
        }
        *settled |= !faulted;
        if queues == Queues::Inside {
            let completion = entry % DEPTH * COMPLETION / PAGE;
            machine.access(place(4) + completion, AccessKind::Write)?;
        }
    }
    Ok(())
}

/// Reads `pages` pages one after the other.
pub(super) fn sequence(machine: &mut Machine, pages: u64) -> Result<()> {
    for page in 0..pages {
        machine.access(page, AccessKind::Read)?;
    }
    Ok(())
}

/// Reads `count` random pages of the first `pages`.
pub(super) fn random(machine: &mut Machine, seed: u64, pages: u64, count: u64) -> Result<()> {
    let mut rng = fastrand::Rng::with_seed(seed);
    for _ in 0..count {
        machine.access(rng.u64(..pages), AccessKind::Read)?;
    }
    Ok(())
}
