//! The certificates of the API server and its administrator, the key of service accounts, and kubeconfig files.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256};

use crate::tls::{Identity, TestCa};

/// What clients of an API server need to authenticate it and themselves.
pub(super) struct Credentials {
    root: TestCa,
    admin: Identity,
}

impl Credentials {
    /// Creates all keys, and writes those that the server reads into `folder`.
    pub(super) fn create(folder: &Path) -> Self {
        let root = TestCa::new();
        let write = |name: &str, text: String| std::fs::write(folder.join(name), text).expect("a writable directory");
        write("root.pem", root.root_pem());
        let names = ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"];
        root.for_server_at(&names, IpAddr::V4(Ipv4Addr::LOCALHOST)).write(folder, "server");
        // The API server knows the group `system:masters` as that of administrators.
        let admin = root.for_client("admin", "system:masters");
        admin.write(folder, "admin");
        let accounts = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).expect("a key");
        write("accounts-key.pem", accounts.serialize_pem());
        write("accounts-public-key.pem", accounts.public_key_pem());
        Self { root, admin }
    }

    pub(super) fn root_pem(&self) -> String {
        self.root.root_pem()
    }

    pub(super) fn admin(&self) -> &Identity {
        &self.admin
    }

    /// Writes the administrator's kubeconfig file.
    pub(super) fn write_admin(&self, folder: &Path, server: SocketAddr) {
        let file = |name: &str| folder.join(name).display().to_string();
        let user = format!("{{client-certificate: {}, client-key: {}}}", file("admin-cert.pem"), file("admin-key.pem"));
        write_kubeconfig(folder, server, "kubeconfig", &user);
    }

    /// Writes the kubeconfig file of whoever holds a token, and returns its path.
    pub(super) fn write_token(&self, folder: &Path, server: SocketAddr, name: &str, token: &str) -> PathBuf {
        write_kubeconfig(folder, server, &format!("kubeconfig-{name}"), &format!("{{token: {token}}}"))
    }
}

fn write_kubeconfig(folder: &Path, server: SocketAddr, name: &str, user: &str) -> PathBuf {
    let root = folder.join("root.pem").display().to_string();
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: test\n\
         clusters: [{{name: test, cluster: {{server: \"https://{server}\", certificate-authority: {root}}}}}]\n\
         users: [{{name: test, user: {user}}}]\n\
         contexts: [{{name: test, context: {{cluster: test, user: test}}}}]\n"
    );
    let path = folder.join(name);
    std::fs::write(&path, text).expect("a writable directory");
    path
}
