//! Table pages in a guest's memory, for code that writes tables there.

#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use portolan::addr::{PageSize, PhysAddr};
use portolan::platform::{OutOfTableMemory, TableMem};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend};

use crate::Guest;

#[derive(Debug, Default)]
struct Blocks {
    /// Those given back, by size.
    free: BTreeMap<u64, Vec<u64>>,
    live: BTreeMap<u64, u64>,
    next: u64,
}

/// Memory from some address on; clones share it.
#[derive(Clone, Debug)]
pub(crate) struct GuestPages {
    guest: Guest,
    blocks: Arc<Mutex<Blocks>>,
}

impl GuestPages {
    pub(crate) fn new(guest: &Guest, next: u64) -> Self {
        let blocks = Blocks { next, ..Blocks::default() };
        Self { guest: Arc::clone(guest), blocks: Arc::new(Mutex::new(blocks)) }
    }
}

impl TableMem<AtomicU64> for GuestPages {
    fn alloc(&self, size: PageSize) -> Result<PhysAddr, OutOfTableMemory> {
        let mut blocks = self.blocks.lock().unwrap();
        let bytes = size.bytes();
        let kept = blocks.free.get_mut(&bytes).and_then(Vec::pop);
        let at = kept.unwrap_or_else(|| {
            let at = blocks.next.next_multiple_of(bytes);
            blocks.next = at + bytes;
            at
        });
        let zeros = vec![0; bytes as usize];
        let cleared = self.guest.write_slice(&zeros, GuestAddress(at));
        cleared.map_err(|_| OutOfTableMemory { size })?;
        blocks.live.insert(at, bytes);
        Ok(PhysAddr::new(at))
    }

    fn free(&self, table: PhysAddr, size: PageSize) {
        let mut blocks = self.blocks.lock().unwrap();
        assert_eq!(blocks.live.remove(&table.get()), Some(size.bytes()));
        // A walk that still goes there finds leaves that lead out of memory.
        let poison = vec![0xff; size.bytes() as usize];
        self.guest.write_slice(&poison, GuestAddress(table.get())).unwrap();
        let kept = blocks.free.entry(size.bytes()).or_default();
        kept.push(table.get());
    }

    fn table(&self, table: PhysAddr, size: PageSize) -> &[AtomicU64] {
        let bytes = size.bytes() as usize;
        if self.blocks.lock().unwrap().live.get(&table.get()) != Some(&size.bytes()) {
            return &[];
        }
        let slice = self.guest.get_slice(GuestAddress(table.get()), bytes).unwrap();
        let words = slice.ptr_guard_mut().as_ptr().cast::<AtomicU64>();
        assert!(words.is_aligned());
        // SAFETY: `get_slice` says that the bytes are in one region of the guest's memory, which stays mapped as long
        // as `self.guest`, from which the result borrows. All access to them is atomic.
        unsafe { std::slice::from_raw_parts(words, bytes / 8) }
    }

    fn clean(&self, _: portolan::addr::PhysRange) {}

    fn clean_barrier(&self) {}

    fn invalidate(&self, _: portolan::addr::PhysRange) {}
}
