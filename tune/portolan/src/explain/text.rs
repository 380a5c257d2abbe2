//! The explanation for people.

use super::{CrossOver, Explanation, MachineDecisions};
use portolan_cli::display::{grouped, table, wrapped};

/// Meaning of the policies and columns, for `--help`.
pub const COLUMNS_IN_WORDS: &str = "\
Columns of the tables:
  buffers     kept: the driver keeps a buffer that it unmaps, and may use it at
              once; owned: it hands the buffer over and gets it back later
  asked for   what an administrator or driver asks for: none, strict or lazy
  policy      strict: each unmap waits until no device reaches the memory;
              deferred: buffers wait for a common invalidation, and are out of
              use meanwhile; lazy: they may be used at once, and devices reach
              them for some milliseconds more
  because     why
  device      trusted: soldered in; untrusted: it may have been plugged in
  stage       of the tables that the IOMMU walks: first (a guest's own) or second
  shadowing   how a hypervisor learns of changes to tables: not at all (none), by
              invalidations (caching-mode), by faults (write-protection) or by
              requests
  device TLB  whether devices cache translations themselves (PCI's ATS)
  exits       whether an invalidation leaves the guest for its hypervisor
With --firmware: function is a PCI function, id its vendor and device, class its
PCI class, unit the IOMMU that it is behind, streams the numbers that the IOMMU
knows it by; in the group of: the function it cannot be kept apart from; what it
is: its kind by PCI Express. Reserved addresses, from and to, are not for
mappings, or are mapped before all others.";

const POLICIES: &str = "\
    An IOMMU remembers where devices may write, and has to be told to forget when memory is unmapped. When it is \
    told is the policy. strict: at each unmap, which waits. deferred: for many unmaps at once, and the \
    memory is out of use meanwhile. lazy: for many at once, and devices reach memory that is in use again for some \
    milliseconds.\n\n";

/// The explanation as text, in lines of `columns`.
pub fn text(explanation: &Explanation, columns: usize) -> String {
    let mut out = POLICIES.to_owned();
    for machine in &explanation.machines {
        of_machine(machine, columns, &mut out);
    }
    if !explanation.table.is_empty() {
        let rows = explanation.table.iter().map(|row| {
            let words = [
                row.policy,
                row.buffers,
                row.wish,
                row.trust,
                row.stage,
                row.shadowing,
                row.device_tlb,
                row.exits,
            ];
            words.map(str::to_owned).to_vec()
        });
        let header = [
            "policy",
            "buffers",
            "asked for",
            "device",
            "stage",
            "shadowing",
            "device TLB",
            "exits",
        ];
        out += "The policy for all that can be said of a machine\n\n";
        out += &table(&header.map(|name| (name, 0)), &[], rows.collect(), columns);
    }
    wrapped(&out, columns)
}

fn of_machine(machine: &MachineDecisions, columns: usize, out: &mut String) {
    let Some(known) = machine.decisions.first() else {
        return;
    };
    let defaults = &machine.defaults;
    *out += &format!(
        "{}: {} by default, {} for drivers that hand their buffers over.\n\n",
        machine.machine, defaults.kept.policy, defaults.owned.policy,
    );
    let rows = machine
        .decisions
        .iter()
        .map(|row| [row.buffers, row.wish, row.policy, row.reason].map(str::to_owned).to_vec());
    let header = ["buffers", "asked for", "policy", "because"].map(|name| (name, 0));
    *out += &table(&header, &[], rows.collect(), columns);
    *out += &format!(
        "Known of {}: devices are {}, {}-stage tables, shadowing {}, device TLB {}, exits {}.\n",
        machine.machine, known.trust, known.stage, known.shadowing, known.device_tlb, known.exits,
    );
    *out += &defaults.text();
    if let Some(copying) = &machine.copying {
        *out += &copying.text();
    }
    out.push('\n');
}

impl CrossOver {
    fn text(&self) -> String {
        format!(
            "Copying would cost less up to {} bytes where the pool is always mapped: in place costs {} ns \
             with invalidation and sync, a copy {} ns and {} bytes a microsecond, both ways ({}). It has to be \
             asked for (`CopyWhen::cheapest`): by default only what a device may not reach in place is copied.\n",
            grouped(self.up_to_bytes),
            grouped(self.in_place_ns),
            grouped(self.slots_ns),
            grouped(self.bytes_per_us),
            self.source,
        )
    }
}
