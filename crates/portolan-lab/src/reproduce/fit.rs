//! Least squares with prices that cannot be negative.
//!
//! Solves `min ‖W(Ax − b)‖, x ≥ 0` by active sets (Lawson and Hanson, *Solving Least Squares
//! Problems*, chapter 23), each row weighted by the inverse of its published value, so that the error
//! that counts is the relative one. A handful of unknowns; dense.

use nalgebra::{DMatrix, DVector};

/// Non-negative prices under which `events · prices` comes nearest, in relative terms, to
/// `published`; one row of `events` per measurement, one column per price.
///
/// Rows shorter than `unknowns` count as filled with zeros. Prices that no row determines are zero.
pub fn non_negative(events: &[Vec<f64>], published: &[f64], unknowns: usize) -> Vec<f64> {
    let rows = events.len().min(published.len());
    let weight = |r: usize| 1.0 / published[r].abs().max(f64::MIN_POSITIVE);
    let a = DMatrix::from_fn(rows, unknowns, |r, c| {
        events[r].get(c).copied().unwrap_or(0.0) * weight(r)
    });
    let b = DVector::from_fn(rows, |r, _| published[r] * weight(r));
    // Columns of equal length, so that one tolerance fits all.
    let norms: Vec<f64> = (0..unknowns).map(|c| a.column(c).norm()).collect();
    let scaled = DMatrix::from_fn(rows, unknowns, |r, c| {
        if norms[c] > 0.0 {
            a[(r, c)] / norms[c]
        } else {
            0.0
        }
    });
    let x = active_set(&scaled, &b);
    x.iter()
        .zip(&norms)
        .map(|(x, norm)| if *norm > 0.0 { x / norm } else { 0.0 })
        .collect()
}

fn active_set(a: &DMatrix<f64>, b: &DVector<f64>) -> Vec<f64> {
    let n = a.ncols();
    let tolerance = 1e-9 * b.norm();
    let mut x = vec![0.0; n];
    let mut passive: Vec<usize> = Vec::new();
    for _ in 0..3 * n + 3 {
        let residual = b - a * DVector::from_column_slice(&x);
        let gradient = a.transpose() * residual;
        let enter = (0..n)
            .filter(|c| !passive.contains(c) && gradient[*c] > tolerance)
            .max_by(|c, d| gradient[*c].total_cmp(&gradient[*d]));
        let Some(enter) = enter else { break };
        passive.push(enter);
        while let Some(z) = solve(a, b, &passive) {
            let blocked = passive.iter().zip(&z).filter(|(_, z)| **z <= 0.0);
            let step = blocked
                .map(|(c, z)| x[*c] / (x[*c] - z))
                .min_by(f64::total_cmp);
            let Some(step) = step.filter(|s| s.is_finite()) else {
                for (c, z) in passive.iter().zip(&z) {
                    x[*c] = z.max(0.0);
                }
                break;
            };
            for (c, z) in passive.iter().zip(&z) {
                x[*c] += step * (z - x[*c]);
            }
            passive.retain(|c| x[*c] > 1e-12);
            for (c, x) in x.iter_mut().enumerate() {
                if !passive.contains(&c) {
                    *x = 0.0;
                }
            }
        }
    }
    x
}

fn solve(a: &DMatrix<f64>, b: &DVector<f64>, columns: &[usize]) -> Option<Vec<f64>> {
    if columns.is_empty() {
        return None;
    }
    let svd = a.select_columns(columns).svd(true, true);
    svd.solve(b, 1e-9).ok().map(|z| z.iter().copied().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(got: &[f64], want: &[f64]) {
        for (g, w) in got.iter().zip(want) {
            assert!((g - w).abs() < 1e-6, "{got:?} is not {want:?}");
        }
    }

    #[test]
    fn recovers_exact_prices() {
        let events = [vec![1.0, 1.0], vec![1.0, 16.0], vec![1.0, 512.0]];
        let published: Vec<f64> = events.iter().map(|e| 2.0 * e[0] + 0.5 * e[1]).collect();
        close(&non_negative(&events, &published, 2), &[2.0, 0.5]);
    }

    #[test]
    fn a_price_that_would_be_negative_is_zero() {
        // The straight line through these points starts below zero.
        let events = [vec![1.0, 1.0], vec![1.0, 10.0]];
        let x = non_negative(&events, &[1.0, 20.0], 2);
        assert_eq!(x[0], 0.0);
        // One unknown, rows weighted 1 and 1/20: minimise (x - 1)^2 + (x/2 - 1)^2.
        close(&x[1..], &[1.2]);
    }

    #[test]
    fn undetermined_prices_are_zero() {
        close(
            &non_negative(&[vec![1.0, 0.0]], &[3.0], 3),
            &[3.0, 0.0, 0.0],
        );
        close(&non_negative(&[], &[], 1), &[0.0]);
    }
}
