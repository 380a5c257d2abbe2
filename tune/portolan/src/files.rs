//! Files of a Linux machine, below its root folder or kept in memory.
//!
//! Paths have no leading slash (`sys/class/iommu`). Not supported: links are not followed in memory; a caller that
//! wants the file behind one joins its target itself.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

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
    /// Those of another machine, each look at which is noted.
    #[cfg(test)]
    Watched(std::sync::Arc<tests::Watch>),
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
            #[cfg(test)]
            Self::Watched(watch) => watch.look("bytes", path).bytes(path),
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
            #[cfg(test)]
            Self::Watched(watch) => watch.look("names", path).names(path),
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
            #[cfg(test)]
            Self::Watched(watch) => watch.look("link", path).link(path),
        }
    }

    /// Tells if a path may lead through a symbolic link.
    pub fn follows_links(&self) -> bool {
        match self {
            Self::Below(_) => true,
            Self::Kept(_) => false,
            #[cfg(test)]
            Self::Watched(watch) => watch.of.follows_links(),
        }
    }
}

/// Files of which each is read once for an answer.
#[derive(Debug)]
pub struct ReadOnce<'f> {
    files: &'f Files,
    texts: RefCell<BTreeMap<String, Option<Rc<str>>>>,
}

impl<'f> ReadOnce<'f> {
    /// Makes one of which nothing is read yet.
    pub fn new(files: &'f Files) -> Self {
        Self { files, texts: RefCell::default() }
    }

    /// The files.
    pub const fn files(&self) -> &'f Files {
        self.files
    }

    /// Content of the file at `path` as text, if it can be read.
    pub fn text(&self, path: &str) -> Option<Rc<str>> {
        if let Some(known) = self.texts.borrow().get(path) {
            return known.clone();
        }
        let text = self.files.text(path).found().map(Rc::from);
        self.texts.borrow_mut().insert(path.to_owned(), text.clone());
        text
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
pub(crate) mod tests;
