//! Header edits of route table, virtual host, route and weighted cluster.

use evenkeel_filters::decide::Levels;
use evenkeel_filters::format::{Record, header_value};
use evenkeel_filters::header_edits::add_header;
use evenkeel_http::Headers;
use evenkeel_runtime_config::header_edits::{HeaderAddition, HeaderEdits};

/// Applies the header edits of all levels. The values they add are formatted first, because formatting needs the head.
pub(super) trait Edits {
    /// The values the levels add to a request.
    fn request_values(&self, record: &Record<'_>) -> Vec<Vec<u8>>;
    /// The values the levels add to a response.
    fn response_values(&self, record: &Record<'_>) -> Vec<Vec<u8>>;
    /// Removes and adds headers of a request, level by level.
    fn edit_request(&self, headers: &mut Headers, values: Vec<Vec<u8>>);
    /// Removes and adds headers of a response, level by level.
    fn edit_response(&self, headers: &mut Headers, values: Vec<Vec<u8>>);
}

impl Edits for Levels<'_> {
    fn request_values(&self, record: &Record<'_>) -> Vec<Vec<u8>> {
        values(self, |edits| &edits.request_add, record)
    }

    fn response_values(&self, record: &Record<'_>) -> Vec<Vec<u8>> {
        values(self, |edits| &edits.response_add, record)
    }

    fn edit_request(&self, headers: &mut Headers, values: Vec<Vec<u8>>) {
        let mut values = values.into_iter();
        for level in self.iter() {
            edit(headers, &level.request_remove, &level.request_add, &mut values);
        }
    }

    fn edit_response(&self, headers: &mut Headers, values: Vec<Vec<u8>>) {
        let mut values = values.into_iter();
        for level in self.iter() {
            edit(headers, &level.response_remove, &level.response_add, &mut values);
        }
    }
}

fn values(
    levels: &Levels<'_>,
    additions: impl Fn(&HeaderEdits) -> &Vec<HeaderAddition>,
    record: &Record<'_>,
) -> Vec<Vec<u8>> {
    levels.iter().flat_map(additions).map(|addition| header_value(&addition.value, record)).collect()
}

/// Adds headers to a message that no route applies to.
pub(crate) fn add_headers(headers: &mut Headers, additions: &[HeaderAddition], record: &Record<'_>) {
    let mut values = additions.iter().map(|addition| header_value(&addition.value, record));
    edit(headers, &[], additions, &mut values);
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
