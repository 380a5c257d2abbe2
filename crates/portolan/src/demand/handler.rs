//! Groups of page requests, served by a container.

use super::error::FaultError;
use super::fill::FaultRequest;
use super::owner::Pager;
use super::premap::Requester;
use super::space::Ioas;
use crate::iommu::Domain;
use crate::iopf::{Group, Handler, PageRequest, Permissions, Response};
use crate::platform::Cpus;
use crate::table::Access;

impl From<&PageRequest> for FaultRequest {
    fn from(request: &PageRequest) -> Self {
        let pairs = [
            (Permissions::READ, Access::READ),
            (Permissions::WRITE, Access::WRITE),
            (Permissions::EXECUTE, Access::EXECUTE),
        ];
        let wanted = pairs.iter().filter(|(w, _)| request.wants().contains(*w));
        Self {
            who: Requester { stream: request.stream(), pasid: request.pasid() },
            iova: request.iova(),
            access: wanted.map(|(_, access)| *access).collect(),
        }
    }
}

impl FaultError {
    /// Response for the device: to try again where another CPU was in the way.
    ///
    /// *Context.* Interrupt.
    pub const fn response(&self) -> Response {
        match self {
            Self::Contended { .. } | Self::Busy { .. } => Response::Success,
            // The device asked for memory that it may not have, or that there is not.
            Self::NoRegion { .. }
            | Self::Denied { .. }
            | Self::NoSpace { .. }
            | Self::Populate(_)
            | Self::Short { .. }
            | Self::Limit(_)
            | Self::Map(_) => Response::Invalid,
            // The unit does not work.
            Self::NotQuiet { .. } | Self::Iommu(_) => Response::Failure,
        }
    }
}

impl<D: Domain, O: Pager, P: Cpus> Handler for Ioas<D, O, P> {
    /// Maps all that the group asks for; the first that cannot be mapped decides the response.
    ///
    /// *Context.* Task: the owner populates.
    fn handle(&self, group: &Group<'_>) -> Response {
        for request in group.requests() {
            if let Err(error) = self.fault(&request.into()) {
                return error.response();
            }
        }
        Response::Success
    }
}
