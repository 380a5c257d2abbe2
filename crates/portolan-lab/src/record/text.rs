//! A recording's report for people.

use portolan_cli::display::{bytes, grouped, wrapped};

use super::RecordReport;
use crate::facts::Facts;

/// The report as text, in lines of `columns`: what was recorded, what was not, and what to do next.
pub fn text(report: &RecordReport, columns: usize) -> String {
    let events = grouped(report.events);
    let mut out = format!(
        "{events} events in {:.1} s, {} of text, in {}\n",
        report.seconds,
        bytes(report.bytes),
        report.output
    );
    out += &match report.lost_events {
        0 => "No event was lost.\n".to_owned(),
        lost => format!(
            "The kernel lost {} events: record again with a larger --buffer-kb.\n",
            grouped(lost)
        ),
    };
    out += &machine(&report.facts);
    let Events {
        absent,
        without_device,
    } = Events::of(report);
    out += &absent;
    out += &without_device;
    if report.removed_instances > 0 {
        out += &format!(
            "Removed what {} killed recorders had left behind.\n",
            report.removed_instances
        );
    }
    if let Some(status) = &report.command {
        out += &format!("The command ended with {status}.\n");
    }
    out += &match report.events {
        0 => {
            "Nothing did DMA through the kernel's API meanwhile: give the devices work while this \
              records.\n"
                .to_owned()
        }
        _ if report.output == "-" => String::new(),
        _ => format!("Next: portolan replay {}\n", report.output),
    };
    wrapped(&out, columns)
}

/// Sentences about what is not in the trace.
struct Events {
    absent: String,
    without_device: String,
}

impl Events {
    fn of(report: &RecordReport) -> Self {
        let events = &report.kernel_events;
        let said = |list: String, before: &str, after: &str| match list.is_empty() {
            true => String::new(),
            false => format!("{before}{list}{after}\n"),
        };
        Self {
            absent: said(events.absent.join(", "), "Not said by this kernel: ", "."),
            without_device: said(
                events.without_device.join(", "),
                "Not recorded, since they name no device: ",
                ".",
            ),
        }
    }
}

/// One sentence about the machine.
pub(crate) fn machine(facts: &Facts) -> String {
    let units = match facts.iommus.as_slice() {
        [] => "no IOMMU in use".to_owned(),
        [one] => format!("IOMMU {}", one.name),
        [one, ..] => format!("{} IOMMUs like {}", facts.iommus.len(), one.name),
    };
    let kinds = facts
        .group_kinds
        .iter()
        .map(|(kind, count)| format!("{count} {kind}"));
    let kinds: Vec<String> = kinds.collect();
    let groups = match kinds.is_empty() {
        true => String::new(),
        false => format!("; groups: {}", kinds.join(", ")),
    };
    format!(
        "Linux {}, {} CPUs, {units}{groups}.\n",
        facts.release, facts.cpus
    )
}
