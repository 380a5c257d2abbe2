//! Findings about all devices that were asked for: windows that could be larger, options that Linux does not take.

use portolan_cli::display;

use crate::doctor::pci::KnownFunction;
use crate::doctor::{Files, Finding, device};

/// Identifier of the extended capability for resizable windows, PCI Express Base Specification 6.0, section 7.8.6.
const RESIZABLE: u16 = 0x15;
/// Offset of the first extended capability, and capabilities that the space has room for.
const EXTENDED: u16 = 0x100;
const MOST_CAPABILITIES: usize = 960;
/// Pairs of registers of the capability.
const MOST_RESIZABLE: u16 = 6;
/// Options of `pci=` whose devices are separated by semicolons.
const BY_SEMICOLON: [&str; 2] = ["disable_acs_redir", "config_acs"];

/// Sizes of a window: current and largest.
struct WindowSizes {
    current: u64,
    largest: u64,
}

/// Offset of the capability.
fn resizable_at(one: &KnownFunction) -> Option<u16> {
    let mut at = EXTENDED;
    for _ in 0..MOST_CAPABILITIES {
        let head = one.word(at)?;
        if head as u16 == RESIZABLE {
            return Some(at);
        }
        at = (head >> 20) as u16 & !3;
        if at < EXTENDED {
            break;
        }
    }
    None
}

/// The window of `one` that could grow most.
fn resizable(one: &KnownFunction) -> Option<WindowSizes> {
    let at = resizable_at(one)?;
    let megabytes = |step: u32| 1_u64.checked_shl(20 + step).unwrap_or(u64::MAX);
    let count = (one.word(at + 8)? >> 5 & 7).min(MOST_RESIZABLE.into()) as u16;
    let sizes = (0..count).filter_map(|number| {
        let (can, control) = (one.word(at + 4 + 8 * number)?, one.word(at + 8 + 8 * number)?);
        let highest = (u64::from(can >> 4) | u64::from(control >> 16) << 28).checked_ilog2()?;
        Some(WindowSizes { current: megabytes(control >> 8 & 0x3f), largest: megabytes(highest) })
    });
    sizes.max_by_key(|sizes| sizes.largest)
}

/// Answers which windows show a part of their memory alone.
pub fn windows(devices: &[&KnownFunction]) -> Option<Finding> {
    let small = devices.iter().filter_map(|one| {
        let sizes = resizable(one).filter(|sizes| sizes.current < sizes.largest)?;
        let [now, then] = [sizes.current, sizes.largest].map(display::bytes);
        Some(format!("{} shows {now} of up to {then}", one.at))
    });
    let small = device::listed(small);
    (!small.is_empty()).then(|| {
        let why = format!("Peers reach only what is in a device's window: {small}.");
        Finding::problem("windows", why)
            .act("Switch Resizable BAR on in the firmware's setup, with decoding above 4 GiB.")
            .gives_up("addresses above 4 GiB, that an IOMMU of 39 bits may not reach for guests")
    })
}

/// Answers if an option of `pci=` has its devices separated by commas.
pub fn options(files: &Files) -> Option<Finding> {
    let line = files.text("proc/cmdline").found()?;
    for option in line.split_whitespace().filter_map(|word| word.strip_prefix("pci=")) {
        let mut taken = None;
        for part in option.split(',') {
            let name = part.split('=').next().unwrap_or_default();
            let device = part.contains(':') && !part.contains('=');
            match (BY_SEMICOLON.iter().find(|own| **own == name), taken, device) {
                (Some(own), ..) => taken = Some(*own),
                (None, Some(own), true) => {
                    let part: String = part.chars().take(64).collect();
                    let why = format!(
                        "Linux takes {part} for another option of pci=, and ignores it: a comma ends the list of {own}."
                    );
                    let act = format!(
                        "Separate devices of {own} by a semicolon; in GRUB's files each ; is \\;."
                    );
                    return Some(Finding::problem(own, why).act(act));
                }
                _ => {}
            }
        }
    }
    None
}
