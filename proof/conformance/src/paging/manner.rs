//! Devices that do not keep to the rules of page requests, each in its own way.

use portolan::addr::{Iova, Pasid, StreamId};
use portolan::iommu::TagPool;
use portolan::iopf::{GroupId, Permissions, Place, RawPageRequest, RequestKind, Taken};

use super::cpu::PagingRig;
use super::devices::{GroupRequest, Manner, add};
use super::world::{BASE, PAGE, PAGES};
use fastrand::Rng;

/// Groups that a flood begins at once.
const FLOOD: u16 = 48;
/// An address space that is not registered.
const UNKNOWN: Pasid = Pasid::new(77);

impl<Q: TagPool + Send + Sync + 'static> PagingRig<'_, Q> {
    /// Sends a request.
    pub(super) fn send(&self, asked: GroupRequest) -> Taken {
        add(&self.tally.requests, 1);
        let GroupRequest { group, place, .. } = asked;
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
    pub(super) fn send_owed(&self, asked: GroupRequest) {
        self.devices.owe(asked.stream, asked.group);
        match self.send(asked) {
            Taken::Duplicate => self.devices.settle(asked.stream, asked.group),
            _ => add(&self.tally.groups, 1),
        }
    }

    /// Misbehaves in its manner.
    pub(super) fn misbehave(&self, stream: StreamId, rng: &mut Rng) {
        let Some(group) = self.devices.free(stream) else {
            return;
        };
        let asked =
            GroupRequest { stream, pasid: None, group, page: rng.u64(..PAGES), place: Place::Last };
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
