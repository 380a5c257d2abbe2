//! AMD-Vi.
