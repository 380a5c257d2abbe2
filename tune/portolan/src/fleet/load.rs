//! Kind of a trace's load, by its maps.

use std::fmt;

use serde::{Serialize, Serializer};

/// Mean size of a map, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MeanSize {
    /// Up to a page of 4 KiB.
    Page,
    /// Up to 128 KiB, the largest that Linux's caches of addresses serve (2^5 pages, drivers/iommu/iova.c).
    Cached,
    /// More.
    Large,
}

/// Direction of three fourths of the bytes, or more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The device reads them.
    ToDevice,
    /// The device writes them.
    FromDevice,
    /// Both directions: neither has that many.
    Both,
}

/// A kind of load. The rate does not count: a recorder slows the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadKind {
    /// Idle: nothing is mapped.
    Nothing,
    /// Maps, by size and direction.
    Maps(MeanSize, Way),
}

impl LoadKind {
    /// The load of `maps` streaming maps, of which devices read and write as many bytes.
    pub fn of(maps: u64, bytes: u64, to_device: u64, from_device: u64) -> Self {
        let Some(mean) = bytes.checked_div(maps) else {
            return Self::Nothing;
        };
        let size = match mean {
            0..=4096 => MeanSize::Page,
            4097..=131_072 => MeanSize::Cached,
            _ => MeanSize::Large,
        };
        // In 128 bits: four times the bytes of a trace that lies may be more than 64 hold.
        let most = |part: u64| u128::from(part) * 4 >= u128::from(bytes) * 3;
        let way = match (most(to_device), most(from_device)) {
            (true, false) => Way::ToDevice,
            (false, true) => Way::FromDevice,
            _ => Way::Both,
        };
        Self::Maps(size, way)
    }
}

impl fmt::Display for LoadKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Maps(size, way) = self else {
            return f.write_str("no maps");
        };
        let size = match size {
            MeanSize::Page => "up to 4 KiB",
            MeanSize::Cached => "up to 128 KiB",
            MeanSize::Large => "above 128 KiB",
        };
        let way = match way {
            Way::ToDevice => "to device",
            Way::FromDevice => "from device",
            Way::Both => "both ways",
        };
        write!(f, "{size}, {way}")
    }
}

impl Serialize for LoadKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_and_direction_tell_a_load() {
        let of = |maps, bytes, to, from| LoadKind::of(maps, bytes, to, from).to_string();
        assert_eq!(of(0, 0, 0, 0), "no maps");
        assert_eq!(of(2, 8192, 0, 8192), "up to 4 KiB, from device");
        assert_eq!(of(2, 8194, 6146, 2048), "up to 128 KiB, to device");
        assert_eq!(of(1, 131_073, 70_000, 61_073), "above 128 KiB, both ways");
        assert_eq!(of(1, 0, 0, 0), "up to 4 KiB, both ways");
        assert_eq!(of(1, u64::MAX, u64::MAX, 0), "above 128 KiB, to device");
    }
}
