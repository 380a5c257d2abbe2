//! A machine that is made up: its units are enabled, its regions are mapped, its messages are sent.

use portolan::addr::PhysAddr;
use portolan::platform::Platform;
use portolan_hw::TrustedDescription;
use portolan_hw::reservations::Reservations;
use portolan_hw::riscv::{InterruptFiles, Messages, Signal};
use portolan_hw::topology::{Options, Topology};

fn enabled<P: Platform>(forged: Topology, platform: P) {
    let _ = forged.enable(platform, Options::default());
}

fn mapped(forged: &mut Reservations) {
    forged.believe();
}

fn sent(anywhere: PhysAddr) -> (Messages, Signal) {
    let address = anywhere;
    let messages = Messages::new(InterruptFiles::new(anywhere, 1));
    (messages, Signal::Message { address, data: 0 })
}

fn moved(messages: &mut Messages, anywhere: PhysAddr) {
    messages.files.base = anywhere;
}

fn promise() -> TrustedDescription {
    TrustedDescription::new()
}

fn other() -> TrustedDescription {
    TrustedDescription(())
}

fn main() {}
