//! The control plane's end, whatever causes it.

use std::path::Path;
use std::{fs, future};

use clap::Parser;
use tokio::time::timeout;

use super::*;

/// Longer than any of these tests takes.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug, Parser)]
struct Command {
    #[command(flatten)]
    options: Options,
}

async fn start(folder: &Path) -> ControlPlane {
    let config = folder.join("config");
    fs::create_dir_all(&config).expect("a directory");
    let (config, state) = (config.display().to_string(), folder.join("state").display().to_string());
    let any = "127.0.0.1:0";
    let flags = ["--grpc-address", any, "--secure-grpc-address", any, "--http-address", any];
    let command = ["control-plane", "--config", &config, "--state", &state];
    let options = Command::parse_from(command.into_iter().chain(flags)).options;
    ControlPlane::start(&options).await.expect("a control plane")
}

fn entry(name: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: {name}}}\n\
         spec: {{hosts: [{name}.example], ports: [{{number: 80, name: http}}], resolution: DNS}}\n"
    )
}

/// A part that ends takes the process with it, by name, and no address is lost that was assigned shortly before: files are written at
/// intervals only.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_part_that_ends_ends_all() {
    let check = async |fails: bool, expected: Result<(), &str>| {
        let folder = tempfile::tempdir().expect("a directory");
        let plane = start(folder.path()).await;
        let mut world = plane.parts.world.subscribe();
        let (fail, failing) = tokio::sync::oneshot::channel::<()>();
        let mut tasks = Tasks::default();
        tasks.spawn("sentry", async move {
            match failing.await {
                Ok(()) => panic!("out of luck"),
                Err(_) => future::pending().await,
            }
        });
        let (stop, stopping) = tokio::sync::oneshot::channel::<()>();
        let serving = tokio::spawn(plane.serve_with(tasks, async { drop(stopping.await) }));
        for name in ["first", "second"] {
            fs::write(folder.path().join(format!("config/{name}.yaml")), entry(name)).expect("a file");
            let known = world.wait_for(|world| {
                world.snapshot.services.iter().any(|service| service.host.to_string().starts_with(name))
            });
            timeout(PATIENCE, known).await.expect("in time").expect("a control plane");
        }
        let _end = if fails { fail.send(()).map(|()| None) } else { Ok(Some((stop.send(()), fail))) };
        let ended = timeout(PATIENCE, serving).await.expect("in time").expect("no panic");
        assert_eq!(ended.map_err(|error| error.to_string()), expected.map_err(str::to_owned));
        let book = fs::read_to_string(folder.path().join("state/addresses.json")).expect("an address book");
        assert!(book.contains("first.example") && book.contains("second.example"), "{book}");
    };
    check(false, Ok(())).await;
    check(true, Err("the task `sentry` failed, please report this: out of luck")).await;
}
