//! Dropping cached entries: section 6.5.

use portolan::addr::InvalTag;

use super::State;
use super::descriptors::VtdInvalidation;
use crate::stage::Drops;
use crate::unit::Invalidated;
use portolan_sim::cache::Reach;

fn forget_interrupts(state: &mut State, first: u16, last: u16) {
    let kept = |index: &u16| !(first..=last).contains(index);
    state.own.interrupts.retain(|index, _| kept(index));
    if (first, last) == (0, u16::MAX) {
        state.own.interrupts_cleaned = Invalidated::Done;
    }
}

pub(super) fn invalidate(state: &mut State, what: VtdInvalidation) {
    let every = Drops::ALL;
    match what {
        VtdInvalidation::Contexts => {
            state.own.contexts.clear();
            state.cleaned.0 = Invalidated::Done;
        }
        VtdInvalidation::ContextsOf { domain } => {
            state.own.contexts.retain(|_, cached| cached.domain.is_some_and(|of| of != domain))
        }
        VtdInvalidation::Context { domain, source, mask } => {
            state.own.contexts.retain(|of, cached| {
                let other_domain = cached.domain.is_some_and(|of| of != domain);
                (of ^ source) & !mask != 0 || other_domain
            })
        }
        VtdInvalidation::Pasids => state.own.pasids.clear(),
        VtdInvalidation::PasidsOf { domain } => {
            state.own.pasids.retain(|_, cached| cached.domain != Some(domain));
        }
        VtdInvalidation::Pasid { domain, pasid } => {
            state.own.pasids.retain(|key, cached| key.1 != pasid || cached.domain != Some(domain))
        }
        VtdInvalidation::Device(what) => state.remote.forget(what),
        VtdInvalidation::Interrupts { first, last } => forget_interrupts(state, first, last),
        VtdInvalidation::Translations => {
            state.own.first.invalidate(Reach::All, None, every);
            state.own.second.invalidate(Reach::All, None, every);
            state.cleaned.1 = Invalidated::Done;
        }
        VtdInvalidation::TranslationsOf { domain } => {
            let owner = u32::from(domain);
            state.own.first.invalidate(Reach::All, Some(owner), every);
            let reach = Reach::Context(InvalTag::new(owner));
            state.own.second.invalidate(reach, None, every);
        }
        VtdInvalidation::Pages { domain, range, drops } => {
            // Combined translations of both stages stay, as they may.
            let reach = Reach::Range(InvalTag::new(domain.into()), range);
            state.own.second.invalidate(reach, None, drops);
        }
        VtdInvalidation::FirstStage { domain, pasid } => {
            let reach = Reach::Context(state.own.first_tag(domain, pasid));
            state.own.first.invalidate(reach, None, every);
        }
        VtdInvalidation::FirstStagePages { domain, pasid, range, drops } => {
            let reach = Reach::Range(state.own.first_tag(domain, pasid), range);
            state.own.first.invalidate(reach, None, drops);
        }
    }
}
