//! An initramfs: a cpio archive of the "new" form.
//!
//! Linux, Documentation/driver-api/early-userspace/buffer-format.rst. No links, no devices, no owners but root, and no
//! compression.

/// Name of the last entry.
const TRAILER: &str = "TRAILER!!!";
const FOLDER: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;

/// The archive under construction.
#[derive(Default)]
pub struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    /// Adds the folder at `path`, which begins without a slash; its parent has to be added first.
    pub fn folder(&mut self, path: &str) -> Result<(), String> {
        self.entry(path, FOLDER, &[])
    }

    /// Adds a file that may be run.
    pub fn file(&mut self, path: &str, body: &[u8]) -> Result<(), String> {
        self.entry(path, PROGRAM, body)
    }

    /// The whole archive.
    pub fn finish(mut self) -> Result<Vec<u8>, String> {
        self.entry(TRAILER, 0, &[])?;
        Ok(self.bytes)
    }

    fn entry(&mut self, path: &str, mode: u32, body: &[u8]) -> Result<(), String> {
        let size = u32::try_from(body.len()).map_err(|_| format!("{path} is larger than 4 GiB"))?;
        self.entries += 1;
        // Inode, mode, owner, group, links, time, size, device (2), special device (2), length of the name
        // with its end, and a check sum that this form does not have.
        let name = path.len() as u32 + 1;
        let fields = [self.entries, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.align();
        self.bytes.extend_from_slice(body);
        self.align();
        Ok(())
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_aligned_and_the_last_one_ends_the_archive() {
        let mut archive = Archive::default();
        archive.folder("bin").unwrap();
        archive.file("bin/a", b"12345").unwrap();
        let bytes = archive.finish().unwrap();
        let (mut at, mut seen) = (0, Vec::new());
        while at < bytes.len() {
            let field = |n: usize| {
                let digits = &bytes[at + 6 + 8 * n..][..8];
                usize::from_str_radix(str::from_utf8(digits).unwrap(), 16).unwrap()
            };
            assert_eq!(&bytes[at..at + 6], b"070701", "{at}");
            let (size, name) = (field(6), field(11));
            let path = str::from_utf8(&bytes[at + 110..at + 110 + name - 1]).unwrap();
            let body = (at + 110 + name).next_multiple_of(4);
            seen.push((path, field(1), &bytes[body..body + size]));
            at = (body + size).next_multiple_of(4);
        }
        let wanted =
            [("bin", 0o040_755, &b""[..]), ("bin/a", 0o100_755, b"12345"), (TRAILER, 0, b"")];
        assert_eq!(seen, wanted);
    }
}
