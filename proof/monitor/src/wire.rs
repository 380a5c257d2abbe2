//! Exits of the virtual CPU, which is another process, and the monitor's answers: a line of JSON each.

use std::path::PathBuf;

use portolan_vmm::viommu::SavedViommu;
use serde::{Deserialize, Serialize};

/// Reason why the virtual CPU stopped, or a command of the person who owns the machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Exit {
    /// Reads the virtio-iommu's features.
    Features,
    /// Reads its configuration.
    Config {
        /// First byte.
        offset: usize,
        /// Number of bytes, 8 at most.
        bytes: usize,
    },
    /// Writes a byte of its configuration.
    SetConfig {
        /// The byte.
        offset: usize,
        /// Value of the byte.
        value: u8,
    },
    /// Sets up its request queue.
    Queue(SavedQueue),
    /// Notifies the device of requests.
    Notify,
    /// Resets the device; or all of the machine.
    Reset {
        /// Set if all of it.
        machine: bool,
    },
    /// Reads a register of a device that is passed through.
    Read {
        /// Number of the device.
        device: usize,
        /// Register.
        offset: u64,
    },
    /// Writes registers that follow each other.
    Write {
        /// Number of the device.
        device: usize,
        /// The first register.
        offset: u64,
        /// Values, of 8 bytes each.
        values: Vec<u64>,
    },
    /// Takes the interrupts that a device has raised since the last time.
    Interrupts {
        /// Number of the device.
        device: usize,
    },
    /// Saves the machine.
    Save,
    /// Restores it.
    Restore(SavedMonitor),
    /// Puts another device in place of one.
    Replace {
        /// Number of the device.
        device: usize,
        /// Socket of the new one.
        socket: PathBuf,
    },
    /// Asks for counts of calls to listeners.
    Counts,
    /// Makes the monitor die after so many messages about mappings, each of them acknowledged.
    DieAfter {
        /// Number of messages; none at 0.
        messages: u32,
    },
}

/// Answer to an exit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// Done.
    Done,
    /// Value of a register, or a number.
    Value(u64),
    /// The state.
    State(SavedMonitor),
    /// Counts of calls to listeners.
    Counts(Counts),
    /// Not done, for a reason.
    Failed(String),
}

/// Counts of calls to listeners, as [`ListenerCounts`](portolan_vmm::viommu::ListenerCounts) has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Calls that succeeded.
    pub made: u64,
    /// Calls that failed.
    pub failed: u64,
    /// Calls that were undone.
    pub undone: u64,
    /// Calls that could not be undone.
    pub not_undone: u64,
}

/// State of the machine, but for its memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedMonitor {
    /// The virtio-iommu.
    pub viommu: SavedViommu,
    /// Its request queue.
    pub queue: SavedQueue,
}

/// State of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedQueue {
    /// Number of entries; none before it is set up.
    pub size: u16,
    /// Address of the descriptors in the guest.
    pub descriptors: u64,
    /// Address of the ring of available descriptors.
    pub available: u64,
    /// Address of the ring of used ones.
    pub used: u64,
    /// The next entry that is taken from the available ring.
    pub next_available: u16,
    /// The next entry that is put into the used ring.
    pub next_used: u16,
}
