//! `portolan calibrate` on latencies that a guest's kernel recorded.
//!
//! Times on an emulated machine say nothing of another, so they are printed and not judged, and so are the
//! predictions of one run's calls by the prices of others. The checks are these: each request's calls are in the
//! traces; the written file is a profile, by which the same load is replayed; a recording of both events and
//! latencies is replayed by its own prices.

use serde_json::Value;

use super::GuestRun;

/// Requests of the run whose calls are predicted: 16 MiB by 4 KiB.
const REQUESTS: u64 = 4096;

/// Calibrates, predicts and replays.
pub(super) fn check(ran: &GuestRun) -> Result<(), String> {
    let profile = "calibrated.toml";
    let fitted = ["calibrate", "small", "middle", "large", "record.gz"];
    let fitted = ran.portolan(&[&fitted[..], &["--force", "-o", profile]].concat())?;
    let events: Vec<&str> =
        list(&fitted["prices"]).filter_map(|price| price["event"].as_str()).collect();
    for wanted in ["map_call", "unmap_call", "exit"] {
        if !events.contains(&wanted) {
            return Err(format!("{wanted} is not among the prices: {events:?}"));
        }
    }
    let from = |base| ran.portolan(&["calibrate", "other", "--from", base]);
    let (after, before) = (from(profile)?, from("spr-vm")?);
    for function in ["iommu_map", "iommu_unmap_fast", "qi_submit_sync"] {
        let mut all = list(&after["functions"]);
        let found = all.find(|one| one["name"] == function);
        let calls = found.and_then(|one| one["calls"].as_u64()).unwrap_or(0);
        if calls < REQUESTS {
            return Err(format!("{REQUESTS} requests, {calls} calls of {function}"));
        }
    }
    for (after, before) in list(&after["fits"]).zip(list(&before["fits"])) {
        println!(
            "calls that {}: another run is predicted within {} %, by spr-vm within {} % (median)",
            after["what"], after["before_off_pct"], before["before_off_pct"],
        );
    }
    let own = ran.portolan(&["replay", "record.gz"])?;
    let measured = &own["chosen"]["measured"];
    println!("a replay by its recording's own prices: {measured}");
    if measured["calls"].as_u64().unwrap_or(0) == 0 {
        return Err(format!("no price of the recording's own: {}", own["chosen"]));
    }
    let replayed = ran.portolan(&["replay", "record.gz", "--machine", profile])?;
    match (replayed["machine"].as_str(), replayed["policies"].as_array()) {
        (Some("calibrated"), Some(policies)) if !policies.is_empty() => Ok(()),
        (machine, _) => Err(format!("the replay took the machine for {machine:?}")),
    }
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}
