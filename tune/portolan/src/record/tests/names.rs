//! Names of tasks: of those that the kernel has saved, that run, and that are gone.

use std::fs;
use std::os::unix::fs::symlink;

use super::super::names::TaskNames;
use super::machine::Machine;

/// A machine whose processes have the numbers of `namespace`, and whose kernel has saved `saved`.
fn machine(name: &str, namespace: &str, saved: &str) -> Machine {
    let machine = Machine::new(name);
    machine.write("tracing/saved_cmdlines", saved);
    fs::create_dir_all(machine.root.join("proc/self/ns")).unwrap();
    symlink(namespace, machine.root.join("proc/self/ns/pid")).unwrap();
    machine
}

fn names(machine: &Machine) -> TaskNames {
    TaskNames::of(&machine.tracefs("", Vec::new()))
}

#[test]
fn a_task_that_never_leaves_its_cpu_has_its_name() {
    let machine = machine("polls", "pid:[4026531836]", "7 dd\n");
    machine.write("proc/144/comm", "reactor 0\n");
    machine.write("proc/145/comm", "two\nlines\n");
    let mut names = names(&machine);
    let all = [0, 7, 144, 145].map(|pid| names.of_task(pid).to_owned());
    assert_eq!(all, ["<idle>", "dd", "reactor 0", "<...>"]);
}

#[test]
fn numbers_of_a_container_name_no_task_of_the_kernel() {
    let machine = machine("container", "pid:[4026532281]", "7 dd\n");
    machine.write("proc/7/comm", "sh\n");
    machine.write("proc/144/comm", "sh\n");
    let mut names = names(&machine);
    assert_eq!([7, 144].map(|pid| names.of_task(pid).to_owned()), ["dd", "<...>"]);
}

#[test]
fn a_task_without_a_name_gets_one_a_round_later() {
    let machine = machine("later", "pid:[4026531836]", "7 <...>\n");
    let mut names = names(&machine);
    assert_eq!(names.of_task(7), "<...>");
    machine.write("tracing/saved_cmdlines", "7 dd\n");
    assert_eq!(names.of_task(7), "<...>", "asked once a round");
    names.end_round();
    assert_eq!(names.of_task(7), "dd");
}
