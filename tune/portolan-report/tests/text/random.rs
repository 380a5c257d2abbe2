//! Random figures of random and of odd numbers, with ordinary and hostile names.

use portolan_report::{
    Arrangement, Axis, Bars, Line, Lines, Mark, MarkRow, Marks, Plot, Scale, Series, Shape, Unit,
};

use super::{gallery, markup, page};

/// Pages that are made.
const PAGES: usize = 1000;

const ODD: [f64; 18] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.1,
    1e-300,
    5e-324,
    1e9,
    1e16,
    1e300,
    f64::MAX,
    f64::MIN,
    f64::MIN_POSITIVE,
    f64::NAN,
    f64::INFINITY,
    f64::NEG_INFINITY,
    18_446_744_073_709_551_615.0,
    4096.0,
];

struct Source(fastrand::Rng);

impl Source {
    fn number(&mut self) -> f64 {
        match self.0.u8(..4) {
            0 => self.0.choice(ODD).unwrap_or(0.0),
            1 => f64::from_bits(self.0.u64(..)),
            2 => f64::from(self.0.u32(..1000)),
            _ => self.0.f64() * 1e6,
        }
    }

    fn numbers(&mut self, count: usize) -> Vec<f64> {
        if self.0.u8(..8) == 0 {
            return vec![self.number(); count];
        }
        (0..count).map(|_| self.number()).collect()
    }

    fn count(&mut self) -> usize {
        match self.0.u8(..16) {
            0 => self.0.usize(..3000),
            1..4 => 0,
            4..7 => 1,
            _ => self.0.usize(..30),
        }
    }

    fn name(&mut self) -> String {
        match self.0.u8(..5) {
            0 => gallery::HOSTILE.to_owned(),
            1 => (0..self.0.usize(..200)).map(|_| self.0.char(..)).collect(),
            2 => String::new(),
            _ => "strict".to_owned(),
        }
    }

    fn axis(&mut self) -> Axis {
        let scale = self.0.choice([Scale::Linear, Scale::Log]).unwrap_or_default();
        let units = [Unit::Count, Unit::Bytes, Unit::Micros, Unit::Percent];
        let unit = self.0.choice(units).unwrap_or_default();
        Axis { name: self.name(), scale, unit }
    }

    fn plot(&mut self) -> Plot {
        match self.0.u8(..3) {
            0 => {
                let (count, parts) = (self.count(), self.0.usize(..20));
                let arrangements = [Arrangement::StackedRows, Arrangement::StackedColumns];
                let series = |of: &mut Self| {
                    let (name, count) = (of.name(), of.count());
                    Series { name, values: of.numbers(count) }
                };
                Plot::Bars(Bars {
                    categories: (0..count).map(|_| self.name()).collect(),
                    values: self.axis(),
                    series: (0..parts).map(|_| series(self)).collect(),
                    arrangement: self.0.choice(arrangements).unwrap_or(Arrangement::StackedRows),
                })
            }
            1 => {
                let line = |of: &mut Self| {
                    let (name, count) = (of.name(), of.count());
                    let points = of.numbers(count).into_iter().zip(of.numbers(count)).collect();
                    let shapes = [Shape::Straight, Shape::Steps, Shape::Dots];
                    Line { name, points, shape: of.0.choice(shapes).unwrap_or(Shape::Dots) }
                };
                let count = self.0.usize(..20);
                let lines = (0..count).map(|_| line(self)).collect();
                Plot::Lines(Lines { x: self.axis(), y: self.axis(), lines })
            }
            _ => {
                let mark = |of: &mut Self| Mark {
                    series: of.0.usize(..6),
                    value: of.number(),
                    range: of.0.bool().then(|| [of.number(), of.number()]),
                    word: of.name(),
                };
                let row = |of: &mut Self| {
                    let (name, count) = (of.name(), of.0.usize(..30));
                    MarkRow { name, marks: (0..count).map(|_| mark(of)).collect() }
                };
                let (count, names) = (self.count().min(200), self.0.usize(..5));
                Plot::Marks(Marks {
                    values: self.axis(),
                    series: (0..names).map(|_| self.name()).collect(),
                    rows: (0..count).map(|_| row(self)).collect(),
                })
            }
        }
    }
}

#[test]
fn no_numbers_and_no_names_break_a_page() {
    let seed = fastrand::u64(..);
    for nth in 0..PAGES as u64 {
        let mut source = Source(fastrand::Rng::with_seed(seed.wrapping_add(nth)));
        let plot = source.plot();
        println!("seed {seed}, page {nth}");
        let html = page(plot).html().expect("a page");
        let wrong = markup::malformed(&html).or_else(|| markup::misdrawn(&html));
        assert_eq!(wrong, None);
        assert!(!html.contains('\u{202e}') && !html.contains('\0'), "signs that turn");
    }
}
