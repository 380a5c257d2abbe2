//! The machine profile for a recorded machine, and the sureness of that choice.
//!
//! A profile is a published machine with its prices. Of the recorded one the facts tell its IOMMU, the capabilities
//! of that, and the number of CPUs; its prices were not measured. So a profile is chosen by the facts and has as many
//! CPUs as they say; differences between the unit's registers and the profile's are printed, and so are guesses.

use anyhow::Result;
use portolan::dma::Stage;
use portolan::inval::{Caching, Walker};
use portolan_cli::display::{counted, grouped};
use portolan_sim::profile::Profile;
use serde::Serialize;

use super::DEFAULT_MACHINE;
use crate::calibrate::{self, NewPrice};
use crate::facts::{Facts, IommuFacts, IommuKind};
use crate::linux::stage_of;
use crate::trace::Reader;

/// VT-d, 11.4.2 (CAP_REG): caching mode, page-selective invalidation.
const CAP_CM: u64 = 1 << 7;
/// VT-d, 11.4.3 (ECAP_REG): scalable mode, first-stage translation, coherent walks.
const ECAP_SMTS: u64 = 1 << 43;
const ECAP_FSTS: u64 = 1 << 47;
const ECAP_C: u64 = 1;
/// Identifiers of CPUs: Arm's and the part of NVIDIA's Grace (Neoverse V2); HiSilicon's.
const GRACE: &str = "0x41 0xd4f";
const HISILICON: &str = "0x48 ";

/// Sentence on prices that are a profile's.
const PRICES: &str = "prices are those of";

/// Likeness of the profile and the recorded machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Sureness {
    /// The profile is of exactly this kind of machine.
    Sure,
    /// The profile has the same kind of IOMMU; prices are another machine's.
    Fitted,
    /// The machine has no IOMMU, or one without a profile: costs are those of the profile's machine.
    Guessed,
    /// The trace does not describe its machine.
    Assumed,
}

/// A profile that was chosen by the facts in a recording, or for want of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Choice {
    /// Sureness of the choice.
    pub sureness: Sureness,
    /// Facts of the recording that are used.
    pub matched: Vec<String>,
    /// Properties of the profile that may be otherwise there.
    pub guessed: Vec<String>,
    /// The kernel's policy while it was recorded, if all groups say the same: `strict` or `lazy`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recorded_under: Option<&'static str>,
    /// The prices that the recording's own latencies say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured: Option<Measured>,
}

/// Prices that were measured on the recorded machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Measured {
    /// Calls that they were measured by.
    pub calls: u64,
    /// Their names.
    pub prices: Vec<&'static str>,
}

/// Kind of a machine, known before its numbers are looked at.
struct MachineKind {
    profile: &'static str,
    sureness: Sureness,
    matched: String,
    guessed: Vec<String>,
}

/// The profile for the machine that `facts` are about, with their facts on its unit.
///
/// # Errors
/// If a built-in profile cannot be read, which a test rules out.
pub fn fit(facts: &Facts) -> Result<(Profile, Choice)> {
    let unit = facts.iommus.iter().max_by_key(|unit| unit.devices);
    let kind = kind(facts, unit);
    let profile = Profile::by_name(kind.profile)?;
    let mut choice = Choice {
        sureness: kind.sureness,
        matched: vec![kind.matched],
        guessed: kind.guessed,
        recorded_under: facts.is_strict(&[]).map(|strict| if strict { "strict" } else { "lazy" }),
        measured: None,
    };
    choice.guessed.push(format!("{PRICES} {}", profile.title()));
    if let Some(unit) = unit {
        registers(unit, &profile, &mut choice);
    }
    match facts.cpus {
        0 => choice.guessed.push(format!("{} CPUs", profile.cpus())),
        cpus => choice.matched.push(format!("{cpus} CPUs")),
    }
    let cpus = Some(facts.cpus).filter(|cpus| *cpus > 0).unwrap_or(profile.cpus());
    Ok((profile.with_cpus(cpus), choice))
}

/// The profile of the machine that a trace brings along, or else [`DEFAULT_MACHINE`]; the choice; and a warning to
/// the reader.
///
/// # Errors
/// As [`fit`].
pub(crate) fn of_recording(reader: &Reader) -> Result<(Profile, Option<Choice>, Option<String>)> {
    let warning = match reader.facts() {
        Some(Ok(facts)) => {
            let (profile, choice, warning) = of_machine(&facts, reader.latencies())?;
            return Ok((profile, Some(choice), warning));
        }
        Some(Err(why)) => {
            Some(format!("what the recording says of its machine cannot be read: {why}"))
        }
        None => None,
    };
    let choice = Choice {
        sureness: Sureness::Assumed,
        measured: None,
        matched: Vec::new(),
        guessed: Vec::new(),
        recorded_under: None,
    };
    let profile = Profile::by_name(DEFAULT_MACHINE)?;
    Ok((profile, Some(choice), warning))
}

/// The profile for the machine that `facts` are about, with the prices that `latencies` of its functions say; the
/// choice; and a warning.
///
/// # Errors
/// As [`fit`].
pub(crate) fn of_machine(
    facts: &Facts,
    latencies: &[u8],
) -> Result<(Profile, Choice, Option<String>)> {
    let (profile, choice) = fit(facts)?;
    Ok(with_own_prices(profile, choice, latencies))
}

/// `profile` with the prices from `latencies` of the same machine, or the reason why there are none.
fn with_own_prices(
    profile: Profile,
    mut choice: Choice,
    latencies: &[u8],
) -> (Profile, Choice, Option<String>) {
    if latencies.is_empty() {
        return (profile, choice, None);
    }
    let name = format!("{}-measured", profile.name());
    let (measured, report) = match calibrate::measured(&profile, latencies, &name) {
        Ok(measured) => measured,
        Err(why) => {
            let warning = format!("the recording's latencies say no price: {why:#}");
            return (profile, choice, Some(warning));
        }
    };
    let by_calls = |new: &&NewPrice| new.price.source.starts_with("measured:");
    let prices: Vec<_> = report.prices.iter().filter(by_calls).map(|new| new.event).collect();
    let fits = report.fits.iter().filter(|fit| fit.line.is_some());
    let calls = fits.map(|fit| fit.seen).sum();
    choice.guessed.retain(|guess| !guess.starts_with(PRICES));
    choice.guessed.push(format!("other {PRICES} {}", profile.title()));
    let names: Vec<_> = prices.iter().map(|event| event.name()).collect();
    choice.matched.push(format!(
        "prices measured on this machine, {} calls: {}",
        grouped(calls),
        names.join(", ")
    ));
    choice.measured = Some(Measured { calls, prices: names });
    let cpus = profile.cpus();
    (measured.with_cpus(cpus), choice, None)
}

/// The profile by the kind of the IOMMU that most devices are behind.
fn kind(facts: &Facts, unit: Option<&IommuFacts>) -> MachineKind {
    let model = facts.cpu_model.as_deref().unwrap_or("");
    let named = |what: &str, unit: &IommuFacts| format!("{what} ({})", unit.name);
    let of = |profile, sureness, matched, guessed: &[&str]| MachineKind {
        profile,
        sureness,
        matched,
        guessed: guessed.iter().map(|guess| (*guess).to_owned()).collect(),
    };
    let Some(unit) = unit else {
        let none = "no IOMMU is in use there: this is what one would cost".to_owned();
        return of(DEFAULT_MACHINE, Sureness::Guessed, none, &["the IOMMU"]);
    };
    match unit.kind {
        IommuKind::Vtd if facts.under_hypervisor => of(
            "spr-vm",
            Sureness::Fitted,
            named("VT-d, played by a hypervisor", unit),
            &["what an exit costs"],
        ),
        IommuKind::Vtd => of(DEFAULT_MACHINE, Sureness::Fitted, named("VT-d", unit), &[]),
        IommuKind::SmmuV3 if model == GRACE => {
            of("grace", Sureness::Sure, named("SMMUv3 of a Neoverse V2", unit), &[])
        }
        IommuKind::SmmuV3 if model.starts_with(HISILICON) => {
            of("kunpeng920", Sureness::Sure, named("SMMUv3 of HiSilicon", unit), &[])
        }
        IommuKind::SmmuV3 => {
            of("grace", Sureness::Fitted, named("SMMUv3", unit), &["invalidation by range"])
        }
        IommuKind::SmmuV2 => of("sm8150", Sureness::Fitted, named("SMMUv2", unit), &[]),
        IommuKind::TegraSmmu => of("tegra210", Sureness::Sure, named("Tegra's SMMU", unit), &[]),
        IommuKind::AmdVi => of(
            "epyc-amdvi",
            Sureness::Fitted,
            named("AMD-Vi", unit),
            &["what an invalidation costs"],
        ),
        IommuKind::VirtioIommu | IommuKind::RiscV | IommuKind::Other => of(
            DEFAULT_MACHINE,
            Sureness::Guessed,
            format!("{} is of a kind that no profile has", unit.name),
            &["the IOMMU, its tables and its commands"],
        ),
    }
}

/// Notes the registers of a VT-d unit, and their differences from the profile.
fn registers(unit: &IommuFacts, profile: &Profile, choice: &mut Choice) {
    let registers = unit.register("cap").zip(unit.register("ecap"));
    let (IommuKind::Vtd, Some((cap, ecap))) = (unit.kind, registers) else {
        return;
    };
    let has = |register: u64, bits: u64| register & bits == bits;
    // Facts of the unit, and the words for a profile that is otherwise.
    let mut note = |[fact, other]: [&str; 2], same: bool| {
        if same {
            choice.matched.push(fact.to_owned())
        } else {
            let guess = format!("{other} (that unit: {fact})");
            choice.guessed.push(guess);
        }
    };
    let either = |[yes, no]: [&'static str; 2], has: bool| if has { [yes, no] } else { [no, yes] };
    let caps = profile.capabilities();
    let first = stage_of(profile) == Some(Stage::First);
    let has_first = has(ecap, ECAP_SMTS | ECAP_FSTS);
    let stages = ["first-stage tables", "second-stage tables alone"];
    note(either(stages, has_first), first == has_first);
    let (shadowed, has_mode) = (caps.caching == Caching::NotPresentToo, has(cap, CAP_CM));
    let modes = ["caching mode", "no caching mode"];
    note(either(modes, has_mode), shadowed == has_mode);
    let (snoop, has_snoop) = (caps.walker == Walker::Coherent, has(ecap, ECAP_C));
    let walks = ["walks that snoop", "walks that do not snoop"];
    note(either(walks, has_snoop), snoop == has_snoop);
}

/// Machine whose prices the numbers rest on, in a sentence.
pub(crate) fn priced_as(choice: Option<&Choice>, machine: &str) -> String {
    if let Some(measured) = choice.and_then(|choice| choice.measured.as_ref()) {
        return format!(
            "Priced as {machine}, measured: {} of this very machine.",
            counted(measured.prices.len() as u64, "price")
        );
    }
    let how = match choice.map(|choice| choice.sureness) {
        None => "as asked for",
        Some(Sureness::Sure) => "this kind of machine",
        Some(Sureness::Fitted) => "fitted: the nearest machine that is known",
        Some(Sureness::Guessed) => "guessed: no machine like it is known",
        Some(Sureness::Assumed) => "assumed: the trace says nothing of its machine",
    };
    format!("Priced as {machine}, {how}.")
}

/// The choice in sentences; only one for an assumed machine.
pub fn sentences(choice: &Choice, machine: &str) -> String {
    let how = match choice.sureness {
        Sureness::Assumed => return String::new(),
        Sureness::Sure => "stands for this kind of machine",
        Sureness::Fitted => "is the nearest that is known, fitted",
        Sureness::Guessed => "is a guess",
    };
    let under = choice
        .recorded_under
        .map_or(String::new(), |policy| format!(" Linux was {policy} while it was recorded."));
    format!(
        "Chosen by what the recording says of its machine: {machine} {how}. Known: {}. Guessed: {}.{under} --machine \
         names another.\n\n",
        choice.matched.join("; "),
        choice.guessed.join("; "),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vtd(cap: u64, ecap: u64) -> IommuFacts {
        let registers = [("cap", cap), ("ecap", ecap)];
        IommuFacts {
            name: "dmar0".to_owned(),
            kind: IommuKind::Vtd,
            registers: registers
                .map(|(name, value)| (name.to_owned(), format!("{value:x}")))
                .into(),
            devices: 3,
        }
    }

    #[test]
    fn the_unit_with_most_devices_decides_and_its_registers_count() {
        let idle = IommuFacts { kind: IommuKind::AmdVi, ..IommuFacts::default() };
        let facts = Facts { cpus: 6, iommus: vec![idle, vtd(CAP_CM, ECAP_C)], ..Facts::default() };
        let (profile, choice) = fit(&facts).unwrap();
        assert_eq!((profile.name(), profile.cpus()), (DEFAULT_MACHINE, 6));
        assert!(choice.matched.contains(&"second-stage tables alone".to_owned()));
        let other = "no caching mode (that unit: caching mode)".to_owned();
        assert!(choice.guessed.contains(&other));
        assert_eq!(choice.sureness, Sureness::Fitted);
        let virtual_one = Facts { under_hypervisor: true, ..facts };
        assert_eq!(fit(&virtual_one).unwrap().0.name(), "spr-vm");
    }

    #[test]
    fn what_no_profile_has_is_guessed_and_said() {
        let (profile, choice) = fit(&Facts::default()).unwrap();
        assert_eq!(choice.sureness, Sureness::Guessed);
        assert_eq!(profile, Profile::by_name(DEFAULT_MACHINE).unwrap());
        let text = sentences(&choice, profile.name());
        assert!(text.contains("is a guess") && text.contains("no IOMMU"), "{text}");
        let of = |kind| {
            let unit = IommuFacts { kind, ..vtd(0, 0) };
            let facts = Facts { iommus: vec![unit], ..Facts::default() };
            fit(&facts).unwrap()
        };
        let virtio = of(IommuKind::VirtioIommu).1;
        assert_eq!(virtio.sureness, Sureness::Guessed);
        let (amd, choice) = of(IommuKind::AmdVi);
        let chosen = (amd.name(), choice.sureness);
        assert_eq!(chosen, ("epyc-amdvi", Sureness::Fitted));
    }

    #[test]
    fn a_machine_that_is_known_is_sure() {
        let unit = IommuFacts { kind: IommuKind::SmmuV3, ..IommuFacts::default() };
        let facts = Facts {
            cpu_model: Some(GRACE.to_owned()),
            iommus: vec![unit],
            cpus: 144,
            ..Facts::default()
        };
        let (profile, choice) = fit(&facts).unwrap();
        assert_eq!((profile.name(), choice.sureness), ("grace", Sureness::Sure));
    }
}
