//! Options of Linux's rules on the command line.

use anyhow::Result;
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use portolan::dma::PolicyPreference;
use portolan_sim::profile::Profile;

use super::{Options, Rules};

/// Caching mode, as an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum CachingMode {
    /// The unit has it: it is a virtual one that shadows tables.
    On,
    /// The unit lacks it.
    Off,
}

/// Stage of the tables, as an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum StageName {
    /// First-stage.
    First,
    /// Second-stage.
    Second,
}

/// Linux's own rules, beside the policies.
#[derive(Debug, Default, Args)]
pub struct LinuxArgs {
    /// Count the commands that Linux would submit when told to be strict or lazy; lazy, its default on x86, if
    /// neither is said. Goes after TRACE.
    #[arg(long, value_name = "strict|lazy", num_args = 0..=1, default_missing_value = "lazy")]
    #[arg(value_parser = asked())]
    pub as_linux: Option<PolicyPreference>,
    /// Caching mode of its unit; as the machine's if absent.
    #[arg(long, value_name = "on|off", requires = "as_linux")]
    pub caching_mode: Option<CachingMode>,
    /// Stage of its tables; the machine's if absent.
    #[arg(long, value_name = "first|second", requires = "as_linux")]
    pub stage: Option<StageName>,
}

impl LinuxArgs {
    /// The rules for `profile`, if they were asked for.
    ///
    /// # Errors
    /// As [`Rules::new`].
    pub fn rules(&self, profile: &Profile) -> Result<Option<Rules>> {
        let Some(asked) = self.as_linux else {
            return Ok(None);
        };
        let options =
            Options { asked, caching: self.caching_mode, stage: self.stage, kernel: None };
        Rules::new(profile, &options).map(Some)
    }
}

/// Reads a setting of `iommu.strict`: strict is 1, lazy 0, the default of distributions for x86.
fn asked() -> impl TypedValueParser<Value = PolicyPreference> {
    PossibleValuesParser::new([
        PossibleValue::new("strict").help("`iommu.strict=1`"),
        PossibleValue::new("lazy").help("`iommu.strict=0`, the default of distributions for x86"),
    ])
    .map(|word| match word.as_str() {
        "strict" => PolicyPreference::Strict,
        _ => PolicyPreference::Lazy,
    })
}
