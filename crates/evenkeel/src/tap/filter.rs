//! Which requests `evenkeel tap` shows.

use std::ffi::OsString;
use std::str::FromStr;

use clap::Args;
use evenkeel_filters::explain::query::REDACTED;
use evenkeel_proxy::tap::TappedRequest;

/// Conditions that must all hold.
#[derive(Debug, Default, Args)]
pub(super) struct Filter {
    /// Only requests whose path begins with this.
    #[arg(long, value_name = "PREFIX")]
    path: Option<String>,

    /// Only requests with this method.
    #[arg(long, value_name = "METHOD")]
    method: Option<String>,

    /// Only requests that were answered with this status: 503, or 5xx; 0: with none. May be repeated: any of them.
    #[arg(long, value_name = "STATUS")]
    status: Vec<Status>,

    /// Only requests with this header; may be repeated: all of them. Values of secret headers are not known.
    #[arg(long, value_name = "NAME=VALUE")]
    header: Vec<Header>,
}

/// A status, or a class of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Status {
    /// One.
    Code(u16),
    /// The first digit.
    Class(u16),
}

impl FromStr for Status {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let class = text.to_ascii_lowercase();
        let class = class.strip_suffix("xx").and_then(|digit| digit.parse().ok());
        match (class, text.parse()) {
            (Some(class @ 1..=5), _) => Ok(Self::Class(class)),
            (None, Ok(code @ (0 | 100..=599))) => Ok(Self::Code(code)),
            _ => Err("expected a status such as 503, or a class such as 5xx".to_owned()),
        }
    }
}

impl Status {
    fn matches(self, status: u16) -> bool {
        match self {
            Self::Code(code) => status == code,
            Self::Class(class) => status / 100 == class,
        }
    }

    fn text(self) -> String {
        match self {
            Self::Code(code) => code.to_string(),
            Self::Class(class) => format!("{class}xx"),
        }
    }
}

/// A header and its value.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Header {
    name: String,
    value: String,
}

impl FromStr for Header {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = text.split_once('=').filter(|(name, _)| !name.is_empty()).ok_or("expected NAME=VALUE")?;
        if evenkeel_proxy::recent::is_secret(name) {
            return Err(format!("the value of `{name}` is secret: it is {REDACTED} here"));
        }
        Ok(Self { name: name.to_ascii_lowercase(), value: value.to_owned() })
    }
}

impl Filter {
    /// Whether a request is shown.
    pub(super) fn matches(&self, request: &TappedRequest) -> bool {
        let has = |wanted: &Header| {
            request.headers.iter().any(|(name, value)| *name == wanted.name && *value == wanted.value)
        };
        self.path.as_ref().is_none_or(|prefix| request.path.starts_with(prefix))
            && self.method.as_ref().is_none_or(|method| request.method.eq_ignore_ascii_case(method))
            && (self.status.is_empty() || self.status.iter().any(|status| status.matches(request.status)))
            && self.header.iter().all(has)
    }

    /// The flags with which another process of this program filters in the same way.
    pub(super) fn flags(&self) -> Vec<OsString> {
        let mut flags = Vec::new();
        flags.extend(self.path.iter().map(|path| format!("--path={path}")));
        flags.extend(self.method.iter().map(|method| format!("--method={method}")));
        flags.extend(self.status.iter().map(|status| format!("--status={}", status.text())));
        flags.extend(self.header.iter().map(|Header { name, value }| format!("--header={name}={value}")));
        flags.into_iter().map(OsString::from).collect()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Flags {
        #[command(flatten)]
        filter: Filter,
    }

    fn filter(flags: &str) -> Result<Filter, String> {
        let words = std::iter::once("tap").chain(flags.split_whitespace());
        Flags::try_parse_from(words).map(|flags| flags.filter).map_err(|error| error.to_string())
    }

    #[test]
    fn all_conditions_must_hold() {
        let request = TappedRequest {
            method: "POST".to_owned(),
            path: "/orders/1".to_owned(),
            status: 503,
            headers: vec![("x-tenant".to_owned(), "blue".to_owned())],
            ..TappedRequest::default()
        };
        let check = |flags: &str, expected: bool| {
            let filter = filter(flags).expect(flags);
            assert_eq!(filter.matches(&request), expected, "{flags}");
            let passed: Vec<String> = filter.flags().into_iter().filter_map(|flag| flag.into_string().ok()).collect();
            let again = super::tests::filter(&passed.join(" ")).expect("its own flags");
            assert_eq!(again.matches(&request), expected, "{passed:?}");
        };
        check("", true);
        check("--path /orders --method post --status 5xx --header X-Tenant=blue", true);
        check("--path /orders/2", false);
        check("--method GET", false);
        check("--status 503", true);
        check("--status 200 --status 503", true);
        check("--status 4xx", false);
        check("--status 0", false);
        check("--header x-tenant=red", false);
        check("--header x-other=blue", false);
        check("--status 503 --method GET", false);
    }

    #[test]
    fn what_no_request_can_match_is_refused() {
        let check = |flags: &str, words: &str| {
            let error = filter(flags).expect_err(flags);
            assert!(error.contains(words), "{flags}: {error}");
        };
        check("--status 6xx", "such as 5xx");
        check("--status xx", "such as 5xx");
        check("--status 99", "such as 5xx");
        check("--header authorization=x", "is secret");
        check("--header a", "expected NAME=VALUE");
    }
}
