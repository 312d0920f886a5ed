//! Header edits of route table, virtual host, route and weighted cluster.

use evenkeel_filters::header_mutation::add_header;
use evenkeel_http::Headers;
use evenkeel_runtime_config::route::{
    HeaderAddition, HeaderEdits, Route, RouteTable, VirtualHost, WeightedCluster,
};

use crate::access_log::{self, Record};

/// The levels that apply to a request, in the order they are applied.
#[derive(Clone, Copy)]
pub(super) struct Levels<'c>([Option<&'c HeaderEdits>; 4]);

impl<'c> Levels<'c> {
    /// Most specific first, or last where the table says `most_specific_header_mutations_wins`.
    pub(super) fn new(
        table: &'c RouteTable,
        host: &'c VirtualHost,
        route: &'c Route,
        leg: Option<&'c WeightedCluster>,
    ) -> Self {
        let mut levels = [leg.map(|leg| &leg.headers), Some(&route.headers), Some(&host.headers), Some(&table.headers)];
        if table.most_specific_wins {
            levels.reverse();
        }
        Self(levels.map(|level| level.filter(|edits| !edits.is_empty())))
    }

    /// No level changes anything.
    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(Option::is_none)
    }

    /// The values the levels add to a request. Formatting needs the head, so it comes before [`Levels::edit_request`].
    pub(super) fn request_values(&self, record: &Record<'_>) -> Vec<Vec<u8>> {
        self.values(|edits| &edits.request_add, record)
    }

    /// The values the levels add to a response.
    pub(super) fn response_values(&self, record: &Record<'_>) -> Vec<Vec<u8>> {
        self.values(|edits| &edits.response_add, record)
    }

    /// Removes and adds, level by level.
    pub(super) fn edit_request(&self, headers: &mut Headers, values: Vec<Vec<u8>>) {
        let mut values = values.into_iter();
        for level in self.0.iter().flatten() {
            edit(headers, &level.request_remove, &level.request_add, &mut values);
        }
    }

    /// Removes and adds, level by level.
    pub(super) fn edit_response(&self, headers: &mut Headers, values: Vec<Vec<u8>>) {
        let mut values = values.into_iter();
        for level in self.0.iter().flatten() {
            edit(headers, &level.response_remove, &level.response_add, &mut values);
        }
    }

    fn values(&self, additions: impl Fn(&HeaderEdits) -> &Vec<HeaderAddition>, record: &Record<'_>) -> Vec<Vec<u8>> {
        self.0.iter().flatten().flat_map(|edits| additions(edits)).map(|addition| value(addition, record)).collect()
    }
}

/// Adds headers to a message that no route has anything to do with.
pub(crate) fn add_headers(headers: &mut Headers, additions: &[HeaderAddition], record: &Record<'_>) {
    let mut values = additions.iter().map(|addition| value(addition, record));
    edit(headers, &[], additions, &mut values);
}

pub(super) fn value(addition: &HeaderAddition, record: &Record<'_>) -> Vec<u8> {
    let mut value = Vec::new();
    access_log::format_header(&addition.value, record, &mut value);
    value
}

fn edit(
    headers: &mut Headers,
    remove: &[Box<str>],
    add: &[HeaderAddition],
    values: &mut impl Iterator<Item = Vec<u8>>,
) {
    for name in remove {
        headers.remove_name(name.as_bytes());
    }
    add.iter().zip(values).for_each(|(addition, value)| add_header(headers, addition, &value));
}
