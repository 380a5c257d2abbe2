//! Peer-to-peer access: for each pair of GPUs, network cards and disks the path that it takes, what Linux allows, the
//! ports whose ACS decides, and what would change it.
//!
//! Not supported: links that are not PCI Express (NVLink, xGMI), and what a maker's driver allows by the name of its
//! devices.

mod answer;
mod linux;
mod notes;
#[cfg(test)]
mod tests;
mod text;
mod way;

pub use answer::PeerPath;
pub use text::text;

use anyhow::{Context, Result, bail};
use serde::Serialize;

use super::pci::{KnownFunction, Pci};
use super::{Finding, Subject, Verdict};
use answer::{PairAnswer, PeerMachine, answer};

/// Devices that are looked at where none is named.
const MOST_DEVICES: usize = 128;
/// Vendors of the displays of servers' managers, which are no peers.
const MANAGERS: [u16; 2] = [0x1a03, 0x102b];

/// Answers about pairs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PairAnswers {
    /// The pairs.
    pub pairs: Vec<PeerPair>,
    /// Answers about all of them.
    pub findings: Vec<Finding>,
}

/// Two devices, and the path between them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PeerPair {
    /// One.
    pub a: String,
    /// The other.
    pub b: String,
    /// The path.
    pub path: PeerPath,
    /// The judgement.
    pub verdict: Verdict,
    /// The reason, as sentences.
    pub why: String,
    /// The thing to do, if there is one.
    #[serde(rename = "do")]
    pub act: Option<String>,
    /// The price of doing it.
    pub gives_up: Option<String>,
    /// The answer as it is folded with alike ones in the text.
    #[serde(skip)]
    answer: PairAnswer,
}

/// Kind of a device, as pairs are chosen.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PeerKind {
    Processor,
    Other,
}

fn kind(one: &KnownFunction) -> Option<PeerKind> {
    let id = one.id();
    match (one.class() >> 16, one.class() >> 8 & 0xff) {
        _ if id.vendor == u16::MAX || MANAGERS.contains(&id.vendor) => None,
        (0x03 | 0x12, _) => Some(PeerKind::Processor),
        (0x02, _) | (0x01, 0x08) => Some(PeerKind::Other),
        _ => None,
    }
}

/// GPUs, network cards and disks, one function of each card and kind.
fn all(pci: &Pci) -> Vec<&KnownFunction> {
    let mut found: Vec<&KnownFunction> = Vec::new();
    for one in pci.functions().filter(|one| kind(one).is_some()) {
        let card = |other: &KnownFunction| {
            (other.at.segment, other.at.requester.get() >> 3, other.class())
        };
        if found.last().is_none_or(|before| card(before) != card(one)) {
            found.push(one);
        }
    }
    found
}

impl PairAnswers {
    /// Answers about pairs of the devices that `names` name on `subject`, or of all.
    ///
    /// # Errors
    /// If there are no PCI functions, none of a name, or a single device.
    pub fn new(subject: &Subject, names: &[String]) -> Result<Self> {
        let pci = Pci::new(subject);
        if pci.functions().next().is_none() {
            bail!("no PCI function is known: /sys/bus/pci/devices is not there");
        }
        let mut findings = Vec::new();
        let devices = match names {
            [] => {
                let mut devices = all(&pci);
                if devices.len() > MOST_DEVICES {
                    let why = format!(
                        "Of {} devices {MOST_DEVICES} are looked at: name those that matter.",
                        devices.len()
                    );
                    findings.push(Finding::unknown("left out", why));
                    devices.truncate(MOST_DEVICES);
                }
                devices
            }
            [_] => bail!("one device has no peer: name two or more, or none for all"),
            names => {
                let of = |name: &String| {
                    pci.named(&subject.files, name)
                        .with_context(|| format!("{name} names none of the PCI functions"))
                };
                names.iter().take(MOST_DEVICES).map(of).collect::<Result<_>>()?
            }
        };
        let machine = PeerMachine::new(&subject.files, &pci, &devices);
        let mut pairs = Vec::new();
        for (number, a) in devices.iter().enumerate() {
            for b in devices.iter().skip(number + 1).filter(|b| b.at != a.at) {
                let processors = [*a, *b].map(|one| kind(one) == Some(PeerKind::Processor));
                if !names.is_empty() || processors.contains(&true) {
                    pairs.push(PeerPair::new(&machine, [a, b]));
                }
            }
        }
        if pairs.is_empty() {
            let why = "There are no two devices between which a peer-to-peer access would be of use: no GPU, or \
                       nothing beside it.";
            findings.push(Finding::good("peers", why));
        }
        findings.extend(notes::windows(&devices));
        findings.extend(notes::options(&subject.files));
        Ok(Self { pairs, findings })
    }

    /// Tells if a pair or a finding is a problem.
    pub fn has_problem(&self) -> bool {
        let findings = self.findings.iter().map(|one| one.verdict);
        self.pairs.iter().map(|one| one.verdict).chain(findings).any(|one| one == Verdict::Problem)
    }
}

impl PeerPair {
    fn new(machine: &PeerMachine<'_>, [a, b]: [&KnownFunction; 2]) -> Self {
        let found = answer(machine, [a, b]);
        let [act, gives_up] = found.remedy.words(&found.ports);
        Self {
            a: a.at.to_string(),
            b: b.at.to_string(),
            path: found.path,
            verdict: found.verdict,
            why: found.why.clone() + &answer::named(&found),
            act,
            gives_up,
            answer: found,
        }
    }
}
