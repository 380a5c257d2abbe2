//! Guests whose PCI functions are explained one by one, by themselves: ports with ACS and without, switches, bridges,
//! and a port that leads out of the machine. The kernel's groups have to be those that `portolan explain` derives from
//! configuration space.
//!
//! Not supported: a switch whose ports have ACS, because QEMU's (`xio3130-downstream`) has none.

use serde_json::Value;

use super::GuestRun;
use super::explained::{Findings, NARROW};
use super::machines::{Machine, PORTOLAN, program};

/// Ports of every kind that QEMU has.
pub const PORTS: Machine = Machine {
    name: "explain-ports",
    step: "Linux guest: portolan explain, ports with ACS and without",
    limit: "600",
    devices: &[
        "-device",
        "intel-iommu,intremap=on,aw-bits=48",
        // ACS, and a card of two functions.
        "-device",
        "pcie-root-port,id=kept,chassis=1,addr=3",
        "-device",
        "nvme,serial=1,bus=kept,addr=0.0,multifunction=on",
        "-device",
        "bochs-display,bus=kept,addr=0.1",
        // Two ports of one device, without ACS.
        "-device",
        "pcie-root-port,id=open,chassis=2,addr=4.0,multifunction=on,disable-acs=on",
        "-device",
        "pcie-root-port,id=beside,chassis=3,addr=4.1,disable-acs=on",
        "-device",
        "nvme,serial=2,bus=open",
        "-device",
        "nvme,serial=3,bus=beside",
        // A switch.
        "-device",
        "pcie-root-port,id=above,chassis=4,addr=5",
        "-device",
        "x3130-upstream,id=switch,bus=above",
        "-device",
        "xio3130-downstream,id=left,bus=switch,chassis=5,addr=0",
        "-device",
        "xio3130-downstream,id=right,bus=switch,chassis=6,addr=1",
        "-device",
        "nvme,serial=4,bus=left",
        "-device",
        "bochs-display,bus=right",
        // A bridge to conventional PCI.
        "-device",
        "pcie-root-port,id=express,chassis=7,addr=6",
        "-device",
        "pcie-pci-bridge,id=bridge,bus=express",
        "-device",
        "edu,bus=bridge,addr=1",
        "-device",
        "edu,bus=bridge,addr=2",
        // ACS that the command line switches off in part.
        "-device",
        "pcie-root-port,id=loose,chassis=8,addr=7",
        "-device",
        "nvme,serial=5,bus=loose",
    ],
    disks: &[],
    ports: &["answers"],
    kernel_arguments: "intel_iommu=on pci=disable_acs_redir=0000:00:07.0",
    programs: &[PORTOLAN, program("explain-devices")],
    runs: &["explain-devices /dev/virtio-ports/answers"],
    check: |ran| {
        let answers = Answers::read(ran)?;
        answers.are_the_kernels()?;
        REASONS.iter().try_for_each(|reason| answers.reason(reason))?;
        PATHS.iter().try_for_each(|path| answers.path(path))
    },
    ..NARROW
};

/// A card below a port that, as firmware says, leads out of the machine, and one below another port.
pub const OUTSIDE: Machine = Machine {
    name: "explain-outside",
    step: "Linux guest: portolan explain, a port that leads outside",
    devices: &[
        "-device",
        "intel-iommu,intremap=on,aw-bits=48",
        "-device",
        "pcie-root-port,id=outside,chassis=1,addr=3",
        "-device",
        "pcie-root-port,id=inside,chassis=2,addr=4",
        // Without a driver: Linux copies the transfers of a device from outside, and has no memory for copies here.
        "-device",
        "bochs-display,bus=outside",
        "-device",
        "bochs-display,bus=inside",
    ],
    tables: &[("SSDT", LEADS_OUTSIDE)],
    kernel_arguments: "intel_iommu=on iommu=pt",
    check: |ran| {
        let answers = Answers::read(ran)?;
        answers.are_the_kernels()?;
        let of = |top| answers.below(top).next().ok_or_else(|| format!("nothing is below {top}"));
        let (card, outside) = of("0000:00:03.0")?;
        let (_, inside) = of("0000:00:04.0")?;
        let [of_outside, of_inside] = [Findings::of(outside)?, Findings::of(inside)?];
        of_outside.says("the IOMMU", "good", "it translates for the host")?;
        of_outside.says("the IOMMU", "good", "leads out of the machine")?;
        of_inside.says("the IOMMU", "good", "it passes addresses on as they are.")?;
        let machine = Findings::of(&answers.0["machine"])?;
        machine.says("mode", "good", "1 of 7: translated")?;
        machine.says("mode", "good", "iommu=pt")?;
        machine.says("ports that lead outside", "good", card)
    },
    ..PORTS
};

/// AML that gives the port the property `ExternalFacingPort` (ACPI 6.5, chapter 20; Microsoft's "DSD for PCIe Root
/// Ports"; `pci_acpi_set_external_facing` of Linux).
#[rustfmt::skip]
const LEADS_OUTSIDE: &[u8] = &[
    // Scope (\_SB.PCI0.S18), 72 bytes: QEMU's name for the function 3.0.
    0x10, 0x48, 0x04, b'\\', 0x2f, 3,
    b'_', b'S', b'B', b'_', b'P', b'C', b'I', b'0', b'S', b'1', b'8', b'_',
    // Name (_DSD, Package (2) {
    0x08, b'_', b'D', b'S', b'D', 0x12, 0x31, 2,
    // ToUUID ("efcc06cc-73ac-4bc3-bff0-76143807c389"),
    0x11, 0x13, 0x0a, 16,
    0xcc, 0x06, 0xcc, 0xef, 0xac, 0x73, 0xc3, 0x4b, 0xbf, 0xf0, 0x76, 0x14, 0x38, 0x07, 0xc3, 0x89,
    // Package (1) { Package (2) { "ExternalFacingPort", 1 } } })
    0x12, 0x1a, 1, 0x12, 0x17, 2, 0x0d,
    b'E', b'x', b't', b'e', b'r', b'n', b'a', b'l', b'F', b'a', b'c', b'i', b'n', b'g',
    b'P', b'o', b'r', b't', 0, 0x01,
];

/// Devices of the guest, by the functions of the root complex that they are below, or are.
struct Reason {
    below: &'static str,
    /// Endpoints of the group.
    endpoints: usize,
    /// Words of the answer on the group.
    words: &'static [&'static str],
}

const REASONS: [Reason; 7] = [
    Reason {
        below: "0000:00:03.0",
        endpoints: 2,
        words: &["of one device with", "does not keep its functions apart: it has no ACS"],
    },
    Reason {
        below: "0000:00:04.0",
        endpoints: 2,
        words: &[
            "behind the port 0000:00:04.0, which does not keep them apart: it has no ACS",
            "0000:00:04.1: of one device with 0000:00:04.0",
        ],
    },
    Reason {
        below: "0000:00:04.1",
        endpoints: 2,
        words: &["behind the port 0000:00:04.1, which does not keep them apart: it has no ACS"],
    },
    // Linux puts each device of the switch with its port alone, although they reach each other.
    Reason {
        below: "0000:00:05.0",
        endpoints: 1,
        words: &["which does not keep them apart: it has no ACS", "Ports and bridges of the group"],
    },
    Reason {
        below: "0000:00:06.0",
        endpoints: 2,
        words: &["a bridge that hides the functions' identifiers from the IOMMU"],
    },
    Reason {
        below: "0000:00:07.0",
        endpoints: 1,
        words: &[
            "behind the port 0000:00:07.0, which does not keep them apart: its ACS has switched off",
            "ReqRedir, CmpltRedir",
        ],
    },
    // Functions of the chipset.
    Reason {
        below: "0000:00:1f.2",
        endpoints: 3,
        words: &["of one device with 0000:00:1f.0, which does not keep its functions apart"],
    },
];

/// A pair, by the ports of the root complex that its functions are below.
struct PairPath {
    below: [&'static str; 2],
    path: &'static str,
    words: &'static str,
}

const PATHS: [PairPath; 2] = [
    PairPath {
        below: ["0000:00:05.0", "0000:00:05.0"],
        path: "switch",
        words: "no port between redirects",
    },
    PairPath {
        below: ["0000:00:03.0", "0000:00:07.0"],
        path: "refused",
        words: "No bridge is above both",
    },
];

/// Answers that the guest sent.
struct Answers(Value);

impl Answers {
    fn read(ran: &GuestRun) -> Result<Self, String> {
        let text = std::fs::read(ran.place.join("answers")).map_err(|error| error.to_string())?;
        serde_json::from_slice(&text).map(Self).map_err(|error| error.to_string())
    }

    /// Checks that each group is the kernel's, and follows from configuration space.
    fn are_the_kernels(&self) -> Result<(), String> {
        let groups = self.0["groups"].as_object().ok_or("there are no groups")?;
        for (function, members) in groups {
            for by in ["explained", "bare"] {
                let own = &self.0[by][function]["group"]["functions"];
                if own != members {
                    return Err(format!("{function}: {members} by the kernel, {by} {own}"));
                }
            }
        }
        println!("{} functions: groups are the kernel's", groups.len());
        if groups.is_empty() { Err("there are no functions".to_owned()) } else { Ok(()) }
    }

    /// The function of the root complex that is above `function`, or is it.
    fn top<'a>(&'a self, function: &'a str) -> &'a str {
        let way = self.0["explained"][function]["device"]["way_up"].as_array();
        way.and_then(|way| way.last()?.as_str()).unwrap_or(function)
    }

    /// The answers about endpoints below `top`.
    fn below<'a>(&'a self, top: &'a str) -> impl Iterator<Item = (&'a str, &'a Value)> {
        let all = self.0["explained"].as_object().into_iter().flatten();
        let all = all.map(|(function, answer)| (function.as_str(), answer));
        all.filter(move |(function, answer)| self.top(function) == top && is_endpoint(answer))
    }

    fn reason(&self, wanted: &Reason) -> Result<(), String> {
        let mut met = 0;
        for (function, answer) in self.below(wanted.below) {
            let findings = Findings::of(answer)?;
            let why = findings.why("the group")?;
            let members = answer["group"]["functions"].as_array().into_iter().flatten();
            let members = members.filter_map(Value::as_str);
            let endpoints =
                members.filter(|member| is_endpoint(&self.0["explained"][member])).count();
            if let Some(word) = wanted.words.iter().find(|word| !why.contains(**word)) {
                return Err(format!("{function}: the group does not say {word:?}: {why}"));
            }
            if why.contains("for root to read") {
                return Err(format!("{function}: root is told to become root: {why}"));
            }
            if endpoints != wanted.endpoints {
                let most = wanted.endpoints;
                return Err(format!("{function}: {endpoints} endpoints in the group, not {most}"));
            }
            println!("{function}: {why}");
            met += 1;
        }
        if met == 0 { Err(format!("nothing is below {}", wanted.below)) } else { Ok(()) }
    }

    fn path(&self, wanted: &PairPath) -> Result<(), String> {
        let pairs = self.0["between"]["pairs"].as_array().map_or(&[][..], Vec::as_slice);
        let is_below = |pair: &Value| {
            let functions = [&pair["a"], &pair["b"]].map(|one| one.as_str().unwrap_or_default());
            functions.map(|function| self.top(function)) == wanted.below
        };
        let pair = pairs.iter().find(|pair| is_below(pair));
        let pair = pair.ok_or_else(|| format!("no pair is below {:?}", wanted.below))?;
        println!("{} and {}: {}: {}", pair["a"], pair["b"], pair["path"], pair["why"]);
        let why = pair["why"].as_str().unwrap_or_default();
        match pair["path"] == wanted.path && why.contains(wanted.words) {
            true => Ok(()),
            false => Err(format!("the path is not {} with {:?}", wanted.path, wanted.words)),
        }
    }
}

/// Tells if a function is none of the ports and bridges.
fn is_endpoint(answer: &Value) -> bool {
    answer["device"]["kind"] != "port or bridge"
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers about a port and two functions behind it.
    fn answers() -> Value {
        let of = |kind: &str, way: &[&str]| {
            serde_json::json!({
                "device": { "kind": kind, "way_up": way },
                "group": { "functions": ["0000:01:00.0", "0000:01:00.1"] },
                "findings": [{ "what": "the group", "why": "it has no ACS", "verdict": "good" }],
            })
        };
        let port = serde_json::json!({
            "device": { "kind": "port or bridge", "way_up": [] },
            "group": { "functions": ["0000:00:01.0"] },
        });
        let card = of("NVMe disk", &["0000:00:01.0"]);
        let all = serde_json::json!({
            "0000:00:01.0": port, "0000:01:00.0": card.clone(), "0000:01:00.1": card,
        });
        let pair = serde_json::json!({
            "a": "0000:01:00.0", "b": "0000:01:00.1", "path": "switch", "why": "near",
        });
        serde_json::json!({
            "groups": {
                "0000:00:01.0": ["0000:00:01.0"],
                "0000:01:00.0": ["0000:01:00.0", "0000:01:00.1"],
                "0000:01:00.1": ["0000:01:00.0", "0000:01:00.1"],
            },
            "explained": all.clone(),
            "bare": all,
            "between": { "pairs": [pair] },
        })
    }

    #[test]
    fn a_group_that_is_not_the_kernels_is_noticed() {
        assert_eq!(Answers(answers()).are_the_kernels(), Ok(()));
        for by in ["explained", "bare"] {
            let mut other = answers();
            other[by]["0000:01:00.1"]["group"]["functions"] = serde_json::json!(["0000:01:00.1"]);
            let why = Answers(other).are_the_kernels().unwrap_err();
            assert!(why.contains("0000:01:00.1") && why.contains(by), "{why}");
        }
        let mut none = answers();
        none["groups"] = serde_json::json!({});
        assert!(Answers(none).are_the_kernels().is_err());
    }

    #[test]
    fn another_reason_another_group_and_nothing_to_look_at_are_noticed() {
        let wanted = |below, endpoints, word: &'static [&'static str]| {
            Answers(answers()).reason(&Reason { below, endpoints, words: word })
        };
        assert_eq!(wanted("0000:00:01.0", 2, &["no ACS"]), Ok(()));
        assert!(wanted("0000:00:01.0", 2, &["no ACS", "bridge"]).is_err());
        assert!(wanted("0000:00:01.0", 1, &["no ACS"]).is_err());
        assert!(wanted("0000:00:02.0", 2, &["no ACS"]).is_err());
        let mut asks = answers();
        asks["explained"]["0000:01:00.0"]["findings"][0]["why"] = "ACS is for root to read".into();
        let wanted = Reason { below: "0000:00:01.0", endpoints: 2, words: &["ACS"] };
        assert!(Answers(asks).reason(&wanted).is_err());
    }

    #[test]
    fn another_path_is_noticed() {
        let wanted = |path, words| {
            let below = ["0000:00:01.0"; 2];
            Answers(answers()).path(&PairPath { below, path, words })
        };
        assert_eq!(wanted("switch", "near"), Ok(()));
        assert!(wanted("root", "near").is_err());
        assert!(wanted("switch", "far").is_err());
    }
}
