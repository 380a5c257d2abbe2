//! The kernel's messages: the starts of its lines, in their order.

/// Message of a machine whose QEMU has no page faults. Once it has them, they are to be shown (`docs/demo.md`).
pub(super) const NO_PAGE_FAULTS: &str = "page faults: Absent";

/// Messages where the unit records the accesses that it refuses.
pub(super) const RECORDED: &[&str] = &[
    NO_PAGE_FAULTS,
    "not opened: refused, Blocked",
    "mapped at ",
    "taken back: refused, NotMapped",
];

/// Messages of a unit that does not record the accesses that it refuses.
pub(super) const REFUSED: &[&str] =
    &[NO_PAGE_FAULTS, "not opened: refused", "mapped at ", "taken back: refused"];

/// Messages where interrupts are remapped.
pub(super) const REMAPPED: &[&str] = &[
    "interrupt: arrived",
    "another device's interrupt: refused",
    "an interrupt given back: refused",
];

/// Messages where the unit also records the interrupts that it refuses.
pub(super) const RECORDED_REMAPPED: &[&str] = &[
    "interrupt: arrived",
    "another device's interrupt: refused, Interrupt",
    "an interrupt given back: refused, Interrupt",
];

/// Messages of a unit that raises an interrupt for a fault.
pub(super) const INTERRUPTED: &[&str] = &["fault, by interrupt: Blocked"];

/// Messages of such a unit where a device that may interrupt has a second stage in which nothing is mapped.
pub(super) const INTERRUPTED_UNMAPPED: &[&str] = &["fault, by interrupt: NotMapped"];

/// Messages where the disks' data is moved under each policy.
pub(super) const MOVED: &[&str] = &[
    "Strict, Untrusted: 192 requests",
    "Lazy, Trusted: 192 requests",
    "NVMe on 2 CPUs, Strict, Untrusted: 192 requests",
    "NVMe on 2 CPUs, Deferred, Untrusted: 192 requests",
    "NVMe on 2 CPUs, Lazy, Trusted: 192 requests",
];

/// Messages for a disk that keeps translations.
pub(super) const MOVED_BY_TLB: &[&str] = &[
    "the disk has a TLB of its own",
    "Strict, Untrusted: 192 requests",
    "Lazy, Trusted: 192 requests",
    "NVMe on 2 CPUs, Lazy, Trusted: 192 requests",
];

/// Messages where lazy is refused, because a hypervisor follows the tables.
pub(super) const MOVED_STRICTLY: &[&str] = &[
    "Strict, Untrusted: 192 requests",
    "Strict, Trusted: 192 requests",
    "NVMe on 2 CPUs, Strict, Untrusted: 192 requests",
    "NVMe on 2 CPUs, Deferred, Untrusted: 192 requests",
    "NVMe on 2 CPUs, Strict, Trusted: 192 requests",
];

/// Messages where no memory is uncached: rings of a device that does not snoop are refused.
pub(super) const REFUSED_RINGS: &[&str] =
    &["a ring for the host: the platform has no", "a ring without snooping: the platform has no"];

/// Messages where CPUs can see memory without caching it.
pub(super) const RINGS: &[&str] = &[
    "a ring for the host: the platform has no",
    "a ring without snooping: the platform has no",
    "uncached memory at ",
    SEEN,
];

/// Messages where a unit can be told from one that snoops.
pub(super) const UNSNOOPED: &[&str] = &[
    "a ring for the host: the platform has no",
    "a ring without snooping: the platform has no",
    "uncached memory at ",
    SEEN,
    "without snooping: written, then refused, NotMapped",
    "  lines written back: ",
    "  lines taken in: 32",
    SEEN,
];

/// Message about a ring in uncached memory.
const SEEN: &str = "a ring without snooping is seen by both: ";

/// Messages of network cards whose buffers stay mapped.
pub(super) const POOLED: &[&str] = &["NIC, Coherent: 1000 packets", FREE, ENDED];

/// Messages where the cards also have DMA that does not snoop.
pub(super) const POOLED_UNSNOOPED: &[&str] =
    &["NIC, Coherent: 1000 packets", FREE, ENDED, "NIC, NotCoherent: 1000 packets", FREE, ENDED];

/// Messages about the cost of packets, and about one that arrives too late.
const FREE: &str = "  0 commands, 0 uses of the heap, 0 pages of tables, 0 copies";
const ENDED: &str = "  the pool has ended: refused";

/// And where no unit serves the disks.
pub(super) const MOVED_DIRECTLY: &[&str] = &[
    "Direct, Trusted: 192 requests",
    "Direct, Trusted: 192 requests",
    "NVMe on 2 CPUs, Direct, Trusted: 192 requests",
    "NVMe on 2 CPUs, Direct, Trusted: 192 requests",
    "NVMe on 2 CPUs, Direct, Trusted: 192 requests",
];
