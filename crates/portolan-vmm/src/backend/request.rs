//! Requests of a front-end, by their numbers.
//!
//! The vhost-user protocol, section "Front-end message types". Not supported: those that are not listed.

/// A request that a device behind an IOMMU may meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum FrontendRequest {
    GetFeatures = 1,
    SetFeatures = 2,
    SetOwner = 3,
    SetMemTable = 5,
    SetVringNum = 8,
    SetVringAddr = 9,
    SetVringBase = 10,
    GetVringBase = 11,
    SetVringKick = 12,
    SetVringCall = 13,
    SetVringErr = 14,
    GetProtocolFeatures = 15,
    SetProtocolFeatures = 16,
    GetQueueNum = 17,
    SetVringEnable = 18,
    SetBackendReqFd = 21,
    IotlbMsg = 22,
    GetConfig = 24,
}

impl FrontendRequest {
    /// The request with this number, if it is supported.
    pub(super) fn from_number(number: u32) -> Option<Self> {
        use FrontendRequest as R;
        let all = [
            R::GetFeatures,
            R::SetFeatures,
            R::SetOwner,
            R::SetMemTable,
            R::SetVringNum,
            R::SetVringAddr,
            R::SetVringBase,
            R::GetVringBase,
            R::SetVringKick,
            R::SetVringCall,
            R::SetVringErr,
            R::GetProtocolFeatures,
            R::SetProtocolFeatures,
            R::GetQueueNum,
            R::SetVringEnable,
            R::SetBackendReqFd,
            R::IotlbMsg,
            R::GetConfig,
        ];
        all.into_iter().find(|request| *request as u32 == number)
    }
}
