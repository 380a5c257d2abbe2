//! Writes a page with every kind of plot: `cargo run -p portolan-report --example gallery > gallery.html`.

#[path = "../tests/gallery/mod.rs"]
mod gallery;

fn main() -> Result<(), portolan_report::ReportError> {
    print!("{}", gallery::page().html()?);
    Ok(())
}
