//! Files of a machine, and files that are watched.

use std::sync::{Arc, Mutex};

use super::*;

/// Files, and the looks at them.
#[derive(Debug)]
pub struct Watch {
    pub of: Files,
    looks: Mutex<BTreeMap<(&'static str, String), u32>>,
}

impl Watch {
    pub fn new(of: Files) -> Arc<Self> {
        Arc::new(Self { of, looks: Mutex::default() })
    }

    /// Notes a look of a kind (`bytes`, `names`, `link`).
    pub fn look(&self, kind: &'static str, path: &str) -> &Files {
        *self.looks.lock().unwrap().entry((kind, path.to_owned())).or_default() += 1;
        &self.of
    }

    /// The looks since the last call: kind, path and number.
    pub fn take(&self) -> BTreeMap<(&'static str, String), u32> {
        std::mem::take(&mut *self.looks.lock().unwrap())
    }
}

#[test]
fn kept_files_answer_like_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir_all(folder.path().join("sys/class/iommu")).unwrap();
    fs::write(folder.path().join("sys/class/iommu/dmar0"), "one\n").unwrap();
    std::os::unix::fs::symlink("../../dmar1", folder.path().join("sys/class/iommu/dmar1")).unwrap();
    let mut kept = BTreeMap::new();
    kept.insert("sys/class/iommu/dmar0".to_owned(), KeptFile::Bytes(b"one\n".to_vec()));
    kept.insert("sys/class/iommu/dmar1".to_owned(), KeptFile::Link("../../dmar1".to_owned()));
    kept.insert("sys/class/iommuz".to_owned(), KeptFile::Bytes(Vec::new()));
    kept.insert("sys/kernel".to_owned(), KeptFile::Denied);
    for files in [Files::Below(folder.path().to_owned()), Files::Kept(kept.clone())] {
        assert_eq!(files.text("sys/class/iommu/dmar0"), Reading::Found("one\n".to_owned()));
        assert_eq!(files.text("sys/class/iommu/dmar7"), Reading::Absent);
        assert_eq!(files.link("sys/class/iommu/dmar1"), Reading::Found("../../dmar1".to_owned()));
        let both = ["dmar0", "dmar1"].map(str::to_owned).to_vec();
        assert_eq!(files.names("sys/class/iommu"), Reading::Found(both));
        assert_eq!(files.names("sys/class/net"), Reading::Absent);
    }
    assert!(Files::Kept(kept).names("sys/kernel").is_denied());
}
