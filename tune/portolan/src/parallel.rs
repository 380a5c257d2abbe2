//! Work that does not depend on other work, on all CPUs that the process may use.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result};

/// Runs `compute` for each task, several at a time if the process has the cores. Tasks begin in their order, and the
/// results are in that order.
///
/// # Errors
/// The first error in that order; the tasks after it are carried out all the same.
pub fn in_parallel<T: Sync, R: Send>(
    tasks: &[T],
    compute: impl Fn(&T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let next = AtomicUsize::new(0);
    let done: Vec<Mutex<Option<Result<R>>>> = tasks.iter().map(|_| Mutex::new(None)).collect();
    let work = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let (Some(task), Some(slot)) = (tasks.get(index), done.get(index)) else {
                return;
            };
            let result = compute(task);
            if let Ok(mut slot) = slot.lock() {
                *slot = Some(result);
            }
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores.min(tasks.len()) {
            scope.spawn(work);
        }
    });
    let result = |slot: Mutex<Option<Result<R>>>| {
        let inner = slot.into_inner().ok().flatten();
        inner.context("a task was not carried out")?
    };
    done.into_iter().map(result).collect()
}
