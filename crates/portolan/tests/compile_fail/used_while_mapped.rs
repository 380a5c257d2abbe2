//! A buffer that is used, or freed, after it was handed over, and a mapping after it has ended.

use portolan::dma::{Buffer, Device, FromDevice, Handle, Mapping};

fn used<H: Handle + Clone, B: Buffer>(device: &Device<H>, buffer: B) {
    let mapping = device.map::<FromDevice, _>(buffer);
    drop(buffer);
    drop(mapping);
}

fn freed<H: Handle, B: Buffer>(mapping: Mapping<H, B, FromDevice>) {
    drop::<B>(*mapping);
}

fn ended<H: Handle, B: Buffer>(mapping: Mapping<H, B, FromDevice>) {
    let retired = mapping.retire();
    let _ = mapping.read(0, &mut [0]);
    drop(retired);
}

fn main() {}
