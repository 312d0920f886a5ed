//! Requests to a server that fail, from every side that makes them: a client's request, a call of a filter, a mirror, and a tunnel of the
//! TCP proxy. Each row is a failure. The tries that the server sees and the statistics of its cluster are the same from every side; where a
//! side differs, the row says why.

mod row;
mod server;
mod sides;

use row::Side::{self, Callout, Mirror, Tunnel};
use row::Why::{Connects, Once, Opaque, Streams, Unpooled};
use row::{RETRY, ROW, Retry, Row, SIDES, retry, sees};
use server::Host::{Gone, Resets2, Sends, SendsOnce, Silent, Silent2};
use sides::observe;

/// RST_STREAM's codes (RFC 9113 section 7).
const INTERNAL_ERROR: u8 = 2;
const REFUSED_STREAM: u8 = 7;

const UNAVAILABLE: &str = "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n";
const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

const ROWS: &[Row] = &[
    Row { name: "no host", host: Gone, expected: sees(0, "cx_none_healthy 1, 503 1"), ..ROW },
    Row { name: "refused", expected: sees(0, "cx_connect_fail 1, rq_total 1, failed 1, 503 1"), ..ROW },
    Row {
        name: "refused, retried",
        retry: retry("connect-failure", 2),
        expected: sees(
            0,
            "cx_connect_fail 3, rq_total 3, rq_retry 2, rq_retry_limit_exceeded 1, rq_retry_backoff 2, failed 3, 503 1",
        ),
        except: &[
            (Mirror, Once, sees(0, "cx_connect_fail 1, rq_total 1, failed 1, 503 1")),
            (Tunnel, Connects, sees(0, "cx_connect_fail 3, rq_total 3, failed 3")),
        ],
        ..ROW
    },
    Row {
        name: "breaker full",
        host: Sends(OK),
        cluster: "circuit_breakers: {thresholds: [{max_requests: 0}]}",
        expected: sees(0, "rq_pending_overflow 1, 503 1"),
        ..ROW
    },
    Row { name: "reset before the head", host: Sends(""), expected: sees(1, "rq_total 1, failed 1, 503 1"), ..ROW },
    Row {
        name: "reset before the head, retried",
        host: Sends(""),
        retry: retry("reset", 2),
        expected: sees(3, "rq_total 3, rq_retry 2, rq_retry_limit_exceeded 1, rq_retry_backoff 2, failed 3, 503 1"),
        except: &[
            (Mirror, Once, sees(1, "rq_total 1, failed 1, 503 1")),
            (Tunnel, Connects, sees(3, "rq_total 3, failed 3")),
        ],
        ..ROW
    },
    Row {
        name: "reset before the head, not to be retried",
        host: Sends(""),
        retry: retry("connect-failure", 2),
        expected: sees(1, "rq_total 1, failed 1, 503 1"),
        except: &[(Tunnel, Connects, sees(3, "rq_total 3, failed 3"))],
        ..ROW
    },
    Row {
        name: "retries full",
        host: Sends(""),
        retry: retry("reset", 2),
        cluster: "circuit_breakers: {thresholds: [{max_retries: 0}]}",
        expected: sees(1, "rq_total 1, rq_retry_overflow 1, failed 1, 503 1"),
        except: &[
            (Mirror, Once, sees(1, "rq_total 1, failed 1, 503 1")),
            (Tunnel, Connects, sees(3, "rq_total 3, failed 3")),
        ],
        ..ROW
    },
    Row {
        name: "upload under way",
        host: Sends(""),
        retry: retry("reset", 2),
        under_way: true,
        expected: sees(3, "rq_total 3, rq_retry 2, rq_retry_limit_exceeded 1, rq_retry_backoff 2, failed 3, 503 1"),
        except: &[
            (Callout, Streams, sees(1, "rq_total 1, failed 1, 503 1")),
            (Mirror, Once, sees(1, "rq_total 1, failed 1, 503 1")),
            (Tunnel, Connects, sees(3, "rq_total 3, failed 3")),
        ],
        ..ROW
    },
    Row {
        name: "stream reset",
        host: Resets2(INTERNAL_ERROR),
        expected: sees(1, "rq_total 1, rq_rx_reset 1, failed 1, 503 1"),
        ..ROW
    },
    Row {
        name: "stream refused",
        host: Resets2(REFUSED_STREAM),
        expected: sees(2, "rq_total 2, failed 1, 503 1"),
        except: &[(Mirror, Streams, sees(1, "rq_total 1, failed 1, 503 1"))],
        ..ROW
    },
    Row {
        name: "stream refused, retried",
        host: Resets2(REFUSED_STREAM),
        retry: retry("refused-stream", 2),
        expected: sees(4, "rq_total 4, rq_retry 2, rq_retry_limit_exceeded 1, rq_retry_backoff 2, failed 3, 503 1"),
        except: &[
            (Mirror, Once, sees(1, "rq_total 1, failed 1, 503 1")),
            (Tunnel, Connects, sees(4, "rq_total 4, failed 3")),
        ],
        ..ROW
    },
    Row {
        name: "invalid response",
        host: Sends("SSH-2.0\r\n\r\n"),
        expected: sees(1, "cx_protocol_error 1, rq_total 1, failed 1, 502 1"),
        ..ROW
    },
    Row {
        name: "reset after the head",
        host: Sends("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nok"),
        expected: sees(1, "cx_protocol_error 1, rq_total 1, 200 1"),
        except: &[(Tunnel, Opaque, sees(1, "rq_total 1"))],
        ..ROW
    },
    Row {
        name: "timeout",
        host: Silent,
        timeout: Some(500),
        expected: sees(1, "rq_total 1, rq_timeout 1, failed 1, 504 1"),
        except: &[(Tunnel, Connects, sees(1, "rq_total 1, failed 1"))],
        ..ROW
    },
    Row {
        name: "timeout of a stream",
        host: Silent2,
        timeout: Some(500),
        expected: sees(1, "rq_total 1, rq_timeout 1, rq_tx_reset 1, failed 1, 504 1"),
        except: &[(Tunnel, Connects, sees(1, "rq_total 1, rq_tx_reset 1, failed 1"))],
        ..ROW
    },
    Row {
        name: "timeout of each try",
        host: Silent2,
        timeout: Some(3000),
        retry: Some(Retry { per_try: Some(500), ..RETRY }),
        expected: sees(
            2,
            "rq_total 2, rq_per_try_timeout 2, rq_retry 1, rq_retry_limit_exceeded 1, rq_retry_backoff 1, rq_tx_reset 2, failed 2, 504 1",
        ),
        except: &[
            (Mirror, Once, sees(1, "rq_total 1, rq_timeout 1, rq_tx_reset 1, failed 1, 504 1")),
            (Tunnel, Connects, sees(2, "rq_total 2, rq_tx_reset 2, failed 2")),
        ],
        ..ROW
    },
    Row {
        name: "idle timeout of each try",
        host: Silent2,
        timeout: Some(3000),
        retry: Some(Retry { idle: Some(500), ..RETRY }),
        expected: sees(
            2,
            "rq_total 2, rq_per_try_idle_timeout 2, rq_retry 1, rq_retry_limit_exceeded 1, rq_retry_backoff 1, rq_tx_reset 2, failed 2, 504 1",
        ),
        except: &[
            (Mirror, Once, sees(1, "rq_total 1, rq_timeout 1, rq_tx_reset 1, failed 1, 504 1")),
            (Tunnel, Connects, sees(2, "rq_total 2, rq_tx_reset 2, failed 2")),
        ],
        ..ROW
    },
    Row {
        name: "timeout before a retry",
        host: Sends(UNAVAILABLE),
        timeout: Some(500),
        retry: Some(Retry { back_off: 3_600_000, ..RETRY }),
        expected: sees(1, "rq_total 1, rq_timeout 1, rq_retry 1, rq_retry_backoff 1, failed 1, 504 1"),
        except: &[
            (Mirror, Once, sees(1, "rq_total 1, failed 1, 503 1")),
            (Tunnel, Connects, sees(2, "rq_total 2, failed 2")),
        ],
        ..ROW
    },
    Row {
        name: "unavailable, retried",
        host: Sends(UNAVAILABLE),
        retry: retry("5xx", 2),
        expected: sees(3, "rq_total 3, rq_retry 2, rq_retry_limit_exceeded 1, rq_retry_backoff 2, failed 3, 503 1"),
        except: &[
            (Mirror, Once, sees(1, "rq_total 1, failed 1, 503 1")),
            (Tunnel, Connects, sees(3, "rq_total 3, failed 3")),
        ],
        ..ROW
    },
    Row {
        name: "lost race",
        host: SendsOnce(OK),
        requests: 2,
        method: "PUT",
        expected: sees(3, "rq_total 3, 200 2"),
        except: &[
            (Mirror, Streams, sees(2, "rq_total 2, failed 1, 200 1, 503 1")),
            (Tunnel, Unpooled, sees(2, "rq_total 2")),
        ],
        ..ROW
    },
    Row {
        name: "lost race, not to be repeated",
        host: SendsOnce(OK),
        requests: 2,
        expected: sees(2, "rq_total 2, failed 1, 200 1, 503 1"),
        except: &[(Tunnel, Unpooled, sees(2, "rq_total 2"))],
        ..ROW
    },
];

#[test]
fn every_side_sees_the_same() {
    let complaints = std::thread::scope(|scope| {
        let check = |side| scope.spawn(move || ROWS.iter().filter_map(|row| check(row, side)).collect::<Vec<_>>());
        SIDES.map(check).map(|checked| checked.join().expect("no panic")).concat()
    });
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

/// Makes the requests of a row from one side; the difference from what is expected, if any.
fn check(row: &Row, side: Side) -> Option<String> {
    let except = row.except.iter().find(|(except, ..)| *except == side);
    let expected = except.map_or(row.expected, |(.., expected)| *expected);
    let (requests, text) = observe(row, side);
    let moved = moved(&text, side);
    // A tunnel has no statuses.
    let wanted = if side == Tunnel { without_statuses(expected.moved) } else { expected.moved.to_owned() };
    let (name, same) = (row.name, (requests, &moved) == (expected.requests, &wanted));
    (!same).then(|| format!("{name} {side:?}:\n  {requests} {moved}\nexpected:\n  {} {wanted}", expected.requests))
}

fn without_statuses(moved: &str) -> String {
    let words = moved.split(", ").filter(|word| !word.starts_with(|first: char| first.is_ascii_digit()));
    words.collect::<Vec<_>>().join(", ")
}

/// Statistics that are compared. Tunnels have no statuses, as in Envoy: `upstream_rq_completed` and those stand apart.
const COMPARED: &[&str] = &[
    "upstream_cx_connect_fail",
    "upstream_cx_connect_timeout",
    "upstream_cx_none_healthy",
    "upstream_cx_protocol_error",
    "upstream_rq_total",
    "upstream_rq_timeout",
    "upstream_rq_per_try_timeout",
    "upstream_rq_per_try_idle_timeout",
    "upstream_rq_retry",
    "upstream_rq_retry_success",
    "upstream_rq_retry_overflow",
    "upstream_rq_retry_limit_exceeded",
    "upstream_rq_retry_backoff_exponential",
    "upstream_rq_rx_reset",
    "upstream_rq_tx_reset",
    "upstream_rq_pending_overflow",
    "outlier_detection.ejections_detected_consecutive_5xx",
];

/// The statistics that moved, with their values; statuses only of sides that have them.
fn moved(text: &str, side: Side) -> String {
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("cluster.backend.{name}: ")));
        line.map_or(0, |value| value.parse::<u64>().expect("a number"))
    };
    let short = |name: &str| {
        let name = name.trim_start_matches("upstream_").trim_start_matches("outlier_detection.");
        name.replace("ejections_detected_consecutive_5xx", "failed").replace("_exponential", "")
    };
    let mut words: Vec<_> = COMPARED.iter().map(|name| (short(name), value(name))).collect();
    if side != Tunnel {
        let statuses = (100..600).map(|status| (status.to_string(), value(&format!("upstream_rq_{status}"))));
        words.extend(statuses);
    }
    let words = words.into_iter().filter(|(_, value)| *value > 0);
    words.map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(", ")
}
