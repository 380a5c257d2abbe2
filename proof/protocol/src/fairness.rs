//! Liveness: unmapped frames come back, if the hardware completes.
//!
//! The search looks for a run without end in which a frame stays pending although every step that
//! stays possible is made at some time (weak fairness). Such a run ends in a circle of states, so
//! the strongly connected parts of the graph of states show all of them. A failure of the hardware
//! is a step that may come any number of times, but not for ever: no circle holds one.

use std::collections::{HashMap, HashSet};

use crate::finite::{Check, Machine, Move, State};
use crate::protocol::Actor;

/// Steps of CPUs that a driver need not make.
const FREE: [&str; 4] = [
    "find a table that hangs there",
    "link a new table",
    "clear an entry",
    "take all addresses of a table",
];

/// Step that no run makes for ever.
const FAILURE: &str = "the hardware fails";

/// Graph of all states.
pub struct Graph {
    states: Vec<State>,
    /// For each state, the number of the move and of the state after it.
    edges: Vec<Vec<(u32, u32)>>,
    /// For each move, its words, and if a fair run has to make it.
    moves: Vec<(String, bool)>,
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
    pub fn of(machine: &Machine, most: usize) -> Option<Self> {
        let start = machine.start();
        let mut graph = Self { states: vec![start.clone()], edges: Vec::new(), moves: Vec::new() };
        let mut seen: HashMap<State, u32> = HashMap::from([(start, 0)]);
        let mut known: HashMap<(usize, Box<[u8]>), u32> = HashMap::new();
        let mut at = 0;
        while at < graph.states.len() {
            if graph.states.len() > most {
                return None;
            }
            let state = graph.states[at].clone();
            let mut edges = Vec::new();
            machine.moves(&state, |made, after| {
                let name = (made.step, made.things.clone());
                let number = *known.entry(name).or_insert_with(|| graph.add(machine, &made));
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

    fn add(&mut self, machine: &Machine, made: &Move) -> u32 {
        let name = machine.name(made.step);
        let fair =
            machine.actor(made.step) != Actor::Device && !FREE.contains(&name) && name != FAILURE;
        self.moves.push((machine.show(made), fair));
        self.moves.len() as u32 - 1
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
        // Number of the states that allow each move.
        let mut possible: HashMap<u32, usize> = HashMap::new();
        for state in part {
            let mut here = HashSet::new();
            for (number, next) in &self.edges[*state as usize] {
                if inside.contains(next) && !self.moves[*number as usize].0.starts_with(FAILURE) {
                    made.insert(*number);
                }
                if self.moves[*number as usize].1 && here.insert(*number) {
                    *possible.entry(*number).or_default() += 1;
                }
            }
        }
        let owed = |(number, many): (&u32, &usize)| *many == part.len() && !made.contains(number);
        if possible.iter().any(owed) {
            return None;
        }
        let mut moves: Vec<String> =
            made.iter().map(|number| self.moves[*number as usize].0.clone()).collect();
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
                        let fails = self.moves[number as usize].0.starts_with(FAILURE);
                        if !inside[next] || fails {
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
