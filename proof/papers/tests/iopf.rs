//! I/O page faults instead of pinning: exact counts of faults by hand, and bounds on predictions.

use portolan_papers::reproduce::{self, IopfReproduction};

fn faults(of: &IopfReproduction, kind: &str, mib: u64, times: u64) -> f64 {
    let wanted = of.rows.iter().find(|row| {
        (row.kind, row.msg_len_bytes, row.times, row.quantity) == (kind, mib << 20, times, "faults")
    });
    wanted.unwrap().computed
}

#[test]
fn faults_are_counted_and_speeds_predicted() {
    let result = reproduce::iopf().unwrap();
    println!("{}", reproduce::iopf_text(&result, usize::MAX));
    assert_eq!(result.rows.len(), 44);
    // Two buffers of 256 pages; two pairs of them from two messages on.
    assert_eq!(faults(&result, "sva", 1, 1), 512.0);
    assert_eq!(faults(&result, "sva", 1, 5000), 1024.0);
    // And a page of requests, one of completions, four of control; 2500 requests of each pair are 79
    // pages, their completions 10.
    assert_eq!(faults(&result, "vfio", 1, 1), 518.0);
    assert_eq!(faults(&result, "vfio", 1, 5000), 1024.0 + 2.0 * (79.0 + 10.0 + 4.0));
    // Five windows a buffer, one for each part of the queues.
    assert_eq!(faults(&result, "vfio", 10, 1), 13.0);
    assert_eq!(faults(&result, "vfio", 10, 1000), 26.0);
    for check in &result.checks {
        assert!(check.holds, "{}; {}", check.what, check.found);
    }
    assert!(result.holds());
    let fitted = |row: &&reproduce::IopfRow| row.fitted && row.quantity == "faults";
    assert_eq!(result.rows.iter().filter(fitted).count(), 2);
}
