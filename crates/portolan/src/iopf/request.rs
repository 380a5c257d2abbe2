//! Page requests: as a device sent them, and as far as they make sense.
//!
//! Follows the meaning of page requests in PCI Express (Address Translation Services, page-request
//! interface), and of stalled transactions where a unit can hold an access back. Encodings are the
//! drivers'.

use crate::addr::{Iova, PageSize, Pasid, StreamId};
use thiserror::Error;

/// Number of a page request group, which a device chooses (9 bits).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct GroupId(u16);

impl GroupId {
    /// Number of identifiers for one device.
    pub const COUNT: usize = 512;

    /// A group from its number.
    pub const fn new(raw: u16) -> Self {
        Self(raw)
    }

    /// The number.
    pub const fn get(self) -> u16 {
        self.0
    }
}

/// Number of a stalled access, which a unit chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct StallTag(u16);

impl StallTag {
    /// A tag from its number.
    pub const fn new(raw: u16) -> Self {
        Self(raw)
    }

    /// The number.
    pub const fn get(self) -> u16 {
        self.0
    }
}

bitflags::bitflags! {
    /// Access that a request wants.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct Permissions: u8 {
        /// To read.
        const READ = 1;
        /// To write.
        const WRITE = 1 << 1;
        /// To execute code that it reads.
        const EXECUTE = 1 << 2;
        /// To do so as the privileged.
        const PRIVILEGED = 1 << 3;
    }
}

/// Permissions that are an access.
const ACCESS: Permissions = Permissions::READ.union(Permissions::WRITE);

/// Permissions that only an address space that is named can allow.
const NAMED: Permissions = Permissions::EXECUTE.union(Permissions::PRIVILEGED);

/// Place of a request in its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// Others follow.
    More,
    /// The last: now the group wants its response.
    Last,
}

/// Way by which a request came, and its name in the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RequestKind {
    /// The device asked, and goes on with other things.
    Pri {
        /// Its group.
        group: GroupId,
        /// Its place there.
        place: Place,
    },
    /// The unit holds the access back; it is a group of its own.
    Stall {
        /// The tag by which the unit knows the stalled access.
        tag: StallTag,
    },
}

/// A request as it came from a device or a unit: nothing is trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RawPageRequest {
    /// The stream of the device that asks.
    pub stream: StreamId,
    /// The PASID of the request, if the device sent one.
    pub pasid: Option<Pasid>,
    /// The address that faulted; page requests have the page's first address.
    pub iova: Iova,
    /// The permissions that the access needs.
    pub wants: Permissions,
    /// The interface that brought it: a page request or a stall.
    pub kind: RequestKind,
}

/// Reason for which a request makes no sense from any device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum BadRequest {
    /// It wants neither to read nor to write.
    #[error("a request for {wants:?}, which is no access")]
    NoAccess {
        /// Permissions that it wants.
        wants: Permissions,
    },
    /// It executes without reading, or has rights of an address space that it does not name.
    #[error("a request for {wants:?}, which cannot be")]
    Impossible {
        /// Permissions that it wants.
        wants: Permissions,
    },
    /// An address space beyond 20 bits.
    #[error("{pasid:?} has more than 20 bits")]
    Pasid {
        /// The PASID that is too large.
        pasid: Pasid,
    },
    /// A group beyond 9 bits.
    #[error("{group:?} has more than 9 bits")]
    Group {
        /// The group index that is too large.
        group: GroupId,
    },
}

impl RawPageRequest {
    /// Tells if it only says that a device has stopped to use an address space; that wants no
    /// response.
    pub fn is_stop_marker(&self) -> bool {
        let last = matches!(self.kind, RequestKind::Pri { place: Place::Last, .. });
        last && self.pasid.is_some() && !self.wants.intersects(ACCESS)
    }

    /// Address of the response.
    pub const fn reply_to(&self) -> ReplyTo {
        let name = match self.kind {
            RequestKind::Pri { group, .. } => ReplyName::Group(group),
            RequestKind::Stall { tag } => ReplyName::Stall(tag),
        };
        ReplyTo { stream: self.stream, pasid: self.pasid, name }
    }

    /// The request, if it makes sense by itself. Others decide if the device may reach that
    /// address.
    ///
    /// # Errors
    /// The first thing that makes none.
    pub fn check(self) -> Result<PageRequest, BadRequest> {
        let wants = self.wants;
        if let RequestKind::Pri { group, .. } = self.kind {
            if usize::from(group.get()) >= GroupId::COUNT {
                return Err(BadRequest::Group { group });
            }
            if self.pasid.is_none() && wants.intersects(NAMED) {
                return Err(BadRequest::Impossible { wants });
            }
        }
        if let Some(pasid) = self.pasid.filter(|pasid| pasid.get() >> 20 != 0) {
            return Err(BadRequest::Pasid { pasid });
        }
        if !wants.intersects(ACCESS) {
            return Err(BadRequest::NoAccess { wants });
        }
        if wants.contains(Permissions::EXECUTE) && !wants.contains(Permissions::READ) {
            return Err(BadRequest::Impossible { wants });
        }
        Ok(PageRequest(self))
    }
}

/// A request that makes sense by itself: it wants something that can be had, and its numbers are
/// as wide as they may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageRequest(RawPageRequest);

impl PageRequest {
    /// The stream of the device that asks.
    pub const fn stream(&self) -> StreamId {
        self.0.stream
    }

    /// The PASID of the request, if the device sent one.
    pub const fn pasid(&self) -> Option<Pasid> {
        self.0.pasid
    }

    /// The address that faulted.
    pub const fn iova(&self) -> Iova {
        self.0.iova
    }

    /// The first address of the page of `size` around it.
    pub const fn page(&self, size: PageSize) -> Iova {
        Iova::new(self.0.iova.get() & !(size.bytes() - 1))
    }

    /// Access that it wants: at least one of reading and writing.
    pub const fn wants(&self) -> Permissions {
        self.0.wants
    }

    /// By which way.
    pub const fn kind(&self) -> RequestKind {
        self.0.kind
    }

    /// Its place in its group; a stalled access is the last of its own.
    pub const fn place(&self) -> Place {
        match self.0.kind {
            RequestKind::Pri { place, .. } => place,
            RequestKind::Stall { .. } => Place::Last,
        }
    }

    /// Address of the response.
    pub const fn reply_to(&self) -> ReplyTo {
        self.0.reply_to()
    }
}

/// Name by which a device knows a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReplyName {
    /// A page request group.
    Group(GroupId),
    /// A stalled access.
    Stall(StallTag),
}

/// Address of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplyTo {
    /// To which device.
    pub stream: StreamId,
    /// With which address space, if it wants that back.
    pub pasid: Option<Pasid>,
    /// Group or stall that it answers.
    pub name: ReplyName,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pri(wants: Permissions, place: Place) -> RawPageRequest {
        let group = GroupId::new(3);
        RawPageRequest {
            stream: StreamId::new(7),
            pasid: Some(Pasid::new(1)),
            iova: Iova::new(0x1234_5000),
            wants,
            kind: RequestKind::Pri { group, place },
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let raw = pri(Permissions::READ | Permissions::EXECUTE, Place::More);
        assert!(raw.check().is_ok());
        let unnamed = RawPageRequest { pasid: None, ..raw };
        let wants = raw.wants;
        assert_eq!(unnamed.check(), Err(BadRequest::Impossible { wants }));
        let wants = Permissions::WRITE | Permissions::EXECUTE;
        let raw = pri(wants, Place::Last);
        assert_eq!(raw.check(), Err(BadRequest::Impossible { wants }));
        let wants = Permissions::PRIVILEGED;
        let raw = pri(wants, Place::More);
        assert_eq!(raw.check(), Err(BadRequest::NoAccess { wants }));
        let pasid = Pasid::new(1 << 20);
        let raw = RawPageRequest { pasid: Some(pasid), ..pri(Permissions::READ, Place::Last) };
        assert_eq!(raw.check(), Err(BadRequest::Pasid { pasid }));
        let group = GroupId::new(512);
        let place = Place::Last;
        let kind = RequestKind::Pri { group, place };
        let raw = RawPageRequest { kind, ..raw };
        assert_eq!(raw.check(), Err(BadRequest::Group { group }));
    }

    #[test]
    fn a_stall_may_be_privileged_without_an_address_space() {
        let tag = StallTag::new(9);
        let raw = RawPageRequest {
            pasid: None,
            kind: RequestKind::Stall { tag },
            ..pri(Permissions::READ | Permissions::PRIVILEGED, Place::Last)
        };
        let request = raw.check().unwrap();
        assert_eq!(request.place(), Place::Last);
        assert_eq!(request.reply_to().name, ReplyName::Stall(tag));
    }

    #[test]
    fn only_the_last_of_an_address_space_is_a_stop_marker() {
        assert!(pri(Permissions::empty(), Place::Last).is_stop_marker());
        assert!(!pri(Permissions::empty(), Place::More).is_stop_marker());
        assert!(!pri(Permissions::READ, Place::Last).is_stop_marker());
        let unnamed = RawPageRequest { pasid: None, ..pri(Permissions::empty(), Place::Last) };
        assert!(!unnamed.is_stop_marker());
    }
}
