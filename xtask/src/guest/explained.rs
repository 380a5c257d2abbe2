//! Guests that collect themselves by `portolan collect`, and the host's `portolan explain` of what they sent.

use std::process::Command;

use serde_json::Value;

use super::GuestRun;
use super::machines::{self, Machine, PORTOLAN};

/// An IOMMU of 39 bits, whose pages are taken back later.
pub const NARROW: Machine = Machine {
    name: "explain-39",
    step: "Linux guest: portolan explain, 39 bits",
    devices: &[
        "-device",
        "intel-iommu,intremap=on,aw-bits=39",
        "-device",
        "nvme,serial=1,drive=flash",
    ],
    disks: &[("flash", 4)],
    ports: &["machine.gz"],
    kernel_arguments: "intel_iommu=on",
    modules: &[],
    programs: &[PORTOLAN],
    runs: &["portolan collect -o /dev/virtio-ports/machine.gz"],
    traced: &[],
    check: |ran| {
        let answer = explained(ran)?;
        let answer = Findings::of(&answer)?;
        answer.says("IOMMU", "good", "intel_iommu=on")?;
        answer.says("mode", "good", "DMA-FQ")?;
        answer.says("interrupts", "good", "IR-")?;
        answer.says("address width", "good", "39 bits")
    },
    ..machines::DISKS
};

/// One of 48 bits, whose pages are taken back at once because that was asked for.
pub const WIDE: Machine = Machine {
    name: "explain-48",
    step: "Linux guest: portolan explain, 48 bits",
    devices: &[
        "-device",
        "intel-iommu,intremap=on,aw-bits=48",
        "-device",
        "nvme,serial=1,drive=flash",
    ],
    kernel_arguments: "intel_iommu=on iommu.strict=1",
    check: |ran| {
        let answer = explained(ran)?;
        let answer = Findings::of(&answer)?;
        answer.says("mode", "good", "iommu.strict=1")?;
        answer.says("address width", "good", "48 bits")
    },
    ..NARROW
};

/// None, as in most virtual machines.
pub const NONE: Machine = Machine {
    name: "explain-none",
    step: "Linux guest: portolan explain, no IOMMU",
    devices: &["-device", "nvme,serial=1,drive=flash"],
    kernel_arguments: "intel_iommu=on",
    check: |ran| Findings::of(&explained(ran)?)?.says("IOMMU", "good", "virtual machine"),
    ..NARROW
};

/// One that the command line switches off.
pub const OFF: Machine = Machine {
    name: "explain-off",
    step: "Linux guest: portolan explain, IOMMU off",
    kernel_arguments: "intel_iommu=off",
    check: |ran| Findings::of(&explained(ran)?)?.says("IOMMU", "problem", "intel_iommu=off"),
    ..NARROW
};

/// One that translates nothing, and an option that Linux ignores.
pub const PASSED_THROUGH: Machine = Machine {
    name: "explain-pt",
    step: "Linux guest: portolan explain, passed through",
    kernel_arguments: "intel_iommu=on,pt iommu=pt",
    check: |ran| {
        let answer = explained(ran)?;
        let answer = Findings::of(&answer)?;
        answer.says("mode", "good", "iommu=pt")?;
        answer.says("kernel options", "problem", "`pt` is no value of intel_iommu=")
    },
    ..NARROW
};

/// The findings about a guest.
pub(super) struct Findings<'a>(&'a [Value]);

impl<'a> Findings<'a> {
    /// Those of an answer.
    pub(super) fn of(answer: &'a Value) -> Result<Self, String> {
        let findings = answer["findings"].as_array().ok_or("there are no findings")?;
        Ok(Self(findings))
    }

    /// The reason of the finding on `what`.
    pub(super) fn why(&self, what: &str) -> Result<&'a str, String> {
        Ok(self.one(what)?["why"].as_str().unwrap_or_default())
    }

    /// Checks a finding's verdict, and that its reason has `words`.
    pub(super) fn says(&self, what: &str, verdict: &str, words: &str) -> Result<(), String> {
        let (found, why) = (self.one(what)?, self.why(what)?);
        println!("{what}: {}: {why}", found["verdict"].as_str().unwrap_or_default());
        if found["verdict"] == verdict && why.contains(words) {
            Ok(())
        } else {
            Err(format!("{what} is not {verdict} with {words:?}: {found}"))
        }
    }

    fn one(&self, what: &str) -> Result<&'a Value, String> {
        let found = self.0.iter().find(|one| one["what"] == what);
        found.ok_or_else(|| format!("there is no finding on {what}"))
    }
}

/// Explains what the guest collected; a problem is no failure here.
fn explained(ran: &GuestRun) -> Result<Value, String> {
    let mut command = Command::new(ran.programs.join("portolan"));
    command.args(["explain", "--from", "machine.gz", "--json"]).current_dir(&ran.place);
    let output = command.output().map_err(|error| error.to_string())?;
    serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("{error}: {}", String::from_utf8_lossy(&output.stderr)))
}
