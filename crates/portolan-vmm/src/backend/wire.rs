//! Messages that come with a header: those of a front-end, and of a back-end's own channel.
//!
//! The vhost-user protocol, section "Message specification".

use std::fs::File;
use std::io::{self, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};

/// Files that a message brings along at most: as many as a table of memory has regions without slots.
const MOST_FILES: usize = 8;
/// Bytes of a payload at most.
const MOST_BYTES: u32 = 4096;
const HEADER: usize = 12;
const VERSION: u32 = 1;
const VERSION_MASK: u32 = 3;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;

/// A message that cannot be read, after which nothing can.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The socket fails.
    #[error("the socket fails: {0}")]
    Socket(#[from] io::Error),
    /// The header makes no sense.
    #[error("a message {request} with flags {flags:#x} and {bytes} bytes makes no sense")]
    Header {
        /// The request's number.
        request: u32,
        /// Its flags.
        flags: u32,
        /// The length of its payload, in bytes.
        bytes: u32,
    },
    /// More files came along than any message has.
    #[error("a message brings too many files along")]
    Files,
}

/// A message.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) request: u32,
    /// Set if the other end asks for a reply that this kind of message does not have by itself.
    pub(crate) need_reply: bool,
    pub(crate) payload: Vec<u8>,
    pub(crate) files: Vec<File>,
}

/// The next message; `None` if the other end has gone.
pub(crate) fn receive(stream: &UnixStream) -> Result<Option<Incoming>, WireError> {
    let mut header = [0; HEADER];
    let (got, files) = first_bytes(stream, &mut header)?;
    if got == 0 {
        return Ok(None);
    }
    let mut reader = stream;
    reader.read_exact(header.get_mut(got..).unwrap_or_default())?;
    let word = |at: usize| {
        let bytes = header.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        u32::from_le_bytes(bytes.unwrap_or_default())
    };
    let (request, flags, bytes) = (word(0), word(4), word(8));
    if flags & VERSION_MASK != VERSION || flags & REPLY != 0 || bytes > MOST_BYTES {
        return Err(WireError::Header { request, flags, bytes });
    }
    let mut payload = vec![0; bytes as usize];
    reader.read_exact(&mut payload)?;
    Ok(Some(Incoming { request, need_reply: flags & NEED_REPLY != 0, payload, files }))
}

/// Files come along with a message's first byte.
fn first_bytes(stream: &UnixStream, header: &mut [u8]) -> Result<(usize, Vec<File>), WireError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FILES))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = loop {
        match recvmsg(stream, &mut [IoSliceMut::new(header)], &mut control, flags) {
            Err(rustix::io::Errno::INTR) => {}
            received => break received.map_err(io::Error::from)?,
        }
    };
    let mut files = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            files.extend(descriptors.map(File::from));
        }
    }
    match received.flags.contains(ReturnFlags::CTRUNC) {
        true => Err(WireError::Files),
        false => Ok((received.bytes, files)),
    }
}

/// Replies to `request`.
pub(crate) fn reply(stream: &UnixStream, request: u32, payload: &[u8]) -> Result<(), WireError> {
    let header = [request, VERSION | REPLY, payload.len() as u32].map(u32::to_le_bytes);
    let mut writer = stream;
    Ok(writer.write_all(&[&header.concat(), payload].concat())?)
}
