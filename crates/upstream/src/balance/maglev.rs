//! Maglev hashing (Eisenbud et al., NSDI 2016, section 3.4), with weights: hosts fill a table in turn, each in its own
//! order of preference.

use std::sync::Arc;

use evenkeel_runtime_config::hash::xxhash64;

use super::table_input::Share;

/// The table. Two bytes per entry suffice for 65,535 hosts.
#[derive(Debug)]
pub(super) enum Maglev {
    Narrow(Box<[u16]>),
    Wide(Box<[u32]>),
}

/// A host's state while the table is filled.
struct Candidate {
    host: u32,
    /// Its order of preference: `offset`, `offset + skip`, `offset + 2 × skip`, …
    place: u64,
    skip: u64,
    share: f64,
    target: f64,
}

const FREE: u32 = u32::MAX;

impl Maglev {
    /// Builds a table of `size` entries; `size` must be prime.
    pub fn new(members: &[(Arc<str>, Share)], size: u64) -> Self {
        let table = fill(members, size.max(2));
        if members.len() < usize::from(u16::MAX) {
            // No host index is beyond 65,535, and no entry is free.
            Self::Narrow(table.into_iter().map(|host| host as u16).collect())
        } else {
            Self::Wide(table.into())
        }
    }

    /// The host for a hash; later attempts flip most bits of it.
    pub fn get(&self, hash: u64, attempt: u32) -> Option<usize> {
        let hash = if attempt == 0 { hash } else { hash ^ (u64::MAX - u64::from(attempt) + 1) };
        let place = |size: usize| hash.checked_rem(size as u64).map(|place| place as usize);
        match self {
            Self::Narrow(table) => table.get(place(table.len())?).map(|host| usize::from(*host)),
            Self::Wide(table) => table.get(place(table.len())?).map(|host| *host as usize),
        }
    }
}

fn fill(members: &[(Arc<str>, Share)], size: u64) -> Vec<u32> {
    if members.is_empty() {
        return Vec::new();
    }
    let mut candidates: Vec<_> = (0..)
        .zip(members)
        .map(|(host, (key, share))| Candidate {
            host,
            place: xxhash64(key.as_bytes(), 0) % size,
            skip: xxhash64(key.as_bytes(), 1) % (size - 1) + 1,
            share: share.0,
            target: 0.0,
        })
        .collect();
    // Sorted by key, so that the order in which hosts are listed makes no difference.
    candidates.sort_by(|a, b| members[a.host as usize].0.cmp(&members[b.host as usize].0));
    let greatest = members.iter().map(|(_, share)| share.0).fold(0.0, f64::max);
    let mut table = vec![FREE; size as usize];
    let mut filled = 0;
    let mut round = 0.0;
    while filled < table.len() {
        round += 1.0;
        for candidate in &mut candidates {
            // For example, a host with a third of the greatest share takes an entry every third round.
            if round * candidate.share < candidate.target {
                continue;
            }
            candidate.target += greatest;
            while table[candidate.place as usize] != FREE {
                candidate.place = (candidate.place + candidate.skip) % size;
            }
            table[candidate.place as usize] = candidate.host;
            filled += 1;
            if filled == table.len() {
                break;
            }
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(shares: &[f64]) -> Vec<(Arc<str>, Share)> {
        shares.iter().enumerate().map(|(n, share)| (format!("10.0.0.{n}:80").into(), Share(*share))).collect()
    }

    fn counts(shares: &[f64], size: u64) -> Vec<usize> {
        let table = fill(&members(shares), size);
        (0..shares.len() as u32).map(|host| table.iter().filter(|entry| **entry == host).count()).collect()
    }

    #[test]
    fn entries_follow_the_shares() {
        assert_eq!(counts(&[0.5, 0.5], 251), [126, 125]);
        assert_eq!(counts(&[1.0], 13), [13]);
        let thirds = counts(&[0.25, 0.25, 0.5], 65_537);
        assert!(
            thirds.iter().zip([16_384, 16_384, 32_769]).all(|(seen, expected)| seen.abs_diff(expected) <= 2),
            "{thirds:?}"
        );
    }

    #[test]
    fn the_order_of_hosts_makes_no_difference() {
        let forward = members(&[0.2, 0.3, 0.5]);
        let backward: Vec<_> = forward.iter().rev().cloned().collect();
        let (one, other) = (Maglev::new(&forward, 251), Maglev::new(&backward, 251));
        assert!(
            (0..251).all(|hash| one.get(hash, 0).zip(other.get(hash, 0)).is_some_and(|(one, other)| one + other == 2))
        );
    }

    #[test]
    fn few_hashes_change_hosts_when_a_host_leaves() {
        let (all, fewer) = (members(&[0.25; 4]), members(&[1.0 / 3.0; 3]));
        let (before, after) = (fill(&all, 65_537), fill(&fewer, 65_537));
        let moved = before.iter().zip(&after).filter(|(before, after)| **before != 3 && before != after).count();
        assert!(moved < 65_537 / 20, "{moved} entries moved between hosts that stayed");
    }

    #[test]
    fn many_hosts_need_wider_entries() {
        let many = members(&vec![1.0 / 70_000.0; 70_000]);
        let table = Maglev::new(&many, 70_001);
        assert!(matches!(table, Maglev::Wide(_)));
        assert!((0..70_001).all(|hash| table.get(hash, 0).is_some_and(|host| host < 70_000)));
        assert_eq!(Maglev::new(&[], 13).get(5, 0), None);
    }
}
