//! What tests of the chassis stand on.

use portolan::platform::{Clock, Nanos};

/// A CPU whose time stands still.
#[derive(Debug)]
pub(crate) struct Still;

portolan::one_cpu!(Still);

impl Clock for Still {
    fn now(&self) -> Nanos {
        Nanos::new(0)
    }
}
