//! Device scopes: which devices a structure of the table means, by their path from a bus.
//!
//! Intel Virtualization Technology for Directed I/O (D51397), revision 4.1, section 8.3.1.
//!
//! *Context.* Interrupt: nothing here waits or allocates.

use alloc::vec::Vec;

use crate::TableError;
use crate::bytes::Bytes;
use crate::walk::{End, Walk};
use portolan::addr::RequesterId;

/// Bytes of a scope before its path.
const FIXED: usize = 6;

/// Kind of a device that a scope names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScopeKind {
    /// One function.
    Endpoint,
    /// A bridge and everything behind it.
    Bridge,
    /// An interrupt controller, by its APIC identifier.
    IoApic,
    /// A timer that signals by message, by its number.
    Timer,
    /// A device of the ACPI name space, by its number in a named-device structure.
    Named,
}

/// A device and a function on the bus to which the step before led.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathStep {
    /// Device.
    pub device: u8,
    /// Function.
    pub function: u8,
}

/// One device, or one bridge with all behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scope<'a> {
    /// Kind of the device.
    pub kind: ScopeKind,
    /// The number that [`ScopeKind::IoApic`], [`ScopeKind::Timer`] and [`ScopeKind::Named`] have.
    pub enumeration: u8,
    /// The bus on which the path begins.
    pub start_bus: u8,
    path: &'a [u8],
}

impl<'a> Scope<'a> {
    /// The path: bridges, and the device at its end.
    pub fn path(&self) -> impl ExactSizeIterator<Item = PathStep> + use<'a> {
        self.path.chunks_exact(2).map(|step| PathStep {
            device: step.first().copied().unwrap_or(0),
            function: step.last().copied().unwrap_or(0),
        })
    }

    /// The requester at the end of the path. See [`PathScope::requester`].
    pub fn requester(
        &self,
        secondary_bus: impl FnMut(RequesterId) -> Option<u8>,
    ) -> Option<RequesterId> {
        end_of(self.start_bus, self.path(), secondary_bus)
    }
}

/// A scope that holds its path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathScope {
    /// Kind of the device.
    pub kind: ScopeKind,
    /// The number that [`ScopeKind::IoApic`], [`ScopeKind::Timer`] and [`ScopeKind::Named`] have.
    pub enumeration: u8,
    /// The bus on which the path begins.
    pub start_bus: u8,
    /// Bridges, and the device at the end.
    pub path: Vec<PathStep>,
}

impl PathScope {
    /// The scope with its path, copied. *Context.* Task.
    pub fn of(scope: &Scope<'_>) -> Self {
        let Scope { kind, enumeration, start_bus, .. } = *scope;
        Self { kind, enumeration, start_bus, path: scope.path().collect() }
    }

    /// The requester at the end of the path. `secondary_bus` says which bus a bridge leads to now,
    /// for a path that passes one.
    ///
    /// `None` if the path is empty, names a device or function that cannot be, or leads through a
    /// bridge that `secondary_bus` does not know.
    pub fn requester(
        &self,
        secondary_bus: impl FnMut(RequesterId) -> Option<u8>,
    ) -> Option<RequesterId> {
        end_of(self.start_bus, self.path.iter().copied(), secondary_bus)
    }
}

fn end_of(
    start_bus: u8,
    path: impl Iterator<Item = PathStep>,
    mut secondary_bus: impl FnMut(RequesterId) -> Option<u8>,
) -> Option<RequesterId> {
    let mut bus = start_bus;
    let mut at = None;
    for step in path {
        if let Some(bridge) = at {
            bus = secondary_bus(bridge)?;
        }
        if step.device > 31 || step.function > 7 {
            return None;
        }
        at = Some(RequesterId::of(bus, step.device, step.function));
    }
    at
}

/// The scopes of a structure. A wrong length ends the walk with an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scopes<'a>(Walk<'a>);

impl<'a> Scopes<'a> {
    pub(super) fn new(rest: Bytes<'a>) -> Self {
        let most = u32::MAX;
        Self(Walk::new(rest, End::Bytes { most }))
    }

    /// Number of scopes of unknown type that were passed over so far.
    pub fn unknown(&self) -> u32 {
        self.0.unknown()
    }
}

/// The scope at the start of `rest`.
fn cut(rest: Bytes<'_>) -> Result<Bytes<'_>, TableError> {
    rest.structure(rest.u8(1)?.into(), FIXED)
}

/// The scope; `None` if its type is unknown.
fn parse(scope: Bytes<'_>) -> Result<Option<Scope<'_>>, TableError> {
    let kind = match scope.u8(0)? {
        1 => ScopeKind::Endpoint,
        2 => ScopeKind::Bridge,
        3 => ScopeKind::IoApic,
        4 => ScopeKind::Timer,
        5 => ScopeKind::Named,
        _ => return Ok(None),
    };
    Ok(Some(Scope {
        kind,
        enumeration: scope.u8(4)?,
        start_bus: scope.u8(5)?,
        path: scope.from(FIXED).as_slice(),
    }))
}

impl<'a> Iterator for Scopes<'a> {
    type Item = Result<Scope<'a>, TableError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next(cut, parse)
    }
}
