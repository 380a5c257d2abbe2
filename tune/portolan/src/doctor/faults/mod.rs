//! `portolan explain --faults`: faults in a kernel's log, in words.
//!
//! Understood are the lines of VT-d, AMD-Vi, SMMUv2, SMMUv3, RISC-V and virtio-iommu that Linux 5.4 to 7.x prints, and
//! VT-d's of Xen, in what the ring, `dmesg`, `journalctl` (also with `-o json`) and consoles print. Repeats are one
//! fault. The log is read once, line by line: memory depends on the number of different faults, which is limited.
//! Not supported: Tegra's own SMMU, Xen's AMD-Vi, POWER's and s390's messages.

mod causes;
mod context;
mod device;
mod fold;
mod history;
mod lines;
mod parse;
mod place;
mod seen;
#[cfg(test)]
pub(super) mod tests;
mod text;

pub use causes::Cause;
pub use text::text;

use std::io::{self, BufRead};

use portolan_cli::display::{counted, grouped};
use serde::Serialize;

use super::{Files, Finding, Verdict};
use crate::files::ReadOnce;
use crate::trace::Reader;
use causes::Circumstances;
use context::{Collector, Context};
use device::Device;
use fold::{Fold, Folded};
use history::History;
use parse::{FaultParser, Found};
use place::Sources;
use seen::Kind;

/// Output of `portolan explain --faults --json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FaultAnswers {
    /// One entry: the number of faults, or that there is none.
    pub findings: Vec<Finding>,
    /// The faults, in the order of their first lines.
    pub faults: Vec<Fault>,
    /// Lines of the log.
    pub lines: u64,
}

/// A fault and its repeats.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fault {
    /// The IOMMU that refused.
    pub unit: String,
    /// The device, as the log names it.
    pub device: String,
    /// Words about the device.
    pub device_is: Option<String>,
    /// Its driver.
    pub driver: Option<String>,
    /// Its request: `read`, `write`, `execute` or `interrupt`.
    pub tried: Option<&'static str>,
    /// Kind of the fault.
    pub kind: String,
    /// Address, or first and last.
    pub address: Option<String>,
    /// PASID of the address space.
    pub pasid: Option<u32>,
    /// Owner of the address.
    pub belongs_to: String,
    /// Lines of the log about it.
    pub count: u64,
    /// Number and times, in words.
    pub times: String,
    /// Number of its first line.
    pub line: u64,
    /// The judgement.
    pub verdict: Verdict,
    /// Usual causes, the likeliest first.
    pub causes: Vec<Cause>,
}

/// Contents of a log: its faults, and other facts.
#[derive(Debug, Default)]
pub struct LogContents {
    fold: Fold,
    context: Context,
    lines: u64,
}

impl LogContents {
    /// Reads a log.
    ///
    /// # Errors
    /// If reading fails.
    pub fn read(log: &mut dyn BufRead) -> io::Result<Self> {
        let (mut parser, mut collector) = (FaultParser::new(), Collector::new());
        let mut fold = Fold::default();
        let mut note = |found| match found {
            Found::Fault(seen) => fold.add(seen),
            Found::LeftOut(kind, count) => fold.leave_out(kind, count),
        };
        let lines = lines::each(log, |number, line| {
            collector.feed(line);
            parser.feed(number, line, &mut note);
        })?;
        parser.finish(&mut note);
        Ok(Self { fold, context: collector.context, lines })
    }

    /// Tells if the log is of the machine with these files: its kernel was told the same.
    pub fn is_of(&self, files: &Files) -> bool {
        let told = files.text("proc/cmdline").found();
        let logged = self.context.command_line.as_deref();
        logged.is_some_and(|logged| {
            !logged.is_empty() && told.as_deref().map(str::trim) == Some(logged)
        })
    }

    /// Tells if the log has no line.
    pub fn is_empty(&self) -> bool {
        self.lines == 0
    }
}

impl FaultAnswers {
    /// Answers for the faults of `log`, with the machine's `files`, and a recording if there is one.
    pub fn new(log: &LogContents, files: &Files, recording: Option<&mut Reader>) -> Self {
        let functions = device::functions(files);
        let files = &ReadOnce::new(files);
        let of = |fault| Device::of(fault, &log.context, files, &functions);
        let devices: Vec<Device> = log.fold.all.iter().map(of).collect();
        let names: Vec<Option<String>> = devices
            .iter()
            .zip(&log.fold.all)
            .map(|(device, fault)| name_in_recordings(device, fault))
            .collect();
        let history = recording.map(|recording| History::read(recording, &log.fold.all, &names));
        let sources = Sources::new(&log.context, files, &functions);
        let faults: Vec<Fault> = log
            .fold
            .all
            .iter()
            .zip(&devices)
            .zip(&names)
            .enumerate()
            .map(|(number, ((fault, device), name))| {
                let recorded = history.as_ref().and_then(|history| history.of(number));
                let knows = |history: &History| {
                    name.as_ref().is_some_and(|name| history.knows(name)) && recorded.is_none()
                };
                let place = place::of(fault, device, recorded, &sources);
                let facts = Circumstances {
                    fault,
                    device,
                    place: &place,
                    recorded,
                    is_unrecorded: fault.range.is_some() && history.as_ref().is_some_and(knows),
                    context: &log.context,
                };
                entry(&facts)
            })
            .collect();
        Self { findings: vec![summary(log, &faults)], faults, lines: log.lines }
    }
}

/// The name that recordings have for a device.
fn name_in_recordings(device: &Device, fault: &Folded) -> Option<String> {
    match (device.function, &fault.first.sender) {
        (Some(function), _) => Some(function.to_string()),
        (None, seen::Sender::Named(name)) => Some(name.clone()),
        (None, _) => None,
    }
}

fn summary(log: &LogContents, faults: &[Fault]) -> Finding {
    let lines = counted(log.lines, "line");
    let count: u64 = faults.iter().map(|one| one.count).sum::<u64>() + log.fold.beyond;
    match faults.len() {
        0 => Finding::good("faults", format!("There is no fault of an IOMMU in {lines}.")),
        kinds => {
            let count = counted(count, "fault");
            let kinds = match kinds {
                1 => String::new(),
                many => format!(" of {many} kinds"),
            };
            let mut why = format!("{count}{kinds} in {lines}.");
            if log.fold.beyond > 0 {
                let beyond = grouped(log.fold.beyond);
                why += &format!(" {beyond} of them are of kinds that are not listed.");
            }
            Finding::problem("faults", why)
        }
    }
}

fn entry(facts: &Circumstances<'_>) -> Fault {
    let (fault, device) = (facts.fault, facts.device);
    let first = &fault.first;
    let address = fault.range.map(|range| match range.first == range.last {
        true => format!("{:#x}", range.first),
        false => format!("{:#x} to {:#x}", range.first, range.last),
    });
    Fault {
        unit: first.unit.to_string(),
        device: first.sender.to_string(),
        device_is: device.words.clone().or_else(|| {
            device.is_unlisted.then(|| "no device of this machine has this place".to_owned())
        }),
        driver: device.driver.clone(),
        tried: first.attempt.map(seen::Attempt::word),
        kind: first.kind.words(),
        address,
        pasid: first.pasid,
        belongs_to: match fault.is_refusal() {
            true => facts.place.words.clone(),
            false => "The line has no address of the device.".to_owned(),
        },
        count: fault.count,
        times: times(fault),
        line: first.line,
        verdict: match first.kind {
            Kind::Untold => Verdict::Unknown,
            _ => Verdict::Problem,
        },
        causes: causes::of(facts),
    }
}

/// `2 times, from 0.361089 s to 0.361102 s; 2,474 more lines were left out by the kernel`.
fn times(fault: &Folded) -> String {
    let mut said = match fault.count {
        1 => "once".to_owned(),
        count => format!("{} times", grouped(count)),
    };
    match (fault.first.stamp.text(), fault.last.text()) {
        (Some(first), Some(last)) if first != last => said += &format!(", from {first} to {last}"),
        (Some(first), _) => said += &format!(", at {first}"),
        _ => {}
    }
    if fault.left_out > 0 {
        said += &format!("; the kernel left out {} more lines", grouped(fault.left_out));
    }
    said
}
