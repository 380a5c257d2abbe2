//! A recording's report for people.

use portolan_cli::display::{bytes, grouped, wrapped};

use super::{EventSelection, RecordReport};
use crate::facts::Facts;

/// The report as text, in lines of `columns`: recorded events, missing events, and the next step.
pub fn text(report: &RecordReport, columns: usize) -> String {
    let events = grouped(report.events);
    let mut out = if report.kept {
        format!(
            "{events} events in {:.1} s, {} of text, in {}\n",
            report.seconds,
            bytes(report.bytes),
            report.output
        )
    } else {
        format!(
            "{events} events in {:.1} s, none of which maps anything: {} is not written.\n",
            report.seconds, report.output
        )
    };
    out += &match report.lost_events {
        0 => "No event was lost.\n".to_owned(),
        lost => format!(
            "The kernel lost {} events: record again with a larger --buffer-kb.\n",
            grouped(lost)
        ),
    };
    out += &match report.latencies {
        None => String::new(),
        Some(0) => "None of the kernel's functions of DMA mapping was called while they were measured: give \
            the devices work from the beginning, or measure for longer.\n"
            .to_owned(),
        Some(calls) => format!(
            "{} calls of the kernel's functions of DMA mapping were measured before: a replay has this \
             machine's own prices.\n",
            grouped(calls)
        ),
    };
    if report.latencies_overwritten > 0 {
        out += &format!(
            "The newest calls are kept: {} older events of the tracer were overwritten.\n",
            grouped(report.latencies_overwritten)
        );
    }
    out += &machine(&report.facts);
    out += &unsaid(&report.kernel_events);
    if report.removed_instances > 0 {
        out += &format!(
            "Removed what {} killed recorders had left behind.\n",
            report.removed_instances
        );
    }
    if let Some(status) = &report.command {
        out += &format!("The command ended with {status}.\n");
    }
    out += &match report.kept {
        false => format!("{}\n", nothing(report)),
        true if report.maps == 0 => format!(
            "Nothing was mapped after that, so there is nothing to replay; next: portolan calibrate {}\n",
            report.output
        ),
        true if report.output == "-" => String::new(),
        true => format!("Next: portolan replay {}\n", report.output),
    };
    wrapped(&out, columns)
}

/// Sentences about events that are not in the trace.
fn unsaid(events: &EventSelection) -> String {
    let said = |list: String, before: &str| {
        if list.is_empty() { String::new() } else { format!("{before}{list}.\n") }
    };
    let mut out = String::new();
    // With devices chosen, whole systems are left out on purpose.
    if events.without_device.is_empty() {
        if !events.has("dma") {
            out += "This kernel has no `dma` events (Linux 6.12 and later have): recorded is what its IOMMU \
                maps, without the devices.\n";
        }
        if !events.has("iommu") {
            out += "This kernel has no `iommu` events: what is mapped in the IOMMU's tables alone is not recorded.\n";
        }
    }
    out += &said(events.absent.join(", "), "Not said by this kernel: ");
    out += &said(events.without_device.join(", "), "Not recorded, since they name no device: ");
    out
}

/// Advice where nothing can be replayed.
fn nothing(report: &RecordReport) -> &'static str {
    let (events, facts) = (&report.kernel_events, &report.facts);
    let kinds = &facts.group_kinds;
    let translates = kinds.keys().any(|kind| kind.starts_with("DMA"));
    match (report.events - report.timers, events.has("dma")) {
        (_, false) if !translates => {
            "No IOMMU translates here, so without `dma` events nothing of this machine's DMA can be seen: \
             boot a kernel of 6.12 or later, or switch the IOMMU on (intel_iommu=on, amd_iommu=on)."
        }
        (0, _) => {
            "Nothing did DMA through the kernel's API meanwhile: give the devices work while this records. \
             (Devices of virtio without VIRTIO_F_ACCESS_PLATFORM, and what VFIO hands to guests, do not go through it.)"
        }
        _ => {
            "What was mapped had been mapped before: begin to record before the load begins, or give other \
             devices work while this records."
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
    let kinds = facts.group_kinds.iter().map(|(kind, count)| format!("{count} {kind}"));
    let kinds: Vec<String> = kinds.collect();
    let groups =
        if kinds.is_empty() { String::new() } else { format!("; groups: {}", kinds.join(", ")) };
    format!("Linux {}, {} CPUs, {units}{groups}.\n", facts.release, facts.cpus)
}
