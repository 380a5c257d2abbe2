//! Commands: two words each.

use super::Bits;
use crate::bits::fields;

/// Bytes of a command, as an exponent.
pub const LG2_BYTES: u32 = 4;

fields! { Bits;
    /// Word 0 of all: the group of commands.
    OPCODE: 0, 7;
    /// Word 0 of all: the command in its group.
    FUNCTION: 7, 3;
}

/// Values of [`OPCODE`].
pub mod opcode {
    crate::bits::constants! {
        TRANSLATIONS: u64 = 1 => "IOTINVAL.";
        FENCE: u64 = 2 => "IOFENCE.";
        DIRECTORY: u64 = 3 => "IODIR.";
        DEVICE: u64 = 4 => "ATS.";
    }
}

/// ATS.
pub mod device {
    use super::{Bits, fields};

    /// Value of FUNCTION: INVAL.
    pub const INVALIDATE: u64 = 0;
    /// Value of FUNCTION: PRGR, a response to a group of page requests.
    pub const RESPOND: u64 = 1;

    fields! { Bits;
        /// Word 0: in which address space.
        PID: 12, 20;
        /// Word 0: the address space counts.
        PV: 32, 1;
        /// Word 0: the segment counts.
        DSV: 33, 1;
        /// Word 0: which device of a segment.
        RID: 40, 16;
        /// Word 0: which segment.
        DSEG: 56, 8;
        /// INVAL, word 1: more than a page; the lowest zero of its number tells the size.
        SIZE: 11, 1;
        /// INVAL, word 1: the page's number.
        PAGE: 12, 52;
        /// PRGR, word 1: which group.
        GROUP: 32, 9;
        /// PRGR, word 1: the response to the device.
        CODE: 44, 4;
    }

    crate::bits::constants! {
        SUCCESS: u64 = 0 => "Value of [`CODE`]: what was asked for is there.";
        INVALID: u64 = 1 => "Value of [`CODE`]: it is not, and will not be.";
        FAILURE: u64 = 15 => "Value of [`CODE`]: the device is to send no more requests.";
    }
}

/// IOTINVAL.
pub mod translations {
    use super::{Bits, fields};

    /// Value of FUNCTION: VMA, the first stage.
    pub const VMA: u64 = 0;
    /// Value of FUNCTION: GVMA, the second stage.
    pub const GVMA: u64 = 1;

    fields! { Bits;
        /// Word 0: word 1 names an address.
        AV: 10, 1;
        /// Word 0: the first stage's tag.
        PSCID: 12, 20;
        /// Word 0: the first stage's tag counts.
        PSCV: 32, 1;
        /// Word 0: the second stage's tag counts; without it, VMA is about translations of no second
        /// stage, and GVMA about those of all.
        GV: 33, 1;
        /// Word 0: entries above the leaves as well, where the unit has that (`capabilities.NL`).
        NL: 34, 1;
        /// Word 0: the second stage's tag.
        GSCID: 44, 16;
        /// Word 1: the address is that of a range, where the unit has that (`capabilities.S`): the
        /// lowest zero of the page's number tells its size.
        S: 9, 1;
        /// Word 1: the page's number.
        PAGE: 10, 52;
    }
}

/// IOFENCE.C.
pub mod fence {
    use super::{Bits, fields};

    fields! { Bits;
        /// Word 0: data is stored at the address in word 1.
        AV: 10, 1;
        /// Word 0: reads of devices that the unit has processed are ordered before.
        PR: 12, 1;
        /// Word 0: writes of devices that the unit has processed are ordered before.
        PW: 13, 1;
        /// Word 0: the value that is stored.
        DATA: 32, 32;
        /// Word 1: the address, less its low two bits.
        ADDRESS: 0, 62;
    }
}

/// IODIR.
pub mod directory {
    use super::{Bits, fields};

    /// Value of FUNCTION: INVAL_DDT.
    pub const DEVICES: u64 = 0;
    /// Value of FUNCTION: INVAL_PDT.
    pub const PROCESS: u64 = 1;

    fields! { Bits;
        /// Word 0: which address space.
        PID: 12, 20;
        /// Word 0: the device counts; without it, all are meant.
        DV: 33, 1;
        /// Word 0: which device.
        DID: 40, 24;
    }
}
