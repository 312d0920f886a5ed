//! How many of the connections that a worker is due by its count go to others, because its load is more than its share.
//!
//! A worker that lost connections has room, and new ones go there until it has as many as the others. If these are few at a
//! time and soon gone, it never has: it would get all of them for ever, and with them more load than the others. So a part
//! of them goes elsewhere, as large as it takes: it grows while the worker's load is clearly above the mean, and shrinks when
//! it is not.

use super::plan::{Load, TOLERANCE_OF_MEAN};

/// Of what a worker did before, so much is kept at each look.
const KEPT: f64 = 0.75;
/// By how many standard deviations of a random arrival process a load must differ from the mean.
const DEVIATIONS: f64 = 1.5;
/// Work of a worker per look, on average, below which there is no load to speak of.
const MIN_WORK: f64 = 1.0;
/// By what part of a load's relative excess the part changes at each look.
const STEP: f64 = 0.25;
/// Most that goes elsewhere: what the rest costs has to be seen.
const MOST: f64 = 0.95;
/// A part that nothing speaks for fades, by that much of it at each look.
const FADES: f64 = 0.05;
/// Parts below this are none.
const LEAST: f64 = 0.01;

/// Follows the load. No clock, no threads: one call per look.
#[derive(Debug, Default)]
pub struct Relief {
    work: Vec<f64>,
    parts: Vec<f64>,
}

impl Relief {
    /// Takes the newest look in. Returns for each worker which part goes to others, from 0 to [`MOST`].
    pub fn look(&mut self, loads: &[Load]) -> &[f64] {
        self.work.resize(loads.len(), 0.0);
        self.parts.resize(loads.len(), 0.0);
        self.work.iter_mut().zip(loads).for_each(|(work, load)| *work = *work * KEPT + load.work as f64);
        let mean = self.work.iter().sum::<f64>() / loads.len().max(1) as f64;
        let idle = mean < MIN_WORK / (1.0 - KEPT);
        let clearly = (mean * TOLERANCE_OF_MEAN).max(mean.sqrt() * DEVIATIONS);
        for (part, work) in self.parts.iter_mut().zip(&self.work) {
            let excess = work - mean;
            *part = match excess.abs() > clearly {
                _ if idle => *part / 2.0,
                true => *part + excess / mean * STEP,
                false => *part * (1.0 - FADES),
            };
            *part = if *part < LEAST { 0.0 } else { part.min(MOST) };
        }
        &self.parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loads(work: &[u64]) -> Vec<Load> {
        work.iter().map(|work| Load { work: *work, busy_ppm: 0 }).collect()
    }

    #[test]
    fn even_loads_and_none_leave_all_as_it_is() {
        for work in [&[100, 100, 100][..], &[0, 0, 0], &[1, 0, 0], &[20, 25, 22], &[7]] {
            let mut relief = Relief::default();
            for _ in 0..50 {
                assert_eq!(relief.look(&loads(work)), vec![0.0; work.len()], "{work:?}");
            }
        }
    }

    #[test]
    fn the_part_settles_where_the_load_is_even() {
        // The second worker is due all the connections that come and go: 180 of 480.
        let mut relief = Relief::default();
        let mut part = 0.0;
        for look in 0..100 {
            let own = 180.0 * (1.0 - part);
            let other = (180.0 - own) / 2.0;
            let work = [100.0 + other, 100.0 + own, 100.0 + other].map(|work| work as u64);
            part = relief.look(&loads(&work))[1];
            assert!(look < 20 || work[1] < 180, "look {look}: {work:?}");
        }
        assert!(part > 0.5);
        for _ in 0..60 {
            relief.look(&loads(&[0; 3]));
        }
        assert_eq!(relief.look(&loads(&[0; 3])), [0.0; 3], "where nothing is done there is nothing to relieve of");
    }
}
