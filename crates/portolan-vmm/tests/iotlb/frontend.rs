//! A front-end's side of the backend's channel, as a test plays it.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use portolan_vmm::VhostIotlb;

/// The front-end's end of the channel.
pub struct Frontend(pub UnixStream);

/// A question: the address and the access that it is for, as their bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    pub at: u64,
    pub access: u8,
    pub flags: u32,
}

impl Frontend {
    /// Connects it.
    pub fn of(iotlb: &VhostIotlb) -> Self {
        let (ours, theirs) = UnixStream::pair().unwrap();
        iotlb.connect(theirs).unwrap();
        Self(ours)
    }

    /// The next question; `None` at the end.
    pub fn question(&mut self) -> Option<Question> {
        let mut message = [0; 44];
        self.0.read_exact(&mut message).ok()?;
        let word = |at: usize| u32::from_le_bytes(message[at..at + 4].try_into().unwrap());
        assert_eq!((word(0), word(8)), (1, 32));
        assert_eq!(message[12 + 25], 1, "a miss");
        Some(Question {
            at: u64::from_le_bytes(message[12..20].try_into().unwrap()),
            access: message[12 + 24],
            flags: word(4),
        })
    }

    /// Takes so many questions, and answers none.
    pub fn take(&mut self, count: usize) {
        for _ in 0..count {
            self.question().unwrap();
        }
    }

    /// Answers the oldest question: 0 is good.
    pub fn reply(&mut self, value: u64) {
        let header = [1, 1 | 1 << 2, 8].map(u32::to_le_bytes).concat();
        let reply = [header, value.to_le_bytes().to_vec()].concat();
        // The other end may have gone.
        let _ = self.0.write_all(&reply);
    }
}
