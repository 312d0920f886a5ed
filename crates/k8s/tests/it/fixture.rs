//! Clients of the API server that the tests share.

use std::path::Path;
use std::time::Duration;

use evenkeel_testkit::kubernetes::ApiServer;
use kube::Client;
use kube::config::{Config, KubeConfigOptions, Kubeconfig};

/// A client of the administrator.
pub async fn admin(server: &ApiServer) -> Client {
    client(&server.kubeconfig()).await
}

/// A client with the credentials of a kubeconfig file.
pub async fn client(kubeconfig: &Path) -> Client {
    Client::try_from(config(kubeconfig).await).expect("a client")
}

/// The configuration of such a client.
pub async fn config(kubeconfig: &Path) -> Config {
    let file = Kubeconfig::read_from(kubeconfig).expect("a kubeconfig file");
    Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.expect("a configuration")
}

/// A Pod that runs on a node, as far as the API server knows.
pub fn pod(namespace: &str, name: &str, account: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
         spec: {{serviceAccountName: {account}, nodeName: node-1, containers: [{{name: main, image: none}}]}}\n"
    )
}

/// Waits until something holds.
pub async fn until(holds: impl AsyncFn() -> bool) {
    let waiting = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waiting).await.expect("in time");
}
