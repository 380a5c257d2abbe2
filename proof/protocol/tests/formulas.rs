//! Formulas that cannot be read are refused with a reason.

use portolan_protocol::checks;
use portolan_protocol::expr::Formula;
use portolan_protocol::finite::{Found, Machine, Sizes, search};
use portolan_protocol::protocol::{Claim, Protocol, address_space};
use portolan_protocol::small::{self, Scope};

#[test]
fn a_formula_is_read_and_written() {
    let text = "(forall ((t Table)(i Index)) (=> (and (linked t) (not (= (slot t) s))) (or (used t i f) false)))";
    let formula = Formula::parse(text).expect("a formula");
    assert_eq!(formula.to_string(), text);
}

#[test]
fn what_is_no_formula_is_refused() {
    for (text, reason) in [
        ("(and (linked t)", "a bracket is open at the end"),
        (")", "a bracket is closed before it is open"),
        ("(linked t) (free t)", "( after the end"),
        ("(forall ((t Cable)) (linked t))", "Cable is no sort"),
        ("(forall (t) (linked t))", "t has no sort"),
        ("(not (linked t) (linked u))", "not of 2 parts"),
        ("linked", "linked is no formula"),
        ("(linked (slot t u))", "a function has one argument"),
    ] {
        let error = Formula::parse(text).expect_err(text);
        assert_eq!((error.reason.as_str(), error.text.as_str()), (reason, text));
    }
}

#[test]
fn a_name_that_the_protocol_does_not_have_is_refused() {
    let mut protocol = address_space();
    protocol.steps[0].guards.push(Claim { says: "", is: "(mislaid t)" });
    let error = Machine::new(&protocol, checks::SMALL).err().expect("an error");
    assert_eq!(error.to_string(), "the name is not known: mislaid");
}

/// Every protocol with its defects, and the machine on which they show.
fn scopes() -> Vec<Scope> {
    [vec![checks::whole()], small::all()].into_iter().flatten().collect()
}

/// A walk of the machine with a defect ends in a state that the same moves reach.
#[test]
fn a_trace_is_a_run_of_the_defective_protocol_and_not_of_the_right_one() {
    for Scope { protocol, defects, small, name, .. } in scopes() {
        for defect in defects {
            let mut wrong = protocol.clone();
            (defect.edit)(&mut wrong);
            assert!(end(&wrong, small).is_some(), "{name}: {}: no run", defect.says);
        }
        assert_eq!(end(&protocol, small), None, "{name}");
    }
}

fn end(protocol: &Protocol, sizes: Sizes) -> Option<Vec<String>> {
    let machine = Machine::new(protocol, sizes).expect("formulas");
    let claims = protocol.safety.iter().map(|claim| machine.claim(protocol, claim));
    let claims: Vec<_> = claims.collect::<Result<_, _>>().expect("formulas");
    match search(&machine, &claims, 1_000_000) {
        Found::Failure { moves, .. } => Some(moves),
        Found::Nothing { .. } => None,
        Found::Limit { states } => panic!("more than {states} states"),
    }
}

/// Each step is made in some state of the small machine: none is there for show.
#[test]
fn each_step_is_made_on_the_way_from_the_start() {
    for Scope { protocol, small, name, .. } in scopes() {
        let machine = Machine::new(&protocol, small).expect("formulas");
        let (mut states, mut made) = (vec![machine.start()], vec![false; protocol.steps.len()]);
        let mut seen = std::collections::HashSet::from([machine.start()]);
        while let Some(state) = states.pop() {
            machine.moves(&state, |one, after| {
                made[one.step] = true;
                if seen.insert(after.clone()) {
                    states.push(after);
                }
            });
        }
        let never = protocol.steps.iter().zip(&made).filter(|(_, made)| !**made);
        let never: Vec<&str> = never.map(|(step, _)| step.name).collect();
        assert!(never.is_empty(), "{name}: {never:?}");
    }
}
