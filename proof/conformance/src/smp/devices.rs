//! The devices' side of page requests: the responses that they are owed, and the rules that they break.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use portolan::addr::{Iova, Pasid, StreamId};
use portolan::iopf::{GroupId, Place, ReplyName, ReplyTo, Responder, Response};

use crate::record::Tally;

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
    pub(super) const fn of_round(seed: u64) -> Self {
        match seed % 6 {
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
    pub(super) iova: Iova,
    pub(super) place: Place,
}

/// Name of a group.
type Name = (StreamId, ReplyName);

/// Devices with groups that wait for their response.
#[derive(Clone, Debug)]
pub(super) struct AskingDevices {
    owed: Arc<Mutex<OwedResponses>>,
    tally: Arc<Tally>,
}

/// Expected responses by group.
#[derive(Debug, Default)]
struct OwedResponses {
    waiting: BTreeMap<Name, u64>,
    /// Of groups that a device forgot when it was reset.
    forgotten: BTreeMap<Name, u64>,
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

impl AskingDevices {
    pub(super) fn new(tally: Arc<Tally>) -> Self {
        Self { owed: Arc::default(), tally }
    }

    fn owed(&self) -> MutexGuard<'_, OwedResponses> {
        self.owed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of groups without a response.
    pub(super) fn left(&self) -> usize {
        let owed = self.owed();
        owed.waiting.len() + owed.forgotten.len()
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
        let OwedResponses { waiting, forgotten } = &mut *owed;
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

impl Responder for AskingDevices {
    type Error = core::convert::Infallible;

    fn respond(&self, to: ReplyTo, response: Response) -> Result<(), Self::Error> {
        self.tally.count(match response {
            Response::Success => "responses_success",
            Response::Invalid => "responses_invalid",
            Response::Failure => "responses_failure",
        });
        if !self.take((to.stream, to.name)) {
            let (name, stream) = (to.name, to.stream);
            self.tally.violation(format!("{name:?} of {stream:?} got a response twice"));
        }
        Ok(())
    }
}
