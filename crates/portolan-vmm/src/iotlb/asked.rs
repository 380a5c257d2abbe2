//! Questions of `vm_memory` to an `Iommu`, as a range of addresses.

use portolan::addr::{Iova, IovaRange};
use vm_memory::iommu::{Error, Iotlb, IotlbIterator, IovaRange as VmIovaRange};
use vm_memory::{GuestAddress, Permissions};

use super::held::IotlbGuard;

/// `Iommu::translate`: `find` finds the range, or says why it does not.
#[inline]
pub(crate) fn translate<R: Into<String>>(
    base: GuestAddress,
    length: usize,
    find: impl FnOnce(IovaRange) -> Result<IotlbIterator<IotlbGuard>, R>,
) -> Result<IotlbIterator<IotlbGuard>, Error> {
    let refused =
        |reason: String| Error::CannotResolve { iova_range: VmIovaRange { base, length }, reason };
    if length == 0 {
        return nothing().ok_or_else(|| refused("nothing is asked for".to_owned()));
    }
    let range = IovaRange::from_len(Iova::new(base.0), length as u64);
    let range = range.ok_or_else(|| refused("it goes past the top".to_owned()))?;
    find(range).map_err(|reason| refused(reason.into()))
}

/// A translation of no bytes, which needs no permission. `vm_memory` finds one only inside of another.
#[cold]
fn nothing() -> Option<IotlbIterator<IotlbGuard>> {
    let mut any = Iotlb::new();
    any.set_mapping(GuestAddress(0), GuestAddress(0), 2, Permissions::ReadWrite).ok()?;
    let guard = IotlbGuard::several(any, Vec::new());
    Iotlb::lookup(guard, GuestAddress(1), 0, Permissions::No).ok()
}
