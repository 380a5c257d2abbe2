//! State of one device that sends page requests.

use alloc::collections::TryReserveError;
use alloc::sync::Arc;

use super::bounds::Bucket;
use super::counts::Cause;
use super::flat::{FlatMap, room};
use super::{GroupId, Handler, ReplyName, ReplyTo};
use crate::addr::{IovaRange, Pasid, StreamId};
use crate::platform::Nanos;

/// Address space in responses to a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReplyPasid {
    /// As it asked.
    #[default]
    AsAsked,
    /// Never (PCI Express: PRG Response PASID Required is clear).
    Never,
}

/// Requests of a device that are not served: the group is answered with its last request, or in
/// time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refused {
    pub cause: Cause,
    /// Address space that the response names, if any.
    pub pasid: Option<Pasid>,
    pub deadline: Nanos,
}

impl Refused {
    /// Address of the response.
    pub const fn to(&self, stream: StreamId, group: GroupId) -> ReplyTo {
        ReplyTo { stream, pasid: self.pasid, name: ReplyName::Group(group) }
    }
}

/// One address space of a device.
pub(super) enum Space {
    Registered {
        reach: IovaRange,
        handler: Arc<dyn Handler>,
    },
    /// Being unregistered: its groups are being answered.
    Leaving,
}

/// A device.
pub(super) struct FaultingDevice {
    pub spaces: FlatMap<Option<Pasid>, Space>,
    pub reply_pasid: ReplyPasid,
    pub bucket: Bucket,
    /// Its groups that are not answered yet and not refused.
    pub open: usize,
    /// Groups without their last request that are refused; room for every number that there is.
    pub refused: FlatMap<GroupId, Refused>,
    pub stay: Stay,
}

/// State of a device: known, or being forgotten.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Stay {
    #[default]
    Known,
    /// Its requests from now on are answered without a record, so that its groups become fewer.
    Leaving,
}

impl FaultingDevice {
    /// A device of which nothing is known yet.
    ///
    /// *Context.* Task: takes heap memory.
    pub fn new() -> Result<Self, TryReserveError> {
        Ok(Self {
            spaces: FlatMap::default(),
            reply_pasid: ReplyPasid::default(),
            bucket: Bucket::default(),
            open: 0,
            refused: FlatMap::new(room(GroupId::COUNT)?),
            stay: Stay::default(),
        })
    }

    /// Address of the response to `name`.
    pub fn reply_to(&self, stream: StreamId, pasid: Option<Pasid>, name: ReplyName) -> ReplyTo {
        let pasid = match self.reply_pasid {
            ReplyPasid::AsAsked => pasid,
            ReplyPasid::Never => None,
        };
        ReplyTo { stream, pasid, name }
    }

    /// The reach of an address space.
    pub fn reach(&self, pasid: Option<Pasid>) -> Option<IovaRange> {
        match self.spaces.get(&pasid) {
            Some(Space::Registered { reach, .. }) => Some(*reach),
            Some(Space::Leaving) | None => None,
        }
    }

    /// Handler of an address space.
    pub fn handler(&self, pasid: Option<Pasid>) -> Option<Arc<dyn Handler>> {
        match self.spaces.get(&pasid) {
            Some(Space::Registered { handler, .. }) => Some(Arc::clone(handler)),
            Some(Space::Leaving) | None => None,
        }
    }
}
