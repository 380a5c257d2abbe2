//! Facts of a machine on which several answers rest.

use std::cell::OnceCell;

use crate::doctor::kernel_config::KernelConfig;
use crate::doctor::{Files, Reading, Subject};
use crate::facts::Facts;

use super::options::BootOptions;
use super::processor::Processor;

/// Devices whose files are read at most.
pub(super) const MOST_DEVICES: usize = 4096;

/// A machine's facts.
#[derive(Debug)]
pub(super) struct Known<'a> {
    /// The machine.
    pub(super) subject: &'a Subject,
    /// Facts that recordings have too.
    pub(super) facts: Facts,
    /// Maker of its processors.
    pub(super) processor: Processor,
    /// Physical address bits of its processors.
    pub(super) physical_bits: Option<u32>,
    /// Its kernel's command line.
    pub(super) options: BootOptions,
    /// Its kernel's configuration.
    pub(super) config: KernelConfig,
    /// Its kernel's log.
    log: Reading<String>,
    /// The largest memory of each device; empty before it is needed.
    memories: OnceCell<Vec<(u64, String)>>,
}

impl<'a> Known<'a> {
    pub(super) fn read(subject: &'a Subject) -> Self {
        let files = &subject.files;
        let cpuinfo = files.text("proc/cpuinfo").found().unwrap_or_default();
        let facts = Facts::beside(files, &cpuinfo);
        let log = subject.log.text();
        let mut command_line = facts.command_line.clone();
        if command_line.is_empty() {
            // The log's line is the only source where files are missing.
            let lines = log.clone().found().unwrap_or_default();
            command_line = command_line_of(&lines).unwrap_or_default();
        }
        Self {
            processor: Processor::of(&cpuinfo).behind(&facts, files),
            physical_bits: physical_bits(&cpuinfo),
            options: BootOptions::new(&command_line),
            config: KernelConfig::read(files, &facts.release),
            subject,
            facts,
            log,
            memories: OnceCell::new(),
        }
    }

    /// The files.
    pub(super) fn files(&self) -> &Files {
        &self.subject.files
    }

    /// The largest memory of each device, in bytes, with the device's address.
    pub(super) fn memories(&self) -> &[(u64, String)] {
        self.memories.get_or_init(|| memories(self.files()))
    }

    /// The log's lines with `words`, in order; none if it cannot be read.
    pub(super) fn logged(&self, words: &'static str) -> impl Iterator<Item = &str> {
        let text = match &self.log {
            Reading::Found(text) => text.as_str(),
            Reading::Absent | Reading::Denied => "",
        };
        text.lines().filter(move |line| line.contains(words))
    }

    /// Tells if the log has a line with `words`.
    pub(super) fn says(&self, words: &'static str) -> bool {
        self.logged(words).next().is_some()
    }

    /// Tells if the log could be read and has lines.
    pub(super) fn has_log(&self) -> bool {
        matches!(&self.log, Reading::Found(text) if !text.is_empty())
    }

    /// Tells if Linux runs an IOMMU.
    pub(super) fn is_on(&self) -> bool {
        !self.facts.iommus.is_empty() || !self.facts.group_kinds.is_empty()
    }

    /// Names of devices that wait for a guest or a program: their driver is VFIO's.
    pub(super) fn given_away(&self) -> Vec<&str> {
        let held = self.facts.devices.iter();
        let held = held.filter(|device| device.driver.as_deref() == Some("vfio-pci"));
        held.map(|device| device.name.as_str()).collect()
    }

    /// The first words of `path`, if it can be read.
    pub(super) fn word(&self, path: &str) -> Option<String> {
        Some(self.files().text(path).found()?.trim().to_owned())
    }
}

/// The largest memory of each device, in bytes, with the device's address.
fn memories(files: &Files) -> Vec<(u64, String)> {
    let devices = files.names("sys/bus/pci/devices").found().unwrap_or_default();
    let sizes = devices.into_iter().take(MOST_DEVICES).filter_map(|device| {
        let text = files.text(&format!("sys/bus/pci/devices/{device}/resource")).found()?;
        let size = text.lines().take(6).filter_map(|line| {
            let number = |word: &str| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok();
            let mut words = line.split_whitespace();
            let (start, last) = (number(words.next()?)?, number(words.next()?)?);
            (last > start).then(|| last - start).and_then(|size| size.checked_add(1))
        });
        Some((size.max()?, device))
    });
    sizes.collect()
}

/// `address sizes : 39 bits physical, 48 bits virtual` is 39.
fn physical_bits(cpuinfo: &str) -> Option<u32> {
    let line = cpuinfo.lines().find_map(|line| line.strip_prefix("address sizes"))?;
    let digits = line.trim_start_matches([' ', '\t', ':']).split(' ').next()?;
    digits.parse().ok().filter(|bits| (1..=64).contains(bits))
}

/// The command line that the kernel logs.
fn command_line_of(log: &str) -> Option<String> {
    let line = log.lines().find_map(|line| line.split_once("Command line: "))?;
    Some(line.1.to_owned())
}
