//! Backends by name, as they are written on a command line.

use std::fmt;
use std::str::FromStr;

use super::{Line, run, smmuv3, virtio};

/// A machine that the scenarios can run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendName {
    /// The model's SMMUv3.
    ModelSmmuv3,
    /// QEMU's SMMUv3.
    QemuSmmuv3,
    /// QEMU's virtio-iommu.
    QemuVirtio,
}

impl BackendName {
    /// Every one.
    pub const ALL: [Self; 3] = [Self::ModelSmmuv3, Self::QemuSmmuv3, Self::QemuVirtio];

    /// Those of the model, which need nothing installed.
    pub const MODELS: [Self; 1] = [Self::ModelSmmuv3];

    /// The name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ModelSmmuv3 => "model:smmuv3",
            Self::QemuSmmuv3 => "qemu:smmuv3",
            Self::QemuVirtio => "qemu:virtio-iommu",
        }
    }

    /// Runs all scenarios, and tells `progress` of each.
    pub fn run(self, progress: &mut dyn FnMut(&Line)) -> Vec<Line> {
        match self {
            Self::ModelSmmuv3 => run(smmuv3::on_model, progress),
            Self::QemuSmmuv3 => run(smmuv3::on_qemu, progress),
            Self::QemuVirtio => run(virtio::on_qemu, progress),
        }
    }
}

impl fmt::Display for BackendName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Not the name of a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoSuchBackend(String);

impl fmt::Display for NoSuchBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = BackendName::ALL.iter().map(|one| one.as_str()).collect();
        write!(
            f,
            "no backend is called {:?}; there are model, {}",
            self.0,
            names.join(", ")
        )
    }
}

impl std::error::Error for NoSuchBackend {}

impl FromStr for BackendName {
    type Err = NoSuchBackend;

    fn from_str(name: &str) -> Result<Self, NoSuchBackend> {
        let found = Self::ALL.into_iter().find(|one| one.as_str() == name);
        found.ok_or_else(|| NoSuchBackend(name.to_owned()))
    }
}

/// One backend, or `model` for all of the model's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendGroup {
    /// As it was asked for.
    pub name: String,
    /// Which that is.
    pub members: Vec<BackendName>,
}

impl BackendGroup {
    /// All of the model's.
    pub fn models() -> Self {
        Self {
            name: "model".to_owned(),
            members: BackendName::MODELS.to_vec(),
        }
    }
}

impl FromStr for BackendGroup {
    type Err = NoSuchBackend;

    fn from_str(name: &str) -> Result<Self, NoSuchBackend> {
        match name {
            "model" => Ok(Self::models()),
            one => Ok(Self {
                name: name.to_owned(),
                members: vec![one.parse()?],
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back() {
        for one in BackendName::ALL {
            assert_eq!(one.as_str().parse(), Ok(one));
        }
        let all: BackendGroup = "model".parse().expect("the model");
        assert_eq!(all.members, BackendName::MODELS);
        assert!("qemu".parse::<BackendGroup>().is_err());
    }
}
