//! Intel VT-d.
