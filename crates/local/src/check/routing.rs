//! Check steps about routing.

use std::time::Duration;

use http::Method;
use tokio::time::Instant;

use super::example::{Example, POLL_PERIOD};
use super::report::Line;
use crate::client::Call;

/// How long the first request may fail while routes arrive.
const ARRIVAL: Duration = Duration::from_secs(5);
/// Requests over which the split is counted.
const SPLIT_REQUESTS: usize = 200;
/// Answers from v1 among them that are believable for 90 %: the mean is 180, the deviation 4.2.
const SPLIT_EXPECTED: std::ops::RangeInclusive<usize> = 160..=198;

/// The gateway's port on the host leads through capitals-web to capitals-info.
pub async fn reach(example: &Example<'_>) -> Line {
    let what = "gateway → capitals-web → capitals-info: GET /api/capitals/France";
    let deadline = Instant::now() + ARRIVAL;
    loop {
        let call = Call::get("", "/api/capitals/France");
        let seen = match example.visit().await {
            Ok(mut visit) => visit.call(call).await,
            Err(error) => Err(error),
        };
        match seen {
            Ok(answer) if answer.status == 200 && answer.body.contains("\"Paris\"") => {
                return Line::held(format!("{what} answers 200 with Paris"));
            }
            Ok(answer) if Instant::now() >= deadline => return Line::failed(what, answer),
            Err(error) if Instant::now() >= deadline => return Line::failed(what, error),
            _ => tokio::time::sleep(POLL_PERIOD).await,
        }
    }
}

/// Short and full names resolve inside a workload, and a program that knows nothing of the mesh gets through.
pub async fn names(example: &Example<'_>) -> Vec<Line> {
    let mut lines = Vec::new();
    for name in ["capitals-info", "capitals-info.capitals.svc.cluster.local"] {
        let resolved = match example.replica("capitals-web") {
            Ok(replica) => example.resolve(&replica, name).await,
            Err(error) => Err(error),
        };
        lines.push(match resolved {
            Ok(address) => {
                let virtual_address = address.octets().first() == Some(&10) && (96..112).contains(&address.octets()[1]);
                Line::new(
                    format!("{name} resolves in capitals-web to {address}"),
                    virtual_address,
                    "not in 10.96.0.0/12",
                )
            }
            Err(seen) => Line::failed(format!("{name} resolves in capitals-web"), seen),
        });
    }
    let what = "http://capitals-info:8080/capitals/Peru from capitals-web, over a plain socket";
    let answer = example.call_from("capitals-web", "capitals-info", Call::get("", "/capitals/Peru")).await;
    lines.push(match answer {
        Ok(answer) => Line::new(format!("{what} answers Lima"), answer.body.contains("\"Lima\""), answer.to_string()),
        Err(seen) => Line::failed(what, seen),
    });
    lines
}

/// Nine of ten requests go to v1.
pub async fn split(example: &Example<'_>) -> Line {
    let (low, high) = (SPLIT_EXPECTED.start(), SPLIT_EXPECTED.end());
    let counted = async {
        let mut visit = example.visit().await.map_err(|error| error.to_string())?;
        let mut first = 0;
        for _ in 0..SPLIT_REQUESTS {
            first += usize::from(visit.version().await? == "v1");
        }
        Ok::<usize, String>(first)
    };
    match counted.await {
        Ok(first) => {
            let what = format!("90/10 split: {first} of {SPLIT_REQUESTS} on v1 (expected {low}–{high})");
            Line::new(what, SPLIT_EXPECTED.contains(&first), format!("{first} on v1"))
        }
        Err(seen) => Line::failed(format!("90/10 split over {SPLIT_REQUESTS} requests"), seen),
    }
}

/// A header match takes precedence over weights.
pub async fn pin(example: &Example<'_>) -> Line {
    const REQUESTS: usize = 30;
    let what = format!("header x-pin: v2 is answered by v2, {REQUESTS} of {REQUESTS} times");
    let asked = async {
        let mut visit = example.visit().await.map_err(|error| error.to_string())?;
        for _ in 0..REQUESTS {
            let call = Call::get("", "/api/capitals/France").header("x-pin", "v2");
            let answer = visit.call(call).await.map_err(|error| error.to_string())?;
            if answer.header("x-version") != Some("v2") || !answer.body.contains("population") {
                return Err(answer.to_string());
            }
        }
        Ok(())
    };
    match asked.await {
        Ok(()) => Line::held(what),
        Err(seen) => Line::failed(what, seen),
    }
}

/// Posted data can be read again.
pub async fn remember(example: &Example<'_>) -> Line {
    let what = "POST /api/capitals stores Atlantis, GET finds it";
    let done = async {
        let mut visit = example.visit().await.map_err(|error| error.to_string())?;
        let entry = r#"{"country": "Atlantis", "capital": "Poseidonis"}"#;
        let post = Call::get("", "/api/capitals").method(Method::POST).json(entry);
        let posted = visit.call(post).await.map_err(|error| error.to_string())?;
        if posted.status != 201 {
            return Err(posted.to_string());
        }
        let found = visit.call(Call::get("", "/api/capitals/Atlantis")).await.map_err(|error| error.to_string())?;
        if found.status == 200 && found.body.contains("Poseidonis") { Ok(()) } else { Err(found.to_string()) }
    };
    match done.await {
        Ok(()) => Line::held(what),
        Err(seen) => Line::failed(what, seen),
    }
}
