//! Memory that others reach while a device does.
#![allow(unsafe_code)]

extern crate std;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use spin::Mutex;

use super::buffers::{Bytes, unowned};
use super::rig::{Rig, device_of};
use crate::addr::{PhysAddr, PhysRange};
use crate::bounce::{Pool, PoolMemory, PoolOptions};
use crate::dma::{
    Bidirectional, Constraints, CopyWhen, Copying, Device, Direction, Policy, Sharing, Unowned,
};
use crate::platform::{Clearing, PhysMemory, Transfer};

const WORDS: usize = 64;

/// Memory of the program that all its threads have, and a device at 0x7000.
static MEMORY: [[AtomicU64; WORDS]; 2] = [const { [const { AtomicU64::new(0) }; WORDS] }; 2];

fn shared(words: &'static [AtomicU64; WORDS]) -> Unowned {
    let memory = PhysRange::from_len(PhysAddr::new(0x7000), size_of_val(words) as u64).unwrap();
    let first = NonNull::from(words).cast::<u8>();
    let view = NonNull::slice_from_raw_parts(first, size_of_val(words));
    // SAFETY: a constant is never freed, and its words are atomics.
    unsafe { Unowned::shared(memory, Some(view)) }
}

#[test]
fn a_thread_writes_to_a_shared_buffer_while_it_is_read_by_copies() {
    let rig = Rig::policy(Policy::Strict);
    let device = device_of(&rig, 1, Constraints::trusted());
    let [words, _] = &MEMORY;
    let mut mapping = device.map(shared(words), Bidirectional).ok().unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut round = 0u64;
            while !done.load(Ordering::Relaxed) {
                round += 1;
                let both = round << 32 | round & 0xffff_ffff;
                words.iter().for_each(|word| word.store(both, Ordering::Relaxed));
            }
        });
        let mut got = [0; 8 * WORDS];
        for _ in 0..1000 {
            mapping.read(0, &mut got).unwrap();
            let words = got.chunks_exact(8);
            for word in words.map(|word| u64::from_ne_bytes(word.try_into().unwrap())) {
                assert_eq!(word >> 32, word & 0xffff_ffff, "a word in two halves");
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    mapping.write(8, &5u64.to_ne_bytes()).unwrap();
    mapping.write(19, &[7]).unwrap();
    assert_eq!(words[1].load(Ordering::Relaxed), 5);
    assert_eq!(words[2].load(Ordering::Relaxed).to_ne_bytes()[3], 7);
    mapping.unmap().ok().unwrap();
}

/// Notes the sharing of each copy.
#[derive(Default)]
struct Notes(Mutex<Vec<Sharing>>);

impl PhysMemory for Notes {
    fn copy(&self, transfer: &Transfer) {
        self.0.lock().push(transfer.sharing());
    }

    fn clear(&self, _: &Clearing) {}
}

/// A device whose buffers are all copied.
fn copying(rig: &Rig, notes: &Arc<Notes>) -> Device<super::rig::Cpus> {
    let memory = PhysRange::from_len(PhysAddr::new(0x10_0000), 128 << 11).unwrap();
    let options = PoolOptions::for_cpus(&rig.cpus);
    let pool = Pool::new(rig.cpus.clone(), unowned(memory), options).unwrap();
    device_of(rig, 1, Constraints::trusted()).with_copies(Copying {
        pool: Arc::new(PoolMemory::new(pool, notes.clone())),
        when: CopyWhen::Always,
    })
}

#[test]
fn a_shared_buffer_is_copied_by_atomics_all_the_way_and_no_other() {
    let rig = Rig::policy(Policy::Strict);
    let notes = Arc::new(Notes::default());
    let device = copying(&rig, &notes);
    let [_, words] = &MEMORY;
    let mut mapping = device.map(shared(words), Bidirectional).ok().unwrap();
    assert!(mapping.is_copied());
    mapping.sync_for_cpu();
    mapping.write(0, &[1; 8]).unwrap();
    // Others may have written there too.
    mapping.sync_for_device();
    mapping.unmap().ok().unwrap();
    let (seen, copies) = (notes.0.lock().split_off(0), [Sharing::Shared; 5]);
    assert_eq!(seen, copies, "map, sync, write, sync, unmap");
    let buffer = Bytes::boxed(0x7000, [0; 64]);
    let mut mapping = device.map(buffer, Direction::ToDevice).ok().unwrap();
    mapping.write(0, &[1; 8]).unwrap();
    mapping.sync_for_device();
    mapping.unmap().ok().unwrap();
    assert_eq!(*notes.0.lock(), [Sharing::Exclusive; 2], "map, sync");
}

#[test]
fn a_pool_copies_shared_memory_by_atomics() {
    let rig = Rig::policy(Policy::Strict);
    let notes = Arc::new(Notes::default());
    let memory = PhysRange::from_len(PhysAddr::new(0x10_0000), 128 << 11).unwrap();
    let options = PoolOptions::for_cpus(&rig.cpus);
    let pool = Pool::new(rig.cpus.clone(), unowned(memory), options).unwrap();
    let pool = PoolMemory::new(pool, notes.clone());
    let [_, words] = &MEMORY;
    let mut buffer = shared(words);
    let need = crate::bounce::Need::bytes(8 * WORDS as u64);
    let slots = pool.pool().take(&need).unwrap();
    pool.copy_in(&buffer, &slots).unwrap();
    pool.copy_out(&slots, &mut buffer).unwrap();
    assert_eq!(*notes.0.lock(), [Sharing::Shared; 2]);
}
