//! Firmware's tables and the PCI functions of a machine, as a report: IOMMUs, the devices and streams that each
//! serves, groups, and addresses that are taken.
//!
//! The library's own [`Topology`] reads the tables; here they are fetched from files and printed.

mod config;
mod files;
mod text;

pub use config::{Config, port};
pub use files::{Table, read};
pub use text::text;

use anyhow::{Context, Result};
use portolan::addr::PciFunction;
use portolan_hw::topology::pci::{PciNode, PciOverrides};
use portolan_hw::topology::{Served, Survey, SurveyedUnit, Topology};
use portolan_tables::sdt::Sdt;
use serde::Serialize;

/// Virtual functions that are listed.
const MOST_VIRTUAL: usize = 1 << 12;

/// Output of `portolan explain --firmware`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The table that describes the units.
    pub table: TableReport,
    /// The units, in the order of the table.
    pub units: Vec<UnitReport>,
    /// The functions, if they are known; virtual ones come last.
    pub functions: Vec<PciFunctionReport>,
    /// Firmware asks for protection from devices that are plugged in.
    pub wants_dma_protection: bool,
    /// Ports that lead out of the machine: functions below them are not trusted.
    pub external_ports: Vec<String>,
    /// Groups of several functions.
    pub groups: Vec<GroupReport>,
    /// Remarks: faults of the tables, and facts worth knowing.
    pub remarks: Vec<RemarkReport>,
}

/// A table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TableReport {
    /// Its signature, or `device tree`.
    pub signature: String,
    /// Length of the table.
    pub bytes: usize,
    /// Maker: OEM identifier and OEM table identifier, or the board in a device tree.
    pub maker: String,
    /// The file.
    pub source: String,
}

/// A unit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UnitReport {
    /// Its number.
    pub unit: usize,
    /// Its register interface.
    pub kind: &'static str,
    /// Its position.
    pub place: String,
    /// Devices that it serves, by the table.
    pub serves: Vec<String>,
    /// Reason why it cannot be enabled; null if the tables give none.
    pub refused: Option<String>,
    /// Devices whose addresses do not all arrive at the unit, and the addresses that do.
    pub limits: Vec<String>,
    /// Addresses that its streams cannot have for mappings, or that are mapped before all others.
    pub reserved: Vec<ReservedReport>,
}

/// Reserved addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReservedReport {
    /// First stream.
    pub first_stream: u32,
    /// Last stream.
    pub last_stream: u32,
    /// First address.
    pub start: u64,
    /// Last address.
    pub last: u64,
    /// Kind of the devices.
    pub kind: String,
}

/// A function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PciFunctionReport {
    /// Its place.
    pub function: String,
    /// Vendor and device.
    pub id: String,
    /// Class.
    pub class: String,
    /// Its kind.
    pub kind: String,
    /// The number of its unit; none serves it if it is null.
    pub unit: Option<usize>,
    /// Its streams.
    pub streams: Vec<u32>,
    /// The first function of its group.
    pub group: String,
    /// The external-facing port that it, or another function of its group, is below: it is not trusted then.
    pub below: Option<String>,
    /// Reason why it cannot be opened; null if none is known.
    pub refused: Option<String>,
    /// Highest address with which it reaches its unit; null if it cannot be opened.
    pub last_address: Option<u64>,
}

/// A group of several functions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GroupReport {
    /// The functions.
    pub functions: Vec<String>,
    /// Reasons why they share a group.
    pub reasons: Vec<String>,
}

/// A remark.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RemarkReport {
    /// The remark is of a fault.
    pub wrong: bool,
    /// The remark, as a sentence.
    pub text: String,
}

impl Report {
    /// The report on `tables` and `config`; `external` are the ports that lead out of the machine, if
    /// some are known.
    ///
    /// # Errors
    /// If no table describes units, several do, or it is damaged.
    pub fn new(tables: &[Table], config: &Config, external: &[PciFunction]) -> Result<Self> {
        let (table, mut topology) = described(tables)?;
        if !external.is_empty() {
            topology = topology.external_ports(external.iter().copied());
        }
        let survey = topology.survey(PciOverrides::KNOWN, |of, at| config.word(of, at));
        let mut remarks: Vec<RemarkReport> = survey
            .remarks()
            .iter()
            .map(|remark| RemarkReport { wrong: remark.is_wrong(), text: remark.to_string() })
            .collect();
        remarks.extend(lacking(config).map(|text| RemarkReport { wrong: false, text }));
        let mut functions = functions(&topology, &survey);
        functions.extend(virtual_functions(&topology, &survey, config, &mut remarks));
        Ok(Self {
            table: TableReport::of(table)?,
            units: (0..)
                .zip(survey.units())
                .map(|(number, of)| unit(&survey, number, of))
                .collect(),
            wants_dma_protection: topology.wants_dma_protection(),
            external_ports: survey.external_ports().iter().map(ToString::to_string).collect(),
            groups: groups(&survey, &functions),
            functions,
            remarks,
        })
    }

    /// Tells if there is no fault and nothing is refused. Bridges and a unit's own function need no unit.
    pub fn holds(&self) -> bool {
        let served = |one: &PciFunctionReport| one.refused.is_none() || is_of_the_board(one);
        self.remarks.iter().all(|remark| !remark.wrong)
            && self.units.iter().all(|unit| unit.refused.is_none())
            && self.functions.iter().all(served)
    }
}

/// The table that describes units, and its topology. A device tree must be the only table.
fn described(tables: &[Table]) -> Result<(&Table, Topology)> {
    if let [table] = tables
        && table.tree().is_some()
    {
        let topology = Topology::from_device_tree(&table.bytes);
        return Ok((table, topology.context("the device tree")?));
    }
    let slices = tables.iter().map(|table| table.bytes.as_slice());
    let topology = Topology::from_acpi(slices).context("the tables")?;
    // There are no two, or the topology would be none.
    let alone = |table: &&Table| Topology::from_acpi([table.bytes.as_slice()]).is_ok();
    let table = tables.iter().find(alone).context("the tables")?;
    Ok((table, topology))
}

/// Facts that need more of configuration space.
fn lacking(config: &Config) -> Option<String> {
    match (config.functions(), config.short()) {
        (0, _) => Some(
            "the PCI functions are not known: `--pci FILE` takes what `lspci -xxxx` prints"
                .to_owned(),
        ),
        (_, 0) => None,
        (all, short) => Some(format!(
            "of {short} of {all} functions no more than 256 bytes are known: they are taken for such \
             without ACS (`lspci -xxxx`, as root, prints all)"
        )),
    }
}

impl TableReport {
    fn of(table: &Table) -> Result<Self> {
        if let Some(tree) = table.tree() {
            let root = tree.walk().next().map(|(_, root)| root);
            let model = root
                .and_then(|root| root.property("compatible"))
                .unwrap_or_default()
                .split(|byte| *byte == 0)
                .next();
            return Ok(Self {
                signature: "device tree".to_owned(),
                bytes: table.bytes.len(),
                maker: model.unwrap_or_default().escape_ascii().to_string(),
                source: table.source.display().to_string(),
            });
        }
        let sdt = Sdt::parse(&table.bytes)?;
        let maker = sdt.maker();
        let words = [&maker.oem[..], &maker.table].map(|name| {
            let name = String::from_utf8_lossy(name);
            name.trim_matches(['\0', ' ']).escape_default().to_string()
        });
        let words: Vec<_> = words.into_iter().filter(|word| !word.is_empty()).collect();
        Ok(Self {
            signature: String::from_utf8_lossy(&sdt.signature()).into_owned(),
            bytes: sdt.as_slice().len(),
            maker: words.join(" "),
            source: table.source.display().to_string(),
        })
    }
}

/// Tells if a function without a unit is a bridge, or an IOMMU itself.
fn is_of_the_board(function: &PciFunctionReport) -> bool {
    let class = &function.class;
    function.unit.is_none() && (class.starts_with("06") || class == "0806")
}

fn unit(survey: &Survey, number: usize, unit: &SurveyedUnit) -> UnitReport {
    UnitReport {
        unit: number,
        kind: unit.kind.name(),
        place: unit.place.to_string(),
        serves: unit.claims.iter().map(ToString::to_string).collect(),
        refused: survey.refused(number).map(|error| error.to_string()),
        limits: unit.limits.iter().map(ToString::to_string).collect(),
        reserved: unit
            .reserved
            .iter()
            .map(|one| ReservedReport {
                first_stream: one.streams.first().get(),
                last_stream: one.streams.last().get(),
                start: one.region.range.start().get(),
                last: one.region.range.last().get(),
                kind: text::kind(one.region.kind).to_owned(),
            })
            .collect(),
    }
}

fn functions(topology: &Topology, survey: &Survey) -> Vec<PciFunctionReport> {
    let report = |node: &PciNode| {
        let served = survey.served().iter().find(|one| one.function == node.at);
        let unserved = || Served { function: node.at, unit: None, streams: Vec::new() };
        let served = served.cloned().unwrap_or_else(unserved);
        let kind = node.kind.name().to_owned();
        function(topology, survey, node, node.id.device, kind, &served)
    };
    survey.tree().nodes().iter().map(report).collect()
}

/// A function of the vendor and the class of `node`.
fn function(
    topology: &Topology,
    survey: &Survey,
    node: &PciNode,
    device: u16,
    kind: String,
    served: &Served,
) -> PciFunctionReport {
    let group = survey.groups().first(survey.tree(), served.function);
    let addresses = topology.addresses(survey, served);
    PciFunctionReport {
        function: served.function.to_string(),
        id: format!("{:04x}:{device:04x}", node.id.vendor),
        class: format!("{:04x}", node.class),
        kind,
        unit: served.unit,
        streams: served.streams.iter().map(|stream| stream.get()).collect(),
        group: group.to_string(),
        below: survey.external_port_above(served.function).map(|port| port.to_string()),
        refused: addresses.err().map(|error| error.to_string()),
        last_address: addresses.ok().map(|range| range.last().get()),
    }
}

/// The virtual functions that are switched on, and remarks on those whose physical function cannot be told.
fn virtual_functions(
    topology: &Topology,
    survey: &Survey,
    config: &Config,
    remarks: &mut Vec<RemarkReport>,
) -> Vec<PciFunctionReport> {
    let read = |of, at| config.word(of, at);
    let mut all = survey.virtual_functions(topology, &read);
    let mut found = Vec::new();
    let mut remark = |wrong, text: String| {
        if !remarks.iter().any(|known| known.text == text) {
            remarks.push(RemarkReport { wrong, text });
        }
    };
    for one in all.by_ref().take(MOST_VIRTUAL) {
        match one {
            Ok((virtuals, served)) => {
                let kind = format!("virtual function of {}", virtuals.physical);
                let node = survey.tree().node(virtuals.physical);
                let report = node
                    .map(|node| function(topology, survey, node, virtuals.device, kind, &served));
                found.extend(report);
            }
            Err(error) => remark(true, error.to_string()),
        }
    }
    if all.next().is_some() {
        let text = format!("more than {MOST_VIRTUAL} virtual functions: the others are not listed");
        remark(false, text);
    }
    found
}

/// Groups of several of `functions`.
fn groups(survey: &Survey, functions: &[PciFunctionReport]) -> Vec<GroupReport> {
    let (tree, groups) = (survey.tree(), survey.groups());
    let nodes = tree.nodes().iter();
    let firsts = nodes.map(|node| node.at).filter(|at| groups.first(tree, *at) == *at);
    let report = |first: PciFunction| GroupReport {
        functions: {
            let its = |one: &&PciFunctionReport| one.group == first.to_string();
            let its = functions.iter().filter(its);
            its.map(|one| one.function.clone()).collect()
        },
        reasons: groups
            .joins()
            .iter()
            .filter(|join| groups.first(tree, join.function) == first)
            .map(ToString::to_string)
            .collect(),
    };
    firsts.map(report).filter(|group| group.functions.len() > 1).collect()
}
