//! A buffer that is used, or freed, after it was handed over, and a mapping after it has ended.

use portolan::dma::{Buffer, Device, FromDevice, Mapping};
use portolan::platform::Cpus;

fn used<P: Cpus + Clone, B: Buffer>(device: &Device<P>, buffer: B) {
    let mapping = device.map(buffer, FromDevice);
    drop(buffer);
    drop(mapping);
}

fn freed<P: Cpus + Clone, B: Buffer>(mapping: Mapping<P, B, FromDevice>) {
    drop::<B>(*mapping);
}

fn ended<P: Cpus + Clone, B: Buffer>(mapping: Mapping<P, B, FromDevice>) {
    let deferred = mapping.defer();
    let _ = mapping.read(0, &mut [0]);
    drop(deferred);
}

fn main() {}
