//! Pages of answers about a machine: the verdict, then tables of findings, of pairs, and of faults.
//!
//! They hold all answers, where the text folds or leaves out. Not supported: the library's policies, and firmware's
//! tables.

use std::collections::BTreeMap;

use portolan_cli::display::{counted, grouped};
use portolan_report::{Origin, Page, Section, Table};

use crate::doctor::between::PairAnswers;
use crate::doctor::device::{DeviceAnswers, DeviceSummary};
use crate::doctor::faults::{Fault, FaultAnswers};
use crate::doctor::finding::{first_step, verdict};
use crate::doctor::machine::MachineAnswers;
use crate::doctor::{Finding, Verdict};

/// The page of a machine's IOMMU, made as `origin` says.
pub fn machine(answers: &MachineAnswers, origin: Origin) -> Page {
    let mut sections = findings(&answers.findings);
    if !answers.unread.is_empty() {
        let says = answers.unread.clone();
        sections.push(Section {
            heading: "Root would also read".to_owned(),
            says,
            ..Section::default()
        });
    }
    let answer = answers.verdict.clone();
    Page { title: "A machine's IOMMU".to_owned(), answer, sections, origin, ..Page::default() }
}

/// The page of one device, made as `origin` says.
pub fn device(answers: &DeviceAnswers, origin: Origin) -> Page {
    let DeviceSummary { function, names, id, kind, driver, .. } = &answers.device;
    let driver = driver.as_ref().map(|driver| format!("driver {driver}"));
    let about = [kind.to_string(), id.clone()].into_iter().chain(driver);
    let about: Vec<String> = names.iter().cloned().chain(about).collect();
    Page {
        title: format!("The device {function}"),
        subject: about.join(", "),
        answer: verdict(&answers.findings),
        sections: findings(&answers.findings),
        origin,
        ..Page::default()
    }
}

/// The page of peer-to-peer access, made as `origin` says.
pub fn between(answers: &PairAnswers, origin: Origin) -> Page {
    let mut pairs: Vec<_> = answers.pairs.iter().collect();
    pairs.sort_by_key(|pair| pair.verdict);
    let mut kinds: BTreeMap<_, u64> = BTreeMap::new();
    for pair in &pairs {
        *kinds.entry((pair.verdict, pair.path)).or_default() += 1;
    }
    let kinds = kinds.iter().map(|((verdict, path), count)| {
        format!("{}: {}, {}.", verdict.word(), path.words(), counted(*count, "pair"))
    });
    let mut answer: Vec<String> = kinds.collect();
    let problems = pairs.iter().filter(|pair| pair.verdict == Verdict::Problem);
    let step = problems.filter_map(|pair| Some((pair.act.as_deref()?, &pair.gives_up))).next();
    answer.extend(step.into_iter().flat_map(|(act, price)| first_step(act, price.as_deref())));
    if !answers.findings.is_empty() {
        answer.extend(verdict(&answers.findings));
    }
    let rows = pairs.iter().map(|pair| {
        [
            format!("{} and {}", pair.a, pair.b),
            pair.verdict.word().to_owned(),
            pair.path.words().to_owned(),
            pair.why.clone(),
            or_dash(pair.act.as_deref()),
            or_dash(pair.gives_up.as_deref()),
        ]
    });
    let head = ["pair", "verdict", "path", "why", "do", "gives up"];
    let mut sections = tabled("Pairs", Table::new(head, rows));
    sections.extend(findings(&answers.findings));
    let title = "Peer-to-peer access".to_owned();
    Page { title, answer, sections, origin, ..Page::default() }
}

/// The page of the faults of a log, made as `origin` says.
pub fn faults(answers: &FaultAnswers, origin: Origin) -> Page {
    let said = answers.findings.iter().map(|one| match &one.act {
        Some(act) => format!("{} {act}", one.why),
        None => one.why.clone(),
    });
    let numbered = || answers.faults.iter().enumerate().map(|(nth, one)| (nth + 1, one));
    let head = ["fault", "verdict", "device", "request", "refused", "belongs to", "seen"];
    let mut sections = tabled("Faults", Table::new(head, numbered().map(fault)));
    let causes = numbered().flat_map(|(number, one)| {
        one.causes.iter().map(move |cause| {
            [
                number.to_string(),
                one.device.clone(),
                cause.why.clone(),
                or_dash(cause.act.as_deref()),
                or_dash(cause.gives_up.as_deref()),
            ]
        })
    });
    let head = ["fault", "device", "usual cause, the likeliest first", "do", "gives up"];
    sections.extend(tabled("Causes", Table::new(head, causes)));
    sections.extend(findings(&answers.findings));
    let title = "Faults in the kernel's log".to_owned();
    Page { title, answer: said.collect(), sections, origin, ..Page::default() }
}

/// The row of a fault.
fn fault((number, one): (usize, &Fault)) -> [String; 7] {
    let driver = one.driver.as_ref().map(|driver| format!("driver {driver}"));
    let about = [Some(one.device.clone()), one.device_is.clone(), driver];
    let about: Vec<String> = about.into_iter().flatten().collect();
    let pasid = one.pasid.map(|pasid| format!("(PASID {pasid})"));
    let request = [one.tried.map(str::to_owned), one.address.clone(), pasid];
    let request: Vec<String> = request.into_iter().flatten().collect();
    [
        number.to_string(),
        one.verdict.word().to_owned(),
        about.join(", "),
        or_dash(Some(request.join(" ").as_str()).filter(|said| !said.is_empty())),
        format!("{}: {}", one.unit, one.kind),
        one.belongs_to.clone(),
        format!("{}; line {}", one.times, grouped(one.line)),
    ]
}

/// The findings, problems first.
fn findings(all: &[Finding]) -> Vec<Section> {
    let mut sorted: Vec<&Finding> = all.iter().collect();
    sorted.sort_by_key(|one| one.verdict);
    let rows = sorted.into_iter().map(|one| {
        [
            one.what.clone(),
            one.verdict.word().to_owned(),
            one.why.clone(),
            or_dash(one.act.as_deref()),
            or_dash(one.gives_up.as_deref()),
        ]
    });
    tabled("Findings", Table::new(["what", "verdict", "why", "do", "gives up"], rows))
}

/// A section with a table; none without rows.
fn tabled(heading: &str, table: Table) -> Vec<Section> {
    if table.rows.is_empty() {
        return Vec::new();
    }
    vec![Section { heading: heading.to_owned(), table, ..Section::default() }]
}

fn or_dash(said: Option<&str>) -> String {
    said.unwrap_or("-").to_owned()
}
