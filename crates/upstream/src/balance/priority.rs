//! Divides requests among priorities by the health of their hosts (Envoy's "priority levels", "degraded endpoints" and
//! "panic threshold").

/// Host counts of one priority.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Census {
    /// Hosts without the excluded ones (never checked, or excluded on their own request).
    pub counted: u64,
    /// All hosts.
    pub hosts: u64,
    pub healthy: u64,
    pub degraded: u64,
    /// The sums that availability is computed from: numbers of hosts, or their weights (`weighted_priority_health`).
    pub available: Available,
}

/// Available parts of a total capacity.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Available {
    pub healthy: u64,
    pub degraded: u64,
    pub total: u64,
}

/// Parameters of the computation besides the hosts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    /// A healthy host counts as this percentage of itself (`overprovisioning_factor`).
    pub overprovisioning_percent: u32,
    /// With a lower percentage of usable hosts, health is ignored.
    pub panic_threshold_percent: u32,
}

/// Percentages of requests per priority. The healthy and degraded ones add up to 100.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Loads {
    pub healthy: Vec<u32>,
    pub degraded: Vec<u32>,
    pub panic: Vec<bool>,
    /// What they were computed from: the availability of each priority's healthy and degraded hosts.
    pub availability: Vec<[u32; 2]>,
}

impl Loads {
    /// Computes the loads.
    pub fn new(levels: &[Census], rules: Rules) -> Self {
        let percent = |part: u64, total: u64| {
            (part * u64::from(rules.overprovisioning_percent)).checked_div(total).unwrap_or(0).min(100) as u32
        };
        let healthy: Vec<u32> = levels.iter().map(|l| percent(l.available.healthy, l.available.total)).collect();
        let degraded: Vec<u32> = levels.iter().map(|l| percent(l.available.degraded, l.available.total)).collect();
        let total = healthy.iter().chain(&degraded).sum::<u32>().min(100);
        let mut loads = Self::by_availability(&healthy, &degraded, total);
        loads.availability = healthy.iter().zip(&degraded).map(|(healthy, degraded)| [*healthy, *degraded]).collect();
        if total == 0 && rules.panic_threshold_percent == 0 {
            // All requests have to go somewhere; they find no host there.
            loads.healthy.iter_mut().take(1).for_each(|first| *first = 100);
            return loads;
        }
        loads.panic = levels.iter().map(|level| total < 100 && in_panic(level, rules)).collect();
        if loads.panic.iter().all(|panic| *panic) {
            loads.by_size(levels);
        }
        loads
    }

    /// The first priority takes what it can and the rest spills over; degraded hosts come after all healthy ones. If
    /// less than 100 % is available in all, shares are scaled up to it.
    fn by_availability(healthy: &[u32], degraded: &[u32], total: u32) -> Self {
        let mut left = 100;
        let mut share = |available: &u32| {
            let load = (available * 100).checked_div(total).unwrap_or(0).min(left);
            left -= load;
            load
        };
        let mut loads = Self {
            healthy: healthy.iter().map(&mut share).collect(),
            degraded: degraded.iter().map(&mut share).collect(),
            panic: vec![false; healthy.len()],
            availability: Vec::new(),
        };
        if total > 0 {
            // The rounding remainder goes to the first priority with any availability.
            let first = |available: &[u32]| available.iter().position(|available| *available > 0);
            let place = match (first(healthy), first(degraded)) {
                (Some(place), _) => loads.healthy.get_mut(place),
                (None, Some(place)) => loads.degraded.get_mut(place),
                (None, None) => None,
            };
            if let Some(load) = place {
                *load += left;
            }
        }
        loads
    }

    /// All priorities are in panic: each gets a share by its number of hosts, healthy or not.
    fn by_size(&mut self, levels: &[Census]) {
        let hosts: u64 = levels.iter().map(|level| level.hosts).sum();
        self.degraded.fill(0);
        let share = |level: &Census| (level.hosts * 100).checked_div(hosts).unwrap_or(0) as u32;
        self.healthy = levels.iter().map(share).collect();
        let left = 100 - self.healthy.iter().sum::<u32>();
        let first = levels.iter().position(|level| level.hosts > 0).unwrap_or(0);
        if let Some(load) = self.healthy.get_mut(first) {
            *load += left;
        }
    }

    /// The loads when priorities that were `tried`, in this order, get none; updated after each `every` tries, as
    /// Envoy's `previous_priorities` does. Once no priority with availability is left, all of them may be tried again.
    /// `None`: nothing is left out.
    pub fn without_tried(&self, tried: impl Iterator<Item = usize>, every: u32) -> Option<Self> {
        let mut out = vec![false; self.availability.len()];
        let mut since = Vec::new();
        for level in tried {
            since.push(level);
            if since.len() % every.max(1) as usize == 0 {
                since.iter().for_each(|level| {
                    if let Some(out) = out.get_mut(*level) {
                        *out = true;
                    }
                });
                if self.left(&out).iter().flatten().all(|available| *available == 0) {
                    out.fill(false);
                    since.clear();
                }
            }
        }
        if !out.contains(&true) {
            return None;
        }
        let left = self.left(&out);
        let (healthy, degraded): (Vec<u32>, Vec<u32>) =
            left.iter().map(|[healthy, degraded]| (*healthy, *degraded)).unzip();
        let total = left.iter().flatten().sum::<u32>().min(100);
        Some(Self { panic: self.panic.clone(), ..Self::by_availability(&healthy, &degraded, total) })
    }

    fn left(&self, out: &[bool]) -> Vec<[u32; 2]> {
        self.availability.iter().zip(out).map(|(available, out)| if *out { [0, 0] } else { *available }).collect()
    }

    /// The priority for a hash, and whether to use its degraded hosts.
    pub fn choose(&self, hash: u64) -> Option<(usize, bool)> {
        let mut point = (hash % 100) as u32;
        let all = self.healthy.iter().enumerate().map(|(level, load)| (level, false, load));
        let all = all.chain(self.degraded.iter().enumerate().map(|(level, load)| (level, true, load)));
        for (level, degraded, load) in all {
            match point.checked_sub(*load) {
                None => return Some((level, degraded)),
                Some(rest) => point = rest,
            }
        }
        None
    }
}

fn in_panic(level: &Census, rules: Rules) -> bool {
    let percent = |part: u64| if level.counted == 0 { 0.0 } else { 100.0 * part as f64 / level.counted as f64 };
    percent(level.healthy) + percent(level.degraded) < f64::from(rules.panic_threshold_percent)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `(healthy, degraded)` hosts of 100 per priority.
    fn loads(levels: &[(u64, u64)], panic_threshold_percent: u32) -> Loads {
        let census = |(healthy, degraded): &(u64, u64)| Census {
            counted: 100,
            hosts: 100,
            healthy: *healthy,
            degraded: *degraded,
            available: Available { healthy: *healthy, degraded: *degraded, total: 100 },
        };
        let levels: Vec<_> = levels.iter().map(census).collect();
        Loads::new(&levels, Rules { overprovisioning_percent: 140, panic_threshold_percent })
    }

    #[test]
    fn loads_spill_over_as_envoys_documentation_shows() {
        let check = |percent_healthy: &[u64], expected: &[u32]| {
            let levels: Vec<_> = percent_healthy.iter().map(|healthy| (*healthy, 0)).collect();
            assert_eq!(loads(&levels, 0).healthy, expected, "{percent_healthy:?}");
        };
        check(&[100, 100], &[100, 0]);
        check(&[72, 72], &[100, 0]);
        check(&[71, 71], &[99, 1]);
        check(&[50, 50], &[70, 30]);
        check(&[25, 100], &[35, 65]);
        check(&[25, 25], &[50, 50]);
        check(&[0, 100], &[0, 100]);
        check(&[0, 0], &[100, 0]);
        check(&[100, 100, 100], &[100, 0, 0]);
        check(&[72, 72, 100], &[100, 0, 0]);
        check(&[71, 71, 100], &[99, 1, 0]);
        check(&[50, 50, 100], &[70, 30, 0]);
        check(&[25, 100, 100], &[35, 65, 0]);
        check(&[25, 25, 100], &[35, 35, 30]);
        check(&[], &[]);
    }

    #[test]
    fn degraded_hosts_come_after_healthy_ones() {
        let check = |levels: &[(u64, u64)], healthy: &[u32], degraded: &[u32]| {
            let loads = loads(levels, 50);
            assert_eq!((&*loads.healthy, &*loads.degraded), (healthy, degraded), "{levels:?}");
        };
        check(&[(50, 50)], &[70], &[30]);
        check(&[(0, 100)], &[0], &[100]);
        check(&[(25, 0), (0, 100)], &[35, 0], &[0, 65]);
        check(&[(5, 60), (20, 0)], &[7, 28], &[65, 0]);
    }

    #[test]
    fn panic_begins_below_the_threshold_when_capacity_is_missing() {
        let check = |levels: &[(u64, u64)], threshold, panic: &[bool], healthy: &[u32]| {
            let loads = loads(levels, threshold);
            assert_eq!((&*loads.panic, &*loads.healthy), (panic, healthy), "{levels:?} {threshold}");
        };
        check(&[(72, 0), (25, 0)], 50, &[false, false], &[100, 0]);
        check(&[(50, 0), (60, 0)], 50, &[false, false], &[70, 30]);
        check(&[(25, 0), (0, 0)], 50, &[true, true], &[50, 50]);
        check(&[(5, 0), (65, 0)], 50, &[true, false], &[8, 92]);
        check(&[(0, 0), (0, 0)], 50, &[true, true], &[50, 50]);
        check(&[(0, 0), (0, 0)], 0, &[false, false], &[100, 0]);
        check(&[(25, 30)], 50, &[false], &[46]);
    }

    #[test]
    fn retries_leave_out_priorities_that_were_tried() {
        let check = |levels: &[(u64, u64)], tried: &[usize], every, expected: Option<(&[u32], &[u32])>| {
            let other = loads(levels, 0).without_tried(tried.iter().copied(), every);
            let other = other.as_ref().map(|loads| (&*loads.healthy, &*loads.degraded));
            assert_eq!(other, expected, "{levels:?} {tried:?} {every}");
        };
        let three: &[(u64, u64)] = &[(100, 0), (100, 0), (100, 0)];
        check(three, &[0], 2, None);
        check(three, &[0, 0], 2, Some((&[0, 100, 0], &[0, 0, 0])));
        check(three, &[0, 0, 1], 2, Some((&[0, 100, 0], &[0, 0, 0])));
        check(three, &[0, 0, 1, 1], 2, Some((&[0, 0, 100], &[0, 0, 0])));
        check(three, &[0, 1, 2], 1, None);
        check(three, &[0, 1, 2, 0], 1, Some((&[0, 100, 0], &[0, 0, 0])));
        check(&[(100, 0), (25, 0), (25, 0)], &[0], 1, Some((&[0, 50, 50], &[0, 0, 0])));
        check(&[(100, 0), (0, 30), (10, 0)], &[0], 1, Some((&[0, 0, 25], &[0, 75, 0])));
        check(&[(100, 0)], &[0], 1, None);
        check(&[(100, 0), (0, 0)], &[0, 0], 1, None);
        check(&[(100, 0), (50, 0)], &[7], 1, None);
    }

    #[test]
    fn requests_follow_the_loads() {
        let loads =
            Loads { healthy: vec![10, 20], degraded: vec![30, 40], panic: vec![false; 2], availability: Vec::new() };
        let mut counts = [[0; 2]; 2];
        for hash in 0..100 {
            let (level, degraded) = loads.choose(hash).expect("loads add up to 100");
            counts[usize::from(degraded)][level] += 1;
        }
        assert_eq!(counts, [[10, 20], [30, 40]]);
    }
}
