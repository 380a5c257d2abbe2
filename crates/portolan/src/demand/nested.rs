//! A guest's first stage over our second stage: each fault belongs to one of them.
//!
//! The guest owns the first stage and maps its processes' addresses to its own memory; the second
//! stage, an [`Ioas`], maps the guest's memory to ours. A page request does not name the stage that
//! refused, so the guest's tables are walked: the guest mends its own gaps, for which the request
//! is forwarded with its PASID; the addresses to which the tables lead, and those of the tables
//! themselves, are mapped here.

use alloc::sync::Arc;

use super::fill::FaultRequest;
use super::owner::Pager;
use super::space::Ioas;
use crate::addr::Iova;
use crate::iommu::Domain;
use crate::iopf::{Group, Handler, PageRequest, Response};
use crate::platform::Cpus;
use crate::table::Access;

/// Address to which the guest's first stage leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstStage {
    /// This address of the guest's memory.
    Leads(Iova),
    /// None, or none for this access.
    Refuses,
}

/// A guest that owns a first stage.
///
/// *Implementer's duties.* Everything in the guest's tables is input: a walk is bounded, and reads
/// nothing but the guest's memory.
///
/// *Context.* Task, all methods.
pub trait Guest: Send + Sync {
    /// Walks the guest's tables for `request`, and hands the address of each table entry that is
    /// read to `visit`.
    fn walk(&self, request: &PageRequest, visit: &mut dyn FnMut(Iova)) -> FirstStage;

    /// Has the guest decide about `group`, and waits for its response, not for ever.
    fn forward(&self, group: &Group<'_>) -> Response;
}

/// Serves the faults of nested address spaces.
pub struct Nested<D: Domain, O: Pager, P: Cpus, G> {
    second: Arc<Ioas<D, O, P>>,
    guest: G,
}

/// Progress of a request that was served here.
enum NestedServed {
    /// All of the second stage that it needs is mapped.
    Here,
    /// The first stage refuses.
    Guest,
    Refused(Response),
}

impl<D: Domain, O: Pager, P: Cpus, G: Guest> Nested<D, O, P, G> {
    /// `guest`'s first stage over `second`.
    pub fn new(second: Arc<Ioas<D, O, P>>, guest: G) -> Self {
        Self { second, guest }
    }

    /// The second stage.
    pub fn second(&self) -> &Arc<Ioas<D, O, P>> {
        &self.second
    }

    /// Maps the parts that the second stage lacks for `request`.
    fn serve(&self, request: &PageRequest) -> NestedServed {
        let wanted = FaultRequest::from(request);
        let mut refused = None;
        let walked = self.guest.walk(request, &mut |iova| {
            let access = Access::READ;
            let table = FaultRequest { iova, access, ..wanted };
            if refused.is_none() {
                refused = self.second.fault(&table).err();
            }
        });
        if let Some(error) = refused {
            return NestedServed::Refused(error.response());
        }
        let FirstStage::Leads(iova) = walked else {
            return NestedServed::Guest;
        };
        match self.second.fault(&FaultRequest { iova, ..wanted }) {
            Ok(_) => NestedServed::Here,
            Err(error) => NestedServed::Refused(error.response()),
        }
    }
}

impl<D: Domain, O: Pager, P: Cpus, G: Guest> Handler for Nested<D, O, P, G> {
    /// Serves the faults of the second stage. If the first stage refuses anything, the whole group
    /// goes to the guest once; if it mends that, the parts that the second stage then lacks are
    /// mapped as well.
    ///
    /// *Context.* Task.
    fn handle(&self, group: &Group<'_>) -> Response {
        let mut forwarded = false;
        for request in group.requests() {
            match self.serve(request) {
                NestedServed::Here => {}
                NestedServed::Refused(response) => return response,
                NestedServed::Guest if forwarded => {}
                NestedServed::Guest => {
                    let response = self.guest.forward(group);
                    if response != Response::Success {
                        return response;
                    }
                    forwarded = true;
                    // If the guest's tables still refuse, the device asks again.
                    if let NestedServed::Refused(response) = self.serve(request) {
                        return response;
                    }
                }
            }
        }
        Response::Success
    }
}
