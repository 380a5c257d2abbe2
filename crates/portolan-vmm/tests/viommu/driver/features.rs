//! Devices that offer less, and configurations at their edges.

use super::*;
use crate::promised::{all_memory, promised};

/// VIRTIO_IOMMU_F_PROBE and VIRTIO_IOMMU_F_BYPASS_CONFIG.
const PROBE: u64 = 1 << 4;
const BYPASS_CONFIG: u64 = 1 << 6;

fn without(feature: u64) -> Link {
    let link = Link::new();
    assert_ne!(link.state().features & feature, 0);
    link.state().features &= !feature;
    link
}

#[test]
fn a_device_that_cannot_tell_what_it_reserves_is_not_asked() {
    let link = without(PROBE);
    let unit = start(&link);
    let unsupported = AttachError::Iommu(IommuError::Unsupported);
    assert_eq!(unit.reserved(A), Err(unsupported));
    let mut found = 0;
    Iommu::reserved(&unit, A, &mut |_| found += 1);
    // It has no domain: nothing has to be said, and nothing can be found out.
    assert_eq!((unit.block(A), found), (Ok(()), 0));
    assert!(link.state().seen.is_empty());
    // Where it can tell, an endpoint that there is not is found out.
    let link = Link::new();
    let unit = start(&link);
    let stream = StreamId::new(9);
    assert_eq!(unit.block(stream), Err(AttachError::NoSuchStream { stream }));
    assert_eq!(unit.block(A), Ok(()));
}

#[test]
fn what_a_device_reserves_is_told_region_by_region() {
    let link = Link::new();
    let unit = start(&link);
    let mut found = vec![];
    Iommu::reserved(&unit, A, &mut |region| found.push(region));
    assert_eq!(found, unit.reserved(A).unwrap());
    assert_eq!(found.len(), 1);
}

#[test]
fn a_device_that_cannot_let_pass_has_all_its_numbers_for_domains() {
    let link = without(BYPASS_CONFIG);
    let unit = start(&link);
    let unsupported = AttachError::Iommu(IommuError::Unsupported);
    assert_eq!(unit.pass_through(A, all_memory()), Err(unsupported));
    assert_eq!(unit.domain().unwrap().number(), 0);
    // Not written, either.
    assert_eq!(link.state().config[36], 1);
}

#[test]
fn an_endpoint_that_passes_through_is_left_as_it_is() {
    let link = Link::new();
    let unit = start(&link);
    unit.pass_through(A, all_memory()).unwrap();
    unit.pass_through(A, all_memory()).unwrap();
    assert_eq!(unit.counts().attach, 1);
}

#[test]
fn a_device_may_have_one_domain_only() {
    let link = without(BYPASS_CONFIG);
    // From 5 to 5.
    link.state().config[24] = 5;
    link.state().config[28] = 5;
    let unit = start(&link);
    let domain = unit.domain().unwrap();
    assert_eq!(domain.number(), 5);
    assert!(matches!(unit.domain(), Err(IommuError::OutOfContexts)));
}

#[test]
fn any_page_size_is_allowed_of_a_device_that_is_there() {
    let link = Link::new();
    link.state().config[..8].fill(0xff);
    let unit = start(&link);
    assert_eq!(unit.page_sizes().bits(), u64::MAX);
    let link = Link::new();
    let unit = start(&link);
    assert_eq!(unit.page_sizes().bits(), !0xfff);
    let domain = unit.domain().unwrap();
    // Each of the flags of a mapping is there by itself.
    for access in [Access::READ, Access::WRITE, RW] {
        assert_eq!(domain.grants(access), Some(access));
    }
    assert!(format!("{unit:?}").starts_with("Viommu {"));
    assert!(format!("{domain:?}").starts_with("VirtioDomain {"));
}

/// A transport that does not know the state of requests.
struct Plain<'a>(&'a Link);

impl portolan_hw::virtio::Transport for Plain<'_> {
    fn features(&self) -> u64 {
        self.0.features()
    }

    fn config32(&self, offset: usize) -> Result<u32, IommuError> {
        self.0.config32(offset)
    }

    fn config64(&self, offset: usize) -> Result<u64, IommuError> {
        self.0.config64(offset)
    }

    fn set_config8(&self, offset: usize, value: u8) -> Result<u8, IommuError> {
        self.0.set_config8(offset, value)
    }

    fn request(&self, request: &[u8], answer: &mut [u8]) -> Result<(), IommuError> {
        self.0.request(request, answer)
    }

    fn next_fault(&self) -> Result<Option<([u8; 24], usize)>, IommuError> {
        self.0.next_fault()
    }
}

#[test]
fn addresses_of_a_request_that_nobody_can_say_was_returned_are_never_used_again() {
    let link = Link::new();
    let unit = Viommu::start(Plain(&link), Ticks::default(), limits()).unwrap();
    let domain = unit.domain().unwrap();
    unit.attach(A, &domain).unwrap();
    let mut owed = Gather::new();
    let mut map = || domain.map(Iova::new(0), promised(PhysAddr::new(0), 4096), RW, &mut owed);
    map().unwrap();
    link.state().failures.push_back(Some(Failure::Lost));
    assert!(domain.sync(&mut owed).is_err());
    link.return_all();
    domain.unmap(range(0, 4095), &mut owed).unwrap();
    assert!(domain.sync(&mut owed).is_err());
    let id = domain.number();
    unit.block(A).unwrap();
    drop(domain);
    assert_ne!(unit.domain().unwrap().number(), id);
}
