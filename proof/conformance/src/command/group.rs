//! Machines that scenarios run on, as they are written on a command line.

use std::fmt;
use std::str::FromStr;

#[cfg(feature = "units")]
use crate::backend::BackendName;
use crate::conformance::Line;
use crate::devices::{Devices, NoDevices};

/// Something that the scenarios can run on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backend {
    /// A unit of the model's or of QEMU's.
    #[cfg(feature = "units")]
    Unit(BackendName),
    /// Devices of this machine.
    Devices(Devices),
}

impl Backend {
    /// The devices, if it is some.
    pub fn devices(&self) -> Option<&Devices> {
        match self {
            #[cfg(feature = "units")]
            Self::Unit(_) => None,
            Self::Devices(devices) => Some(devices),
        }
    }

    /// Runs all scenarios, and tells `progress` of each.
    pub fn run(&self, progress: &mut dyn FnMut(&Line)) -> Vec<Line> {
        match self {
            #[cfg(feature = "units")]
            Self::Unit(name) => name.run(progress),
            Self::Devices(devices) => devices.run(progress),
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            #[cfg(feature = "units")]
            Self::Unit(name) => name.fmt(f),
            Self::Devices(devices) => devices.fmt(f),
        }
    }
}

/// A name that is not a backend's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoSuchBackend {
    /// An unknown name.
    Name(String),
    /// A name of devices that cannot be used.
    Devices(NoDevices),
}

impl fmt::Display for NoSuchBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Devices(why) => why.fmt(f),
            Self::Name(name) => {
                write!(f, "no backend is called {name:?}; there are ")?;
                #[cfg(feature = "units")]
                for one in ["model", "qemu"]
                    .into_iter()
                    .chain(BackendName::ALL.iter().map(|one| one.as_str()))
                {
                    write!(f, "{one}, ")?;
                }
                f.write_str(Devices::FORM)
            }
        }
    }
}

impl std::error::Error for NoSuchBackend {}

/// A backend, or `model` or `qemu` for all backends of that kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendGroup {
    /// Name as given by the user.
    pub name: String,
    /// Backends of that name.
    pub members: Vec<Backend>,
}

#[cfg(feature = "units")]
impl BackendGroup {
    /// All backends of the model.
    pub fn models() -> Self {
        Self::of_kind("model")
    }

    fn of_kind(kind: &str) -> Self {
        let members = BackendName::of_kind(kind).into_iter();
        Self { name: kind.to_owned(), members: members.map(Backend::Unit).collect() }
    }

    fn unit(name: &str) -> Option<Self> {
        match name {
            "model" | "qemu" => Some(Self::of_kind(name)),
            one => Some(Self {
                name: one.to_owned(),
                members: vec![Backend::Unit(BackendName::called(one)?)],
            }),
        }
    }
}

#[cfg(not(feature = "units"))]
impl BackendGroup {
    fn unit(_: &str) -> Option<Self> {
        None
    }
}

impl FromStr for BackendGroup {
    type Err = NoSuchBackend;

    fn from_str(name: &str) -> Result<Self, NoSuchBackend> {
        if let Some(devices) = Devices::named(name) {
            return Ok(Self {
                name: name.to_owned(),
                members: vec![Backend::Devices(devices.map_err(NoSuchBackend::Devices)?)],
            });
        }
        Self::unit(name).ok_or_else(|| NoSuchBackend::Name(name.to_owned()))
    }
}
