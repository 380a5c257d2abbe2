//! Every scenario on every backend that is here.
#![allow(missing_docs)]

use portolan_verify::backend::BackendName;
use portolan_verify::conformance::Outcome;

#[test]
fn scenarios_hold() {
    let mut failed = Vec::new();
    for backend in BackendName::ALL {
        for line in backend.run(&mut |line| println!("{backend}: {line}")) {
            if matches!(line.outcome, Outcome::Fail(_)) {
                failed.push(format!("{backend}: {line}"));
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
