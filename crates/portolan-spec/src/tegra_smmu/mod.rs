//! Layouts of the SMMU's registers in the memory controller of Tegra30 to Tegra210, and nothing
//! else.
//!
//! Tegra X1 Technical Reference Manual, chapters 17.5 (SMMU) and 18 (memory controller), and public
//! headers: [`reg`] has the registers.
//!
//! *Context.* Interrupt: everything here is a value.
//!
//! Not here: arbitration, latency allowance, memory timing, resets of clients.

pub mod reg;
