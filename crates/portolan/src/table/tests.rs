//! Table tests that need no oracle; the conformance suite has the rest.

mod kept;
mod late;
mod tokens;
