//! Work that the CPUs of a machine repeat, where its published figures are rates.

use serde::{Deserialize, Serialize};

use super::{Price, ProfileError};

/// An operation: a mapping is made, used and taken away, with the work around it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// The operation, in words.
    pub what: String,
    /// Bytes that one operation maps and moves.
    pub bytes: u64,
    /// Source of that number.
    pub bytes_source: String,
    /// Time of a CPU for one operation besides mapping and unmapping.
    pub work: Price,
    /// Time of the device for one operation, one at a time; none if it is never the limit.
    pub device: Option<Price>,
}

impl Workload {
    pub(super) fn check(&self) -> Result<(), ProfileError> {
        let value = |why: &str| ProfileError::Value { key: "workload.bytes", why: why.to_owned() };
        if self.bytes == 0 {
            return Err(value("an operation moves something"));
        }
        if self.bytes_source.trim().is_empty() {
            return Err(value("a number needs its source"));
        }
        self.work.check("workload.work")?;
        self.device.as_ref().map_or(Ok(()), |price| price.check("workload.device"))
    }
}
