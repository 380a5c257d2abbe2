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

/// Messages of network cards whose buffers stay mapped.
pub(super) const POOLED: &[&str] = &[
    "NIC, Coherent: 1000 packets",
    "  0 commands, 0 uses of the heap, 0 pages of tables, 0 copies",
    "  the pool has ended: refused",
];

/// And where no unit serves the disks.
pub(super) const MOVED_DIRECTLY: &[&str] = &[
    "Direct, Trusted: 192 requests",
    "Direct, Trusted: 192 requests",
    "NVMe on 2 CPUs, Direct, Trusted: 192 requests",
    "NVMe on 2 CPUs, Direct, Trusted: 192 requests",
    "NVMe on 2 CPUs, Direct, Trusted: 192 requests",
];
