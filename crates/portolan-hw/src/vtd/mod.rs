//! Intel VT-d.

mod attach;
mod control;
mod core;
mod counts;
mod direct;
mod domains;
mod fault;
mod features;
mod page_request;
pub mod refusal;
mod request;
mod ring;
pub mod spec;
mod structures;
#[cfg(test)]
mod tests;
mod unit;
mod update;

pub use self::core::VtdQueue;
pub use attach::AttachPasid;
pub use counts::Counts;
pub use domains::{FirstDomain, SecondDomain};
pub use features::{Features, Has};
pub use page_request::PageEvent;
pub use request::DeviceTlb;
pub use structures::Mode;
pub use unit::{Config, Invalidation, Reserved, Vtd};
