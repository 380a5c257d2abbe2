//! Devices that do not keep to the rules of page requests, each in its own way.

use portolan::addr::{Iova, Pasid, StreamId};
use portolan::iommu::TagPool;
use portolan::iopf::{GroupId, Permissions, Place, RawPageRequest, RequestKind, Taken};

use super::cpu::{Rig, add};
use super::world::{BASE, PAGE, PAGES};
use fastrand::Rng;

/// Groups that a flood begins at once.
const FLOOD: u16 = 48;
/// An address space that nobody registered.
const UNKNOWN: Pasid = Pasid::new(77);

/// What every second device of a round does now and then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manner {
    /// Nothing wrong.
    Good,
    /// It does not send the last request of a group.
    NoLast,
    /// It sends the last request of a group twice.
    Twice,
    /// It names an address space that it does not have.
    WrongPasid,
    /// It sends more groups than it may.
    Flood,
    /// It is reset, and forgets what it asked for: responses come after that.
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

/// One request of a group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) stream: StreamId,
    pub(super) pasid: Option<Pasid>,
    pub(super) group: GroupId,
    pub(super) page: u64,
    pub(super) place: Place,
}

impl<Q: TagPool + Send + Sync + 'static> Rig<'_, Q> {
    /// Sends a request.
    pub(super) fn send(&self, asked: Asked) -> Taken {
        add(&self.tally.requests, 1);
        let Asked { group, place, .. } = asked;
        let raw = RawPageRequest {
            stream: asked.stream,
            pasid: asked.pasid,
            iova: Iova::new(BASE + asked.page * PAGE),
            wants: Permissions::READ | Permissions::WRITE,
            kind: RequestKind::Pri { group, place },
        };
        let Ok(taken) = self.dispatcher.accept(raw);
        taken
    }

    /// Sends a request for which a response is owed, unless the dispatcher drops it.
    pub(super) fn send_owed(&self, asked: Asked) {
        self.devices.owe(asked.stream, asked.group);
        match self.send(asked) {
            Taken::Duplicate => self.devices.settle(asked.stream, asked.group),
            _ => add(&self.tally.groups, 1),
        }
    }

    /// Does what its manner is.
    pub(super) fn misbehave(&self, stream: StreamId, rng: &mut Rng) {
        let Some(group) = self.devices.free(stream) else {
            return;
        };
        let asked = Asked {
            stream,
            pasid: None,
            group,
            page: rng.u64(..PAGES),
            place: Place::Last,
        };
        match self.manner {
            Manner::Good => {}
            Manner::NoLast => self.send_owed(Asked {
                place: Place::More,
                ..asked
            }),
            Manner::Twice => {
                self.send_owed(asked);
                self.send_owed(asked);
            }
            Manner::WrongPasid => self.send_owed(Asked {
                pasid: Some(UNKNOWN),
                ..asked
            }),
            Manner::Flood => {
                for number in 0..FLOOD {
                    let group = GroupId::new(64 + number);
                    if !self.devices.waits(stream, group) {
                        self.send_owed(Asked { group, ..asked });
                    }
                }
            }
            Manner::Reset => self.devices.forget(stream),
        }
    }
}
