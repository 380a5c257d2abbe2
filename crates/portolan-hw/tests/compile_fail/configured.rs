//! Devices reach all memory by a unit's configuration, without leave.

use portolan::addr::StreamId;
use portolan::platform::AllMemory;
use portolan_hw::{smmuv2, smmuv3, vtd};

fn off(v2: &mut smmuv2::Config, v3: &mut smmuv3::Config) {
    v2.when_disabled = smmuv2::WhenDisabled::Bypass;
    v3.when_disabled = smmuv3::WhenDisabled::Bypass;
    v3.when_disabled = smmuv3::WhenDisabled::Bypass(AllMemory(()));
}

fn from_the_start(v2: &mut smmuv2::Config, v3: &mut smmuv3::Config, stream: StreamId) {
    v2.inherited = smmuv2::Inherited::PassThrough;
    v3.at_work = vec![stream];
    v3.at_work = vec![smmuv3::AtWork { stream }];
}

fn for_a_moment(vtd: &mut vtd::Config) {
    vtd.takeover = vtd::Takeover::Bypass;
}

fn main() {}
