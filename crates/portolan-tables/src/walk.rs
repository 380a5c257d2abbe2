//! Walks through the records of a table, which lie one behind the other and say their own length.

use super::TableError;
use super::bytes::Bytes;

/// End of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// With the last byte; with an error if there are more records than that.
    Bytes { most: u32 },
    /// Behind so many records.
    Count(u32),
}

/// A walk. A record whose length cannot be, or that is missing, ends it with an error; one whose
/// contents are wrong is an error, and the walk goes on behind it. Zeros up to the last byte are no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Walk<'a> {
    rest: Bytes<'a>,
    end: End,
    taken: u32,
    unknown: u32,
}

impl<'a> Walk<'a> {
    pub(super) fn new(rest: Bytes<'a>, end: End) -> Self {
        Self { rest, end, taken: 0, unknown: 0 }
    }

    /// Number of records of unknown type that were passed over so far.
    pub(super) fn unknown(&self) -> u32 {
        self.unknown
    }

    /// The next record that is known: `cut` gives the first one of some bytes, `parse` its meaning;
    /// `None` if its type is unknown.
    pub(super) fn next<T>(
        &mut self,
        cut: impl Fn(Bytes<'a>) -> Result<Bytes<'a>, TableError>,
        parse: impl Fn(Bytes<'a>) -> Result<Option<T>, TableError>,
    ) -> Option<Result<T, TableError>> {
        while !self.is_over() {
            let record = match self.check().and_then(|()| cut(self.rest)) {
                Ok(record) => record,
                Err(error) => {
                    let is_padding = self.is_padding();
                    (self.rest, self.end) = (self.rest.from(self.rest.len()), End::Count(0));
                    return match is_padding {
                        true => None,
                        false => Some(Err(error)),
                    };
                }
            };
            self.rest = self.rest.from(record.len());
            self.taken += 1;
            match parse(record).transpose() {
                Some(known) => return Some(known),
                None => self.unknown += 1,
            }
        }
        None
    }

    fn is_over(&self) -> bool {
        match self.end {
            End::Bytes { .. } => self.rest.len() == 0,
            End::Count(count) => self.taken >= count,
        }
    }

    /// Tells if nothing but zeros is left, as some firmware leaves behind the last record.
    fn is_padding(&self) -> bool {
        let zeros = self.rest.as_slice().iter().all(|byte| *byte == 0);
        zeros && matches!(self.end, End::Bytes { .. })
    }

    /// Checks that one more record is allowed.
    fn check(&self) -> Result<(), TableError> {
        let offset = self.rest.offset();
        match self.end {
            End::Bytes { most } if self.taken >= most => Err(TableError::TooMany { offset, most }),
            _ => Ok(()),
        }
    }
}
