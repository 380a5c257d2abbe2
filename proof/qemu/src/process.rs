//! QEMU as a child process that does not outlive this one.
//!
//! The kernel kills it when the thread that started it ends, so all children are started by one
//! thread that lives as long as the process. Dropping a [`Process`] kills and reaps it.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};

/// Time between two looks at a child that is about to end.
const LOOK: Duration = Duration::from_millis(1);

/// A file without a name, of `bytes` bytes that cannot become fewer.
pub(crate) fn memory_file(name: &str, bytes: u64) -> io::Result<File> {
    let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let file = File::from(file);
    file.set_len(bytes)?;
    fcntl_add_seals(&file, SealFlags::SHRINK)?;
    Ok(file)
}

/// A file without a name for text.
pub(crate) fn text_file(name: &str) -> io::Result<File> {
    Ok(File::from(memfd_create(name, MemfdFlags::CLOEXEC)?))
}

type Job = (Command, Sender<io::Result<Child>>);

fn serve(jobs: &Receiver<Job>) {
    while let Ok((mut command, answer)) = jobs.recv() {
        if let Err(unwanted) = answer.send(command.spawn()) {
            // The caller does not wait any more.
            if let Ok(mut child) = unwanted.0 {
                let _ = child.kill().and_then(|()| child.wait());
            }
        }
    }
}

/// Starts `command` on the thread that starts all children.
fn spawn(command: Command) -> io::Result<Child> {
    static JOBS: OnceLock<Mutex<Sender<Job>>> = OnceLock::new();
    let jobs = JOBS.get_or_init(|| {
        let (jobs, taken) = channel::<Job>();
        // If the thread cannot be had, its end of the channel is gone and `send` fails below.
        let _ = thread::Builder::new().name("qemu starter".to_owned()).spawn(move || serve(&taken));
        Mutex::new(jobs)
    });
    let gone = || io::Error::other("the thread that starts QEMU is gone");
    let (answer, child) = channel();
    let sent = jobs.lock().unwrap_or_else(PoisonError::into_inner).send((command, answer));
    sent.map_err(|_| gone())?;
    child.recv().map_err(|_| gone())?
}

/// A running child.
#[derive(Debug)]
pub(crate) struct Process {
    child: Mutex<Child>,
    id: u32,
}

impl Process {
    /// Starts `command`, which inherits `inherited` under the same numbers, and nothing else.
    pub(crate) fn start(mut command: Command, inherited: Vec<OwnedFd>) -> io::Result<Self> {
        let parent = getpid();
        let prepare = move || {
            set_parent_process_death_signal(Some(Signal::KILL))?;
            if getppid() != Some(parent) {
                return Err(io::ErrorKind::NotFound.into());
            }
            for fd in &inherited {
                fcntl_setfd(fd, FdFlags::empty())?;
            }
            Ok(())
        };
        // SAFETY: between fork and exec only system calls are made: no allocation, no lock.
        unsafe { command.pre_exec(prepare) };
        let child = spawn(command)?;
        let id = child.id();
        let child = Mutex::new(child);
        Ok(Self { child, id })
    }

    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    /// Kills the child and waits for its end.
    pub(crate) fn kill(&self) {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = child.kill().and_then(|()| child.wait());
    }

    /// Exit status of the child, if it ends within `limit`.
    pub(crate) fn ended(&self, limit: Duration) -> Option<ExitStatus> {
        let start = Instant::now();
        loop {
            let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
            match child.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) if start.elapsed() < limit => {}
                _ => return None,
            }
            drop(child);
            thread::sleep(LOOK);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
