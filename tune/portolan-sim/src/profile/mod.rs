//! Machine profiles: the capabilities of an IOMMU, its caches, and the price of each event with its source.
//!
//! One TOML file a machine, in `data/machines`, embedded in the binary. Unknown keys are errors, and
//! so is a price that is wanted and not there. The prices of [`Event`]s are nanoseconds.

mod event;
mod hardware;
mod sense;
#[cfg(test)]
mod tests;
mod workload;
mod write;

pub use event::{Event, MissingPrice, Price, Prices};
pub use hardware::{CacheGeometry, CacheSizes, ContextKind, QueueLimits, Surroundings};
pub use workload::Workload;
pub use write::Rewrite;

use portolan::addr::PageSize;
use portolan::inval::{Capabilities, Quirks};
use serde::Deserialize;
use thiserror::Error;

use crate::cpus::{SharingTable, SubmissionTable};
use crate::decode::TableFormat;

/// Names of machines with the texts of their profiles.
macro_rules! machines {
    ($($name:literal)*) => {
        [$(($name, include_str!(concat!("../../../../data/machines/", $name, ".toml")))),*]
    };
}

const BUILTIN: [(&str, &str); 9] = machines!(
    "sm8150" "tegra210" "xeon-vtd" "epyc-amdvi" "grace" "vtd-nested" "spr-vm" "fio-vm" "kunpeng920"
);

/// A machine: prices of events, and its hardware.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    name: String,
    title: String,
    stands_for: String,
    cpus: u32,
    context: ContextKind,
    format: TableFormat,
    capabilities: Capabilities,
    quirks: Quirks,
    surroundings: Surroundings,
    queue: QueueLimits,
    caches: CacheSizes,
    prices: Prices,
    sharing: Option<SharingTable>,
    submission: Option<SubmissionTable>,
    workload: Option<Workload>,
}

/// A profile that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ProfileError {
    /// Invalid TOML, an unknown or missing key, or a value of the wrong type.
    #[error("the machine profile cannot be read: {0}")]
    Toml(String),
    /// A value that makes no sense.
    #[error("the machine profile has no sensible `{key}`: {why}")]
    Value {
        /// The key.
        key: &'static str,
        /// Fault of its value.
        why: String,
    },
}

/// No profile has this name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("no machine is called `{name}`; there are: {known}")]
pub struct UnknownMachine {
    /// The name that was asked for.
    pub name: String,
    /// All existing names, separated by commas.
    pub known: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: String,
    title: String,
    stands_for: String,
    cpus: u32,
    context: ContextKind,
    format: hardware::FormatFile,
    capabilities: hardware::CapabilitiesFile,
    #[serde(default)]
    quirks: hardware::QuirksFile,
    #[serde(default)]
    surroundings: hardware::SurroundingsFile,
    queue: QueueLimits,
    caches: CacheSizes,
    prices: Prices,
    sharing: Option<SharingTable>,
    submission: Option<SubmissionTable>,
    workload: Option<Workload>,
}

fn unread(error: toml::de::Error) -> ProfileError {
    ProfileError::Toml(error.to_string())
}

fn table_of(text: &str) -> Result<toml::Table, ProfileError> {
    text.parse().map_err(unread)
}

impl Profile {
    /// Reads a profile.
    ///
    /// # Errors
    /// [`ProfileError`] with the fault and, for syntax, its place.
    pub fn from_toml(text: &str) -> Result<Self, ProfileError> {
        // Through a table: one deserializer to compile for each type, where the parser's own are four.
        let file = table_of(text)?.try_into();
        let file: File = file.map_err(unread)?;
        let value = |key, why: &str| ProfileError::Value { key, why: why.to_owned() };
        if file.cpus == 0 {
            return Err(value("cpus", "a machine has at least one"));
        }
        file.prices.check()?;
        file.caches.check()?;
        file.sharing.iter().try_for_each(SharingTable::check)?;
        file.submission.iter().try_for_each(SubmissionTable::check)?;
        file.workload.iter().try_for_each(Workload::check)?;
        let profile = Self {
            name: file.name,
            title: file.title,
            stands_for: file.stands_for,
            cpus: file.cpus,
            context: file.context,
            format: file.format.check()?,
            capabilities: file.capabilities.into(),
            surroundings: file.surroundings.filled(),
            quirks: file.quirks.into(),
            queue: file.queue.check()?,
            caches: file.caches,
            prices: file.prices,
            sharing: file.sharing,
            submission: file.submission,
            workload: file.workload,
        };
        sense::check(&profile)?;
        Ok(profile)
    }

    /// Changes the number of CPUs; at least 1.
    #[must_use]
    pub fn with_cpus(mut self, cpus: u32) -> Self {
        self.cpus = cpus.max(1);
        self
    }

    /// Warnings on values that are unlikely though not impossible, a sentence each.
    pub fn warnings(&self) -> Vec<String> {
        sense::warnings(self)
    }

    /// The profiles that come with the program, in a fixed order.
    ///
    /// # Errors
    /// [`ProfileError`] if an embedded file is wrong, which a test rules out.
    pub fn builtin() -> Result<Vec<Self>, ProfileError> {
        BUILTIN.iter().map(|(_, text)| Self::from_toml(text)).collect()
    }

    /// The names of the profiles that come with the program.
    pub fn names() -> impl Iterator<Item = &'static str> {
        BUILTIN.iter().map(|(name, _)| *name)
    }

    /// The profile called `name`.
    ///
    /// # Errors
    /// [`LookupError::Unknown`], which lists the names that there are.
    pub fn by_name(name: &str) -> Result<Self, LookupError> {
        let Some(text) = Self::text_of(name) else {
            let known = Self::names().collect::<Vec<_>>().join(", ");
            return Err(UnknownMachine { name: name.to_owned(), known }.into());
        };
        Ok(Self::from_toml(text)?)
    }

    /// The text of the profile called `name`, if it comes with the program.
    pub fn text_of(name: &str) -> Option<&'static str> {
        let found = BUILTIN.iter().find(|(known, _)| *known == name);
        found.map(|(_, text)| *text)
    }

    /// Its name, as `--machine` takes it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Title of the machine, in a few words.
    pub fn title(&self) -> &str {
        &self.title
    }

    /// Published machine that it represents, and the differences.
    pub fn stands_for(&self) -> &str {
        &self.stands_for
    }

    /// Number of CPUs.
    pub fn cpus(&self) -> u32 {
        self.cpus
    }

    /// Tag of translations.
    pub fn context(&self) -> ContextKind {
        self.context
    }

    /// The tables that it walks.
    pub fn format(&self) -> TableFormat {
        self.format
    }

    /// Capabilities of its invalidation.
    pub fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    /// Quirks that experience with it adds.
    pub fn quirks(&self) -> Quirks {
        self.quirks
    }

    /// Inputs of a default policy besides invalidation.
    pub fn surroundings(&self) -> Surroundings {
        self.surroundings
    }

    /// Limits of its command queue.
    pub fn queue(&self) -> QueueLimits {
        self.queue
    }

    /// Sizes of its caches, for the realistic temper.
    pub fn caches(&self) -> CacheSizes {
        self.caches.clone()
    }

    /// Smallest page.
    pub fn granule(&self) -> PageSize {
        self.capabilities.granule
    }

    /// Nanoseconds of one event.
    ///
    /// # Errors
    /// [`MissingPrice`] with the machine and the event.
    pub fn price(&self, event: Event) -> Result<f64, MissingPrice> {
        self.quote(event).map(|price| price.ns)
    }

    /// The price of one event with its source.
    ///
    /// # Errors
    /// [`MissingPrice`] with the machine and the event.
    pub fn quote(&self, event: Event) -> Result<&Price, MissingPrice> {
        self.prices.get(event).ok_or_else(|| MissingPrice { machine: self.name.clone(), event })
    }

    /// Prices of sharing between CPUs, if the profile has them.
    pub fn sharing(&self) -> Option<&SharingTable> {
        self.sharing.as_ref()
    }

    /// Prices of submitting commands for a CPU, if the profile has them.
    pub fn submission(&self) -> Option<&SubmissionTable> {
        self.submission.as_ref()
    }

    /// Work that its CPUs repeat, if the profile has it.
    pub fn workload(&self) -> Option<&Workload> {
        self.workload.as_ref()
    }

    /// The prices that it has.
    pub fn prices(&self) -> &Prices {
        &self.prices
    }
}

/// Reason why a profile was not found by name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LookupError {
    /// The profile does not exist.
    #[error(transparent)]
    Unknown(#[from] UnknownMachine),
    /// There is one, but it is wrong.
    #[error(transparent)]
    Wrong(#[from] ProfileError),
}
