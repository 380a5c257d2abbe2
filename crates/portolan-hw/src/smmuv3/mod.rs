//! Arm SMMU architecture v3.
