//! Least squares with prices that cannot be negative.
//!
//! Solves `min ‖W(Ax − b)‖, x ≥ 0` by active sets (Lawson and Hanson, *Solving Least Squares
//! Problems*, chapter 23). Where each row is weighted by the inverse of its figure, the error that counts
//! is the relative one. A handful of unknowns; dense.

/// Distance from the span of the others below which a column of unit length is taken to be in it.
const DEPENDENT: f64 = 1e-9;

/// Finds non-negative prices for which `events · prices` is nearest to `published`, relative to it; one row of
/// `events` for each measurement, one column for each price.
///
/// Rows shorter than `unknowns` count as filled with zeros. Prices that no row determines are zero.
pub fn non_negative(events: &[Vec<f64>], published: &[f64], unknowns: usize) -> Vec<f64> {
    let weights = published.iter().map(|figure| 1.0 / figure.abs().max(f64::MIN_POSITIVE));
    let weights: Vec<f64> = weights.collect();
    weighted(events, published, &weights, unknowns)
}

/// Solves with a weight for each row: `min ‖W(Ax − b)‖`.
pub fn weighted(
    events: &[Vec<f64>],
    figures: &[f64],
    weights: &[f64],
    unknowns: usize,
) -> Vec<f64> {
    let b: Vec<f64> = product(figures, weights).collect();
    let column = |c: usize| -> Vec<f64> {
        let events = events.iter().map(|row| row.get(c).copied().unwrap_or(0.0));
        product(&events.collect::<Vec<_>>(), weights).collect()
    };
    let mut columns: Vec<Vec<f64>> = (0..unknowns).map(column).collect();
    let b = &b[..b.len().min(events.len())];
    // Columns of equal length, so that one tolerance fits all.
    let norms: Vec<f64> = columns.iter().map(|column| norm(column)).collect();
    for (column, norm) in columns.iter_mut().zip(&norms) {
        if *norm > 0.0 {
            column.iter_mut().for_each(|x| *x /= norm);
        }
    }
    let x = active_set(&columns, b);
    let prices = x.iter().zip(&norms).map(|(x, norm)| if *norm > 0.0 { x / norm } else { 0.0 });
    prices.collect()
}

fn product(a: &[f64], b: &[f64]) -> impl Iterator<Item = f64> {
    a.iter().zip(b).map(|(a, b)| a * b)
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    product(a, b).sum()
}

fn norm(a: &[f64]) -> f64 {
    dot(a, a).sqrt()
}

/// Takes `factor` times `column` from `from`.
fn subtract(from: &mut [f64], factor: f64, column: &[f64]) {
    for (from, column) in from.iter_mut().zip(column) {
        *from -= factor * column;
    }
}

fn active_set(columns: &[Vec<f64>], b: &[f64]) -> Vec<f64> {
    let n = columns.len();
    let tolerance = 1e-9 * norm(b);
    let mut x = vec![0.0; n];
    let mut passive: Vec<usize> = Vec::new();
    for _ in 0..3 * n + 3 {
        let mut residual = b.to_vec();
        for (column, x) in columns.iter().zip(&x) {
            subtract(&mut residual, *x, column);
        }
        let gradient: Vec<f64> = columns.iter().map(|c| dot(c, &residual)).collect();
        let enter = (0..n)
            .filter(|c| !passive.contains(c) && gradient[*c] > tolerance)
            .max_by(|c, d| gradient[*c].total_cmp(&gradient[*d]));
        let Some(enter) = enter else { break };
        passive.push(enter);
        while let Some(z) = solve(columns, b, &passive) {
            let blocked = passive.iter().zip(&z).filter(|(_, z)| **z <= 0.0);
            let step = blocked.map(|(c, z)| x[*c] / (x[*c] - z)).min_by(f64::total_cmp);
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

/// Solves for the columns in `chosen` by least squares: orthogonalises them one after the other, and `b` at the end
/// (modified Gram-Schmidt). A column that depends on the others gets the coefficient zero.
fn solve(columns: &[Vec<f64>], b: &[f64], chosen: &[usize]) -> Option<Vec<f64>> {
    if chosen.is_empty() {
        return None;
    }
    let mut rest = b.to_vec();
    let mut basis: Vec<Vec<f64>> = Vec::new();
    // The triangle's columns, its diagonal last in each, and its right side.
    let (mut triangle, mut right) = (Vec::<Vec<f64>>::new(), Vec::new());
    for &c in chosen {
        let mut column = columns[c].clone();
        let mut shares = Vec::new();
        for base in &basis {
            let share = dot(base, &column);
            subtract(&mut column, share, base);
            shares.push(share);
        }
        let length = norm(&column);
        let own = length > DEPENDENT;
        column.iter_mut().for_each(|x| *x = if own { *x / length } else { 0.0 });
        shares.push(if own { length } else { 1.0 });
        let along = dot(&column, &rest);
        subtract(&mut rest, along, &column);
        right.push(along);
        basis.push(column);
        triangle.push(shares);
    }
    for k in (0..right.len()).rev() {
        let shares = &triangle[k];
        right[k] /= shares[k];
        let solved = right[k];
        subtract(&mut right[..k], solved, shares);
    }
    Some(right)
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
    fn a_long_column_beside_a_short_one_costs_no_digits() {
        let events: Vec<Vec<f64>> = (1..9).map(|n| vec![1.0, f64::from(n) * 1e6]).collect();
        let published: Vec<f64> = events.iter().map(|e| 3e5 * e[0] + 0.25 * e[1]).collect();
        let found = non_negative(&events, &published, 2);
        close(&[found[0] / 3e5, found[1] / 0.25], &[1.0, 1.0]);
    }

    #[test]
    fn of_two_prices_that_always_come_together_the_sum_is_right() {
        let events = [vec![1.0, 2.0], vec![2.0, 4.0], vec![5.0, 10.0]];
        let found = non_negative(&events, &[3.0, 6.0, 15.0], 2);
        close(&[found[0] + 2.0 * found[1]], &[3.0]);
    }

    #[test]
    fn undetermined_prices_are_zero() {
        close(&non_negative(&[vec![1.0, 0.0]], &[3.0], 3), &[3.0, 0.0, 0.0]);
        close(&non_negative(&[], &[], 1), &[0.0]);
    }
}
