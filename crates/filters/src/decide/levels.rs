//! Header edits of route configuration, virtual host, route and weighted cluster.

use evenkeel_runtime_config::header_edits::HeaderEdits;

use super::Matched;

/// The levels that apply to a request, in the order they are applied.
#[derive(Debug, Clone, Copy)]
pub struct Levels<'c> {
    levels: [Option<&'c HeaderEdits>; 4],
    most_specific_wins: bool,
}

/// Most specific first.
const NAMES: [&str; 4] = ["weighted cluster", "route", "virtual host", "route configuration"];

impl<'c> Levels<'c> {
    /// Most specific first; last if the table sets `most_specific_header_mutations_wins`.
    pub(super) fn new(matched: &Matched<'c>) -> Self {
        let Matched { table, host, route, entry } = matched;
        let mut levels =
            [entry.map(|entry| &entry.headers), Some(&route.headers), Some(&host.headers), Some(&*table.headers)];
        if table.most_specific_wins {
            levels.reverse();
        }
        let levels = levels.map(|level| level.filter(|edits| !edits.is_empty()));
        Self { levels, most_specific_wins: table.most_specific_wins }
    }

    /// Whether no level edits anything.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.levels.iter().all(Option::is_none)
    }

    /// The edits, in order.
    pub fn iter(&self) -> impl Iterator<Item = &'c HeaderEdits> {
        self.levels.into_iter().flatten()
    }

    /// The edits with their levels' names, in order.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, &'c HeaderEdits)> {
        let mut names = NAMES;
        if self.most_specific_wins {
            names.reverse();
        }
        names.into_iter().zip(self.levels).filter_map(|(name, edits)| Some((name, edits?)))
    }
}
