//! Medians, spreads and pair-by-pair ratios of repeated runs.

use serde::{Deserialize, Serialize};

/// The distribution of repeated measurements.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// Half of the values are below.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

/// Returns the spread of `values`; `None` if there are none.
pub fn spread(values: impl IntoIterator<Item = f64>) -> Option<Spread> {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    let (min, max) = (*sorted.first()?, *sorted.last()?);
    let middle = sorted.len() / 2;
    let is_odd = sorted.len() % 2 == 1;
    let median = if is_odd {
        sorted[middle]
    } else {
        (sorted[middle - 1] + sorted[middle]) / 2.0
    };
    Some(Spread { median, min, max })
}

/// Returns the ratios of `numerators` to the `denominators` of the same repetition. Ratios are taken run by run and
/// then summarised: a disturbance of the machine affects both runs of a pair.
pub fn ratios(numerators: &[(u32, f64)], denominators: &[(u32, f64)]) -> Option<Spread> {
    let partner = |repetition: u32| {
        denominators
            .iter()
            .find(|(other, _)| *other == repetition)
            .map(|(_, value)| *value)
    };
    let pairs = numerators
        .iter()
        .filter_map(|(repetition, value)| Some((*value, partner(*repetition)?)));
    spread(
        pairs
            .filter(|(_, below)| *below > 0.0)
            .map(|(above, below)| above / below),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_odd_and_even_counts() {
        assert_eq!(
            spread([3.0, 1.0, 2.0]),
            Some(Spread {
                median: 2.0,
                min: 1.0,
                max: 3.0
            })
        );
        assert_eq!(
            spread([4.0, 1.0, 2.0, 3.0]),
            Some(Spread {
                median: 2.5,
                min: 1.0,
                max: 4.0
            })
        );
        assert_eq!(
            spread([7.0]),
            Some(Spread {
                median: 7.0,
                min: 7.0,
                max: 7.0
            })
        );
        assert_eq!(spread([]), None);
    }

    #[test]
    fn ratios_pair_by_repetition_not_by_median() {
        // The second repetition ran on a machine half as fast. The ratio hides this; a ratio of medians would show it.
        let slow = [(0, 200.0), (1, 400.0), (2, 210.0)];
        let fast = [(2, 70.0), (1, 200.0), (0, 100.0)];
        assert_eq!(
            ratios(&slow, &fast),
            Some(Spread {
                median: 2.0,
                min: 2.0,
                max: 3.0
            })
        );
    }

    #[test]
    fn repetition_without_a_partner_does_not_count() {
        assert_eq!(ratios(&[(0, 1.0), (1, 9.0)], &[(0, 2.0)]), spread([0.5]));
        assert_eq!(ratios(&[(0, 1.0)], &[(1, 2.0)]), None);
        assert_eq!(ratios(&[(0, 1.0)], &[(0, 0.0)]), None);
    }
}
