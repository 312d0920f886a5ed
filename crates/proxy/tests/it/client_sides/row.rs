//! A row: a request, how it fails, and what is seen of that.

use super::server::Host;

/// Who makes the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Client,
    Callout,
    Mirror,
    Tunnel,
}

pub const SIDES: [Side; 4] = [Side::Client, Side::Callout, Side::Mirror, Side::Tunnel];

/// What a request is about.
pub struct Row {
    pub name: &'static str,
    pub host: Host,
    /// More fields of the cluster.
    pub cluster: &'static str,
    /// Requests, one after another.
    pub requests: usize,
    pub method: &'static str,
    /// The body is not complete.
    pub under_way: bool,
    /// The time limit of the request, in milliseconds.
    pub timeout: Option<u64>,
    pub retry: Option<Retry>,
    pub expected: Expected,
    /// Sides that differ, and why.
    pub except: &'static [(Side, Why, Expected)],
}

/// The requests that the server sees, and the statistics that move, with their values.
#[derive(Debug, Clone, Copy)]
pub struct Expected {
    pub requests: usize,
    pub moved: &'static str,
}

pub const fn sees(requests: usize, moved: &'static str) -> Expected {
    Expected { requests, moved }
}

#[derive(Debug, Clone, Copy)]
pub struct Retry {
    pub on: &'static str,
    pub times: u32,
    /// `per_try_timeout`, in milliseconds.
    pub per_try: Option<u64>,
    /// `per_try_idle_timeout`, in milliseconds.
    pub idle: Option<u64>,
    /// The longest pause, in milliseconds.
    pub back_off: u64,
}

/// Why a side differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// It has attempts to connect in place of retries.
    Connects,
    /// It is sent once, as Envoy's mirrors are.
    Once,
    /// It does not keep the body that it streams.
    Streams,
    /// It never gets a connection that was used before.
    Unpooled,
    /// What follows the head are its client's bytes.
    Opaque,
}

pub const RETRY: Retry = Retry { on: "5xx", times: 1, per_try: None, idle: None, back_off: 1 };

pub const ROW: Row = Row {
    name: "",
    host: Host::Absent,
    cluster: "",
    requests: 1,
    method: "POST",
    under_way: false,
    timeout: None,
    retry: None,
    expected: sees(0, ""),
    except: &[],
};

/// This many times, for these conditions.
pub const fn retry(on: &'static str, times: u32) -> Option<Retry> {
    Some(Retry { on, times, ..RETRY })
}
