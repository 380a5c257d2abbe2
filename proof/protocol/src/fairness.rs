//! Liveness: what waits is served, if the hardware completes.
//!
//! The search looks for a run without end in which a fact stays true although every step that
//! stays possible is made at some time (weak fairness). Such a run ends in a circle of states, so
//! the strongly connected parts of the graph of states show all of them. A failure of the hardware
//! is a step that may come any number of times, but not for ever: no circle holds one.

use std::collections::{HashMap, HashSet};

use crate::defects::Defect;
use crate::expr::Sort;
use crate::finite::{Check, Machine, Move, Sizes, State};
use crate::protocol::{Actor, Protocol};

/// Promise that a fact does not stay true for ever.
pub struct Endless {
    /// The promise.
    pub says: &'static str,
    /// Relation of the fact.
    pub fact: &'static str,
    /// Numbers of its things.
    pub of: &'static [u8],
    /// Assumptions of the search beyond those of the proof.
    pub supposed: fn(&mut Protocol),
    /// Steps of CPUs that a run need not make.
    pub free: &'static [&'static str],
    /// Step that no run makes for ever.
    pub failure: Option<&'static str>,
    /// Step that one thing serves as well as another: made with one, it is made.
    pub alike: Option<Alike>,
    /// Machines of which all runs without end are looked at. Caches have no part in them.
    pub machines: Vec<Sizes>,
    /// Changes that keep every promise of the proof, and starve what waits.
    pub starvations: Vec<Defect>,
}

/// Sort of things that are alike to a step.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Alike {
    /// The step.
    pub step: &'static str,
    /// The sort.
    pub sort: Sort,
}

/// Move of a machine, as a run without end has it.
struct Kind {
    /// The move in words.
    says: String,
    /// Number of the step that a fair run has to make, if it stays possible.
    due: Option<u32>,
    /// True for the failure.
    fails: bool,
}

/// Graph of all states.
pub struct Graph {
    states: Vec<State>,
    /// For each state, the number of the move and of the state after it.
    edges: Vec<Vec<(u32, u32)>>,
    moves: Vec<Kind>,
}

/// Run that starves.
#[derive(Debug)]
pub struct Starvation {
    /// States of the circle.
    pub states: usize,
    /// Moves inside it, in words; none if nothing can happen any more.
    pub moves: Vec<String>,
}

impl Graph {
    /// Visits all states; none if there are more than `most`.
    pub fn of(machine: &Machine, endless: &Endless, most: usize) -> Option<Self> {
        let start = machine.start();
        let mut graph = Self { states: vec![start.clone()], edges: Vec::new(), moves: Vec::new() };
        let mut seen: HashMap<State, u32> = HashMap::from([(start, 0)]);
        let mut known: HashMap<Move, u32> = HashMap::new();
        let mut dues: HashMap<Move, u32> = HashMap::new();
        let mut at = 0;
        while at < graph.states.len() {
            if graph.states.len() > most {
                return None;
            }
            let state = graph.states[at].clone();
            let mut edges = Vec::new();
            machine.moves(&state, |made, after| {
                let number = *known.entry(made.clone()).or_insert_with(|| {
                    graph.moves.push(kind(machine, endless, &made, &mut dues));
                    graph.moves.len() as u32 - 1
                });
                let next = *seen.entry(after.clone()).or_insert_with(|| {
                    graph.states.push(after);
                    graph.states.len() as u32 - 1
                });
                edges.push((number, next));
            });
            graph.edges.push(edges);
            at += 1;
        }
        Some(graph)
    }

    /// Number of states.
    pub fn states(&self) -> usize {
        self.states.len()
    }

    /// A fair run without end in which `waits` stays true.
    pub fn starvation(&self, machine: &Machine, waits: &Check) -> Option<Starvation> {
        let inside: Vec<bool> = self.states.iter().map(|state| machine.is(waits, state)).collect();
        let parts = self.parts(&inside);
        let mut members: HashMap<u32, Vec<u32>> = HashMap::new();
        for (state, part) in parts.iter().enumerate().filter(|(state, _)| inside[*state]) {
            members.entry(*part).or_default().push(state as u32);
        }
        let mut parts: Vec<Vec<u32>> = members.into_values().collect();
        parts.sort_by_key(|part| (part.len(), part.first().copied()));
        parts.iter().find_map(|part| self.fair(part))
    }

    /// Tells if a run may stay in these states for ever, and make each step that stays possible.
    fn fair(&self, part: &[u32]) -> Option<Starvation> {
        let inside: HashSet<u32> = part.iter().copied().collect();
        let mut made: HashSet<u32> = HashSet::new();
        // Number of the states that allow each step that is due.
        let mut possible: HashMap<u32, usize> = HashMap::new();
        for state in part {
            let mut here = HashSet::new();
            for (number, next) in &self.edges[*state as usize] {
                let kind = &self.moves[*number as usize];
                if inside.contains(next) && !kind.fails {
                    made.insert(*number);
                }
                if let Some(due) = kind.due.filter(|due| here.insert(*due)) {
                    *possible.entry(due).or_default() += 1;
                }
            }
        }
        let kinds = || made.iter().map(|number| &self.moves[*number as usize]);
        let done: HashSet<u32> = kinds().filter_map(|kind| kind.due).collect();
        if possible.iter().any(|(due, many)| *many == part.len() && !done.contains(due)) {
            return None;
        }
        let mut moves: Vec<String> = kinds().map(|kind| kind.says.clone()).collect();
        moves.sort();
        Some(Starvation { states: part.len(), moves })
    }

    /// The number of the strongly connected part of each state (Tarjan), without failures.
    fn parts(&self, inside: &[bool]) -> Vec<u32> {
        const NEW: u32 = u32::MAX;
        let many = self.states.len();
        let (mut order, mut low, mut part) = (vec![NEW; many], vec![0; many], vec![NEW; many]);
        let (mut stack, mut count, mut parts) = (Vec::new(), 0, 0);
        for root in 0..many {
            if !inside[root] || order[root] != NEW {
                continue;
            }
            let mut open: Vec<(usize, usize)> = vec![(root, 0)];
            while let Some((state, edge)) = open.last_mut() {
                let state = *state;
                if *edge == 0 {
                    (order[state], low[state]) = (count, count);
                    count += 1;
                    stack.push(state);
                }
                let next = self.edges[state].get(*edge).copied();
                *edge += 1;
                match next {
                    Some((number, next)) => {
                        let next = next as usize;
                        if !inside[next] || self.moves[number as usize].fails {
                            continue;
                        }
                        if order[next] == NEW {
                            open.push((next, 0));
                        } else if part[next] == NEW {
                            low[state] = low[state].min(order[next]);
                        }
                    }
                    None => {
                        open.pop();
                        if let Some((before, _)) = open.last() {
                            low[*before] = low[*before].min(low[state]);
                        }
                        if low[state] == order[state] {
                            while let Some(member) = stack.pop() {
                                part[member] = parts;
                                if member == state {
                                    break;
                                }
                            }
                            parts += 1;
                        }
                    }
                }
            }
        }
        part
    }
}

/// The kind of a move. Those of one step with things that are alike have one number.
fn kind(machine: &Machine, endless: &Endless, made: &Move, dues: &mut HashMap<Move, u32>) -> Kind {
    let step = machine.name(made.step);
    let fails = Some(step) == endless.failure;
    let device = machine.actor(made.step) == Actor::Device;
    let due = (!device && !fails && !endless.free.contains(&step)).then(|| {
        let other = |sort| Some(Alike { step, sort }) != endless.alike;
        let things = machine.things(made).filter(|(sort, _)| other(*sort));
        let things = things.map(|(_, thing)| thing).collect();
        let next = dues.len() as u32;
        *dues.entry(Move { step: made.step, things }).or_insert(next)
    });
    Kind { says: machine.show(made), due, fails }
}
