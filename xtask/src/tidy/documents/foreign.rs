//! Names that documents have from elsewhere: the standard library, other crates, Linux, QEMU, papers.

/// Folders of files of Linux and of QEMU.
pub(super) const FOLDERS: &[&str] = &["drivers/", "kernel/", "Documentation/", "target/"];

/// Names of others, as documents write them. One that no document has any more is a finding.
pub(super) const FOREIGN: &[&str] = &[
    // Standard C, awk and gawk.
    "printf",
    // A line of Linux's descriptions of files.
    "KernelVersion",
    // Dask.
    "LocalCluster",
    "SSHCluster",
    // The crates `vhost`, `vhost-user-backend` and `vm-memory`.
    "BackendReq",
    "FrontendReq",
    "GuestAddressSpace",
    "GuestMemoryAtomic",
    "InvalidMessage",
    "VhostUserBackend",
    "VhostUserBackendReqHandler",
    "VhostUserHandler",
    "VringT",
    "backend_req.rs",
    "backend_req_handler.rs",
    "iotlb_msg",
];
