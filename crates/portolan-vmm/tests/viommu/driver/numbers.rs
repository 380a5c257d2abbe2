//! Reuse of a domain's number by another domain.

use super::*;

#[test]
fn a_domain_whose_requests_all_returned_gives_its_number_back() {
    let link = Link::new();
    let unit = start(&link);
    let domain = unit.domain().unwrap();
    let id = domain.number();
    unit.attach(A, &domain).unwrap();
    link.state().failures.push_back(Some(Failure::Lost));
    assert!(map(&domain, 0, 0, 4096).is_err());
    unit.block(A).unwrap();
    link.return_all();
    drop(domain);
    assert_eq!(unit.domain().unwrap().number(), id);
}

#[test]
fn a_number_comes_back_though_another_domain_s_request_is_out() {
    let link = Link::new();
    let unit = start(&link);
    let (quiet, other) = (unit.domain().unwrap(), unit.domain().unwrap());
    let id = quiet.number();
    unit.attach(A, &other).unwrap();
    link.state().failures.push_back(Some(Failure::Lost));
    assert!(map(&other, 0, 0, 4096).is_err());
    drop(quiet);
    assert_eq!(unit.domain().unwrap().number(), id);
}
