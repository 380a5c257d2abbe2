//! A device that another process has bound and put into an address space, over a file that knows no call.

use std::fs::File;

use super::*;
use crate::vfio::ioas::Ioas;

#[test]
fn a_device_is_taken_from_the_address_space_that_it_was_handed_over_in() {
    let file = || File::open("/dev/null").unwrap();
    let iommufd = Iommufd::of(file().into(), Arc::default());
    let former = |ioas| Some(Arc::new(Ioas::handed(&iommufd, ioas)));
    let port = |former| {
        let (bound, device) = Bound::of(&iommufd, file().into(), 3, former);
        (Port::of(StreamId::new(8), PortInterface::Bound(bound)), device)
    };
    let (handed, _device) = port(former(7));
    assert!(matches!(handed.raw(), Some(RawSpace::Ioas { ioas: 7, .. })));
    // The kernel is told, and does not know the call: the device is where it was.
    assert_eq!(handed.detach(iommufd.counters()), Err(IommuError::Unsupported));
    assert!(handed.raw().is_some());
    let (new, _device) = port(None);
    assert!(new.raw().is_none());
    assert_eq!(new.detach(iommufd.counters()), Ok(()), "it is nowhere");
}
