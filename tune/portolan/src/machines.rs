//! Machine profiles: their listing, and the library's table format for each.
//!
//! The profiles themselves are `data/machines/*.toml`, read by the model.

use anyhow::{Result, bail};
use portolan::addr::PageSize;
use portolan::inval::{Caching, PageForm, Quirks, RangeForm, WalkFlush, Walker};
use portolan::table::format::{
    AmdLevels, AmdV1, Armv8Config, Armv8Stage1, Armv8Stage2, DirtyTracking, Format, SplitRule,
    Tegra, TegraMemory, VtdFirstLevels, VtdFirstStage, VtdLevels, VtdSecondStage,
};
use portolan_sim::decode::TableFormat;
use portolan_sim::profile::{Event, Price, Profile};
use serde::Serialize;
use std::collections::BTreeMap;

use portolan_cli::display;

/// Something to do with whichever table format a machine has.
pub trait WithFormat {
    /// Output of the work.
    type Output;

    /// Does it.
    ///
    /// # Errors
    /// Its own.
    fn run<F: Format>(self, format: F) -> Result<Self::Output>;
}

/// The library's table format for a machine. Only formats that a machine profile names are here: each
/// of them is a copy of the table code to compile.
#[derive(Clone, Copy, Debug)]
pub enum MachineFormat {
    /// VMSAv8-64 stage 1, 4 KiB.
    Armv8Stage1(Armv8Stage1<12>),
    /// VMSAv8-64 stage 2, 4 KiB.
    Armv8Stage2(Armv8Stage2<12>),
    /// Tegra SMMU.
    Tegra(Tegra),
    /// VT-d second stage.
    VtdSecondStage(VtdSecondStage),
    /// VT-d first stage.
    VtdFirstStage(VtdFirstStage),
    /// AMD's host tables of version 1.
    AmdV1(AmdV1),
}

impl MachineFormat {
    /// The library's format that has the layout of `format`.
    ///
    /// # Errors
    /// If no machine profile has that layout.
    pub fn of(format: TableFormat) -> Result<Self> {
        let (granule, input, output) = (format.granule(), format.input_lg2(), format.output_lg2());
        let dirty = DirtyTracking::Off;
        if granule == PageSize::SIZE_4K {
            let config = Armv8Config {
                input_lg2: input.into(),
                output_lg2: output.into(),
                split: SplitRule::BreakBeforeMake,
                dirty,
            };
            if TableFormat::armv8_stage1(granule, input, output) == Ok(format) {
                return Ok(Self::Armv8Stage1(Armv8Stage1::new(config)?));
            }
            if TableFormat::armv8_stage2(granule, input, output) == Ok(format) {
                return Ok(Self::Armv8Stage2(Armv8Stage2::new(config)?));
            }
        }
        for (output, memory) in [(32, TegraMemory::Bits32), (34, TegraMemory::Bits34)] {
            if TableFormat::tegra(output) == Ok(format) {
                return Ok(Self::Tegra(Tegra { memory }));
            }
        }
        let second = [(3, VtdLevels::Three), (4, VtdLevels::Four), (5, VtdLevels::Five)];
        for (count, levels) in second {
            if TableFormat::vtd_second_stage(count) == Ok(format) {
                return Ok(Self::VtdSecondStage(VtdSecondStage {
                    levels,
                    output_lg2: output.into(),
                    dirty,
                }));
            }
        }
        for (count, levels) in [(4, VtdFirstLevels::Four), (5, VtdFirstLevels::Five)] {
            if TableFormat::vtd_first_stage(count) == Ok(format) {
                return Ok(Self::VtdFirstStage(VtdFirstStage {
                    levels,
                    output_lg2: output.into(),
                    dirty,
                }));
            }
        }
        let amd = [(3, AmdLevels::Three), (4, AmdLevels::Four), (5, AmdLevels::Five)];
        for (count, levels) in amd {
            if TableFormat::amd_v1(count) == Ok(format) {
                return Ok(Self::AmdV1(AmdV1::new(levels, output.into())));
            }
        }
        bail!("no machine here has tables with the layout of {format:?}")
    }
}

/// Runs `task` with the library's format that has the layout of `format`.
///
/// # Errors
/// If there is none, or the task's own.
pub fn with_format<T: WithFormat>(format: TableFormat, task: T) -> Result<T::Output> {
    match MachineFormat::of(format)? {
        MachineFormat::Armv8Stage1(format) => task.run(format),
        MachineFormat::Armv8Stage2(format) => task.run(format),
        MachineFormat::Tegra(format) => task.run(format),
        MachineFormat::VtdSecondStage(format) => task.run(format),
        MachineFormat::VtdFirstStage(format) => task.run(format),
        MachineFormat::AmdV1(format) => task.run(format),
    }
}

/// The machine's quirks, with the number of page commands above which its prices favour invalidating the whole
/// context with the walks after it.
pub fn own_quirks(profile: &Profile) -> Result<Quirks> {
    let ns = |event| profile.price(event).map(|ns| ns.round() as u64);
    let caps = profile.capabilities();
    let walks = match caps.range {
        RangeForm::Absent => u64::from(profile.format().levels()),
        // Several ranges are several buffers, and as many others are in use: the whole IOTLB has to be refilled by
        // walks.
        _ => u64::from(profile.caches().iotlb.entries),
    };
    let one = match caps.page {
        PageForm::Absent => Event::CmdContext,
        PageForm::Granule | PageForm::Whole => Event::CmdPage,
    };
    let context = ns(Event::CmdContext)? + walks * ns(Event::IotlbMissStep)?;
    let quirks = profile.quirks();
    // A price of zero for a page names all of them.
    let pages = context.checked_div(ns(one)?).unwrap_or(u64::MAX);
    Ok(Quirks { context_above: quirks.context_above.min(pages.max(1)), ..quirks })
}

/// A profile as `portolan machines --json` prints it.
#[derive(Debug, Serialize)]
pub struct MachineReport<'p> {
    /// Name for `--machine`.
    pub name: &'p str,
    /// Title of the machine.
    pub title: &'p str,
    /// Published machine that it represents.
    pub stands_for: &'p str,
    /// Number of CPUs.
    pub cpus: u32,
    /// Capabilities of its invalidation.
    pub capabilities: Vec<String>,
    /// Prices by event.
    pub prices: BTreeMap<&'static str, &'p Price>,
}

impl<'p> MachineReport<'p> {
    /// The report on `profile`.
    pub fn new(profile: &'p Profile) -> Self {
        let prices = profile.prices().iter().map(|(event, price)| (event.name(), price));
        let sharing = profile.sharing().into_iter().flat_map(|t| t.quotes());
        let submission = profile.submission().into_iter().flat_map(|t| t.quotes());
        Self {
            name: profile.name(),
            title: profile.title(),
            stands_for: profile.stands_for(),
            cpus: profile.cpus(),
            capabilities: capabilities(profile),
            prices: prices.chain(sharing).chain(submission).collect(),
        }
    }
}

fn capabilities(profile: &Profile) -> Vec<String> {
    let caps = profile.capabilities();
    let format = profile.format();
    let mut said = vec![format!(
        "{} levels, {}-bit device addresses, {} pages",
        format.levels(),
        format.input_lg2(),
        display::bytes(caps.granule.bytes())
    )];
    said.push(match caps.page {
        PageForm::Absent => "no invalidation by page".to_owned(),
        PageForm::Granule | PageForm::Whole => "invalidation by page".to_owned(),
    });
    said.push(match caps.range {
        RangeForm::Absent => "none by range".to_owned(),
        RangeForm::PowerOfTwo { max_lg2_pages } => {
            format!("by aligned power of two up to 2^{max_lg2_pages} pages")
        }
        RangeForm::NumScale { max_num, max_scale } => {
            format!("by range of up to {max_num} * 2^{max_scale} pages")
        }
    });
    if profile.quirks().walk_flush == WalkFlush::ByContext {
        said.push("walk caches are flushed by context".to_owned());
    }
    if caps.caching == Caching::NotPresentToo {
        said.push("entries that are not present are cached too".to_owned());
    }
    if caps.walker == Walker::NonCoherent {
        said.push("table walks do not snoop".to_owned());
    }
    said
}

/// Meaning of the columns, for `--help`.
pub const COLUMNS_IN_WORDS: &str = "\
Columns of the tables:
  name    what --machine takes
  CPUs    how many the machine has
  event   something that takes time: a call, a table entry written, a command
  ns      what it takes, in nanoseconds
  range   between what it may be, where the evidence leaves that open
  assumed number of its prices that are neither measured nor published
  source  where that is known from: measured, literature, fitted (on published
          figures), or assumed, and why";

/// The profiles as text, in lines of `columns`: a line each.
pub fn list(profiles: &[Profile], columns: usize) -> String {
    let rows = profiles.iter().map(|profile| {
        vec![
            profile.name().to_owned(),
            profile.cpus().to_string(),
            assumed(profile),
            profile.title().to_owned(),
        ]
    });
    let header = [("name", 0), ("CPUs", 0), ("assumed", 0), ("machine", 0)];
    let table = display::table(&header, &[1, 2], rows.collect(), columns);
    let said = "\
        Machines whose IOMMUs a replay can use, and how many of their prices are assumed, neither \
        measured nor published.\n\n";
    let next = "`portolan machines NAME` prints what each operation costs, and where that is known from.\n";
    display::wrapped(&format!("{said}{table}{next}"), columns)
}

/// The profiles as text, in lines of `columns`, with their prices.
pub fn text(profiles: &[Profile], columns: usize) -> String {
    let mut out = String::new();
    for profile in profiles {
        let report = MachineReport::new(profile);
        out += &format!("{}: {}\n", report.name, report.title);
        out += &format!("{}\n", report.stands_for);
        out += &format!("{} CPUs; {}\n\n", report.cpus, report.capabilities.join("; "));
        let rows = report.prices.iter().map(|(event, price)| {
            vec![(*event).to_owned(), price_ns(price.ns), price_range(price), price.source.clone()]
        });
        let header = [("event", 0), ("ns", 0), ("range", 0), ("source", 0)];
        out += &display::table(&header, &[1, 2], rows.collect(), columns);
        out.push('\n');
    }
    display::wrapped(&out, columns)
}

/// Range of a price; nothing if it is not known as a range.
fn price_range(price: &Price) -> String {
    if price.low() < price.high() {
        format!("{} to {}", price_ns(price.low()), price_ns(price.high()))
    } else {
        String::new()
    }
}

/// Number of assumed prices, of all: `6 of 24`.
fn assumed(profile: &Profile) -> String {
    let prices = || profile.prices().iter();
    let assumed = prices().filter(|(_, price)| price.source.starts_with("assumed"));
    format!("{} of {}", assumed.count(), prices().count())
}

/// A price with as many decimals as it needs; a byte takes a small part of a nanosecond.
fn price_ns(ns: f64) -> String {
    match ns {
        0.05.. | 0.0 => format!("{ns:.1}"),
        _ => format!("{ns:.3}"),
    }
}
