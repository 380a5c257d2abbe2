//! Devices that have translations of their own, and their state.

use alloc::collections::BTreeSet;
use core::sync::atomic::AtomicU64;

use portolan::platform::TableMem;

use crate::chassis::Block;

/// Devices with translations of their own.
#[derive(Debug, Default)]
pub(super) struct Remotes {
    pub(super) streams: BTreeSet<u32>,
    /// Address spaces, by stream and PASID, of which the device has nothing: it was asked, and could ask
    /// for nothing since.
    pub(super) clean: BTreeSet<(u32, u32)>,
    /// A root in which nothing is.
    pub(super) empty: Option<Block>,
}

impl Remotes {
    pub(super) fn has(&self, stream: u32) -> bool {
        self.streams.contains(&stream)
    }

    pub(super) fn forget_stream(&mut self, stream: u32) {
        self.streams.remove(&stream);
        self.clean.retain(|(of, _)| *of != stream);
    }

    pub(super) fn free(&mut self, mem: &impl TableMem<AtomicU64>) {
        if let Some(empty) = self.empty.take() {
            empty.free(mem);
        }
    }
}
