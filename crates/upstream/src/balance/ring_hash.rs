//! Ring hash (ketama): each host has points on a ring; a hash belongs to the first point at or after it.

use std::sync::Arc;

use evenkeel_runtime_config::cluster::HashFunction;
use evenkeel_runtime_config::hash::{murmur2_64, xxhash64};

use super::table_input::Share;

/// Points sorted by hash, in two arrays: a lookup searches the first only.
#[derive(Debug)]
pub(super) struct Ring {
    points: Box<[u64]>,
    hosts: Box<[u32]>,
}

impl Ring {
    /// Builds the ring. The host with the smallest share gets a whole number of points, such that there are at least
    /// `min_size` in all; the result is then limited to `max_size`.
    pub fn new(members: &[(Arc<str>, Share)], min_size: u64, max_size: u64, function: HashFunction) -> Self {
        let least = members.iter().map(|(_, share)| share.0).fold(1.0, f64::min);
        let scale = ((least * min_size as f64).ceil() / least).min(max_size as f64);
        let mut ring: Vec<(u64, u32)> = Vec::with_capacity(if members.is_empty() { 0 } else { scale.ceil() as usize });
        // Shares need not yield whole numbers of points, so running sums of actual and wanted points are kept.
        let (mut points, mut wanted) = (0.0, 0.0);
        let (mut text, mut digits) = (Vec::new(), itoa::Buffer::new());
        for (host, (key, share)) in (0..).zip(members) {
            text.clear();
            text.extend_from_slice(key.as_bytes());
            text.push(b'_');
            let prefix = text.len();
            wanted += scale * share.0;
            let mut number = 0u64;
            while points < wanted {
                text.truncate(prefix);
                text.extend_from_slice(digits.format(number).as_bytes());
                let hash = match function {
                    HashFunction::XxHash => xxhash64(&text, 0),
                    HashFunction::MurmurHash2 => murmur2_64(&text),
                };
                ring.push((hash, host));
                number += 1;
                points += 1.0;
            }
        }
        ring.sort_by_key(|(hash, _)| *hash);
        Self {
            points: ring.iter().map(|(hash, _)| *hash).collect(),
            hosts: ring.iter().map(|(_, host)| *host).collect(),
        }
    }

    /// The host for a hash; later attempts move on along the ring.
    pub fn get(&self, hash: u64, attempt: u32) -> Option<usize> {
        let first = self.points.partition_point(|point| *point < hash);
        // Past the last point the ring wraps around. Without points there is nothing to divide by.
        let place = first.checked_rem(self.points.len())? + attempt as usize;
        self.hosts.get(place % self.points.len()).map(|host| *host as usize)
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.points.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(shares: &[f64], min_size: u64, max_size: u64) -> Ring {
        let members: Vec<_> =
            shares.iter().enumerate().map(|(n, share)| (format!("10.0.0.{n}:80").into(), Share(*share))).collect();
        Ring::new(&members, min_size, max_size, HashFunction::XxHash)
    }

    #[test]
    fn sizes_follow_limits_and_weights() {
        for (shares, min_size, max_size, size) in [
            (&[0.5, 0.5][..], 1024, 8 << 20, 1024),
            (&[1.0 / 3.0, 1.0 / 3.0, 1.0 / 3.0], 1024, 8 << 20, 1026),
            (&[0.1, 0.9], 10, 8 << 20, 10),
            (&[0.25, 0.25, 0.25, 0.25], 1024, 6, 6),
            (&[1.0], 1, 8 << 20, 1),
            (&[], 1024, 8 << 20, 0),
        ] {
            assert_eq!(ring(shares, min_size, max_size).len(), size, "{shares:?} {min_size} {max_size}");
        }
    }

    #[test]
    fn the_ring_closes_and_attempts_move_on() {
        let ring = ring(&[0.5, 0.5], 8, 8);
        let hosts: Vec<_> = ring.hosts.iter().map(|host| *host as usize).collect();
        assert_eq!(ring.get(u64::MAX, 0), Some(hosts[0]), "beyond the last point");
        assert_eq!(ring.get(ring.points[3], 0), Some(hosts[3]), "at a point");
        assert_eq!(ring.get(ring.points[3] + 1, 0), Some(hosts[4]), "after it");
        assert_eq!(ring.get(ring.points[3], 1), Some(hosts[4]));
        assert_eq!(ring.get(ring.points[3], 8), Some(hosts[3]), "once around");
        assert_eq!(Ring::new(&[], 8, 8, HashFunction::XxHash).get(1, 0), None);
    }
}
