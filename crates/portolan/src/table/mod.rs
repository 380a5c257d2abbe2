//! Page tables.
