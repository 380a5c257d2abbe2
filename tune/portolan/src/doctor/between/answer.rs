//! The judgement of one pair: the path of an access, the reason, and what would change it.

use std::collections::{BTreeMap, BTreeSet};

use portolan::addr::PciFunction;
use portolan_hw::topology::pci::Acs;
use serde::Serialize;

use super::linux::{Listing, is_zen, listing};
use super::way::PeerWay;
use crate::doctor::device::services;
use crate::doctor::finding::Verdict;
use crate::doctor::pci::{GroupMode, KnownFunction, Pci};
use crate::doctor::{Files, device};

/// Path of a peer-to-peer access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PeerPath {
    /// It stays below a bridge that both are behind.
    Switch,
    /// It goes up to the root complex and down again, untranslated.
    Root,
    /// It goes through the IOMMU, which translates it.
    Iommu,
    /// The IOMMU stops it.
    Dropped,
    /// Linux's list does not have the host bridge.
    Refused,
    /// The files do not tell.
    Unknown,
}

impl PeerPath {
    /// The path in words.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Switch => "direct, below the bridge that both are behind",
            Self::Root => "by the root complex",
            Self::Iommu => "through the IOMMU",
            Self::Dropped => "stopped",
            Self::Refused => "refused by Linux",
            Self::Unknown => "not known",
        }
    }
}

/// Changes of a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Remedy {
    /// The IOMMU passes addresses on for the host's devices.
    pass_through: bool,
    /// The ports that redirect stop doing so.
    direct: bool,
    /// Both devices go below one switch.
    switch: bool,
    /// Root reads ACS.
    root: bool,
}

/// Judgement of a pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PairAnswer {
    /// The path.
    pub path: PeerPath,
    /// The judgement.
    pub verdict: Verdict,
    /// The reason without the names of ports, so that alike pairs can be folded.
    pub why: String,
    /// Ports that redirect.
    pub ports: BTreeSet<PciFunction>,
    /// Their services.
    pub by: String,
    /// Things that would change it.
    pub remedy: Remedy,
}

/// Drivers of GPUs that hand their memory to others under the IOMMU's addresses.
const MAPS_MEMORY: [&str; 3] = ["amdgpu", "xe", "i915"];

/// Prices of what would change a path.
const PASS_THROUGH_PRICE: &str = "with iommu=pt the host's devices reach all of memory: no \
                                  protection from a broken or hostile one";
const DIRECT_PRICE: &str = "without redirect the devices below these ports go to one guest or none does, and reach \
                            each other unchecked";

impl Remedy {
    /// The thing to do, and its price, for `ports`.
    pub fn words(self, ports: &BTreeSet<PciFunction>) -> [Option<String>; 2] {
        let (mut ways, mut prices): (Vec<String>, Vec<&str>) = (Vec::new(), Vec::new());
        if self.pass_through {
            ways.push("iommu=pt on the kernel's command line".to_owned());
            prices.push(PASS_THROUGH_PRICE);
        }
        if self.direct && !ports.is_empty() {
            let ports: Vec<String> = ports.iter().map(ToString::to_string).collect();
            let option = format!("pci=disable_acs_redir={}", ports.join(";"));
            ways.push(format!(
                "{option} (in GRUB's files each ; is \\;), or ACS off in the firmware's setup"
            ));
            prices.push(DIRECT_PRICE);
        }
        if self.switch {
            ways.push("both devices below one PCI Express switch, its redirect off".to_owned());
        }
        if self.root {
            ways.push("read this as root, who sees which ports redirect".to_owned());
        }
        let ways = (!ways.is_empty()).then(|| ways.join("; or "));
        [ways, (!prices.is_empty()).then(|| prices.join("; "))]
    }
}

/// A machine, with what is the same for all of its pairs.
pub struct PeerMachine<'m> {
    /// The PCI functions.
    pub pci: &'m Pci,
    /// Modes of the groups of the devices.
    modes: BTreeMap<PciFunction, GroupMode>,
    /// The processor is AMD's from Zen on, where that is known.
    zen: Option<bool>,
}

impl<'m> PeerMachine<'m> {
    /// Reads what holds for pairs of `devices`.
    pub fn new(files: &Files, pci: &'m Pci, devices: &[&KnownFunction]) -> Self {
        let modes = devices.iter().map(|one| (one.at, pci.mode(files, one.at)));
        Self { pci, modes: modes.collect(), zen: is_zen(files) }
    }
}

/// Judges accesses between two functions.
pub fn answer(machine: &PeerMachine<'_>, [a, b]: [&KnownFunction; 2]) -> PairAnswer {
    let pci = machine.pci;
    let way = PeerWay::between(pci, a, b);
    let by = way.redirecting.iter().fold(Acs::empty(), |all, one| all | one.by);
    let mut found = PairAnswer {
        path: PeerPath::Unknown,
        verdict: Verdict::Unknown,
        why: String::new(),
        ports: way.redirecting.iter().map(|one| one.at).collect(),
        by: services(by),
        remedy: Remedy::default(),
    };
    let modes = [a, b].map(|one| machine.modes.get(&one.at).copied().unwrap_or(GroupMode::Unknown));
    if modes.contains(&GroupMode::Blocked) {
        found.path = PeerPath::Dropped;
        found.verdict = Verdict::Problem;
        found.why =
            "The IOMMU stops all accesses of one of them until a driver or a guest takes it."
                .to_owned();
        return found;
    }
    match way.is_local() {
        Some(true) => local(&mut found, [a, b], modes),
        Some(false) => {
            let listing = listing(machine.zen, pci, [a, b]);
            upwards(&mut found, listing, way.common.is_some(), modes);
        }
        None => {
            found.why = "Both are behind one bridge. ACS of the ports between, which only root reads, decides if \
                         accesses stay below it."
                .to_owned();
            found.remedy.root = true;
        }
    }
    if !way.unread.is_empty() && found.path != PeerPath::Unknown {
        found.remedy.root = true;
    }
    found
}

/// Judges a pair whose accesses stay below a bridge.
fn local(found: &mut PairAnswer, pair: [&KnownFunction; 2], modes: [GroupMode; 2]) {
    found.path = PeerPath::Switch;
    found.verdict = Verdict::Good;
    found.why = "Both are behind one bridge, and no port between redirects: accesses do not come \
                 near the IOMMU."
        .to_owned();
    let maps = |one: &KnownFunction| {
        one.driver.as_deref().is_some_and(|driver| MAPS_MEMORY.contains(&driver))
    };
    if modes.contains(&GroupMode::Translated) && pair.into_iter().any(maps) {
        found.verdict = Verdict::Problem;
        found.why += " But the IOMMU translates, and a driver of them hands its memory to others under the IOMMU's \
                      addresses: such accesses go up all the same, and arrive damaged on some machines.";
        found.remedy.pass_through = true;
    }
}

/// Judges a pair whose accesses go up to the root complex.
fn upwards(found: &mut PairAnswer, listing: Listing, switch: bool, modes: [GroupMode; 2]) {
    let up = match switch {
        true => {
            "Both are behind one bridge, but ports between send accesses up to the root complex."
        }
        false => "No bridge is above both: accesses go up to the root complex.",
    };
    found.remedy.direct = true;
    if let Listing::Refused(why) = listing {
        found.path = PeerPath::Refused;
        found.verdict = Verdict::Problem;
        found.remedy.switch = !switch;
        found.remedy.direct = switch;
        found.why = format!(
            "{up} There {why}, so that drivers that ask it (amdgpu, xe, nvme and others) are refused; NVIDIA's own \
             does not ask. Past the list it is not safe: Intel's client processors pass writes between root ports at \
             most, and reads come back as ones."
        );
        return;
    }
    let known = listing != Listing::Unknown;
    if modes.contains(&GroupMode::User) {
        found.path = PeerPath::Iommu;
        found.why = format!(
            "{up} A guest has one of them: its monitor has to map the peer's window for it."
        );
    } else if modes.contains(&GroupMode::Translated) {
        found.path = PeerPath::Iommu;
        found.verdict = Verdict::Problem;
        found.remedy.pass_through = true;
        found.why = format!(
            "{up} The IOMMU translates there, and knows the peer's window only if the driver maps it: accesses by \
             bus address, as NVIDIA's driver makes them, are lost. A lost write is no error, the data is wrong or \
             a program hangs; the log has IO_PAGE_FAULT or DMAR lines."
        );
    } else if modes.contains(&GroupMode::Unknown) {
        found.why = format!(
            "{up} If the IOMMU translates there is not known: the mode of the groups is not among the files."
        );
    } else {
        found.path = PeerPath::Root;
        found.why = format!("{up} The IOMMU does not translate.");
        found.verdict = match (switch, known) {
            (true, _) => Verdict::Problem,
            (false, true) => Verdict::Good,
            (false, false) => Verdict::Unknown,
        };
        if switch {
            found.why += " Between two devices of one switch that is the long way: slow, and root complexes of some \
                          machines hang on it.";
        } else if known {
            found.why += " By Linux's list it passes accesses on.";
            found.remedy.direct = false;
        }
    }
}

/// Names of `ports` in a sentence.
pub fn named(found: &PairAnswer) -> String {
    match found.ports.is_empty() {
        true => String::new(),
        false => {
            let ports = device::listed(found.ports.iter().map(ToString::to_string));
            format!(" Ports that redirect: {ports} ({}).", found.by)
        }
    }
}
