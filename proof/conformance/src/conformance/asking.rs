//! Devices that ask instead of failing, as scenarios see them: the driver's side and the devices'.

use portolan::addr::{Iova, Pasid, StreamId};
use portolan::iommu::{AttachError, IommuError};
use portolan::iopf::{RawPageRequest, ReplyTo, Response};

/// Way in which a device requests pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultSource {
    /// Page requests, with translations that the device keeps.
    Requests,
    /// Accesses that the unit holds back.
    Stalls,
}

/// Event that a driver has read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverEvent {
    /// A request.
    Request(RawPageRequest),
    /// Page requests were lost.
    Lost,
    /// Something else.
    Other,
}

/// Ends something for a stream.
pub type Leave<U> = fn(&U, StreamId) -> Result<(), AttachError>;

/// Functions with which a driver lets devices request pages.
#[derive(Clone, Copy, Debug)]
pub struct Faulting<U> {
    /// The existing ways.
    pub ways: &'static [FaultSource],
    /// Lets a stream ask. It is attached to nothing.
    pub enable: fn(&U, StreamId, FaultSource) -> Result<(), AttachError>,
    /// Ends page requests of a stream without moving it, if the unit can do that.
    pub disable: Option<Leave<U>>,
    /// Blocks the stream of a device that is gone, without asking it for anything.
    pub gone: Leave<U>,
    /// Reads the oldest event.
    pub next: fn(&U) -> Result<Option<DriverEvent>, IommuError>,
    /// Carries a response.
    pub respond: fn(&U, ReplyTo, Response) -> Result<(), IommuError>,
}

/// Result of a device's write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrote {
    /// Arrived.
    There,
    /// There is no translation, and the device may ask for one.
    Missing,
    /// Waiting.
    Waits,
    /// Refused.
    Refused,
}

/// Devices that ask.
pub trait Asker {
    /// Lets a device write four bytes, with the kind of fault `way` if the page is missing.
    fn write(&self, way: FaultSource, device: StreamId, pasid: Option<Pasid>, iova: Iova) -> Wrote;

    /// Results of writes that had to wait, since the last call.
    fn settled(&self) -> Vec<Wrote>;

    /// Lets a device send a page request with any contents.
    fn ask(&self, raw: RawPageRequest);

    /// Responses that arrived at devices since the last call, including the unit's own.
    fn told(&self) -> Vec<(ReplyTo, Response)>;

    /// Number of groups and stalls that have no response yet.
    fn unanswered(&self) -> usize;

    /// Number of responses that no request was waiting for, because there was none or it had a
    /// response already.
    fn strays(&self) -> u64;

    /// Requests that found no room.
    fn lost(&self) -> u64;

    /// Resets a device.
    fn reset(&self, device: StreamId);
}

/// Value that devices write when they ask.
pub const MARK: u32 = 0x00c0_ffee;
