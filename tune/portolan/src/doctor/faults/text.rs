//! Faults as text.

use std::fmt::Write as _;

use portolan_cli::display::wrapped;

use super::{Cause, Fault, FaultAnswers};

/// Faults that are printed where not all are asked for.
const MOST: usize = 20;
/// Causes of each.
const MOST_CAUSES: usize = 4;

/// The answers as text, in lines of `columns`.
pub fn text(answers: &FaultAnswers, columns: usize) -> String {
    let mut out = String::new();
    for finding in &answers.findings {
        let act = finding.act.as_ref().map_or_else(String::new, |act| format!(" {act}"));
        let _ = writeln!(out, "{}{act}", finding.why);
    }
    let most = if columns == usize::MAX { usize::MAX } else { MOST };
    for (number, fault) in answers.faults.iter().enumerate().take(most) {
        let _ = write!(out, "\n{}", one(number + 1, fault));
    }
    if let Some(more) = answers.faults.len().checked_sub(most).filter(|more| *more > 0) {
        let _ = writeln!(out, "\n{more} more: --wide prints them.");
    }
    wrapped(&out, columns)
}

fn one(number: usize, fault: &Fault) -> String {
    let mut out = format!("{number}. {}", fault.device);
    let about =
        [fault.device_is.clone(), fault.driver.clone().map(|driver| format!("driver {driver}"))];
    let about: Vec<String> = about.into_iter().flatten().collect();
    if !about.is_empty() {
        let _ = write!(out, " ({})", about.join(", "));
    }
    let _ = writeln!(out, "\n  Seen {}.", fault.times);
    let tried = match (fault.tried, &fault.address) {
        (Some("interrupt"), _) => "It sent an interrupt".to_owned(),
        (Some(tried), Some(address)) => format!("It tried to {tried} {address}"),
        (Some(tried), None) => format!("It tried to {tried}"),
        (None, Some(address)) => format!("It used {address}"),
        (None, None) => String::new(),
    };
    let pasid = fault.pasid.map_or_else(String::new, |pasid| format!(" (PASID {pasid})"));
    let _ = match tried.is_empty() {
        true => writeln!(out, "  {}: {}.", fault.unit, fault.kind),
        false => writeln!(out, "  {tried}{pasid}, and {} refused: {}.", fault.unit, fault.kind),
    };
    if fault.address.is_some() {
        let _ = writeln!(out, "  Address: {}", fault.belongs_to);
    }
    for (place, cause) in fault.causes.iter().take(MOST_CAUSES).enumerate() {
        let word = if place == 0 { "Likeliest" } else { "Or" };
        let Cause { why, act, gives_up } = cause;
        let _ = writeln!(out, "  {word}: {why}");
        for (name, said) in [("Do", act), ("Gives up", gives_up)] {
            if let Some(said) = said {
                let _ = writeln!(out, "    {name}: {said}");
            }
        }
    }
    out
}
