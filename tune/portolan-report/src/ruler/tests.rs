//! Ends and ticks of axes, for ordinary and for odd numbers.

use super::{Ruler, Show};
use crate::figure::Axis;
use crate::unit::Unit;

fn texts(ruler: &Ruler, most: usize) -> Vec<String> {
    let ticks = ruler.ticks(most).into_iter();
    ticks.map(|tick| tick.text.replace('\u{a0}', " ")).collect()
}

fn over(values: &[f64], axis: &Axis, show: Show) -> Ruler {
    Ruler::over(values.iter().copied(), axis, show)
}

#[test]
fn ticks_are_numbers_that_people_count_by() {
    let count = Axis::linear("", Unit::Count);
    let ruler = over(&[3.0, 47.0], &count, Show::Zero);
    assert_eq!(texts(&ruler, 5), ["0", "10", "20", "30", "40"]);
    assert_eq!(texts(&ruler.rounded(5), 5), ["0", "10", "20", "30", "40", "50"]);
    let bytes = Axis::linear("", Unit::Bytes);
    let ruler = over(&[1_500_000.0], &bytes, Show::Zero);
    assert_eq!(texts(&ruler, 5), ["0", "512 KiB", "1 MiB"]);
    let times = Axis::linear("", Unit::Micros);
    let ruler = over(&[0.0, 0.4], &times, Show::Zero);
    assert_eq!(texts(&ruler, 4), ["0", "100 ns", "200 ns", "300 ns", "400 ns"]);
}

#[test]
fn whole_numbers_have_no_ticks_between_them() {
    let ruler = over(&[0.0, 1.0, 2.0], &Axis::linear("", Unit::Count), Show::Zero);
    assert_eq!(texts(&ruler, 8), ["0", "1", "2"]);
    let ruler = over(&[0.5, 2.0], &Axis::linear("", Unit::Count), Show::Zero);
    assert_eq!(texts(&ruler, 4), ["0", "0.5", "1", "1.5", "2"]);
}

#[test]
fn ticks_that_are_close_together_differ_in_their_texts() {
    let ruler = over(&[1_000_000.5, 1_000_001.0], &Axis::linear("", Unit::Count), Show::Data);
    let texts = texts(&ruler, 5);
    assert!(texts.windows(2).all(|pair| pair[0] != pair[1]), "{texts:?}");
}

#[test]
fn logarithms_have_decades_and_powers_of_two() {
    let times = Axis::log("", Unit::Micros);
    let ruler = over(&[0.0, 30.0, 4e5], &times, Show::NearZero);
    assert_eq!(texts(&ruler, 6), ["0", "100 µs", "1 ms", "10 ms", "100 ms"]);
    let ruler = over(&[30.0, 40.0], &times, Show::NearZero);
    assert_eq!(texts(&ruler, 6), ["20 µs", "50 µs"]);
    let bytes = Axis::log("", Unit::Bytes);
    let ruler = over(&[4096.0, 4_194_304.0], &bytes, Show::Data);
    assert_eq!(texts(&ruler, 3), ["4 KiB", "128 KiB", "4 MiB"]);
}

#[test]
fn zero_and_less_stand_at_the_lower_end_of_a_logarithm() {
    let ruler = over(&[-5.0, 0.0, 10.0, 1000.0], &Axis::log("", Unit::Count), Show::NearZero);
    assert_eq!([-5.0, 0.0, 10.0, 1000.0].map(|value| ruler.at(value)), [0.0, 0.0, 0.1, 1.0]);
    let bars = over(&[10.0], &Axis::log("", Unit::Count), Show::Zero);
    assert!(bars.at(10.0) > 0.1, "the least bar has a length");
}

#[test]
fn ends_are_apart_and_places_between_them_whatever_comes() {
    let odd = [
        0.0,
        -0.0,
        5e-324,
        1e-300,
        1.0,
        1.0 + f64::EPSILON,
        1e16,
        1e300,
        f64::MAX,
        -1.0,
        f64::MIN,
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
    ];
    for (one, other) in odd.iter().flat_map(|one| odd.map(|other| (*one, other))) {
        for unit in [Unit::Count, Unit::Bytes, Unit::Micros, Unit::Percent] {
            for axis in [Axis::linear("", unit), Axis::log("", unit)] {
                for show in [Show::Zero, Show::NearZero, Show::Data] {
                    let ruler = over(&[one, other], &axis, show).rounded(5);
                    let said = format!("{one:e} {other:e} {axis:?}: {ruler:?}");
                    assert!(ruler.low < ruler.high && ruler.high.is_finite(), "{said}");
                    for most in [1, 3, 8] {
                        let ticks = ruler.ticks(most);
                        assert!(ticks.len() <= 2 * most + 4, "{said} {ticks:?}");
                        let within = |at| (0.0..=1.0).contains(&at);
                        assert!(ticks.iter().all(|tick| within(tick.at)), "{said} {ticks:?}");
                    }
                    for value in odd {
                        assert!((0.0..=1.0).contains(&ruler.at(value)), "{said} {value}");
                    }
                }
            }
        }
    }
}
