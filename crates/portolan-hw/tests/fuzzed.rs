//! The corpus of the fuzzer of a virtio-iommu's answers, replayed.
#![allow(missing_docs)]

#[path = "../../../proof/fuzz/bodies/corpus.rs"]
mod corpus;
#[path = "../../../proof/fuzz/bodies/devices.rs"]
mod devices;

#[test]
fn a_virtio_iommu_that_says_anything_does_no_harm() {
    corpus::each("virtio", |bytes| {
        (0..=bytes.len()).for_each(|end| devices::virtio(&bytes[..end]));
    });
}
