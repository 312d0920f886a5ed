//! Kubeconfigs out of a Secret: who may write the Secret must not thereby run programs or read files of the control plane.

use kube::config::{AuthInfo, Cluster, Config, KubeConfigOptions, Kubeconfig, KubeconfigError as ConfigError};

/// Why a kubeconfig is not used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KubeconfigError {
    /// It is no text, or no kubeconfig.
    #[error("it is no kubeconfig: {0}")]
    Unreadable(String),
    /// Something is missing in it.
    #[error("it is not complete: {0}")]
    Incomplete(String),
    /// It has a field that would let its writer do more than to name a server and credentials.
    #[error("`{field}` is not accepted in a Secret: {instead}")]
    Forbidden {
        /// The field.
        field: &'static str,
        /// What to write instead.
        instead: &'static str,
    },
}

/// Reads a kubeconfig with everything in it.
///
/// # Errors
/// If it is none, or names programs, files, or a server that is not verified.
pub async fn read(bytes: &[u8]) -> Result<Config, KubeconfigError> {
    let text = std::str::from_utf8(bytes).map_err(|error| KubeconfigError::Unreadable(error.to_string()))?;
    let file = Kubeconfig::from_yaml(text).map_err(|error| KubeconfigError::Unreadable(described(&error)))?;
    // All of them, whichever the context names: a later version of the client might look at others.
    file.auth_infos.iter().filter_map(|named| named.auth_info.as_ref()).try_for_each(check_user)?;
    file.clusters.iter().filter_map(|named| named.cluster.as_ref()).try_for_each(check_cluster)?;
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await;
    config.map_err(|error| KubeconfigError::Incomplete(described(&error)))
}

/// What an error says, without any of the text that it is about: that has credentials, and logs, pages and findings have more readers.
fn described(error: &ConfigError) -> String {
    match error {
        ConfigError::Parse(error) => match error.location() {
            Some(place) => format!("line {}, column {}: not what a kubeconfig has there", place.line(), place.column()),
            None => "it is not the YAML of a kubeconfig".to_owned(),
        },
        ConfigError::LoadCertificateAuthority(_) => "`certificate-authority-data` is no base64".to_owned(),
        ConfigError::LoadClientCertificate(_) => "`client-certificate-data` is no base64".to_owned(),
        ConfigError::LoadClientKey(_) => "`client-key-data` is no base64".to_owned(),
        ConfigError::ParseCertificates(_) => "`certificate-authority-data` has no certificates".to_owned(),
        other => other.to_string(),
    }
}

fn refuse(is_given: bool, field: &'static str, instead: &'static str) -> Result<(), KubeconfigError> {
    if is_given { Err(KubeconfigError::Forbidden { field, instead }) } else { Ok(()) }
}

fn check_user(user: &AuthInfo) -> Result<(), KubeconfigError> {
    let credentials = "it would run a program; write a token or a certificate";
    refuse(user.exec.is_some(), "exec", credentials)?;
    refuse(user.auth_provider.is_some(), "auth-provider", credentials)?;
    let own = "it would read a file of the control plane; write the content";
    refuse(user.token_file.is_some(), "tokenFile", own)?;
    refuse(user.client_certificate.is_some(), "client-certificate", own)?;
    refuse(user.client_key.is_some(), "client-key", own)
}

fn check_cluster(cluster: &Cluster) -> Result<(), KubeconfigError> {
    let own = "it would read a file of the control plane; write `certificate-authority-data`";
    refuse(cluster.certificate_authority.is_some(), "certificate-authority", own)?;
    let verified = "credentials would be sent to anybody; write `certificate-authority-data`";
    refuse(cluster.insecure_skip_tls_verify == Some(true), "insecure-skip-tls-verify", verified)?;
    let is_plain = cluster.server.as_deref().is_some_and(|server| !server.starts_with("https://"));
    refuse(is_plain, "server", "credentials would be sent without TLS; write an address with https://")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn nothing_but_a_server_and_credentials_is_accepted() {
        let check = async |cluster: &str, user: &str, expected: Result<&str, &str>| {
            let text = format!(
                "apiVersion: v1\nkind: Config\ncurrent-context: a\ncontexts: [{{name: a, context: {{cluster: a, user: a}}}}]\n\
                 clusters: [{{name: a, cluster: {{{cluster}}}}}]\nusers: [{{name: a, user: {{{user}}}}}]\n"
            );
            let found = read(text.as_bytes()).await.map(|config| config.cluster_url.to_string());
            match (found, expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected),
                (Err(found), Err(expected)) => assert!(found.to_string().contains(expected), "{found}"),
                (found, expected) => panic!("{found:?}, not {expected:?}"),
            }
        };
        let server = "server: 'https://127.0.0.1:1'";
        check(server, "token: x", Ok("https://127.0.0.1:1/")).await;
        check(server, "exec: {apiVersion: client.authentication.k8s.io/v1, command: login}", Err("`exec`")).await;
        check(server, "auth-provider: {name: gcp, config: {}}", Err("`auth-provider`")).await;
        check(server, "tokenFile: /etc/passwd", Err("`tokenFile`")).await;
        check(server, "client-certificate: /a.pem", Err("`client-certificate`")).await;
        check(server, "client-key: /a.pem", Err("`client-key`")).await;
        check("server: 'https://a', certificate-authority: /a.pem", "token: x", Err("`certificate-authority`")).await;
        check("server: 'https://a', insecure-skip-tls-verify: true", "token: x", Err("`insecure-skip-tls-verify`"))
            .await;
        check("server: 'http://a'", "token: x", Err("`server`")).await;
        check("", "token: x", Err("not complete")).await;
    }

    #[tokio::test]
    async fn anything_else_is_no_kubeconfig() {
        let check = async |bytes: &[u8], expected: &str| {
            let found = read(bytes).await.expect_err("it is refused").to_string();
            assert!(found.contains(expected), "{found}");
        };
        check(b"\xff\xfe", "no kubeconfig").await;
        check(b"clusters: [", "no kubeconfig").await;
        check(b"", "it is").await;
        check(b"{}", "not complete").await;
        check(b"{current-context: b, contexts: [{name: a}]}", "not complete").await;
        check(b"kind: Config\nusers: 7\n", "line 2, column 8").await;
    }

    #[tokio::test]
    async fn no_error_tells_a_token() {
        let token = "eyJhbGciOi";
        for text in [
            format!("users:\n- name: a\n  user: {{token: {token}, : ]\n"),
            format!("users: [{{name: a, user: {{token: [{token}]}}}}]\n"),
            format!("users: [{{name: a, user: {token}}}]\n"),
            format!("users:\n- {{name: a, user: {{token: {token}}}}}\nclusters: 7\n"),
            format!("{token}\n"),
            format!("users: [{{name: a, user: {{token: '{token}}}}}]\n"),
            format!(
                "current-context: a\ncontexts: [{{name: a, context: {{cluster: a, user: a}}}}]\nclusters: [{{name: a, cluster: \
                 {{server: 'https://a:1', certificate-authority-data: '{token}!'}}}}]\nusers: [{{name: a, user: {{token: {token}}}}}]\n"
            ),
        ] {
            let error = read(text.as_bytes()).await.expect_err("it is refused").to_string();
            assert!(!error.contains(token) && !error.contains('\n'), "{error}");
        }
    }
}
