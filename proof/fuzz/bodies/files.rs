//! Files that the command reads: traces in text, of trace-cmd and of perf, compressed or not; latencies; a
//! machine's facts and its profile.

use std::io::Cursor;

use portolan_sim::profile::Profile;
use portolan_tune::calibrate::MachineTraces;
use portolan_tune::facts::Facts;
use portolan_tune::trace;

/// A trace, to its last operation.
pub fn traces(bytes: &[u8]) {
    let Ok(mut reader) = trace::from_bytes(Vec::from(bytes)) else {
        return;
    };
    while let Some(op) = reader.next_op() {
        std::hint::black_box(&op);
    }
}

/// Latencies, gathered.
pub fn latencies(bytes: &[u8]) {
    let Ok(profile) = Profile::by_name("xeon-vtd") else {
        return;
    };
    let Ok(mut gathered) = MachineTraces::new(profile.format(), 1) else {
        return;
    };
    let _ = gathered.read("fuzzed", Box::new(Cursor::new(bytes.to_vec())));
}

/// Reads a line of a machine's facts, and queries them.
pub fn facts(bytes: &[u8]) {
    let mut line = portolan_tune::facts::HEAD.as_bytes().to_vec();
    line.extend_from_slice(bytes);
    for line in [bytes, &line] {
        if let Some(Ok(facts)) = Facts::parse(line) {
            let _ = (facts.version(), facts.parameter("iommu.strict"), facts.line());
        }
    }
}

/// A machine's profile.
pub fn machines(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = Profile::from_toml(text);
    }
}
