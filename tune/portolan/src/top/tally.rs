//! Counts of each device, from the text of the kernel's events.
//!
//! Maps and unmaps are counted as the events say them; invalidations, CPU time and exposed bytes are those of Linux's
//! rules for the same operations. Where the kernel has lost events, maps and unmaps no longer fit each other: pairing
//! begins anew, so that mappings whose unmap is lost take no memory for ever.

use std::collections::HashMap;
use std::path::Path;

use anyhow::Result;
use portolan::addr::PhysRange;
use portolan::dma::PolicyPreference;
use portolan_sim::profile::Profile;

use super::DeviceRow;
use super::groups::{GroupPolicy, GroupState, Groups};
use crate::facts::Facts;
use crate::linux::{CachingMode, Counter, Kernel, Options, Rules, StageName, stage_of};
use crate::replay::padded;
use crate::trace::{At, DeviceId, Intake, OpKind, RawLine};

/// Counts of an interval.
pub(super) struct IntervalCounts {
    pub(super) devices: Vec<DeviceRow>,
    /// Invalidations that the kernel itself says.
    pub(super) sent: u64,
    pub(super) unmaps_without_device: u64,
}

/// Maps and unmaps of a device in this interval, and its group.
#[derive(Default)]
struct DeviceTally {
    state: GroupState,
    maps: u64,
    unmaps: u64,
}

/// Pairing of events, since the beginning or since events were lost.
#[derive(Default)]
struct Pairs {
    intake: Intake,
    /// Linux's rules, where they are known for the machine.
    counter: Option<Counter>,
    devices: HashMap<DeviceId, DeviceTally>,
    lines: u64,
    now_ns: u64,
    /// Invalidations, and unmaps without a map, that were told.
    sent: u64,
    orphans: u64,
    orphans_by_device: Vec<u64>,
}

/// The counts.
pub(super) struct LiveTally {
    rules: Option<Rules>,
    profile: Profile,
    groups: Groups,
    pairs: Pairs,
    scratch: Vec<PhysRange>,
}

/// Linux's rules for the machine that `facts` are about; `None` if they are not known for its IOMMU.
fn rules(facts: &Facts, profile: &Profile) -> Option<Rules> {
    let caching = facts.has_caching_mode().map(|has| match has {
        true => CachingMode::On,
        false => CachingMode::Off,
    });
    let stage = facts.has_first_stage().map(|has| match has {
        true => StageName::First,
        false => StageName::Second,
    });
    let options = Options {
        asked: PolicyPreference::Strict,
        caching,
        stage: stage.filter(|_| stage_of(profile).is_some()),
        kernel: Some(Kernel::of_machine(facts)),
    };
    Rules::new(profile, &options).ok()
}

impl LiveTally {
    /// Counts nothing so far, on the machine whose root folder is `root`.
    pub(super) fn new(root: &Path, facts: &Facts, profile: Profile) -> Result<Self> {
        let mut tally = Self {
            rules: rules(facts, &profile),
            groups: Groups::new(root, facts),
            profile,
            pairs: Pairs::default(),
            scratch: Vec::new(),
        };
        tally.begin()?;
        Ok(tally)
    }

    /// Begins pairing anew.
    fn begin(&mut self) -> Result<()> {
        let counter = self.rules.map(|rules| Counter::new(rules, &self.profile)).transpose()?;
        self.pairs = Pairs { counter, ..Pairs::default() };
        Ok(())
    }

    /// Takes whole lines of events.
    pub(super) fn take(&mut self, text: &[u8]) {
        for bytes in text.split_inclusive(|byte| *byte == b'\n') {
            let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
            self.pairs.lines += 1;
            let line = RawLine { number: self.pairs.lines, bytes, too_long: false };
            self.pairs.intake.line(&line);
            self.count();
        }
    }

    /// Decides the operations that wait for later events, as there are none.
    pub(super) fn finish(&mut self) {
        self.pairs.intake.finish();
        self.count();
        if let Some(counter) = &mut self.pairs.counter {
            counter.run_timers();
        }
    }

    /// Counts the operations that are known.
    fn count(&mut self) {
        let Self { pairs, groups, scratch, profile, .. } = self;
        while pairs.intake.advance() {
            let Some(op) = pairs.intake.op() else {
                return;
            };
            pairs.now_ns = pairs.now_ns.max(op.time_ns);
            let at = At {
                now_ns: pairs.now_ns,
                cpu: op.cpu,
                running: op.running,
                timers_late: op.timers_late,
            };
            let device = pairs.devices.entry(op.device).or_insert_with(|| {
                let names = &pairs.intake.summary().devices;
                DeviceTally {
                    state: state(groups, names, op.device, pairs.counter.as_mut()),
                    ..DeviceTally::default()
                }
            });
            match op.kind {
                OpKind::Map { .. } => device.maps += 1,
                OpKind::Unmap { .. } => device.unmaps += 1,
            }
            if let Some(counter) = &mut pairs.counter
                && device.state.policy.is_translated()
            {
                counter.note(&op, at, padded(&op.kind, profile.granule(), scratch));
            }
        }
    }

    /// Ends an interval in which `lost` events were lost.
    pub(super) fn interval(&mut self, lost: u64) -> IntervalCounts {
        if lost > 0 {
            self.finish();
        }
        self.note_orphans();
        let counts = self.counts();
        if lost > 0 {
            // A counter was made with the same rules and prices before.
            let _ = self.begin();
        }
        counts
    }

    /// Counts unmaps whose maps were not seen, where their events name a device.
    fn note_orphans(&mut self) {
        let Self { pairs, groups, .. } = self;
        let summary = pairs.intake.summary();
        pairs.orphans_by_device.resize(summary.orphans_by_device.len(), 0);
        let told = pairs.orphans_by_device.iter_mut().zip(&summary.orphans_by_device);
        for (index, (told, all)) in told.enumerate() {
            let unmaps = all - std::mem::replace(told, *all);
            if unmaps == 0 {
                continue;
            }
            let id = DeviceId(index as u32);
            let device = pairs.devices.entry(id).or_insert_with(|| DeviceTally {
                state: state(groups, &summary.devices, id, pairs.counter.as_mut()),
                ..DeviceTally::default()
            });
            device.unmaps += unmaps;
            if let Some(counter) = &mut pairs.counter
                && device.state.policy.is_translated()
            {
                counter.note_unseen(id, unmaps);
            }
        }
    }

    /// Counts since the last interval.
    fn counts(&mut self) -> IntervalCounts {
        let Self { pairs, groups, .. } = self;
        let summary = pairs.intake.summary();
        let all = summary.recorded.total();
        let sent = all - std::mem::replace(&mut pairs.sent, all);
        let named: u64 = summary.orphans_by_device.iter().sum();
        let all = summary.orphan_unmaps.saturating_sub(named);
        let orphans = all.saturating_sub(std::mem::replace(&mut pairs.orphans, all));
        let ruled = pairs.counter.as_mut().map(Counter::interval).unwrap_or_default();
        let ruled: HashMap<DeviceId, _> = ruled.into_iter().map(|one| (one.device, one)).collect();
        let mut rows = Vec::new();
        for (id, device) in &mut pairs.devices {
            let name = summary.devices.get(id.0 as usize).cloned().unwrap_or_default();
            let policy = device.state.policy;
            let ruled = ruled.get(id).filter(|_| policy.is_translated());
            // Work that such a device never causes.
            let free = matches!(policy, GroupPolicy::Identity | GroupPolicy::None);
            rows.push(DeviceRow {
                maps: std::mem::take(&mut device.maps),
                unmaps: std::mem::take(&mut device.unmaps),
                invalidations: ruled.map(|one| one.invalidations).or(free.then_some(0)),
                cpu_us: ruled.and_then(|one| one.cpu_us).or(free.then_some(0.0)),
                exposed_bytes: match policy {
                    GroupPolicy::Strict => Some(0),
                    _ => ruled.map(|one| one.exposed_bytes),
                },
                policy,
                group_type: device.state.kind.clone(),
                driver: device.state.driver.clone(),
                device: name,
            });
            device.state = state(groups, &summary.devices, *id, pairs.counter.as_mut());
        }
        rows.retain(|row| row.maps + row.unmaps + row.invalidations.unwrap_or(0) > 0);
        rows.sort_by(|a, b| {
            let cost = |row: &DeviceRow| row.cpu_us.unwrap_or(0.0);
            let calls = |row: &DeviceRow| row.maps.saturating_add(row.unmaps);
            cost(b)
                .total_cmp(&cost(a))
                .then(calls(b).cmp(&calls(a)))
                .then_with(|| a.device.cmp(&b.device))
        });
        IntervalCounts { devices: rows, sent, unmaps_without_device: orphans }
    }
}

/// State of a device's group at this moment; `counter` follows it.
fn state(
    groups: &mut Groups,
    names: &[String],
    id: DeviceId,
    counter: Option<&mut Counter>,
) -> GroupState {
    let state = groups.of(names.get(id.0 as usize).map_or("", String::as_str));
    if let Some(counter) = counter
        && state.policy.is_translated()
    {
        counter.set_lazy(id, state.policy == GroupPolicy::Lazy);
    }
    state
}
