//! The devices' side of a round: the responses they are owed, their misbehaviour, and the counts.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use portolan::addr::{Pasid, StreamId};
use portolan::iopf::{GroupId, Place, ReplyName, ReplyTo, Responder, Response};

/// Violations that are told.
const TOLD: usize = 5;
/// Groups of a device that may be on their way.
const GROUPS: u16 = 8;

/// Misbehaviour of every second device of a round, now and then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manner {
    /// Correct.
    Good,
    /// The last request of a group is missing.
    NoLast,
    /// The last request of a group is sent twice.
    Twice,
    /// A PASID that the device does not have.
    WrongPasid,
    /// More groups than allowed.
    Flood,
    /// The device is reset and forgets its requests; responses come afterwards.
    Reset,
}

impl Manner {
    /// Each in its turn.
    pub(super) const fn of_round(round: u64) -> Self {
        match round % 6 {
            0 => Self::Good,
            1 => Self::NoLast,
            2 => Self::Twice,
            3 => Self::WrongPasid,
            4 => Self::Flood,
            _ => Self::Reset,
        }
    }
}

/// A request of a group.
#[derive(Clone, Copy, Debug)]
pub(super) struct GroupRequest {
    pub(super) stream: StreamId,
    pub(super) pasid: Option<Pasid>,
    pub(super) group: GroupId,
    pub(super) page: u64,
    pub(super) place: Place,
}

/// Events of a run, counted, and its violations.
#[derive(Debug, Default)]
pub(super) struct PagingTally {
    pub(super) requests: AtomicU64,
    pub(super) groups: AtomicU64,
    pub(super) accesses: AtomicU64,
    pub(super) leaving: AtomicU64,
    pub(super) invalidations: AtomicU64,
    pub(super) detached: AtomicU64,
    pub(super) misbehaved: AtomicU64,
    pub(super) removed: AtomicU64,
    pub(super) cleared: AtomicU64,
    pub(super) syncs_failed: AtomicU64,
    /// Ranges that were taken back in vain.
    pub(super) not_quiet: AtomicU64,
    /// Ranges of these that came back before the end of the round.
    pub(super) back: AtomicU64,
    pub(super) removed_in_vain: AtomicU64,
    pub(super) responses: [AtomicU64; 3],
    pub(super) violations: Mutex<Vec<String>>,
}

pub(super) fn add(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

impl PagingTally {
    pub(super) fn violation(&self, text: String) {
        let mut all = (self.violations.lock()).unwrap_or_else(PoisonError::into_inner);
        if all.len() < TOLD {
            all.push(text);
        }
    }
}

/// Name of a group.
type Name = (StreamId, ReplyName);

/// The devices' side: groups that wait for their response.
#[derive(Clone, Debug)]
pub(super) struct PagingDevices {
    pub(super) owed: Arc<Mutex<Owed>>,
    pub(super) tally: Arc<PagingTally>,
}

/// Expected responses by group.
#[derive(Debug, Default)]
pub(super) struct Owed {
    waiting: BTreeMap<Name, u64>,
    /// Groups that a device forgot when it was reset.
    forgotten: BTreeMap<Name, u64>,
}

impl Owed {
    /// Number of groups without a response.
    pub(super) fn left(&self) -> usize {
        self.waiting.len() + self.forgotten.len()
    }
}

/// Subtracts one; returns if there was one.
fn take_one(map: &mut BTreeMap<Name, u64>, name: Name) -> bool {
    let Some(count) = map.get_mut(&name) else {
        return false;
    };
    *count -= 1;
    if *count == 0 {
        map.remove(&name);
    }
    true
}

impl PagingDevices {
    fn owed(&self) -> std::sync::MutexGuard<'_, Owed> {
        self.owed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells if a group of that name waits.
    pub(super) fn waits(&self, stream: StreamId, group: GroupId) -> bool {
        let name = (stream, ReplyName::Group(group));
        self.owed().waiting.contains_key(&name)
    }

    /// A number that no group of `stream` has.
    pub(super) fn free(&self, stream: StreamId) -> Option<GroupId> {
        let mut numbers = (0..GROUPS).map(GroupId::new);
        numbers.find(|group| !self.waits(stream, *group))
    }

    /// Notes that one more response has to come.
    pub(super) fn owe(&self, stream: StreamId, group: GroupId) {
        let name = (stream, ReplyName::Group(group));
        *self.owed().waiting.entry(name).or_default() += 1;
    }

    /// Notes that one response less has to come, because the request was dropped.
    pub(super) fn settle(&self, stream: StreamId, group: GroupId) {
        self.take((stream, ReplyName::Group(group)));
    }

    /// The device no longer knows its requests.
    pub(super) fn forget(&self, stream: StreamId) {
        let mut owed = self.owed();
        let Owed { waiting, forgotten } = &mut *owed;
        waiting.retain(|name, count| {
            let gone = name.0 == stream;
            if gone {
                *forgotten.entry(*name).or_default() += *count;
            }
            !gone
        });
    }

    fn take(&self, name: Name) -> bool {
        let mut owed = self.owed();
        take_one(&mut owed.waiting, name) || take_one(&mut owed.forgotten, name)
    }
}

impl Responder for PagingDevices {
    type Error = core::convert::Infallible;

    fn respond(&self, to: ReplyTo, response: Response) -> Result<(), Self::Error> {
        let asked = self.take((to.stream, to.name));
        let place = Response::ALL.iter().position(|other| *other == response);
        add(&self.tally.responses[place.unwrap_or(0)], 1);
        if !asked {
            let text = format!("{:?} of {:?} got a response twice", to.name, to.stream);
            self.tally.violation(text);
        }
        Ok(())
    }
}
