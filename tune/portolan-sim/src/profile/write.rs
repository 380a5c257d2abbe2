//! Writing a profile: another one's text, with other prices and another name.
//!
//! Parts that are not replaced stay as they are; comments, which are about the other machine, go.

use super::{Event, Price, Profile, ProfileError, table_of};

/// Parts that take the place of another profile's.
#[derive(Clone, Debug)]
pub struct Rewrite<'r> {
    /// Its name.
    pub name: &'r str,
    /// Title of the machine, in a few words.
    pub title: &'r str,
    /// Machine that it represents, and the differences.
    pub stands_for: &'r str,
    /// Number of CPUs.
    pub cpus: u32,
    /// Prices that are other ones; the rest stay.
    pub prices: &'r [(Event, Price)],
}

impl Rewrite<'_> {
    /// Changes `text`, and returns the new text with its profile.
    ///
    /// # Errors
    /// [`ProfileError`] if `text` is no profile, or the result is none.
    pub fn apply(&self, text: &str) -> Result<(String, Profile), ProfileError> {
        let mut table = table_of(text)?;
        let words = [("name", self.name), ("title", self.title), ("stands_for", self.stands_for)];
        for (key, value) in words {
            table.insert(key.to_owned(), value.into());
        }
        table.insert("cpus".to_owned(), i64::from(self.cpus).into());
        let prices = table.get_mut("prices").and_then(toml::Value::as_table_mut);
        let prices = prices.ok_or_else(|| ProfileError::Toml("no prices".to_owned()))?;
        for (event, price) in self.prices {
            prices.insert(event.name().to_owned(), of_price(price).into());
        }
        let text = table.to_string();
        let profile = Profile::from_toml(&text)?;
        Ok((text, profile))
    }
}

fn of_price(price: &Price) -> toml::Table {
    let ns = [("ns", Some(price.ns)), ("low_ns", price.low_ns), ("high_ns", price.high_ns)];
    let ns = ns.into_iter().filter_map(|(key, ns)| Some((key, ns?)));
    let mut table: toml::Table = ns.map(|(key, ns)| (key.to_owned(), ns.into())).collect();
    table.insert("source".to_owned(), price.source.as_str().into());
    table
}
