//! A slot of a pool that is read or written while the device has it, posted or given back twice, or copied, and a
//! pool whose mapping is taken out and used on.

use portolan::dma::{Buffer, BufferPool, CpuSlot, DeviceSlot};
use portolan::platform::Cpus;

fn read<P: Cpus + Clone, B: Buffer>(slot: CpuSlot<P, B>) -> u8 {
    let posted = slot.post();
    let byte = slot[0];
    drop(posted);
    byte
}

fn kept<P: Cpus + Clone, B: Buffer>(mut slot: CpuSlot<P, B>) {
    let bytes = &mut slot[..];
    let posted = slot.post();
    bytes[0] = 1;
    drop(posted);
}

fn given_twice<P: Cpus + Clone, B: Buffer>(slot: DeviceSlot<P, B>) {
    drop((slot.take_back(), slot.take_back()));
}

fn looked_at<P: Cpus + Clone, B: Buffer>(slot: DeviceSlot<P, B>) -> u8 {
    slot[0]
}

fn copied<P: Cpus + Clone, B: Buffer>(slot: &CpuSlot<P, B>) -> CpuSlot<P, B> {
    *slot
}

fn ended<P: Cpus + Clone, B: Buffer>(pool: BufferPool<P, B>) {
    let mapping = pool.into_mapping();
    drop(pool.take());
    drop(mapping);
}

fn main() {}
