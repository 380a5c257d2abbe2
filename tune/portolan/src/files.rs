//! Files of a Linux machine, below its root folder or kept in memory.
//!
//! Paths have no leading slash (`sys/class/iommu`). Not supported: links are not followed in memory; a caller that
//! wants the file behind one joins its target itself.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

/// Bytes of a file that are read at most.
const MOST_BYTES: u64 = 16 << 20;

/// A kept file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeptFile {
    /// Its bytes.
    Bytes(Vec<u8>),
    /// Target of a symbolic link.
    Link(String),
    /// It is there, and could not be read.
    Denied,
}

/// Result of a look at a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reading<T> {
    /// The file's content.
    Found(T),
    /// No such file.
    Absent,
    /// The file is there, and this user may not read it, or reading failed.
    Denied,
}

impl<T> Reading<T> {
    /// The content, if it was found.
    pub fn found(self) -> Option<T> {
        match self {
            Self::Found(content) => Some(content),
            Self::Absent | Self::Denied => None,
        }
    }

    /// Tells if the file is there and unreadable.
    pub fn is_denied(&self) -> bool {
        matches!(self, Self::Denied)
    }

    /// Converts the content.
    pub fn map<U>(self, convert: impl FnOnce(T) -> U) -> Reading<U> {
        match self {
            Self::Found(content) => Reading::Found(convert(content)),
            Self::Absent => Reading::Absent,
            Self::Denied => Reading::Denied,
        }
    }
}

impl<T> From<io::Result<T>> for Reading<T> {
    fn from(read: io::Result<T>) -> Self {
        match read {
            Ok(content) => Self::Found(content),
            Err(error) => match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Self::Absent,
                _ => Self::Denied,
            },
        }
    }
}

/// Files of a machine.
#[derive(Clone, Debug)]
pub enum Files {
    /// Below a root folder.
    Below(PathBuf),
    /// In memory, by path.
    Kept(BTreeMap<String, KeptFile>),
}

impl Files {
    /// Content of the file at `path`, of which at most 16 MiB are read.
    pub fn bytes(&self, path: &str) -> Reading<Vec<u8>> {
        match self {
            Self::Below(root) => read(&root.join(path)).into(),
            Self::Kept(all) => match all.get(path) {
                Some(KeptFile::Bytes(bytes)) => Reading::Found(bytes.clone()),
                Some(KeptFile::Denied | KeptFile::Link(_)) => Reading::Denied,
                None => Reading::Absent,
            },
        }
    }

    /// Content of the file at `path` as text; bytes that are none are replaced.
    pub fn text(&self, path: &str) -> Reading<String> {
        self.bytes(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Names in the folder at `path`, sorted.
    pub fn names(&self, path: &str) -> Reading<Vec<String>> {
        match self {
            Self::Below(root) => names(&root.join(path)).into(),
            Self::Kept(all) => {
                if all.get(path) == Some(&KeptFile::Denied) {
                    return Reading::Denied;
                }
                let folder = format!("{}/", path.trim_end_matches('/'));
                let below = all.range(folder.clone()..);
                let below = below.map_while(|(path, _)| path.strip_prefix(folder.as_str()));
                let first = |path: &str| path.split('/').next().unwrap_or_default().to_owned();
                let found: BTreeSet<String> = below.map(first).collect();
                match found.is_empty() {
                    true => Reading::Absent,
                    false => Reading::Found(found.into_iter().collect()),
                }
            }
        }
    }

    /// Target of the symbolic link at `path`, as it is written there.
    pub fn link(&self, path: &str) -> Reading<String> {
        match self {
            Self::Below(root) => {
                let target: Reading<PathBuf> = fs::read_link(root.join(path)).into();
                target.map(|target| target.to_string_lossy().into_owned())
            }
            Self::Kept(all) => match all.get(path) {
                Some(KeptFile::Link(target)) => Reading::Found(target.clone()),
                Some(KeptFile::Denied) => Reading::Denied,
                Some(KeptFile::Bytes(_)) | None => Reading::Absent,
            },
        }
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // A pipe without a writer is no reason to wait.
    let flags = OFlags::NONBLOCK.bits() as i32;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    file.take(MOST_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn names(folder: &Path) -> io::Result<Vec<String>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder)? {
        all.push(entry?.file_name().to_string_lossy().into_owned());
    }
    all.sort();
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_files_answer_like_a_folder() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("sys/class/iommu")).unwrap();
        fs::write(folder.path().join("sys/class/iommu/dmar0"), "one\n").unwrap();
        std::os::unix::fs::symlink("../../dmar1", folder.path().join("sys/class/iommu/dmar1"))
            .unwrap();
        let mut kept = BTreeMap::new();
        kept.insert("sys/class/iommu/dmar0".to_owned(), KeptFile::Bytes(b"one\n".to_vec()));
        kept.insert("sys/class/iommu/dmar1".to_owned(), KeptFile::Link("../../dmar1".to_owned()));
        kept.insert("sys/class/iommuz".to_owned(), KeptFile::Bytes(Vec::new()));
        kept.insert("sys/kernel".to_owned(), KeptFile::Denied);
        for files in [Files::Below(folder.path().to_owned()), Files::Kept(kept.clone())] {
            assert_eq!(files.text("sys/class/iommu/dmar0"), Reading::Found("one\n".to_owned()));
            assert_eq!(files.text("sys/class/iommu/dmar7"), Reading::Absent);
            assert_eq!(
                files.link("sys/class/iommu/dmar1"),
                Reading::Found("../../dmar1".to_owned())
            );
            let both = ["dmar0", "dmar1"].map(str::to_owned).to_vec();
            assert_eq!(files.names("sys/class/iommu"), Reading::Found(both));
            assert_eq!(files.names("sys/class/net"), Reading::Absent);
        }
        assert!(Files::Kept(kept).names("sys/kernel").is_denied());
    }
}
