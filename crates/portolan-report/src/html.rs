//! A page as HTML.

use thiserror::Error;

use crate::page::Page;

/// A page that cannot be written.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ReportError {
    /// The plotting library refused a figure.
    #[error("the plot of `{figure}` cannot be drawn: {why}")]
    Plot {
        /// The figure's title.
        figure: String,
        /// Its reason.
        why: String,
    },
}

impl Page {
    /// The whole file.
    ///
    /// # Errors
    /// [`ReportError::Plot`], which no data of a caller brings about.
    pub fn html(&self) -> Result<String, ReportError> {
        Ok(format!("<!doctype html><title>{}</title>", self.title))
    }
}
