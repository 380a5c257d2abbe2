//! A guest's emulated unit (`portolan_vmm::emulated`) whose device is behind the kernel's own device for tests: the
//! guest's entries and invalidations reach the hardware.

use std::io;
use std::sync::{Arc, Mutex};

use portolan::addr::{InvalTag, Iova, IovaRange, PageSize, PhysAddr};
use portolan::table::format::{DirtyTracking, VtdFirstLevels, VtdFirstStage as Format};
use portolan_vmm::EndpointId;
use portolan_vmm::emulated::{
    AttachError, Context, EmulatedUnit, GuestEntry, Hardware, InvalidateError, Scope,
};

use super::tests::{MockStage, is_gone, kept, request, second_stage};
use super::{NestedOptions, NestedTables, VtdFirstStage};
use crate::domain::UserDomain;
use crate::sys::iommufd::selftest;
use crate::vfio::mock::{Mock, mock};

const ENDPOINT: EndpointId = EndpointId::new(8);

/// The test device as one that is passed through. A guest's entry of one word is its own tables'; another is VT-d's.
#[derive(Debug)]
struct Passed {
    mock: Mock,
    memory: Arc<UserDomain>,
    tables: Mutex<Option<NestedTables<MockStage>>>,
}

impl Passed {
    fn tables(&self) -> Option<u32> {
        self.tables.lock().unwrap().as_ref().map(|tables| tables.table().id())
    }
}

impl Hardware for Passed {
    fn attach(&self, entry: GuestEntry<'_>) -> io::Result<()> {
        let (site, none) = (self.mock.site(), NestedOptions::default());
        let (new, id) = match entry {
            GuestEntry::Blocked => (None, self.mock.home.id()),
            GuestEntry::Tables(&[word]) => {
                let new = NestedTables::above(&site, &self.memory, &MockStage(word as u32), none);
                let new = new.map_err(io::Error::other)?;
                let id = new.table().id();
                (Some(new), id)
            }
            GuestEntry::Tables(words) => {
                let stage =
                    VtdFirstStage::of_pasid_entry(words).ok_or(io::ErrorKind::InvalidData)?;
                let new = NestedTables::above(&site, &self.memory, &stage, none);
                return Err(io::Error::other(new.expect_err("hardware of another kind")));
            }
            _ => {
                let calls = self.memory.placed().map_err(io::Error::other)?;
                (None, calls.tables(self.mock.id).map_err(io::Error::other)?)
            }
        };
        selftest::replace(self.mock.iommufd.descriptor(), self.mock.device, id)?;
        // The former tables go once nothing is attached to them.
        *self.tables.lock().unwrap() = new;
        Ok(())
    }

    fn invalidate(&self, range: Option<IovaRange>) -> io::Result<()> {
        let page = |range: IovaRange| (range.start().get() >> 12) as u32;
        let tables = self.tables.lock().unwrap();
        let tables = tables.as_ref().ok_or(io::ErrorKind::NotFound)?;
        tables.requests(&[request(range.map(page))]).map_err(io::Error::other)
    }
}

fn context(root: u64, entry: &[u64]) -> Context {
    let (levels, dirty) = (VtdFirstLevels::Four, DirtyTracking::Off);
    let format = Format { levels, output_lg2: 46, dirty };
    let tables = Context::tables(format, PhysAddr::new(root), InvalTag::new(7));
    tables.unwrap().with_entry(entry)
}

#[test]
fn kernel_has_the_tables_of_a_guests_emulated_unit() {
    let Some(mock) = mock("kernel_has_the_tables_of_a_guests_emulated_unit") else {
        return;
    };
    let memory = mock.domain(second_stage());
    let passed = Arc::new(Passed { mock, memory, tables: Mutex::default() });
    let fd = passed.mock.iommufd.descriptor();
    let unit = EmulatedUnit::reading(|_| None, Default::default());
    unit.add(ENDPOINT).unwrap();
    unit.pass_through(ENDPOINT, passed.clone()).unwrap();
    let tag = Scope::Tag(InvalTag::new(7));
    let page = |number: u64| IovaRange::page(Iova::new(number << 12), PageSize::SIZE_4K);

    unit.attach(ENDPOINT, Context::pass_through()).unwrap();
    unit.attach(ENDPOINT, context(0x1000, &[0x77])).unwrap();
    let first = passed.tables().unwrap();
    let left = |id, value| kept(|entry, value| selftest::has_cached(fd, id, entry, value), value);
    assert_eq!(left(first, 0x77), [true; 4]);
    unit.invalidate(tag, Some(page(2))).unwrap();
    assert_eq!(left(first, 0x77), [true, true, false, true]);
    unit.invalidate(Scope::Tag(InvalTag::new(8)), None).unwrap();
    assert_eq!(left(first, 0x77), [true, true, false, true], "of other tables");

    // What the kernel refuses has not happened.
    let kind = io::ErrorKind::Other;
    let refused = Err(InvalidateError::Hardware { endpoint: ENDPOINT, kind });
    assert_eq!(unit.invalidate(tag, Some(page(9))), refused);
    let refused = Err(AttachError::Hardware { endpoint: ENDPOINT, kind });
    let vtd = [0x41, 7, 0x1001, 0, 0, 0, 0, 0];
    assert_eq!(unit.attach(ENDPOINT, context(0x1000, &vtd)), refused);
    assert_eq!(passed.tables(), Some(first));
    assert_eq!(left(first, 0x77), [true, true, false, true]);

    unit.attach(ENDPOINT, context(0x2000, &[0x99])).unwrap();
    let second = passed.tables().unwrap();
    assert!(is_gone(&passed.mock, first), "the former tables");
    assert_eq!(left(second, 0x99), [true; 4]);
    unit.invalidate(Scope::All, None).unwrap();
    assert_eq!(left(second, 0x99), [false; 4]);
    unit.remove(ENDPOINT).unwrap();
    assert!(passed.tables().is_none() && is_gone(&passed.mock, second));
}
