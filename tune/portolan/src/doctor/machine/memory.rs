//! Memory: claimed by firmware, copied through, and locked for guests.
//!
//! Claims: `reserved_regions` (Documentation/ABI/testing/sysfs-kernel-iommu_groups). Copies: Linux's swiotlb
//! (Documentation/core-api/swiotlb.rst). Locks: RLIMIT_MEMLOCK, as VFIO charges it.

use portolan_cli::display::bytes;

use super::known::Known;
use crate::doctor::Finding;

/// Bytes of a slot of the pool.
const SLOT: u64 = 2048;
/// Slots of the pool that boot makes at most.
const MOST_SLOTS: u64 = 524_288;
/// Groups that are looked at.
const MOST_GROUPS: usize = 4096;
/// Devices that are named.
const MOST_NAMED: usize = 6;

fn listed(names: &[String]) -> String {
    let mut text = names.iter().take(MOST_NAMED).cloned().collect::<Vec<_>>().join(", ");
    let more = names.len().saturating_sub(MOST_NAMED);
    if more > 0 {
        text += &format!(" and {more} more");
    }
    text
}

/// Devices through which firmware uses memory, so that Linux gives them to no guest.
fn claimed(known: &Known) -> Vec<String> {
    let groups = known.files().names("sys/kernel/iommu_groups").found().unwrap_or_default();
    let mut devices = Vec::new();
    for group in groups.into_iter().take(MOST_GROUPS) {
        let folder = format!("sys/kernel/iommu_groups/{group}");
        let Some(regions) = known.files().text(&format!("{folder}/reserved_regions")).found()
        else {
            continue;
        };
        let direct = |line: &str| line.split_whitespace().nth(2) == Some("direct");
        if regions.lines().any(direct) {
            devices.extend(
                known.files().names(&format!("{folder}/devices")).found().unwrap_or_default(),
            );
        }
    }
    devices
}

/// The finding on memory that firmware claims for devices.
pub(super) fn reserved(known: &Known) -> Option<Finding> {
    const WHAT: &str = "reserved memory";
    let claimed = claimed(known);
    let lines = known
        .logged("due to platform RMRR requirement")
        .chain(known.logged("Firmware has requested this device have a 1:1 IOMMU mapping"));
    let mut refused: Vec<String> = lines.filter_map(device).collect();
    refused.sort();
    refused.dedup();
    let held = known.given_away();
    refused.extend(claimed.iter().filter(|device| held.contains(&device.as_str())).cloned());
    refused.sort();
    refused.dedup();
    if refused.is_empty() {
        let why = match claimed.as_slice() {
            [] if known.is_on() => {
                "Firmware claims no memory that keeps a device from guests.".to_owned()
            }
            [] => return None,
            some => format!(
                "Firmware uses memory through {}: Linux gives these to no guest.",
                listed(some)
            ),
        };
        return Some(Finding::good(WHAT, why));
    }
    if !known.processor.is_x86() {
        let why = format!(
            "Linux refuses to give {} to a guest: firmware says that it uses memory through the device, at the same \
             addresses.",
            listed(&refused)
        );
        let act = "Leave it with the host, and ask the machine's maker for firmware that does not claim it.";
        return Some(Finding::problem(WHAT, why).act(act));
    }
    let why = format!(
        "Linux refuses to give {} to a guest: firmware says that it uses memory through the device (RMRR).",
        listed(&refused)
    );
    let act = "Switch that use off in the firmware's setup (HP from Gen9: `HP Shared Memory Features` of the slot, \
               by conrep), or update firmware. Else a kernel with the relax_rmrr patch.";
    let price = "The patch ignores the claim: if firmware does write there, data is lost.";
    Some(Finding::problem(WHAT, why).act(act).gives_up(price))
}

/// The PCI address in a line of the log.
fn device(line: &str) -> Option<String> {
    let is_place = |word: &str| {
        let shape: Vec<usize> = word.split([':', '.']).map(str::len).collect();
        shape == [4, 2, 2, 1]
            && word.bytes().all(|byte| byte.is_ascii_hexdigit() || b":.".contains(&byte))
    };
    let mut words = line.split_whitespace().map(|word| word.trim_end_matches(':'));
    words.find(|word| is_place(word)).map(str::to_owned)
}

/// A line of a pool without room.
struct Full {
    device: String,
    size: u64,
    total: u64,
    used: u64,
}

impl Full {
    /// Reads `… swiotlb buffer is full (sz: 4000 bytes), total 32768 (slots), used 32768 (slots)`.
    fn parse(line: &str) -> Option<Self> {
        let (before, after) = line.split_once(": swiotlb buffer is full (sz: ")?;
        let number = |text: &str| {
            let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
            digits.parse().ok()
        };
        Some(Self {
            device: before.rsplit(' ').next()?.to_owned(),
            size: number(after)?,
            total: number(after.split_once("total ")?.1)?,
            used: number(after.split_once("used ")?.1)?,
        })
    }
}

const COPIES: &str = "copies of transfers";

/// The finding on the pool through which Linux copies.
pub(super) fn copies(known: &Known) -> Option<Finding> {
    if let Some(full) = known.logged("swiotlb buffer is full").filter_map(Full::parse).last() {
        return Some(full_pool(known, &full));
    }
    let number = |name: &str| -> Option<u64> {
        known.word(&format!("sys/kernel/debug/swiotlb/{name}"))?.parse().ok()
    };
    let total = known.facts.swiotlb_slots?;
    let peak = number("io_tlb_used_hiwater").or_else(|| number("io_tlb_used"))?;
    let why = format!(
        "Linux copies what a device does not reach through {}; at most {} of that were in use.",
        bytes(total.saturating_mul(SLOT)),
        bytes(peak.saturating_mul(SLOT))
    );
    if total > 0 && peak.saturating_mul(10) >= total.saturating_mul(9) {
        return Some(
            Finding::problem(COPIES, why).act(larger(total)).gives_up("That much memory."),
        );
    }
    Some(Finding::good(COPIES, why))
}

/// The advice to boot with a larger pool.
fn larger(total: u64) -> String {
    // Linux's own default is 64 MiB; the makers of confidential guests ask for at least 512 MiB.
    let slots = total.saturating_mul(8).clamp(262_144, MOST_SLOTS);
    format!("Add swiotlb={slots} ({}) to the kernel's command line.", bytes(slots * SLOT))
}

fn full_pool(known: &Known, full: &Full) -> Finding {
    let total = bytes(full.total.saturating_mul(SLOT));
    let device = &full.device;
    if full.size > 256 << 10 {
        let why = format!(
            "{device} asks for {} at once, more than the 256 KiB that a copy may have.",
            bytes(full.size)
        );
        return Finding::problem(COPIES, why)
            .act("Limit the size of the driver's requests; a larger pool does not help.");
    }
    let confidential = known.facts.under_hypervisor || !known.processor.is_x86();
    if full.used >= full.total && !confidential {
        let why = format!(
            "The {total} through which Linux copies are used up to the last by {device}: most likely its driver \
             never gives back what it takes."
        );
        return Finding::problem(COPIES, why)
            .act("Mend or replace the driver; swiotlb= with a larger number only delays it.");
    }
    let why =
        format!("The {total} through which Linux copies transfers are full ({device} failed).");
    if full.total < MOST_SLOTS {
        return Finding::problem(COPIES, why).act(larger(full.total)).gives_up("That much memory.");
    }
    let dynamic = match known.config.has("SWIOTLB_DYNAMIC") {
        Some(true) => "This kernel's pool grows (CONFIG_SWIOTLB_DYNAMIC), and was not fast enough.",
        _ => "This is the most that boot takes by itself.",
    };
    Finding::problem(COPIES, format!("{why} {dynamic}"))
        .act(
            "Use a kernel with CONFIG_SWIOTLB_DYNAMIC, whose pool grows; or ask for more by swiotlb=, as far as \
             there is memory below 4 GiB.",
        )
        .gives_up("That much memory.")
}

/// The finding on memory that is locked for guests' devices.
pub(super) fn locked(known: &Known) -> Option<Finding> {
    const WHAT: &str = "locked memory";
    let rule = "A guest with a device locks all of its memory; behind a virtual IOMMU each device of the guest locks \
                it once more.";
    let kernel = known.logged("RLIMIT_MEMLOCK (").filter_map(|line| {
        let digits = line.split_once("RLIMIT_MEMLOCK (")?.1.split(')').next()?;
        digits.parse::<u64>().ok()
    });
    if let Some(limit) = kernel.last() {
        let why = format!("A program may lock {}, and needed more. {rule}", bytes(limit));
        let act = "Raise the program's limit to the guest's memory and 1 GiB: LimitMEMLOCK= of its systemd unit, or \
                   memlock in /etc/security/limits.conf.";
        return Some(
            Finding::problem(WHAT, why).act(act).gives_up("The program can hold that much memory."),
        );
    }
    let refused = known.logged("dma_map(").any(|line| line.contains("= -12"));
    if refused || known.says("cannot limit locked memory of process") {
        let why = format!(
            "A mapping for a guest's device was refused (-12) for want of memory to lock. {rule}"
        );
        let act = "With a virtual IOMMU raise memlock to the number of devices × the guest's memory, or unlimited \
                   (libvirt: <hard_limit>).";
        return Some(
            Finding::problem(WHAT, why).act(act).gives_up("The program can hold that much memory."),
        );
    }
    let limits = known.files().text("proc/self/limits").found()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    let limit = line.split_whitespace().next()?;
    let said = match limit.parse() {
        Ok(limit) => bytes(limit),
        Err(_) => "any amount".to_owned(),
    };
    Some(Finding::good(WHAT, format!("{rule} Programs of this user may lock {said}.")))
}
