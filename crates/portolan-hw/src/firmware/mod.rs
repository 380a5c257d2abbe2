//! Firmware tables: DMAR, IORT, VIOT.
