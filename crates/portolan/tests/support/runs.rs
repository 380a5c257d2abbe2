//! Run of a model checker's interleaving: all of its threads are one thread of the system, which has one at a time.
#![allow(dead_code)] // Each test binary uses its part.

use std::cell::RefCell;

use portolan::addr::TableId;
use portolan::platform::ProtocolStep;
use portolan_protocol::run::CheckedRun;

std::thread_local! {
    static CURRENT: RefCell<CheckedRun> = RefCell::new(CheckedRun::of_many());
}

/// Begins a run.
pub fn begin() {
    CURRENT.set(CheckedRun::of_many());
}

/// The run that has begun.
pub fn current() -> CheckedRun {
    CURRENT.with_borrow(Clone::clone)
}

/// Makes a step of it.
pub fn tell(of: TableId, step: ProtocolStep) {
    current().tell(of, step);
}

/// Ends it, and prints the counts of all runs so far.
pub fn say() {
    begin();
    portolan_protocol::run::say();
}
