//! Colours can be told from the page and from each other, in light and in dark, also with deficient colour vision.
//!
//! Contrast is that of WCAG 2.2 (success criteria 1.4.3 and 1.4.11). Colour vision is simulated after Machado,
//! Oliveira and Fernandes, "A Physiologically-based Model for Simulation of Color Vision Deficiency" (2009),
//! severity 1; distances are in OKLab.

use super::html;

type Rgb = [f64; 3];

/// The matrices of the paper: everybody's, protanopia, deuteranopia, tritanopia.
const VISIONS: [[[f64; 3]; 3]; 4] = [
    [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]],
    [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
];

/// Values of the style's custom properties, with light on first and dark on second place.
fn colour(style: &str, name: &str, nth: usize) -> Rgb {
    let found = style.split(&format!("{name}:#")).nth(nth + 1);
    let hex = found.and_then(|rest| rest.split([';', '}']).next()).expect(name);
    let hex = match hex.len() {
        3 => hex.chars().flat_map(|digit| [digit, digit]).collect(),
        _ => hex.to_owned(),
    };
    let part = |at: usize| {
        let part = u8::from_str_radix(&hex[at..at + 2], 16).expect("two digits");
        let part = f64::from(part) / 255.0;
        if part <= 0.04045 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) }
    };
    [part(0), part(2), part(4)]
}

fn product(matrix: [[f64; 3]; 3], of: Rgb) -> Rgb {
    matrix.map(|row| row.iter().zip(of).map(|(by, part)| by * part).sum())
}

fn contrast(one: Rgb, other: Rgb) -> f64 {
    let luminance = |of: Rgb| 0.2126 * of[0] + 0.7152 * of[1] + 0.0722 * of[2];
    let (one, other) = (luminance(one) + 0.05, luminance(other) + 0.05);
    one.max(other) / one.min(other)
}

fn oklab(of: Rgb) -> Rgb {
    let lms = [
        [0.412_221_47, 0.536_332_54, 0.051_445_99],
        [0.211_903_5, 0.680_699_55, 0.107_396_96],
        [0.088_302_46, 0.281_718_84, 0.629_978_7],
    ];
    let lab = [
        [0.210_454_26, 0.793_617_79, -0.004_072_05],
        [1.977_998_5, -2.428_592_2, 0.450_593_71],
        [0.025_904_04, 0.782_771_77, -0.808_675_77],
    ];
    product(lab, product(lms, of).map(|part| part.max(0.0).cbrt()))
}

fn distance(one: Rgb, other: Rgb) -> f64 {
    let parts = oklab(one).into_iter().zip(oklab(other));
    parts.map(|(one, other)| (one - other).powi(2)).sum::<f64>().sqrt()
}

#[test]
fn colours_are_told_apart_in_light_and_dark() {
    let html = html(super::bars(&[1.0, 2.0]));
    for theme in [0, 1] {
        let of = |name: &str| colour(&html, name, theme);
        for text in ["--ink", "--soft", "--link"] {
            assert!(contrast(of(text), of("--bg")) >= 4.5, "{text} {theme}");
        }
        let series: Vec<Rgb> = (0..8).map(|nth| of(&format!("--c{nth}"))).collect();
        for (nth, one) in series.iter().enumerate() {
            let against = contrast(*one, of("--bg"));
            assert!(against >= 3.0, "--c{nth} {theme}: {against:.1}");
            for (other, two) in series.iter().enumerate().take(nth) {
                for (vision, matrix) in VISIONS.iter().enumerate() {
                    let seen = |of| product(*matrix, of).map(|part| part.clamp(0.0, 1.0));
                    let apart = distance(seen(*one), seen(*two));
                    assert!(apart >= 0.055, "--c{nth} --c{other} {theme} {vision}: {apart:.3}");
                }
            }
        }
    }
}
