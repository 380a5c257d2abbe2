//! Devices that do not keep to the rules of page requests, each in its own way.

use fastrand::Rng;
use portolan::addr::{Pasid, StreamId};
use portolan::iopf::{GroupId, Permissions, Place, RawPageRequest, RequestKind, Taken};

use super::devices::{GroupRequest, Manner};
use super::region::{FaultingRegion, PAGES, page_at};

/// Groups that a flood begins at once.
const FLOOD: u16 = 48;
/// An address space that is not registered.
const UNKNOWN: Pasid = Pasid::new(77);

impl FaultingRegion<'_> {
    /// Sends a request.
    pub(super) fn send(&self, asked: GroupRequest) -> Taken {
        self.machine.tally.operation();
        let GroupRequest { stream, pasid, group, iova, place } = asked;
        let Ok(taken) = self.dispatcher.accept(RawPageRequest {
            stream,
            pasid,
            iova,
            wants: Permissions::READ | Permissions::WRITE,
            kind: RequestKind::Pri { group, place },
        });
        taken
    }

    /// Sends a request for which a response is owed, unless the dispatcher drops it.
    pub(super) fn send_owed(&self, asked: GroupRequest) {
        self.devices.owe(asked.stream, asked.group);
        match self.send(asked) {
            Taken::Duplicate => self.devices.settle(asked.stream, asked.group),
            _ => self.machine.tally.count("groups"),
        }
    }

    /// Misbehaves in the round's manner.
    pub(super) fn misbehave(&self, stream: StreamId, rng: &mut Rng) {
        let Some(group) = self.devices.free(stream) else {
            return;
        };
        let iova = page_at(rng.u64(..PAGES));
        let asked = GroupRequest { stream, pasid: None, group, iova, place: Place::Last };
        match self.manner {
            Manner::Good => {}
            Manner::NoLast => self.send_owed(GroupRequest { place: Place::More, ..asked }),
            Manner::Twice => {
                self.send_owed(asked);
                self.send_owed(asked);
            }
            Manner::WrongPasid => self.send_owed(GroupRequest { pasid: Some(UNKNOWN), ..asked }),
            Manner::Flood => {
                for number in 0..FLOOD {
                    let group = GroupId::new(64 + number);
                    if !self.devices.waits(stream, group) {
                        self.send_owed(GroupRequest { group, ..asked });
                    }
                }
            }
            Manner::Reset => self.devices.forget(stream),
        }
    }
}
