//! Table tests that need no oracle; the conformance suite has the rest.

mod clusters;
mod filled;
pub(super) mod kept;
mod late;
mod lists;
mod marked;
mod meanwhile;
mod memory;
mod roots;
mod starved;
mod tokens;
mod written_back;
