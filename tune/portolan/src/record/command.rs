//! End of a recording: by a command, a length of time, or a signal.

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use super::error::RecordError;

/// Longest time for a command to end after it was told to.
const GRACE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(20);

/// Signals with which the user ends a recording (Ctrl-C, SIGTERM, SIGHUP).
pub(crate) struct Signals {
    asked: Arc<AtomicBool>,
    ids: Vec<signal_hook::SigId>,
}

impl Signals {
    /// Takes the signals until it is dropped.
    pub(crate) fn take() -> Result<Self, RecordError> {
        let asked = Arc::new(AtomicBool::new(false));
        let signals = [SIGINT, SIGTERM, SIGHUP];
        let taken = signals.map(|signal| flag::register(signal, Arc::clone(&asked)));
        let ids = taken.into_iter().collect::<Result<_, _>>()?;
        Ok(Self { asked, ids })
    }

    /// Tells if one came.
    pub(crate) fn came(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        for id in self.ids.drain(..) {
            signal_hook::low_level::unregister(id);
        }
    }
}

/// Work that a recording waits for: a command, a time, or both.
pub(super) struct AwaitedWork {
    child: Option<Child>,
    until: Option<Instant>,
    status: Option<ExitStatus>,
}

impl AwaitedWork {
    /// Starts `command`, if there is one.
    pub(super) fn start(command: &[String], output: CommandOutput) -> Result<Self, RecordError> {
        let child =
            match command {
                [] => None,
                [program, arguments @ ..] => {
                    let mut command = Command::new(program);
                    command.args(arguments);
                    if output == CommandOutput::ToErrors {
                        command.stdout(Stdio::from(std::io::stderr()));
                    }
                    let started = command.spawn();
                    Some(started.map_err(|error| RecordError::Command {
                        program: program.clone(),
                        error,
                    })?)
                }
            };
        Ok(Self { child, until: None, status: None })
    }

    /// Sets the end to `seconds` from now, if there is a limit.
    pub(super) fn end_after(&mut self, seconds: Option<u64>) {
        let now = Instant::now();
        self.until = seconds.and_then(|seconds| now.checked_add(Duration::from_secs(seconds)));
    }

    /// Tells if the recording is over; waits a moment if it is not.
    pub(super) fn is_over(&mut self, signals: &Signals) -> Result<bool, RecordError> {
        if let (Some(child), None) = (&mut self.child, self.status) {
            self.status = child.try_wait()?;
        }
        let late = self.until.is_some_and(|until| Instant::now() >= until);
        let over = signals.came() || late || self.status.is_some();
        if !over {
            std::thread::sleep(PAUSE);
        }
        Ok(over)
    }

    /// Ends the command if it is still running; returns its status, or `None` if there is no command or we ended it.
    pub(super) fn end(mut self) -> Result<Option<ExitStatus>, RecordError> {
        let asked = self.status.is_none();
        self.stop()?;
        Ok(self.status.filter(|status| !(asked && status.signal().is_some())))
    }

    fn stop(&mut self) -> Result<(), RecordError> {
        let Some(mut child) = self.child.take() else {
            return Ok(());
        };
        let since = Instant::now();
        let mut told = false;
        while self.status.is_none() {
            self.status = child.try_wait()?;
            let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
            match (self.status, pid) {
                (Some(_), _) => {}
                (None, Some(pid)) if !told => {
                    // It may be gone.
                    let _ = kill_process(pid, Signal::TERM);
                    told = true;
                }
                (None, _) if since.elapsed() > GRACE => {
                    child.kill()?;
                    self.status = Some(child.wait()?);
                }
                (None, _) => std::thread::sleep(PAUSE),
            }
        }
        Ok(())
    }
}

impl Drop for AwaitedWork {
    fn drop(&mut self) {
        let _ = self.stop();
    }
}

/// Destination of a command's standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommandOutput {
    /// Our standard output.
    Ours,
    /// Standard error, because the trace goes to standard output.
    ToErrors,
}
