//! Result of one trace of many: a line of `--ndjson`, and the part of it that is kept.

use serde::{Deserialize, Serialize};

use super::load::LoadKind;
use crate::facts::{DeviceFacts, Facts};
use crate::replay::{
    MappingCost, PolicyReport, RecordedTimeline, ReplayReport, Setting, Timeline, TraceReport,
    understood,
};

/// End of one trace.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum TraceResult {
    /// Replayed.
    Replayed(Box<ReplayedTrace>),
    /// Failed.
    Failed(Failed),
}

/// A replayed trace: the output of `portolan replay --json` for it alone, and the parts by which it is added up.
#[derive(Clone, Debug, Serialize)]
pub struct ReplayedTrace {
    /// Report of its own replay.
    #[serde(flatten)]
    pub report: ReplayReport,
    /// The kind of load.
    pub load: LoadKind,
    /// The kernel's release, where the trace tells it.
    pub kernel: Option<String>,
    /// Work of each device.
    pub by_device: Vec<DeviceWork>,
}

/// A trace that could not be replayed; its name has the same key as for other traces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    /// Name of the trace.
    pub trace: TraceSource,
    /// Reason, as a sentence.
    pub error: String,
}

/// The name of a trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceSource {
    /// Its file, or another name for its origin.
    pub source: String,
}

/// Work of a device in a trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceWork {
    /// Its driver and identifier if the recording has them, otherwise its name in the trace.
    pub device: String,
    /// Its driver, if the recording has it.
    #[serde(default)]
    pub driver: Option<String>,
    /// Maps, coherent ones included.
    pub maps: u64,
    /// Bytes of these.
    pub bytes_mapped: u64,
}

/// Part of a trace's line that is kept, to be added up.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Entry {
    /// Contents of the trace.
    pub trace: TraceReport,
    /// The machine profile.
    pub machine: String,
    /// Costs of each policy.
    pub policies: Vec<PolicyReport>,
    /// The kind of load.
    pub load: String,
    /// The kernel's release, where the trace tells it.
    #[serde(default)]
    pub kernel: Option<String>,
    /// Work of each device.
    pub by_device: Vec<DeviceWork>,
    /// Cost of mapping for its kernel, now and with a change.
    #[serde(default)]
    pub cost: Option<MappingCost>,
    /// Settings that are advised.
    #[serde(default)]
    pub advice: Vec<AdvisedSetting>,
}

/// A setting that is advised, without the reasons that its trace's own report has.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AdvisedSetting {
    /// A file below `/sys`, or in words.
    pub where_to_set: String,
    /// The value to set there.
    pub value: String,
}

impl Failed {
    /// `source` could not be replayed because of `error`.
    pub fn new(source: &str, error: String) -> Self {
        Self { trace: TraceSource { source: source.to_owned() }, error }
    }
}

impl Entry {
    /// Number of accesses to mapped memory that were refused, each a defect.
    pub fn faults(&self) -> u64 {
        faults(&self.policies)
    }

    /// Reason why it leads to no conclusions, if too little of it was understood.
    pub fn not_understood(&self) -> Option<Failed> {
        let told = self.trace.understood;
        let why = format!(
            "not understood: {} of its events and {} of its bytes were",
            understood(told.events_pct),
            understood(told.bytes_pct)
        );
        (!told.is_enough()).then(|| Failed::new(&self.trace.source, why))
    }

    /// Share of the load's time that mapping costs, in per cent.
    pub fn pct_of_load(&self) -> Option<f64> {
        Some(self.cost.as_ref()?.now.pct_of_load)
    }

    /// The policy that the kernel had, if the trace tells it.
    pub(super) fn policy(&self) -> Option<&'static str> {
        Some(self.cost.as_ref()?.policy.name())
    }

    /// Share of the load's time that the advised change saves, in per cent.
    pub fn saves_pct_of_load(&self) -> Option<f64> {
        let cost = self.cost.as_ref()?;
        Some(cost.now.pct_of_load - cost.then?.pct_of_load)
    }
}

fn faults(policies: &[PolicyReport]) -> u64 {
    let faults = policies.iter().map(|policy| policy.device.faults);
    faults.fold(0, u64::saturating_add)
}

impl ReplayedTrace {
    /// The line of `report`, recorded on the machine that `facts` are about.
    pub fn new(
        mut report: ReplayReport,
        facts: Option<&Facts>,
        release: Option<(u32, u32)>,
    ) -> Self {
        for policy in &mut report.policies {
            // It is for plots of one trace, and large.
            policy.timeline = Timeline::default();
        }
        report.recorded = RecordedTimeline::default();
        let shape = &report.shape;
        let ways = &shape.directions;
        let load = LoadKind::of(
            report.trace.maps,
            report.trace.bytes_mapped,
            ways.to_device.bytes,
            ways.from_device.bytes,
        );
        let others = Some(&shape.other_devices).filter(|share| share.maps.count > 0);
        let devices = shape.devices.iter().chain(others);
        let by_device = devices.map(|share| DeviceWork {
            device: kind(&share.name, facts),
            driver: known(&share.name, facts).and_then(|device| device.driver.clone()),
            maps: share.maps.count,
            bytes_mapped: share.maps.bytes,
        });
        let by_device = by_device.collect();
        let told = facts.map(|facts| facts.release.clone()).filter(|told| !told.is_empty());
        let kernel = told.or_else(|| release.map(|(major, minor)| format!("{major}.{minor}")));
        Self { load, kernel, by_device, report }
    }

    /// Number of accesses to mapped memory that were refused, each a defect.
    pub fn faults(&self) -> u64 {
        faults(&self.report.policies)
    }

    /// Part of it that is kept.
    pub fn entry(&self) -> Entry {
        Entry {
            trace: self.report.trace.clone(),
            machine: self.report.machine.clone(),
            policies: self.report.policies.clone(),
            load: self.load.to_string(),
            kernel: self.kernel.clone(),
            by_device: self.by_device.clone(),
            cost: self.report.cost.clone(),
            advice: self.report.advice.iter().map(AdvisedSetting::of).collect(),
        }
    }
}

impl AdvisedSetting {
    fn of(setting: &Setting) -> Self {
        Self { where_to_set: setting.where_to_set.clone(), value: setting.value.clone() }
    }
}

/// Facts of the device called `name` in a trace.
fn known<'f>(name: &str, facts: Option<&'f Facts>) -> Option<&'f DeviceFacts> {
    facts?.devices.iter().find(|device| device.name == name)
}

/// Kind of the device called `name` in a trace: its driver and identifier, or its name.
fn kind(name: &str, facts: Option<&Facts>) -> String {
    let known = known(name, facts);
    let driver = known.and_then(|device| device.driver.as_deref());
    let id = known.and_then(|device| device.id.as_deref());
    match (driver, id) {
        (Some(driver), Some(id)) => format!("{driver} {id}"),
        (Some(one), None) | (None, Some(one)) => one.to_owned(),
        (None, None) => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_its_driver_and_identifier_where_the_recording_tells_them() {
        let device = |name: &str, driver: Option<&str>, id: Option<&str>| DeviceFacts {
            name: name.to_owned(),
            driver: driver.map(str::to_owned),
            id: id.map(str::to_owned),
            ..DeviceFacts::default()
        };
        let facts = Facts {
            devices: vec![
                device("0000:00:01.0", Some("nvme"), Some("1b36:0010")),
                device("0000:00:02.0", None, Some("1af4:1041")),
                device("0000:00:03.0", None, None),
            ],
            ..Facts::default()
        };
        let of = |name| kind(name, Some(&facts));
        assert_eq!(of("0000:00:01.0"), "nvme 1b36:0010");
        assert_eq!(of("0000:00:02.0"), "1af4:1041");
        assert_eq!(of("0000:00:03.0"), "0000:00:03.0");
        assert_eq!(kind("0000:00:01.0", None), "0000:00:01.0");
    }
}
