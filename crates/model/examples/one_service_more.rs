//! Measures the cost of adding one service, from objects to the snapshot: `cargo run --release -p evenkeel-model --example
//! one_service_more`.

use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use evenkeel_api::Object;
use evenkeel_model::{AddressBook, Builder, MeshConfig};
use evenkeel_testkit::objects::whole_service;

/// Services added one after the other, each time.
const ADDED: usize = 50;

fn main() -> std::io::Result<()> {
    for services in [100, 350, 1_400, 5_600] {
        let mut builder = Builder::new(MeshConfig::default(), AddressBook::default()).checked(false);
        let all: Vec<_> = (0..services).map(|n| (Path::new(&path(n)).into(), objects(n))).collect();
        let start = Instant::now();
        builder.apply_files(all);
        let first = start.elapsed();
        let mut took: Vec<_> = (0..ADDED)
            .map(|n| {
                let added = objects(20_000 + n);
                let start = Instant::now();
                builder.apply_files([(Path::new(&path(20_000 + n)).into(), added)]);
                start.elapsed()
            })
            .collect();
        took.sort();
        let (median, most) = (took.get(ADDED / 2), took.last());
        writeln!(std::io::stdout(), "{services} services at once: {first:?}; one more: {median:?}, at most {most:?}")?;
    }
    Ok(())
}

fn path(number: usize) -> String {
    format!("s{number}.yaml")
}

fn objects(number: usize) -> Vec<Arc<Object>> {
    let (objects, _) = evenkeel_api::load(&[(path(number).into(), whole_service(number).into())]);
    objects.into_iter().map(Arc::new).collect()
}
