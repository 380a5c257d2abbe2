//! Devices that ask for pages that are not there: brought in, refused, abandoned and flooded, with
//! one response for each group.

use std::sync::atomic::Ordering;

use portolan::addr::{Iova, Pasid, StreamId};
use portolan::iopf::{Cause, Permissions, Place, RawPageRequest, Response, Taken};

use super::asking::{FaultSource, Wrote};
use super::basic::PAGE;
use super::scene::Scene;
use super::{Host, Machine, Verdict, expect, fail, must};

fn brings_in<M: Machine>(machine: &M, way: FaultSource) -> Verdict {
    let scene = Scene::new(machine, way)?;
    for page in 0..3 {
        scene.must_ask(page, page as u16)?;
        expect("taken", scene.turn()?, vec![Taken::Ready])?;
        expect("told", scene.told(), vec![Response::Success])?;
        scene.must_arrive(page)?;
    }
    // A page that is taken away again is gone, for a device that keeps translations as well.
    let (iova, old) = (Iova::new(M::BASE.get() + PAGE), scene.pa(1)?);
    let owed = scene.on.unmap(iova, PAGE)?;
    if scene.reach(1, 9) != Wrote::There {
        return Err(fail("nothing was cached: the scenario proves nothing"));
    }
    scene.on.sync(owed)?;
    machine.host.poke(old, 0);
    scene.must_ask(1, 7)?;
    scene.turn()?;
    scene.must_arrive(1)?;
    expect("the old page", machine.host.peek(old), 0)?;
    scene.settled()
}

fn refuses<M: Machine>(machine: &M, way: FaultSource) -> Verdict {
    let scene = Scene::new(machine, way)?;
    let last = 1 << 12;
    scene.must_ask(last, 1)?;
    let taken = scene.turn()?;
    let outside = matches!(taken[..], [Taken::Refused { cause: Cause::Outside, .. }]);
    if !outside {
        return Err(fail(format!("outside of what is registered: {taken:?}")));
    }
    expect("told", scene.told(), vec![Response::Invalid])?;
    if way == FaultSource::Stalls {
        expect("the write", scene.asker.settled(), vec![Wrote::Refused])?;
    }
    scene.desk.unregister(scene.on.device, None);
    scene.register(0)?;
    scene.must_ask(2, 2)?;
    scene.turn()?;
    expect("told by a handler with nothing", scene.told(), vec![Response::Invalid])?;
    scene.settled()
}

fn detaches<M: Machine>(machine: &M, way: FaultSource) -> Verdict {
    use portolan::iommu::Iommu as _;
    let scene = Scene::new(machine, way)?;
    let device = scene.on.device;
    for page in 0..10 {
        scene.must_ask(page, page as u16)?;
    }
    if way == FaultSource::Requests {
        scene.asker.ask(scene.raw(20, Place::More, 20));
    }
    let read = scene.read()?.len();
    expect("requests", read, if way == FaultSource::Requests { 11 } else { 10 })?;
    // Some are served, some wait here, some are still in the unit.
    must("serving", scene.desk.serve())?;
    for page in 10..14 {
        scene.must_ask(page, page as u16)?;
    }
    scene.desk.unregister(device, None);
    must("blocking", machine.unit.block(device))?;
    if way == FaultSource::Requests {
        scene.asker.ask(scene.raw(20, Place::Last, 20));
    }
    scene.turn()?;
    scene.desk.remove_device(device);
    let told = scene.told();
    let success = told.iter().filter(|told| **told == Response::Success).count();
    let refused = told.iter().filter(|told| **told == Response::Invalid).count();
    let groups = if way == FaultSource::Requests { 15 } else { 14 };
    // A unit that lets a blocked device no longer ask answers the last one itself.
    let failed = told.len() - success - refused;
    expect("brought in", success, 1)?;
    expect("told", told.len(), groups)?;
    if failed > usize::from(way == FaultSource::Requests) {
        return Err(fail(format!("{failed} groups failed")));
    }
    scene.settled()
}

fn overflows<M: Machine>(machine: &M, way: FaultSource) -> Verdict {
    let scene = Scene::new(machine, way)?;
    // The first three pages are enough: the requested addresses are not the point.
    for n in 0..300u64 {
        match way {
            FaultSource::Requests => {
                let group = (n % 512) as u16;
                scene.asker.ask(scene.raw(group, Place::Last, n % 3));
            }
            FaultSource::Stalls => scene.must_ask(n % 3, 0)?,
        }
    }
    let lost = scene.asker.lost();
    if way == FaultSource::Requests && lost == 0 {
        return Err(fail("nothing was lost: the scenario proves nothing"));
    }
    for _ in 0..10 {
        scene.turn()?;
    }
    expect("told", scene.told().len(), 300)?;
    if way == FaultSource::Stalls {
        let there = scene.asker.settled();
        expect("writes", there, vec![Wrote::There; 300])?;
    }
    scene.settled()?;
    // It continues afterwards.
    scene.time.0.store(1_000_000_000, Ordering::Relaxed);
    scene.must_ask(5, 5)?;
    scene.turn()?;
    scene.must_arrive(5)?;
    scene.settled()
}

fn floods<M: Machine>(machine: &M, way: FaultSource) -> Verdict {
    let scene = Scene::new(machine, way)?;
    for n in 0..1_000u64 {
        match way {
            FaultSource::Requests => {
                scene.asker.ask(scene.raw((n % 512) as u16, Place::Last, n % 3))
            }
            FaultSource::Stalls => {
                scene.reach(100 + n, 0);
            }
        }
        scene.read()?;
        if n % 50 == 0 {
            scene.serve()?;
        }
    }
    scene.turn()?;
    let told = scene.told();
    expect("told", told.len(), 1_000)?;
    let flooded = scene.desk.counts().refused(Cause::Flooded);
    if flooded == 0 {
        return Err(fail("a flood went through"));
    }
    scene.settled()
}

/// Tests page requests only, because the device chooses their contents.
fn misbehaves<M: Machine>(machine: &M) -> Verdict {
    let scene = Scene::new(machine, FaultSource::Requests)?;
    let ask = |raw| scene.asker.ask(raw);
    // No last request.
    ask(scene.raw(1, Place::More, 0));
    scene.turn()?;
    expect("told too early", scene.told(), Vec::new())?;
    scene.time.0.store(2_000_000_000, Ordering::Relaxed);
    must("waiting no longer", scene.desk.expire())?;
    expect("told when it is late", scene.told(), vec![Response::Invalid])?;
    // The same again and again.
    for _ in 0..3 {
        ask(scene.raw(2, Place::Last, 1));
    }
    scene.turn()?;
    expect("told once", scene.told(), vec![Response::Success])?;
    // An address space that is not registered, alone and amid others.
    let pasid = Some(Pasid::new(9));
    let strange = |raw| RawPageRequest { pasid, ..raw };
    ask(strange(scene.raw(3, Place::Last, 1)));
    ask(scene.raw(4, Place::More, 1));
    ask(strange(scene.raw(4, Place::Last, 1)));
    // A device that is not registered.
    let [_, stream] = machine.host.devices();
    must("attaching", attach(machine, stream, &scene))?;
    let other = |raw| RawPageRequest { stream, ..raw };
    ask(other(scene.raw(5, Place::More, 1)));
    ask(other(scene.raw(5, Place::Last, 1)));
    // Requests that cannot be.
    let wants = Permissions::empty();
    ask(RawPageRequest { wants, ..scene.raw(6, Place::Last, 1) });
    scene.turn()?;
    expect("told", scene.told(), vec![Response::Invalid; 4])?;
    scene.settled()
}

fn attach<M: Machine>(
    machine: &M,
    stream: StreamId,
    scene: &Scene<'_, M>,
) -> Result<(), portolan::iommu::AttachError> {
    use portolan::iommu::Attach as _;
    machine.unit.attach(stream, &scene.on.domain)
}

/// Checks that a response which comes after its device was reset does not end later requests of the device.
fn resets<M: Machine>(machine: &M) -> Verdict {
    let scene = Scene::new(machine, FaultSource::Requests)?;
    scene.must_ask(0, 3)?;
    scene.read()?;
    scene.asker.reset(scene.on.device);
    scene.serve()?;
    expect("responses to nobody", scene.asker.strays(), 1)?;
    scene.asker.told();
    scene.asker.reset(scene.on.device);
    scene.must_ask(1, 3)?;
    scene.turn()?;
    expect("told", scene.told(), vec![Response::Success])?;
    scene.must_arrive(1)?;
    // In the order that is asked for, no response comes too late.
    scene.must_ask(2, 4)?;
    scene.read()?;
    scene.desk.remove_device(scene.on.device);
    scene.asker.reset(scene.on.device);
    expect("responses to nobody", scene.asker.strays(), 1)?;
    expect("groups without a response", scene.asker.unanswered(), 0)
}

pub(super) fn requests_are_brought_in<M: Machine>(machine: &M) -> Verdict {
    brings_in(machine, FaultSource::Requests)
}

pub(super) fn stalls_are_brought_in<M: Machine>(machine: &M) -> Verdict {
    brings_in(machine, FaultSource::Stalls)
}

pub(super) fn requests_are_refused<M: Machine>(machine: &M) -> Verdict {
    refuses(machine, FaultSource::Requests)
}

pub(super) fn stalls_are_refused<M: Machine>(machine: &M) -> Verdict {
    refuses(machine, FaultSource::Stalls)
}

pub(super) fn detach_answers_requests<M: Machine>(machine: &M) -> Verdict {
    detaches(machine, FaultSource::Requests)
}

pub(super) fn detach_answers_stalls<M: Machine>(machine: &M) -> Verdict {
    detaches(machine, FaultSource::Stalls)
}

pub(super) fn request_room_overflows<M: Machine>(machine: &M) -> Verdict {
    overflows(machine, FaultSource::Requests)
}

pub(super) fn stall_room_overflows<M: Machine>(machine: &M) -> Verdict {
    overflows(machine, FaultSource::Stalls)
}

pub(super) fn floods_of_requests<M: Machine>(machine: &M) -> Verdict {
    floods(machine, FaultSource::Requests)
}

pub(super) fn floods_of_stalls<M: Machine>(machine: &M) -> Verdict {
    floods(machine, FaultSource::Stalls)
}

pub(super) fn misbehaving_requests<M: Machine>(machine: &M) -> Verdict {
    misbehaves(machine)
}

pub(super) fn response_after_reset<M: Machine>(machine: &M) -> Verdict {
    resets(machine)
}
