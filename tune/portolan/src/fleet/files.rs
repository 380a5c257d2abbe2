//! Traces that the arguments of a command name: files, and folders that hold them.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::entry::Failed;
use crate::trace::is_folder_of_perf;

/// Ends of the names of packed files.
const PACKED: [&str; 3] = [".gz", ".xz", ".zst"];
/// Endings of names of traces in a folder; a suffix of [`PACKED`] may follow.
const TRACES: [&str; 4] = ["trace", ".txt", "trace.dat", "perf.data"];

/// A trace to be replayed, or an argument that names none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Job {
    /// The trace at a path; `-` is standard input, nothing the bundled trace.
    Trace(Option<PathBuf>),
    /// A path that was named and cannot be replayed.
    Failed(Failed),
}

/// Jobs for `paths`, in their order. A folder stands for the traces in it and below it, sorted by path. A path that
/// is named twice counts once.
pub fn jobs(paths: &[PathBuf]) -> Vec<Job> {
    let mut found = Vec::new();
    for path in paths {
        if path.is_dir() && !is_folder_of_perf(path) {
            found.extend(in_folder(path))
        } else {
            found.push(Job::Trace(Some(path.clone())))
        }
    }
    let mut seen = HashSet::new();
    found.retain(|job| match job {
        Job::Trace(Some(path)) => seen.insert(fs::canonicalize(path).unwrap_or(path.clone())),
        _ => true,
    });
    found
}

/// The traces in `folder`. Links to folders are not followed, so that this ends.
fn in_folder(folder: &Path) -> Vec<Job> {
    let mut found = Vec::new();
    let mut failed = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        let entries = match entries {
            Ok(entries) => entries,
            Err(error) => {
                let why = format!("cannot read the folder: {error}; check its permissions");
                failed.push(Job::Failed(Failed::new(&folder.display().to_string(), why)));
                continue;
            }
        };
        for entry in entries {
            let path = entry.path();
            match entry.file_type() {
                Ok(kind) if kind.is_dir() && !is_folder_of_perf(&path) => folders.push(path),
                Ok(kind) if kind.is_dir() => found.push(path),
                _ if path.is_file() && is_named_like_a_trace(&path) => found.push(path),
                _ => {}
            }
        }
    }
    found.sort();
    let mut found: Vec<_> = found.into_iter().map(|p| Job::Trace(Some(p))).collect();
    if found.is_empty() && failed.is_empty() {
        let why = format!(
            "no trace is in the folder or below it; files are taken whose names, without {}, end in {}",
            PACKED.join(", "),
            TRACES.join(" or "),
        );
        failed.push(Job::Failed(Failed::new(&folder.display().to_string(), why)));
    }
    found.extend(failed);
    found
}

fn is_named_like_a_trace(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let packed = PACKED.iter().find_map(|end| name.strip_suffix(end));
    let plain = packed.unwrap_or(&name);
    !name.starts_with('.') && TRACES.iter().any(|end| plain.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_traces_in_a_folder() {
        for name in [
            "a.trace",
            "portolan-trace.gz",
            "trace",
            "report.txt.zst",
            "x.trace.xz",
            "trace.dat",
            "big.perf.data.gz",
        ] {
            assert!(is_named_like_a_trace(Path::new(name)), "{name}");
        }
        for name in ["README.md", "events.csv", ".hidden.trace", "game.dat", "gz", "a.txt.bz2"] {
            assert!(!is_named_like_a_trace(Path::new(name)), "{name}");
        }
    }

    #[test]
    fn folders_are_searched_in_order_and_nothing_is_named_twice() {
        let root = std::env::temp_dir().join(format!("portolan-jobs-{}", std::process::id()));
        fs::create_dir_all(root.join("b/c")).unwrap();
        for file in ["z.trace", "a.trace.gz", "b/c/m.txt", "notes.md"] {
            fs::write(root.join(file), "").unwrap();
        }
        // A link back up, which would never end.
        std::os::unix::fs::symlink(&root, root.join("b/up")).unwrap();
        let trace = |file: &str| Job::Trace(Some(root.join(file)));
        let alone = root.join("z.trace");
        let missing = PathBuf::from("/nowhere/x.trace");
        let named = [alone, root.clone(), missing.clone(), root.join("b/../z.trace")];
        let found = jobs(&named);
        let empty = jobs(&[root.join("b/c/../../b")]);
        fs::remove_file(root.join("b/c/m.txt")).unwrap();
        let nothing = jobs(&[root.join("b")]);
        fs::remove_dir_all(&root).unwrap();
        let expected = [trace("z.trace"), trace("a.trace.gz"), trace("b/c/m.txt")];
        assert_eq!(found[..3], expected);
        assert_eq!(found[3..], [Job::Trace(Some(missing))]);
        assert_eq!(empty.len(), 1);
        assert!(
            matches!(nothing.as_slice(), [Job::Failed(failed)] if failed.error.contains("no trace")),
            "{nothing:?}"
        );
    }
}
