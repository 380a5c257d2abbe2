//! A device of the kernel's own for tests, where the kernel has one.

use std::sync::Arc;

use super::ioas::{DomainOptions, Ioas, NewIoas};
use super::iommufd::Iommufd;
use super::nested::Site;
use crate::domain::{Reach, UserDomain};
use crate::sys::iommufd::selftest;

/// A device: its numbers under test, and as one of iommufd's.
#[derive(Debug)]
pub(super) struct Mock {
    pub(super) iommufd: Arc<Iommufd>,
    pub(super) device: u32,
    pub(super) id: u32,
    pub(super) reach: Arc<Reach>,
    /// Address space of the device while it is in no other.
    pub(super) home: Ioas,
}

impl Mock {
    pub(super) fn domain(&self, options: DomainOptions) -> Arc<UserDomain> {
        let dirty = options.dirty;
        let spaces = NewIoas { iommufd: self.iommufd.clone(), options };
        Arc::new(UserDomain::new(self.reach.clone(), dirty, Some(Box::new(spaces))))
    }

    pub(super) fn site(&self) -> Site {
        Site { iommufd: self.iommufd.clone(), device: self.id }
    }
}

/// A device without PASIDs, unless the kernel has none: then that is said.
pub(super) fn mock(test: &str) -> Option<Mock> {
    of(test, |iommufd, home| selftest::new_device(iommufd.descriptor(), home))
}

/// A device with PASIDs, or as [`mock`].
pub(super) fn mock_with_pasids(test: &str) -> Option<Mock> {
    of(test, |iommufd, home| selftest::new_device_with_pasids(iommufd.descriptor(), home))
}

fn of(test: &str, new: impl FnOnce(&Iommufd, u32) -> std::io::Result<(u32, u32)>) -> Option<Mock> {
    let Ok(iommufd) = Iommufd::open(Arc::default()) else {
        println!("SKIP {test}: no /dev/iommu");
        return None;
    };
    let home = Ioas::new(&iommufd, &DomainOptions::default()).unwrap();
    match new(&iommufd, home.id()) {
        Ok((device, id)) => {
            let reach = Arc::new(home.ranges().unwrap());
            Some(Mock { iommufd, device, id, reach, home })
        }
        Err(error) => {
            println!("SKIP {test}: the kernel has no CONFIG_IOMMUFD_TEST ({error})");
            None
        }
    }
}
