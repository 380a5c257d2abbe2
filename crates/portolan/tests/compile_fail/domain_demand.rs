//! A pager hands over memory that has not been promised, lets go of mapped memory, or hands to a
//! domain for which there is no promise.

use portolan::addr::{IovaRange, PhysRange};
use portolan::demand::{DomainClaimed, Frames, Ioas, IoasOptions, Pager, PopulateError, Unreached};
use portolan::iommu::Domain;
use portolan::platform::Cpus;
use portolan::table::Access;
use std::sync::Arc;

struct Anywhere(PhysRange);

impl Pager for Anywhere {
    fn populate(&self, at: IovaRange, _: Access, frames: &mut Frames) -> Result<(), PopulateError> {
        let absent = PopulateError::Absent { iova: at.start() };
        frames.push(self.0).map_err(|_| absent)
    }

    fn pin(&self, at: IovaRange, access: Access, frames: &mut Frames) -> Result<(), PopulateError> {
        self.populate(at, access, frames)
    }

    fn unpin(&self, _: &Unreached) {}
}

fn let_go(pager: &Anywhere, at: IovaRange) {
    pager.unpin(at);
}

type Made<D, P> = Result<Ioas<D, Anywhere, P>, DomainClaimed<D, P>>;

fn container<D: Domain, P: Cpus>(domain: Arc<D>, cpus: P) -> Made<D, P> {
    Ioas::new(domain, cpus, IoasOptions::default())
}

fn main() {}
