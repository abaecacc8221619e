//! A limit to the series of a family: every series costs the monitoring system memory.

/// The most maps, topics or groups with series of their own.
const SERIES_MAX: usize = 1_000;
/// The label of the sum of the rest. What has this name is in the sum, so that no series is there twice.
pub(super) const OTHER: &str = "other";

/// Values by label. Those beyond the limit are added up.
pub(super) struct Capped<K, V> {
    shown: Vec<(K, V)>,
    rest: Option<V>,
}

impl<K, V> Default for Capped<K, V> {
    fn default() -> Capped<K, V> {
        Capped {
            shown: Vec::new(),
            rest: None,
        }
    }
}

impl<K, V: Copy> Capped<K, V> {
    /// Takes the values of one label. `name` is the first of the key, and `sum` adds the values of two.
    pub(super) fn push(&mut self, name: &str, key: K, value: V, sum: impl Fn(V, V) -> V) {
        if self.shown.len() < SERIES_MAX && name != OTHER {
            self.shown.push((key, value));
        } else {
            self.rest = Some(self.rest.map_or(value, |rest| sum(rest, value)));
        }
    }

    /// All values; the sum of those beyond the limit comes last, with a key of its own.
    pub(super) fn with_rest(mut self, key: K) -> Vec<(K, V)> {
        self.shown.extend(self.rest.map(|rest| (key, rest)));
        self.shown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_beyond_the_limit_is_added_up() {
        let mut values = Capped::default();
        for number in 0..SERIES_MAX + 3 {
            let name = format!("name-{number}");
            values.push(&name, name.clone(), 2, |rest, value| rest + value);
        }
        let values = values.with_rest(OTHER.into());
        assert_eq!(values.len(), SERIES_MAX + 1);
        assert_eq!(values.last(), Some(&("other".to_string(), 6)));
    }

    #[test]
    fn what_is_called_like_the_sum_is_in_the_sum() {
        let mut values = Capped::default();
        values.push("a", "a", 1, |rest, value| rest + value);
        values.push(OTHER, OTHER, 5, |rest, value| rest + value);
        assert_eq!(values.with_rest(OTHER), [("a", 1), ("other", 5)]);
    }
}
