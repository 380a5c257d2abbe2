//! Misses: asked over the backend's channel, answered there and by messages on the other one.
//!
//! The vhost-user protocol, sections "Back-end communication" and `VHOST_USER_BACKEND_IOTLB_MSG`. Replies carry no
//! number: they come in the order of the questions. A thread of its own reads them.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use portolan::addr::{Iova, IovaRange};
use rustix::net::{SendFlags, send};
use vm_memory::Permissions;

use crate::message::Message;

/// The number of the request on the backend's channel.
const IOTLB: u32 = 1;
/// Flags of headers: the version, which is 1, a reply, and one that is asked for.
const VERSION: u32 = 1;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;
/// Bytes of a header, and of a reply with it.
const HEADER: usize = 12;
const REPLY_BYTES: usize = HEADER + 8;
/// Questions under way; a front-end that answers none gets no more, and memory for them stays bounded.
const MOST: u64 = 64;

/// Agreement on replies (`VHOST_USER_PROTOCOL_F_REPLY_ACK`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Replies {
    Agreed,
    None,
}

/// Reason why a question was not answered with a translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum AskError {
    #[error("there is no channel to the front-end")]
    NotConnected,
    #[error("the front-end has gone")]
    Gone,
    #[error("the front-end does not take questions any more")]
    Full,
    #[error("the front-end refuses it")]
    Refused,
    #[error("the front-end did not answer in time")]
    Late,
}

/// A question that a thread waits for.
#[derive(Debug)]
struct Waiting {
    at: Iova,
    reply: Option<Result<(), AskError>>,
    /// Set if translations of the address came or went since.
    touched: bool,
}

#[derive(Debug)]
struct Channel {
    stream: UnixStream,
    replies: Replies,
    /// Questions sent and replies read. A number names the question sent as the so many-th.
    asked: u64,
    answered: u64,
}

/// The channel, if there is one, and the threads that wait for a reply.
#[derive(Debug, Default)]
struct ChannelState {
    channel: Option<Channel>,
    /// Numbers the channels that there were.
    generation: u64,
    waiting: BTreeMap<(u64, u64), Waiting>,
}

impl ChannelState {
    /// Closes the channel, and gives every waiting thread `error`.
    fn close(&mut self, error: AskError) {
        if let Some(channel) = self.channel.take() {
            // Its thread ends; the front-end may have closed it before.
            let _ = channel.stream.shutdown(Shutdown::Both);
        }
        for waiting in self.waiting.values_mut() {
            waiting.reply.get_or_insert(Err(error));
        }
    }
}

/// The channel, and the threads that wait.
#[derive(Debug, Default)]
pub(super) struct Questions {
    state: Mutex<ChannelState>,
    changed: Condvar,
}

impl Questions {
    fn state(&self) -> MutexGuard<'_, ChannelState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks over `stream` from now on. A thread reads its replies until it ends.
    pub(super) fn connect(
        self: &Arc<Self>,
        stream: UnixStream,
        replies: Replies,
    ) -> io::Result<()> {
        let reader = stream.try_clone()?;
        reader.set_nonblocking(false)?;
        reader.set_read_timeout(None)?;
        let mut state = self.state();
        state.close(AskError::Gone);
        state.generation += 1;
        let generation = state.generation;
        state.channel = Some(Channel { stream, replies, asked: 0, answered: 0 });
        drop(state);
        self.changed.notify_all();
        let questions = Arc::downgrade(self);
        let name = "iotlb replies".to_owned();
        let read = move || {
            let mut reader = reader;
            while let Some(refused) = read_reply(&mut reader) {
                let Some(questions) = questions.upgrade() else {
                    return;
                };
                if !questions.answer(generation, refused) {
                    break;
                }
            }
            if let Some(questions) = questions.upgrade() {
                questions.end(generation);
            }
        };
        std::thread::Builder::new().name(name).spawn(read)?;
        Ok(())
    }

    /// Notes that the front-end has gone: threads that wait get an error, and so do all later questions.
    pub(super) fn disconnect(&self) {
        self.state().close(AskError::Gone);
        self.changed.notify_all();
    }

    /// Asks for a translation of `at`, and waits until `until` for an answer that changes something there.
    pub(super) fn ask(
        &self,
        at: Iova,
        access: Permissions,
        until: Instant,
    ) -> Result<(), AskError> {
        let mut state = self.state();
        let (number, replies) = send_question(&mut state, at, access)?;
        let waiting = Waiting { at, reply: None, touched: false };
        state.waiting.insert(number, waiting);
        let answer = loop {
            let waiting = state.waiting.get(&number);
            match waiting.map(|waiting| (waiting.reply, waiting.touched)) {
                Some((Some(Err(error)), _)) => break Err(error),
                Some((Some(Ok(())), true)) => break Ok(()),
                Some((None, true)) if replies == Replies::None => break Ok(()),
                Some(_) => {}
                None => break Err(AskError::Gone),
            }
            let left = until.saturating_duration_since(Instant::now());
            if left == Duration::ZERO {
                break Err(AskError::Late);
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        };
        state.waiting.remove(&number);
        answer
    }

    /// Translations of `range` came or went.
    pub(super) fn touch(&self, range: IovaRange) {
        let mut state = self.state();
        let mut any = false;
        let waiting = state.waiting.values_mut();
        for waiting in waiting.filter(|waiting| range.contains(waiting.at)) {
            waiting.touched = true;
            any = true;
        }
        drop(state);
        if any {
            self.changed.notify_all();
        }
    }

    /// Gives the next question of channel `generation` its reply; returns if there was one.
    fn answer(&self, generation: u64, reply: Result<(), AskError>) -> bool {
        let mut state = self.state();
        let current = state.generation == generation;
        let Some(channel) = state.channel.as_mut().filter(|_| current) else {
            return false;
        };
        if channel.answered == channel.asked || channel.replies == Replies::None {
            return false;
        }
        channel.answered += 1;
        let number = (generation, channel.answered);
        // The thread that asked may have given up.
        if let Some(waiting) = state.waiting.get_mut(&number) {
            waiting.reply = Some(reply);
        }
        drop(state);
        self.changed.notify_all();
        true
    }

    /// Channel `generation` has ended, or sends a reply that makes no sense.
    fn end(&self, generation: u64) {
        let mut state = self.state();
        if state.generation == generation {
            state.close(AskError::Gone);
        }
        drop(state);
        self.changed.notify_all();
    }
}

/// Sends a question; returns its number, and if a reply comes.
fn send_question(
    state: &mut ChannelState,
    at: Iova,
    access: Permissions,
) -> Result<((u64, u64), Replies), AskError> {
    let generation = state.generation;
    let none = match generation {
        0 => AskError::NotConnected,
        _ => AskError::Gone,
    };
    let waiting = state.waiting.len() as u64;
    let channel = state.channel.as_mut().ok_or(none)?;
    let under_way = match channel.replies {
        Replies::Agreed => channel.asked - channel.answered,
        Replies::None => waiting,
    };
    if under_way >= MOST {
        return Err(AskError::Full);
    }
    let flags = match channel.replies {
        Replies::Agreed => VERSION | NEED_REPLY,
        Replies::None => VERSION,
    };
    let header = [IOTLB, flags, Message::BYTES as u32].map(u32::to_le_bytes);
    let question = [&header.concat()[..], &Message::miss(at, access)].concat();
    let how = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    match send(&channel.stream, &question, how) {
        Ok(sent) if sent == question.len() => {}
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Err(AskError::Full),
        // The rest of a message would be read as the next one.
        Ok(_) | Err(_) => {
            state.close(AskError::Gone);
            return Err(AskError::Gone);
        }
    }
    channel.asked += 1;
    Ok(((generation, channel.asked), channel.replies))
}

/// The next reply; `None` if the channel has ended, or sends something else.
fn read_reply(stream: &mut UnixStream) -> Option<Result<(), AskError>> {
    let mut reply = [0; REPLY_BYTES];
    stream.read_exact(&mut reply).ok()?;
    let word = |at: usize| {
        let bytes = reply.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        u32::from_le_bytes(bytes.unwrap_or_default())
    };
    let good = word(0) == IOTLB && word(4) & 0x7 == VERSION | REPLY && word(8) == 8;
    match (good, &reply[HEADER..]) {
        (false, _) => None,
        (true, [0, 0, 0, 0, 0, 0, 0, 0]) => Some(Ok(())),
        (true, _) => Some(Err(AskError::Refused)),
    }
}
