//! A pager hands over memory that has not been promised.

use portolan::addr::{IovaRange, PhysRange};
use portolan::demand::{Frames, Pager, PopulateError};
use portolan::table::Access;

struct Anywhere(PhysRange);

impl Pager for Anywhere {
    fn populate(&self, at: IovaRange, _: Access, frames: &mut Frames) -> Result<(), PopulateError> {
        let absent = PopulateError::Absent { iova: at.start() };
        frames.push(self.0).map_err(|_| absent)
    }

    fn pin(&self, at: IovaRange, access: Access, frames: &mut Frames) -> Result<(), PopulateError> {
        self.populate(at, access, frames)
    }

    fn unpin(&self, _: IovaRange) {}
}

fn main() {}
