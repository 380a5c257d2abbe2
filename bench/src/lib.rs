//! See the workspace design.
