//! The steps of `cargo xtask test`.
//!
//! `docs/checks.md` lists them with their costs; `cargo xtask tidy` compares the two.

mod checks;
mod page;
mod programs;
mod runs;

use std::path::Path;

use crate::outcome::Outcome;
use crate::{adopter, api, demo, drivers, guest, prove, size};
pub use page::{PAGE, findings};

/// Extent of a test run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// Everything that has to pass before a change is taken.
    Whole,
    /// Without other compilers and without instruction counts.
    Fast,
}

impl Extent {
    /// Options of `cargo xtask test`.
    pub fn of(options: &[&str]) -> Option<Self> {
        let all = [Self::Whole, Self::Fast];
        all.into_iter().find(|extent| extent.options() == options)
    }

    /// The options that ask for it.
    pub fn options(self) -> &'static [&'static str] {
        match self {
            Self::Whole => &[],
            Self::Fast => &["--fast"],
        }
    }
}

/// A step: its name, and the function that does it.
pub struct Step<'s> {
    /// As the table shows it.
    pub name: &'static str,
    /// Does it.
    pub run: Box<dyn FnOnce() -> Outcome + 's>,
}

impl<'s> Step<'s> {
    fn new(name: &'static str, run: impl FnOnce() -> Outcome + 's) -> Self {
        Self { name, run: Box::new(run) }
    }
}

/// Part of the long run, `cargo xtask test --long PART`: each takes less than 80 minutes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LongPart {
    /// Linux guests in which each load is recorded by each recorder, and machines of QEMU 11.
    Guests,
    /// Random operations, ten times as many.
    Torture,
    /// The first third of the mistakes that tests have to notice.
    Mistakes1,
    /// The second third.
    Mistakes2,
    /// The last third.
    Mistakes3,
    /// Tests of unsafe modules under Miri.
    Miri,
}

impl LongPart {
    /// All, in the order in which `--long` alone runs them.
    pub const ALL: [Self; 6] = [
        Self::Guests,
        Self::Torture,
        Self::Mistakes1,
        Self::Mistakes2,
        Self::Mistakes3,
        Self::Miri,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Guests => "guests",
            Self::Torture => "torture",
            Self::Mistakes1 => "mistakes-1",
            Self::Mistakes2 => "mistakes-2",
            Self::Mistakes3 => "mistakes-3",
            Self::Miri => "miri",
        }
    }

    /// Its steps.
    pub fn steps(self, root: &Path) -> Vec<Step<'_>> {
        let mistakes = |name, part| vec![Step::new(name, move || programs::mistakes(root, part))];
        match self {
            Self::Guests => {
                let passed = Step::new("devices of other processes on QEMU 11", move || {
                    programs::passed_through(root)
                });
                guests(root, guest::LONG).chain([passed]).collect()
            }
            Self::Torture => {
                vec![Step::new("torture, ten million operations", || programs::long_torture(root))]
            }
            Self::Mistakes1 => mistakes("mistakes that tests have to notice, 1 of 3", "1/3"),
            Self::Mistakes2 => mistakes("mistakes that tests have to notice, 2 of 3", "2/3"),
            Self::Mistakes3 => mistakes("mistakes that tests have to notice, 3 of 3", "3/3"),
            Self::Miri => vec![Step::new("unsafe modules under Miri", || checks::miri(root))],
        }
    }
}

/// Steps that others rely on.
pub fn first() -> Vec<Step<'static>> {
    vec![Step::new("Debian packages", checks::provide)]
}

/// Those that build into `target/debug`.
pub fn steps(root: &Path) -> Vec<Step<'_>> {
    vec![
        Step::new("format", || checks::format(root)),
        Step::new("lints", || checks::lints(root)),
        Step::new("documentation", || checks::documentation(root)),
        Step::new("tests", || programs::tests(root)),
        Step::new("a unit whose driver is left out", || drivers::test(root)),
        Step::new("drivers on a hostile machine", || programs::hostile(root)),
        Step::new("tests of machines on QEMU 10", || programs::newer_qemu(root)),
        Step::new("examples", || programs::examples(root)),
        Step::new("torture", || programs::torture(root)),
        Step::new("runs of the protocol, counted", || runs::count(root)),
        Step::new("Linux's own code as a peer", || programs::peer(root)),
        Step::new("protocol, proved", || prove::run(root, &[])),
        Step::new("tidy", || checks::tidy(root)),
    ]
}

/// Packages of the libraries, which an older compiler takes than the tools.
const LIBRARIES: [&str; 8] =
    ["-p", "portolan", "-p", "portolan-spec", "-p", "portolan-tables", "-p", "portolan-hw"];

/// Those that build into other folders: without std, on the oldest compilers, optimised, for kernels.
pub fn beside(root: &Path, extent: Extent) -> Vec<Step<'_>> {
    let oldest = move |manifest, what: &'static [&'static str]| {
        move || checks::oldest(root, extent, manifest, what)
    };
    let mut steps = vec![
        Step::new("library without std", || checks::no_std_gate(root)),
        Step::new("packages and their adopter", || adopter::run(root)),
        Step::new("public API", || api::check(root)),
        Step::new("orders of the library's own atomics", || programs::orders(root)),
        Step::new("libraries for AArch64", || checks::bare(root, "aarch64-unknown-none")),
        Step::new("libraries for RISC-V", || checks::bare(root, "riscv64gc-unknown-none-elf")),
        Step::new("each driver alone, and none", || drivers::check(root)),
        Step::new("sizes of kernels", || size::check(root, size::Kernels::Few)),
        Step::new(
            "libraries on their oldest compiler",
            oldest("crates/portolan/Cargo.toml", &LIBRARIES),
        ),
        Step::new("tools on their oldest compiler", oldest("Cargo.toml", &["--workspace"])),
        Step::new("instruction counts", move || programs::instructions(root, extent)),
    ];
    steps.extend(machines(root));
    steps
}

/// A kernel on each of the demo's machines, and Linux on each of the guests'. Those whose disk is a program of the
/// tests come last: they would wait until the tests are compiled.
fn machines(root: &Path) -> impl Iterator<Item = Step<'_>> {
    let demos = demo::all().map(|guest| (guest.step, guest, None));
    let broken = demo::BROKEN.iter().map(|of| (of.step, of.of, Some(of)));
    let demos = demos.chain(broken).map(move |(step, guest, broken)| {
        (demo::vhost::serves(guest), ended(step, move || demo::one(root, guest, broken)))
    });
    let updates = demo::updates::ALL
        .iter()
        .map(move |of| (false, ended(of.step, move || demo::updates::one(root, of, false))));
    let sleeps = demo::sleeps::ALL
        .iter()
        .map(move |of| (false, ended(of.step, move || demo::sleeps::one(root, of, false))));
    let crashes = guest::CRASHES
        .iter()
        .map(move |of| (false, ended(of.step, move || guest::crash(root, of))));
    let demos = demos.chain(updates).chain(sleeps).chain(crashes);
    let guests = guest::ALL.iter().map(guest::is_served).zip(guests(root, guest::ALL));
    let mut all: Vec<_> = demos.chain(guests).collect();
    all.sort_by_key(|(is_served, _)| *is_served);
    all.into_iter().map(|(_, step)| step)
}

/// Linux on each of `machines`.
fn guests<'r>(
    root: &'r Path,
    machines: &'static [guest::Machine],
) -> impl Iterator<Item = Step<'r>> {
    machines.iter().map(move |machine| ended(machine.step, move || guest::one(root, machine)))
}

/// A step that runs a machine.
fn ended<'s>(name: &'static str, run: impl FnOnce() -> demo::Ended + 's) -> Step<'s> {
    Step::new(name, || match run() {
        demo::Ended::Well => Outcome::Pass,
        demo::Ended::Skipped(why) => Outcome::Skip(why),
        demo::Ended::Failed(why) => {
            eprintln!("{why}");
            Outcome::Fail
        }
    })
}
