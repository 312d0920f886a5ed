//! Thresholds of a health check.

use super::Health;

/// Counts consecutive successes and failures, and says when the workload becomes healthy or unhealthy (Istio's
/// `PerformApplicationHealthCheck`). At first nothing is known, so the first threshold that is reached is reported.
#[derive(Debug)]
pub struct Verdict {
    successes: u32,
    failures: u32,
    hits: u32,
    misses: u32,
    healthy: Option<bool>,
}

impl Verdict {
    /// Nothing is known yet. Thresholds are at least 1.
    pub fn new(successes: u32, failures: u32) -> Self {
        Self { successes: successes.max(1), failures: failures.max(1), hits: 0, misses: 0, healthy: None }
    }

    /// Counts one result; the health, if it is another one now.
    pub fn after(&mut self, result: Health) -> Option<Health> {
        (self.hits, self.misses) = match result {
            Ok(()) => (self.hits.saturating_add(1), 0),
            Err(_) => (0, self.misses.saturating_add(1)),
        };
        let reached = match result {
            Ok(()) => self.hits >= self.successes,
            Err(_) => self.misses >= self.failures,
        };
        let changed = reached && self.healthy != Some(result.is_ok());
        changed.then(|| {
            self.healthy = Some(result.is_ok());
            result
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_results_in_a_row_change_the_health() {
        // `+` and `-`: results. `H` and `U`: what is reported; `.`: nothing.
        let check = |successes: u32, failures: u32, results: &str, expected: &str| {
            let mut verdict = Verdict::new(successes, failures);
            let one = |result: char| match verdict.after(if result == '+' { Ok(()) } else { Err("no".into()) }) {
                Some(Ok(())) => 'H',
                Some(Err(_)) => 'U',
                None => '.',
            };
            assert_eq!(results.chars().map(one).collect::<String>(), expected, "{successes} {failures} {results}");
        };
        check(1, 1, "+-+-", "HUHU");
        check(1, 1, "-+", "UH");
        check(1, 1, "+++---", "H..U..");
        check(1, 3, "+--+---+", "H.....UH");
        check(2, 1, "+-++-", ".U.HU");
        check(0, 0, "-+", "UH");
    }
}
