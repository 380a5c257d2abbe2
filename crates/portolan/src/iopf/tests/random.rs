//! Devices, handlers and owners that do anything at any time, against an oracle that knows only
//! which groups a device has begun and not got back.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use spin::Mutex;

use super::rig::{Desk, Rig, small};
use super::std;
use crate::addr::{Iova, Pasid, StreamId};
use crate::iopf::{
    Bounds, Cause, Flow, GroupId, Permissions, Place, RawPageRequest, ReplyName, RequestKind,
    Response, StallTag,
};
use crate::platform::Nanos;

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        // Marsaglia's xorshift.
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}

/// Progress of a group, as its device sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Begun {
    Partly,
    Whole,
}

type Begin = BTreeMap<(u32, ReplyName), Begun>;

/// Groups that devices have begun and not got back.
#[derive(Default)]
struct Oracle {
    begun: Begin,
    known: BTreeMap<u32, u32>,
}

impl Oracle {
    fn asks(&mut self, raw: &RawPageRequest) {
        let stream = raw.stream.get();
        let stop =
            raw.pasid.is_some() && !raw.wants.intersects(Permissions::READ | Permissions::WRITE);
        let (name, whole) = match raw.kind {
            RequestKind::Pri { group, place } => (ReplyName::Group(group), place == Place::Last),
            RequestKind::Stall { tag } => (ReplyName::Stall(tag), true),
        };
        let pri = matches!(raw.kind, RequestKind::Pri { .. });
        if stop && whole && pri {
            return;
        }
        // Of a stranger only the end of a group counts.
        if !self.known.contains_key(&stream) && !whole && !self.begun.contains_key(&(stream, name))
        {
            return;
        }
        let begun = self.begun.entry((stream, name)).or_insert(Begun::Partly);
        if whole {
            *begun = Begun::Whole;
        }
    }
}

/// Address spaces that devices use; they ask for others as well.
const SPACES: [Option<Pasid>; 2] = [None, Some(Pasid::new(1))];

fn request(random: &mut Random) -> RawPageRequest {
    let group = GroupId::new(random.below(6) as u16);
    let tag = StallTag::new(random.below(4) as u16);
    let place = match random.below(4) {
        0 => Place::Last,
        _ => Place::More,
    };
    let kind = match random.below(4) {
        0 => RequestKind::Stall { tag },
        _ => RequestKind::Pri { group, place },
    };
    let wants = match random.below(40) {
        0 => Permissions::empty(),
        1 => Permissions::EXECUTE | Permissions::WRITE,
        2 => Permissions::READ | Permissions::EXECUTE,
        _ => Permissions::READ,
    };
    let pasid = match random.below(30) {
        0 => None,
        1 => Some(Pasid::new(9)),
        _ => Some(Pasid::new(1)),
    };
    let iova = match random.below(40) {
        0 => 0x20_0000,
        _ => 0x2000,
    };
    RawPageRequest {
        stream: StreamId::new(random.below(4) as u32),
        pasid,
        iova: Iova::new(iova),
        wants,
        kind,
    }
}

struct Game {
    random: Mutex<Random>,
    oracle: Mutex<Oracle>,
}

impl Game {
    fn roll(&self, bound: u64) -> u64 {
        self.random.lock().below(bound)
    }

    /// Everything that was sent has an open group of that name, and ends it.
    fn settle(&self, rig: &super::rig::Sent) {
        let mut oracle = self.oracle.lock();
        for (to, response) in rig.take() {
            let key = (to.stream.get(), to.name);
            let begun = oracle.begun.remove(&key);
            assert!(begun.is_some(), "{to:?} got {response:?} for nothing");
        }
    }

    fn ask(&self, desk: &Desk) {
        let raw = request(&mut self.random.lock());
        self.oracle.lock().asks(&raw);
        let _ = desk.accept(raw);
        self.settle(desk.responder());
    }

    fn register(self: &Arc<Self>, rig: &Rig, stream: u32) {
        let free = {
            let mut oracle = self.oracle.lock();
            let spaces = oracle.known.entry(stream).or_insert(0);
            core::mem::replace(spaces, 1) == 0
        };
        if free {
            for pasid in SPACES {
                let game = Arc::clone(self);
                rig.register(StreamId::new(stream), pasid, move |desk, _| game.handle(desk));
            }
        }
    }

    fn unregister(&self, desk: &Desk, stream: u32) {
        if let Some(spaces) = self.oracle.lock().known.get_mut(&stream) {
            *spaces = 0;
        }
        for pasid in SPACES {
            desk.unregister(StreamId::new(stream), pasid);
        }
        self.settle(desk.responder());
    }

    fn remove(&self, desk: &Desk, stream: u32) {
        desk.remove_device(StreamId::new(stream));
        self.settle(desk.responder());
        let mut oracle = self.oracle.lock();
        oracle.known.remove(&stream);
        let left = oracle.begun.keys().find(|key| key.0 == stream);
        assert_eq!(left, None, "a removed device waits");
    }

    /// Does anything that a handler may do.
    fn handle(&self, desk: &Desk) -> Response {
        for _ in 0..self.roll(3) {
            match self.roll(8) {
                0 => self.unregister(desk, self.roll(3) as u32),
                1 => self.remove(desk, self.roll(3) as u32),
                2 => self.serve(desk),
                _ => self.ask(desk),
            }
        }
        match self.roll(8) {
            0 => std::panic::resume_unwind(std::boxed::Box::new(())),
            1 => Response::Invalid,
            2 => Response::Failure,
            _ => Response::Success,
        }
    }

    fn serve(&self, desk: &Desk) {
        let desk = std::panic::AssertUnwindSafe(desk);
        let _ = std::panic::catch_unwind(|| {
            let _ = desk.serve();
        });
        self.settle(desk.responder());
    }

    fn step(self: &Arc<Self>, rig: &Rig, now: &mut u64) {
        let stream = self.roll(3) as u32;
        match self.roll(40) {
            0..=3 => self.register(rig, stream),
            4 => self.unregister(&rig.desk, stream),
            5 => self.remove(&rig.desk, stream),
            6..=13 => self.serve(&rig.desk),
            14 => {
                rig.desk.lost();
                let mut oracle = self.oracle.lock();
                oracle.begun.retain(|_, begun| *begun == Begun::Whole);
            }
            15..=17 => {
                *now += self.roll(60);
                rig.at(*now);
                let _ = rig.desk.expire();
                self.settle(&rig.sent);
            }
            _ => self.ask(&rig.desk),
        }
    }
}

fn bounds(seed: u64) -> Bounds {
    let each = Nanos::new([0, 3, 20][(seed % 3) as usize]);
    Bounds { flow: Flow { burst: 6, each }, groups: [1, 4, 9][(seed / 3 % 3) as usize], ..small() }
}

#[test]
fn every_group_gets_one_response() {
    let seeds = std::env::var("FAULT_SEED").ok().and_then(|seed| seed.parse().ok());
    let mut seen = BTreeMap::new();
    for seed in seeds.map_or(1..=60u64, |seed| seed..=seed) {
        std::println!("seed {seed}");
        let rig = Rig::new(bounds(seed));
        let random = Mutex::new(Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1));
        let oracle = Mutex::default();
        let game = Arc::new(Game { random, oracle });
        let mut now = 0;
        for _ in 0..2_000 {
            game.step(&rig, &mut now);
        }
        while rig.desk.counts().handled > 0 && game_serves(&game, &rig) {}
        rig.at(now + 1_000);
        let _ = rig.desk.expire();
        game.settle(&rig.sent);
        assert_eq!(rig.desk.outstanding(), 0, "seed {seed}");
        let left: Vec<_> = game.oracle.lock().begun.keys().copied().collect();
        assert!(left.is_empty(), "seed {seed}: {left:?} got no response");
        for cause in Cause::ALL {
            *seen.entry(*cause).or_insert(0) += rig.desk.counts().refused(*cause);
        }
    }
    // A run that never meets a case tests nothing of it.
    if seeds.is_none() {
        assert!(seen.values().all(|count| *count > 0), "{seen:?}");
    }
}

/// Serves one group, if there is one.
fn game_serves(game: &Game, rig: &Rig) -> bool {
    let before = rig.desk.counts();
    game.serve(&rig.desk);
    rig.desk.counts() != before
}
