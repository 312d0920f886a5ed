//! What one service more costs, from objects to the snapshot: `cargo run --release -p evenkeel-model --example
//! one_service_more`.

use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use evenkeel_api::Object;
use evenkeel_model::{AddressBook, Builder, MeshConfig};

/// Services added one after the other, each time.
const ADDED: usize = 50;

fn main() -> std::io::Result<()> {
    for services in [100, 350, 1_400, 5_600] {
        let mut builder = Builder::new(MeshConfig::default(), AddressBook::default()).checked(false);
        let all: Vec<_> = (0..services).map(|n| (Path::new(&path(n)).into(), objects(n))).collect();
        let start = Instant::now();
        builder.apply(all);
        let first = start.elapsed();
        let mut took: Vec<_> = (0..ADDED)
            .map(|n| {
                let added = objects(20_000 + n);
                let start = Instant::now();
                builder.apply([(Path::new(&path(20_000 + n)).into(), added)]);
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

/// A service as users write it, with routes, policy and two endpoints.
fn whole_service(number: usize) -> String {
    let host = format!("s{number}.shop.example.com");
    format!(
        "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: s{number}, namespace: shop}}\n\
         spec: {{hosts: [{host}], resolution: STATIC, location: MESH_INTERNAL, ports: [{{number: 80, name: http}}], \
         endpoints: [{{address: 10.0.{a}.{b}}}, {{address: 10.1.{a}.{b}}}]}}\n---\n\
         apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: s{number}, namespace: shop}}\n\
         spec: {{hosts: [{host}], http: [{{match: [{{headers: {{x-user: {{exact: a}}}}}}], timeout: 2s, route: [{{destination: {{host: {host}}}}}]}}, \
         {{route: [{{destination: {{host: {host}}}}}]}}]}}\n---\n\
         apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {{name: s{number}, namespace: shop}}\n\
         spec: {{host: {host}, trafficPolicy: {{loadBalancer: {{simple: ROUND_ROBIN}}}}}}\n",
        a = number / 250,
        b = number % 250 + 1,
    )
}
