//! Kernels that QEMU tells more, by a word in the middle of RAM.

use std::path::Path;

use super::guests::Guest;
use super::{BesideMachine, DemoRun, Ended, boot, build, compiler, emulator};

/// Seconds after which kernels are stuck.
const LIMIT: &str = "400";

/// A machine with such a kernel.
pub(super) struct Told<'a> {
    /// Its name in commands.
    pub(super) name: &'a str,
    /// The machine.
    pub(super) of: &'a Guest,
    /// Address of the word, and the word.
    pub(super) kept: u64,
    pub(super) word: u64,
    /// Further events to be traced.
    pub(super) traced: &'a [&'a str],
    /// Further settings of each disk.
    pub(super) slowed: [&'a str; 2],
}

impl Told<'_> {
    /// Builds and boots the kernel, and checks its results.
    pub(super) fn run(
        &self,
        root: &Path,
        check: impl FnOnce(&DemoRun) -> Result<(), String>,
    ) -> Ended {
        let guest = self.of;
        let ready = emulator(root, guest.program, guest.variable, guest.release, LIMIT)
            .and_then(|qemu| Ok((qemu, compiler(root, guest)?)));
        let (mut qemu, cargo) = match ready {
            Ok(ready) => ready,
            Err(why) => return Ended::Skipped(why),
        };
        let device = format!("loader,addr={:#x},data={:#x},data-len=8", self.kept, self.word);
        let done = build(root, guest, cargo).and_then(|kernel| {
            let place = root.join("target/demo/runs").join(self.name);
            std::fs::create_dir_all(&place).map_err(|error| error.to_string())?;
            qemu.args(["-device", &device]);
            qemu.args(self.traced.iter().flat_map(|events| ["-trace", events]));
            let beside = BesideMachine { daemon: None, slowed: self.slowed };
            check(&boot(place, guest, qemu, &kernel, beside)?)
        });
        match done {
            Ok(()) => Ended::Well,
            Err(why) => Ended::Failed(why),
        }
    }
}
